"""The SQL of both stores, written once for SQLite and PostgreSQL."""

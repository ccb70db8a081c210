"""The SQL of both stores, shared by SQLite and PostgreSQL."""

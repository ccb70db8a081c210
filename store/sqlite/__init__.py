"""The stores on SQLite: engine, schema, migrations, and the SQL that differs from PostgreSQL's."""

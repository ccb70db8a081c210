"""The stores on PostgreSQL: engine, schema, migrations, and the SQL that differs from SQLite's."""

"""Reads the schema of a PostgreSQL database, and the one that the migrations create."""

from collections.abc import Sequence

from asyncpg import Connection

from store.postgres.engine import connect
from store.postgres.schema import CREATE_MIGRATIONS, load_statements
from store.schema_faults import SchemaObjects, list_schema_faults

# Each row: the kind of an object, its table (or its own name, if it has none), name and definition.
_LIST_OBJECTS = """
WITH tables AS (
  SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence, c.relrowsecurity
  FROM pg_class c
  WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
)
SELECT 'table' AS kind, name AS owner, name,
  concat_ws(' ', relkind, relpersistence, relrowsecurity) AS definition
FROM tables
UNION ALL
SELECT 'column', t.name, t.name || '.' || a.attname,
  concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, l.collname,
    pg_get_expr(d.adbin, d.adrelid))
FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
UNION ALL
SELECT 'constraint', t.name, t.name || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid
UNION ALL
SELECT 'index', t.name, i.relname, concat_ws(' ', pg_get_indexdef(i.oid), x.indisvalid)
FROM tables t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i ON i.oid = x.indexrelid
UNION ALL
SELECT 'trigger', t.name, t.name || '.' || g.tgname,
  concat_ws(' ', g.tgenabled, pg_get_triggerdef(g.oid, true))
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION ALL
SELECT 'foreign keys', t.name, t.name, string_agg(g.tgenabled::text, '' ORDER BY g.tgenabled)
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND g.tgisinternal GROUP BY t.name
UNION ALL
SELECT 'rule', t.name, t.name || '.' || r.rulename, pg_get_ruledef(r.oid)
FROM tables t JOIN pg_rewrite r ON r.ev_class = t.oid
UNION ALL
SELECT 'function', p.proname, p.proname,
  concat_ws(' ', p.prosrc, p.proconfig, p.prosecdef, p.provolatile, p.prorettype::regtype)
FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace
"""


async def find_schema_faults(url: str, schema: str, migrations: Sequence[str]) -> list[str]:
    """Describe how a schema differs from the one that the migrations create.

    They create it under another name, in a transaction that is rolled back.
    """
    created_schema = f"{schema}_created"
    session = await connect(url, created_schema)
    transaction = session.transaction()
    await transaction.start()
    try:
        await session.execute(f"CREATE SCHEMA {created_schema}")
        await session.execute(CREATE_MIGRATIONS)
        for name in migrations:
            for statement in load_statements(name):
                await session.execute(statement)
        created = await _list_objects(session, created_schema)
        stored = await _list_objects(session, schema)
    finally:
        await transaction.rollback()
        await session.close()
    # Of a table that no migration creates, its parts say nothing more.
    owners = {owner for owner, _ in created}
    told = {
        (owner, name): text
        for (owner, name), text in stored.items()
        if owner in owners or name in (f"table {owner}", f"function {owner}")
    }
    return list_schema_faults(_drop_owners(told), _drop_owners(created))


async def _list_objects(session: Connection, schema: str) -> dict[tuple[str, str], str]:
    """Return the definition of each object by its owner and name."""
    # Names are then printed without the schema, except where the catalog stores or always adds it.
    await session.execute("SELECT set_config('search_path', $1, true)", schema)
    rows = await session.fetch(_LIST_OBJECTS, schema)
    return {
        (row["owner"], f"{row['kind']} {row['name']}"): row["definition"].replace(schema, "")
        for row in rows
    }


def _drop_owners(objects: dict[tuple[str, str], str]) -> SchemaObjects:
    return {name: text for (_, name), text in objects.items()}

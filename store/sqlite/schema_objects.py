"""Reads the schema of a SQLite file, and the one that the migrations create."""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from store.errors import StoreError
from store.schema_faults import SchemaObjects, list_schema_faults
from store.sqlite.copies import open_read_only
from store.sqlite.schema import CREATE_MIGRATIONS, load_statements

# The others are SQLite's own.
_LIST_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
_COMMENT = re.compile(r"--[^\n]*")


def find_schema_faults(path: Path, migrations: Sequence[str]) -> list[str]:
    """Describe how the schema of a file differs from the one that the migrations create."""
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
            memory.execute(CREATE_MIGRATIONS)
            for name in migrations:
                for statement in load_statements(name):
                    memory.execute(statement)
            created = _list_objects(memory)
        with closing(open_read_only(path)) as connection:
            stored = _list_objects(connection)
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the schema of {path}: {error}") from error
    # Of a table that no migration creates, its parts say nothing more.
    tables = {name for kind, name, _ in created if kind == "table"}
    told = {key: sql for key, sql in stored.items() if key[2] in {*tables, key[1]}}
    return list_schema_faults(_name_objects(told), _name_objects(created))


def _list_objects(connection: sqlite3.Connection) -> dict[tuple[str, str, str], str]:
    """Return the statement of each object by its type, name and table."""
    return {
        (kind, name, table): " ".join(_COMMENT.sub("", sql).replace('"', "").split())
        for kind, name, table, sql in connection.execute(_LIST_OBJECTS)
    }


def _name_objects(objects: dict[tuple[str, str, str], str]) -> SchemaObjects:
    return {f"{kind} {name}": sql for (kind, name, _), sql in objects.items()}

"""Shared by the migrations of both databases: their files, messages and schema check."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

import structlog

from store.store_errors import StoreError

log = structlog.get_logger("store")

# The definition of each object of a schema by the name of its table (its own if it has none) and by
# its kind and name, such as "trigger passes_update".
SchemaObjects = Mapping[tuple[str, str], str]


def read_migration(package: str, name: str) -> str:
    """Return the script of a named migration."""
    return files(package).joinpath("migrations", f"{name}.sql").read_text(encoding="utf-8")


def check_applied(database: str, done: Sequence[str], names: Sequence[str]) -> None:
    """Raise StoreError unless the applied migrations are the first ones of the known ones."""
    if list(done) != list(names[: len(done)]):
        unknown = ", ".join(sorted(set(done) - set(names))) or "gaps"
        raise StoreError(
            f"{database} was written by another version of signals (migrations: {unknown}): run "
            "that version, or name a new database"
        )


def describe_failed_migration(database: str, migration: str, error: BaseException) -> str:
    """Describe a migration that failed and was rolled back, in one line."""
    # Later lines of a PostgreSQL message (DETAIL, CONTEXT) quote values of rows.
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return (
        f"{database}: migration {migration} failed: {reason}; it was rolled back, so the database "
        "is unchanged: fix the cause and start again"
    )


def log_migrations(database: str, done: Sequence[str], names: Sequence[str]) -> None:
    """Log the migrations of a database that is not new."""
    for name in names[len(done) :] if done else ():
        log.info("migrated", database=database, migration=name)


def list_schema_faults(stored: SchemaObjects, created: SchemaObjects) -> list[str]:
    """Describe each object that the database lacks, has in addition, or has in another form."""
    # Of a table that no migration creates, its parts say nothing more.
    owners = {owner for owner, _ in created}
    faults = dict.fromkeys(created.keys() - stored.keys(), "is missing")
    faults |= {
        (owner, name): "does not belong there"
        for owner, name in stored.keys() - created.keys()
        if owner in owners or name in {f"{kind} {owner}" for kind in ("table", "view", "function")}
    }
    faults |= {
        key: "is not as the migrations create it"
        for key in stored.keys() & created.keys()
        if stored[key] != created[key]
    }
    return sorted(f"{name} {fault}" for (_, name), fault in faults.items())

"""Shared by the migrations of both databases: their files, messages and schema check."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from store.errors import StoreError

# The definition of each object of a schema by its name, such as "trigger passes_update".
SchemaObjects = Mapping[str, str]


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


def describe_failed_migration(
    database: str, migration: str, step: str, error: BaseException, remedy: str
) -> str:
    """Describe a migration that failed and was rolled back, in one line."""
    # Later lines of a PostgreSQL message (DETAIL, CONTEXT) quote values of rows.
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return (
        f"{database}: migration {migration} failed at {step}: {reason}; it was rolled back, so the "
        f"database is unchanged by it. {remedy}"
    )


def describe_statement(number: int, statement: str) -> str:
    """Name a statement of a migration by its number and first words, which contain no data."""
    lines = (line for line in statement.splitlines() if not line.lstrip().startswith("--"))
    return f"statement {number} ({' '.join(' '.join(lines).split()[:3])})"


def list_schema_faults(stored: SchemaObjects, created: SchemaObjects) -> list[str]:
    """Describe each object that the database lacks, has in addition, or has in another form."""
    faults = dict.fromkeys(created.keys() - stored.keys(), "is missing")
    faults |= dict.fromkeys(stored.keys() - created.keys(), "does not belong there")
    faults |= {
        name: "is not as the migrations create it"
        for name in stored.keys() & created.keys()
        if stored[name] != created[name]
    }
    return [f"{name} {faults[name]}" for name in sorted(faults)]

"""Exceptions of the stores, and the message of a failed migration."""

from schemas.errors import OperatorError


class StoreError(OperatorError):
    """The store cannot be used; the message is one line that the operator can act on."""


class LockTakenError(StoreError):
    """Another process holds the compute lock, or may hold it since this one lost its session."""


class DatabaseFailureError(StoreError):
    """The database failed; it did not merely refuse rows that break its rules."""


class NotWritableError(StoreError):
    """The last write to the store failed."""


class LostStoreError(DatabaseFailureError):
    """The open store was deleted, replaced or truncated, or is not the one known by its pair."""


class DamagedError(StoreError):
    """The store holds rows that no commit can have written."""


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

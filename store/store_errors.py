"""Exceptions of the stores."""

from schemas.errors import OperatorError


class StoreError(OperatorError):
    """The store cannot be used; the message is one line that the operator can act on."""


class LockTakenError(StoreError):
    """Another process holds the compute lock, or may hold it since this one lost its session."""


class DatabaseFailureError(StoreError):
    """The database failed; it did not merely refuse rows that break its rules."""


class UnreachableError(DatabaseFailureError):
    """The database server does not answer, or accepts no session now."""


class NotWritableError(StoreError):
    """The last write to the store failed."""


class LostStoreError(DatabaseFailureError):
    """The open store was deleted, replaced or truncated, or is not the one known by its pair."""


class DamagedError(StoreError):
    """The store holds rows that no commit can have written."""

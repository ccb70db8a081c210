"""Exceptions of the stores."""

from schemas.operator_error import OperatorError


class StoreError(OperatorError):
    """The store cannot be used; the message is one line that the operator can act on."""


class LockTakenError(StoreError):
    """Another process holds the compute lock, or may hold it since this one lost its session."""


class DamagedError(StoreError):
    """The store holds rows that no commit can have written."""

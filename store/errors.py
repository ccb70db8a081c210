"""How stores fail."""

from schemas.operator_error import OperatorError


class StoreError(OperatorError):
    """An operator's mistake about the store, told in one line."""


class LockTakenError(StoreError):
    """Another process computes on this store, or may since this one's session with it ended."""


class DamagedError(StoreError):
    """The store holds what no commit wrote."""

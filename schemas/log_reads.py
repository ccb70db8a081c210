"""Queries and results of the keyed reads of the transparency log."""

from pydantic import Field, RootModel

from schemas.query import Query
from schemas.result import Count, Result
from schemas.vocabulary import Instant, SourceKind

MAX_ROW_ID_CHARS = 100
MAX_LEAVES = 1000
MAX_LEAF = 2**53 - 1


class LogProofQuery(Query):
    """The row to prove."""

    id: str | None = Field(
        default=None,
        max_length=MAX_ROW_ID_CHARS,
        # Only the document says so: an id of another form is answered like an unknown one.
        json_schema_extra={"pattern": r"^(universe|alerts)(\.[A-Za-z0-9_]+){5,6}$"},
        description="Id of a row of the feed. Example: universe.BTC.enzo.1h.1780000000.0",
    )


class LogProof(RootModel[str]):
    """The text of a proof in the format tlog-proof."""


class LogLeavesQuery(Query):
    """A range of leaves."""

    start: int = Field(
        default=0, ge=0, le=MAX_LEAF, description="Index of the first leaf. Default 0, the oldest."
    )
    limit: int = Field(
        default=MAX_LEAVES,
        ge=1,
        le=MAX_LEAVES,
        description=f"Leaves per page. Default {MAX_LEAVES}.",
    )


class Leaf(Result):
    """A leaf of the log: that of the row with this `created_at`, or the first one."""

    index: Count
    created_at: Instant
    salt: str = Field(description="16 bytes in base64, which come before the row's canonical JSON.")


class FirstLeaf(Result):
    """The content of the first leaf: what the data are, and when the service first started.

    Rows from before it were computed at that start.
    """

    source: SourceKind
    started_at: Instant


class LogLeavesResponse(Result):
    """Leaves of the signed tree, oldest first; `start` is the content of leaf 0, if asked for."""

    size: Count = Field(description="Leaves of the signed tree.")
    start: FirstLeaf | None
    leaves: list[Leaf]

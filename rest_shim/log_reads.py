"""The keyed reads of the transparency log: the proof of a row, and the salts of many.

They run as tools do, but MCP does not list them: a proof is for a program that verifies it.
"""

from base64 import b64encode

from schemas.errors import unavailable_error
from schemas.log import (
    Leaf,
    LogLeavesQuery,
    LogLeavesResponse,
    LogProof,
    LogProofQuery,
)
from schemas.vocabulary import format_instant
from serving.arguments import ArgumentError, Problem, quote_value
from serving.context import Context
from serving.response_cache import ResponseBody
from serving.tool import Tool
from store.market_rows import LeafRow
from store.sql.feed_log import FeedLog, UnloggedRowError

RETRY_S = 60
ID_FORMS = (
    "accepted: the id of a row as signals_get_signals returns it, such as "
    "universe.BTC.enzo.1h.1780000000.0"
)
NEVER_SIGNED = (
    f"The log has not been signed yet; the first run does that. Retry after {RETRY_S} seconds."
)
NOT_SIGNED_YET = (
    f"This row is newer than the last signed checkpoint. Retry after {RETRY_S} seconds."
)


async def load_signed_note(log: FeedLog) -> tuple[int, str]:
    """Return the size and the note of the newest checkpoint; ApiError 503 if there is none."""
    checkpoint = await log.checkpoint()
    if checkpoint.refusal is not None:
        raise unavailable_error(
            f"The log is not signed at the moment: {checkpoint.refusal}. Retry after {RETRY_S} "
            "seconds.",
            RETRY_S,
            names_operator=True,
        )
    if checkpoint.note is None:
        raise unavailable_error(NEVER_SIGNED, RETRY_S)
    return checkpoint.size, checkpoint.note


async def load_log_key(log: FeedLog) -> str:
    """Return the line of the key that signed last; ApiError 503 if none has."""
    checkpoint = await log.checkpoint()
    if checkpoint.vkey is None:
        raise unavailable_error(NEVER_SIGNED, RETRY_S)
    return f"{checkpoint.vkey}\n"


async def get_log_proof(query: LogProofQuery, context: Context) -> ResponseBody:
    """Return the proof of a row in the newest signed tree."""
    if query.id is None:
        raise ArgumentError(Problem("id", f"id is missing; {ID_FORMS}"))
    log = context.snapshots.store.feed_log
    size, note = await load_signed_note(log)
    leaf = await _find_leaf(log, query.id)
    if leaf is None or leaf.leaf >= size:
        raise unavailable_error(NOT_SIGNED_YET, RETRY_S)
    proof = await log.prove_inclusion(leaf.leaf, size)
    return ResponseBody(format_proof(leaf, proof, note).encode())


async def get_log_leaves(query: LogLeavesQuery, context: Context) -> LogLeavesResponse:
    """Return leaves of the newest signed tree."""
    log = context.snapshots.store.feed_log
    size, _ = await load_signed_note(log)
    rows = await log.leaves(query.start, min(size, query.start + query.limit))
    return LogLeavesResponse(size=size, leaves=[_build_leaf(row) for row in rows])


def format_proof(leaf: LeafRow, proof: list[bytes], note: str) -> str:
    """Return a proof in C2SP's format tlog-proof; `extra` is the salt."""
    lines = [
        "c2sp.org/tlog-proof@v1",
        f"extra {_encode(leaf.salt)}",
        f"index {leaf.leaf}",
        *map(_encode, proof),
    ]
    return "\n".join(lines) + f"\n\n{note}"


async def _find_leaf(log: FeedLog, row_id: str) -> LeafRow | None:
    """Return the leaf of a row, None if it has none yet; ArgumentError for an unknown row."""
    try:
        leaf = await log.find_leaf(row_id)
    except UnloggedRowError:
        return None
    if leaf is None:
        text = f"id: {quote_value(row_id)} is not the id of a published row; {ID_FORMS}"
        raise ArgumentError(Problem("id", text))
    return leaf


def _build_leaf(row: LeafRow) -> Leaf:
    return Leaf(index=row.leaf, created_at=format_instant(row.created_at), salt=_encode(row.salt))


def _encode(value: bytes) -> str:
    return b64encode(value).decode()


GET_LOG_PROOF = Tool(
    name="signals_get_log_proof",
    title="Proof of a row",
    description="Proves that a row of the feed is in the signed log: a c2sp.org/tlog-proof@v1 with "
    "the newest checkpoint. Its extra line is the salt. The leaf is the salt followed by the row's "
    "JSON in the form of RFC 8785, of the members id, tier, ticker, indicator, timeframe, "
    "direction, transition, change_type, action, price and created_at.",
    query=LogProofQuery,
    result=LogProof,
    handler=get_log_proof,
    depends_on_snapshot=False,
)
GET_LOG_LEAVES = Tool(
    name="signals_get_log_leaves",
    title="Leaves of the log",
    description="Returns the salts of up to 1,000 leaves of the signed log, oldest first, with "
    "created_at of their rows. With them, a client that has the rows checks all of them against "
    "the open tiles, and sees that no leaf lacks a row. Rows older than their retention are gone, "
    "but their leaves stay.",
    query=LogLeavesQuery,
    result=LogLeavesResponse,
    handler=get_log_leaves,
    depends_on_snapshot=False,
)

"""Reads of the transparency log: its tiles, the proof of a row, and the salts of many.

The keyed ones run as tools do, but MCP does not list them: a proof is for a program that verifies
it. The paths of the tiles are those of C2SP's tlog-tiles.
"""

import re
from base64 import b64encode
from typing import cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.errors import ApiError, unavailable_error
from schemas.log_reads import (
    FirstLeaf,
    Leaf,
    LogLeavesQuery,
    LogLeavesResponse,
    LogProof,
    LogProofQuery,
)
from schemas.vocabulary import SourceKind, format_instant
from serving.arguments import ArgumentError, Problem, quote_value
from serving.context import Context
from serving.error_responses import guard_route
from serving.response_cache import ResponseBody
from serving.tool import Tool
from serving.tool_runner import ToolRunner
from store.log_tree import HASH_BYTES, TILE_WIDTH, TileId, find_width
from store.sql.transparency_log import FeedLog

LOG_PATH = "/api/v1/log"
TILE_PATH = LOG_PATH + "/tile/{path:path}"
# A level, a number in groups of three digits, and the width of a partial tile.
_TILE = re.compile(
    r"(\d|[1-5]\d|6[0-3])/((?:x(?!000/)\d{3}/(?:x\d{3}/){0,4})?\d{3})(?:\.p/([1-9]\d{0,2}))?"
)
TILE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
RETRY_S, REFUSED_RETRY_S = 60, 3600
ID_FORMS = (
    "accepted: the id of a row as signals_get_signals returns it, such as "
    "universe.BTC.enzo.1h.1780000000.0"
)
NEVER_SIGNED = (
    "The log has not been signed yet: the first hourly run does that. Retry after minute 3 of the "
    "hour."
)
NOT_SIGNED_YET = (
    f"This row is newer than the last signed checkpoint. Retry after {RETRY_S} seconds."
)


async def load_signed_note(log: FeedLog) -> tuple[int, str]:
    """Return the size and the note of the newest checkpoint; ApiError 503 if there is none."""
    checkpoint = await log.checkpoint()
    if checkpoint.refusal is not None:
        raise unavailable_error(
            f"The log is not signed at the moment: {checkpoint.refusal}. Only the operator can "
            "change that, so retry after an hour.",
            REFUSED_RETRY_S,
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
    leaf = await log.find_leaf(query.id)
    if leaf is None:
        text = f"id: {quote_value(query.id)} is not the id of a published row; {ID_FORMS}"
        raise ArgumentError(Problem("id", text))
    if leaf.leaf >= size:
        raise unavailable_error(NOT_SIGNED_YET, RETRY_S)
    proof = await log.prove_inclusion(leaf.leaf, size)
    # In C2SP's format tlog-proof; `extra` is the salt.
    lines = [
        "c2sp.org/tlog-proof@v1",
        f"extra {_encode(leaf.salt)}",
        f"index {leaf.leaf}",
        *map(_encode, proof),
        "",
        note,
    ]
    return ResponseBody("\n".join(lines).encode())


async def get_log_leaves(query: LogLeavesQuery, context: Context) -> LogLeavesResponse:
    """Return leaves of the newest signed tree."""
    log = context.snapshots.store.feed_log
    size, _ = await load_signed_note(log)
    rows = await log.leaves(query.start, min(size, query.start + query.limit))
    leaves = [
        Leaf(index=row.leaf, created_at=format_instant(row.created_at), salt=_encode(row.salt))
        for row in rows
    ]
    found = None if query.start else await log.start()
    start = found and FirstLeaf(
        source=cast(SourceKind, found.source), started_at=format_instant(found.started_at)
    )
    return LogLeavesResponse(size=size, start=start, leaves=leaves)


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
    "but their leaves stay. Leaf 0 has the source "
    "and the first start, which start returns.",
    query=LogLeavesQuery,
    result=LogLeavesResponse,
    handler=get_log_leaves,
    depends_on_snapshot=False,
)


def build_tile_route(runner: ToolRunner) -> Route:
    """Return the route that serves the tiles of the signed tree."""
    log = runner.context.snapshots.store.feed_log

    async def respond(request: Request) -> Response:
        tile, width = parse_tile(request.path_params["path"])
        signed = await log.checkpoint()
        hashes = await log.tile(tile) if width <= find_width(tile, signed.size) else None
        if hashes is None:
            raise _no_such_tile_error()
        body = hashes[: width * HASH_BYTES]
        return Response(body, 200, TILE_HEADERS, "application/octet-stream")

    return Route(TILE_PATH, guard_route(TILE_PATH, runner, respond), methods=["GET"])


def parse_tile(path: str) -> tuple[TileId, int]:
    """Return the tile and the width that a path names; ApiError 404 if it names none."""
    found = _TILE.fullmatch(path)
    if found is None:
        raise _no_such_tile_error()
    level, number, width = found.groups()
    if width is not None and int(width) >= TILE_WIDTH:
        raise _no_such_tile_error()
    tile = TileId(int(level), int(re.sub("[x/]", "", number)))
    return tile, TILE_WIDTH if width is None else int(width)


def _no_such_tile_error() -> ApiError:
    return ApiError(
        "invalid_parameter",
        f"The signed log has no such tile; accepted: {LOG_PATH}/tile/<L>/<N>[.p/<W>] as "
        f"c2sp.org/tlog-tiles says, within the size that {LOG_PATH}/checkpoint names. Entries are "
        f"not public: {LOG_PATH}/proof proves a row.",
        404,
    )

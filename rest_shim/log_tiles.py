"""The route of the log's tiles, whose paths are those of C2SP's tlog-tiles."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.errors import ApiError
from serving.error_responses import guard_route
from serving.tool_runner import ToolRunner
from store.log_tree import HASH_BYTES, TILE_WIDTH, TileId, find_width

LOG_PATH = "/api/v1/log"
TILE_PATH = LOG_PATH + "/tile/{path:path}"
# A level, a number in groups of three digits, and the width of a partial tile.
_TILE = re.compile(
    r"(\d|[1-5]\d|6[0-3])/((?:x(?!000/)\d{3}/(?:x\d{3}/){0,4})?\d{3})(?:\.p/([1-9]\d{0,2}))?"
)
HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}


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
        return Response(body, 200, HEADERS, "application/octet-stream")

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

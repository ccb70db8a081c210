"""One call of one tool as both faces make it: key, then arguments, then the answer as JSON text."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from access.keys import Keys, how_to_get_access
from mcp_server.arguments import validated
from mcp_server.context import Context, Rendered
from mcp_server.freshness import changes_at
from mcp_server.tools.tool import Tool
from schemas.errors import ApiError, ErrorBody, HowToGetAccess, unavailable
from store.protocol import StoreError
from store.rows import KeyRow

AnyTool = Tool[Any, Any]
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
STORE_RETRY_S = 60
MOST_RENDERED = 256

log = structlog.get_logger("calls")


@dataclass(frozen=True, slots=True)
class Calls:
    """Runs tools on a context for whoever holds a key."""

    keys: Keys
    context: Context

    async def authorise(self, tool: AnyTool, headers: Mapping[str, str]) -> KeyRow | None:
        """Return the key of a call, None for a tool that needs none; ApiError without a live one.

        `headers` are looked up by lower-case name.
        """
        if not tool.keyed:
            return None
        return await self.keys.authenticate(headers.get("authorization"), headers.get("x-api-key"))

    async def answer(self, tool: AnyTool, raw: Mapping[str, Any], key: KeyRow | None) -> str:
        """Return the whole answer as minified JSON; ApiError is what the caller should read.

        StoreError where the store fails: `store_failure` says what to tell of it.
        """
        query = validated(tool.query, raw)
        context = replace(self.context, key=key)
        board = await context.boards.board() if tool.rests_on_board else None
        if board is None:
            return await _rendered(tool, query, context)
        place, now = (tool.name, query), context.clock()
        held = board.rendered.get(place)
        if held is None or not held.holds_at(now):
            held = Rendered(await _rendered(tool, query, context), now, changes_at(board, now))
            if len(board.rendered) < MOST_RENDERED:
                board.rendered[place] = held
        return held.text

    def refusal(self, error: ApiError) -> str:
        """Return the Error object of a refusal as minified JSON."""
        access = how_to_get_access(self.context.base_url) if error.code in ACCESS_CODES else None
        return error_text(error, self.context.docs, access)


async def _rendered(tool: AnyTool, query: Any, context: Context) -> str:
    result = await tool.handler(query, context)
    text: str = result.model_dump_json(by_alias=True)
    return text


def store_failure(error: StoreError, where: str) -> ApiError:
    """Log that the store failed at a tool or route, and return what the caller should read."""
    log.error("store_failed", at=where, **failure_facts(error))
    return unavailable(
        "The store cannot be read at the moment; the operator's log says more. "
        f"Retry after {STORE_RETRY_S} seconds.",
        STORE_RETRY_S,
    )


def failure_facts(error: Exception) -> dict[str, str]:
    """Return what the log may know of an unexpected failure: where, never with which values.

    Messages and locals (which structlog's console shows where rich is installed) can hold keys
    and arguments.
    """
    where = "".join(traceback.format_tb(error.__traceback__))
    return {"failure": type(error).__name__, "where": where}


def error_text(error: ApiError, docs: str, access: HowToGetAccess | None = None) -> str:
    """Return the one error body of SPEC.md as minified JSON."""
    body = ErrorBody(error=error.code, message=error.message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True)

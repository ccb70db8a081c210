"""One call of one tool as both faces make it: key, then arguments, then the answer as JSON text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from access.admission import Admissions, Admitted
from access.plan import how_to_get_access
from mcp_server.arguments import validated
from mcp_server.context import Context, Rendered
from mcp_server.freshness import changes_at
from mcp_server.tools.tool import Tool
from schemas.errors import ApiError, ErrorBody, HowToGetAccess, failure_facts, unavailable
from schemas.results import Quota
from store.protocol import StoreError

AnyTool = Tool[Any, Any]
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
STORE_RETRY_S = INTERNAL_RETRY_S = 60
MOST_RENDERED = 256

log = structlog.get_logger("calls")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to, as JSON text: the answer, or the Error object where `error` is set.

    `quota` is what the call left of its key's; None where no key was needed or none was live.
    """

    text: str
    error: ApiError | None
    quota: Quota | None


@dataclass(frozen=True, slots=True)
class Calls:
    """Runs tools on a context for whoever is admitted."""

    admissions: Admissions
    context: Context

    async def outcome(
        self, tool: AnyTool, headers: Mapping[str, str], arguments: Callable[[], Mapping[str, Any]]
    ) -> Outcome:
        """Admit a call, then read its arguments and answer them; nothing is raised.

        `headers` are looked up by lower-case name.
        """
        caller: Admitted | None = None
        try:
            if tool.keyed:
                caller = await self._admitted(tool, headers)
            return Outcome(await self._answer(tool, arguments(), caller), None, _quota(caller))
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = store_failure(failure, tool.name)
        except Exception as failure:
            log.error("call_failed", tool=tool.name, **failure_facts(failure))
            error = internal_error()
        return Outcome(self.refusal(error), error, error.quota or _quota(caller))

    async def _admitted(self, tool: AnyTool, headers: Mapping[str, str]) -> Admitted:
        return await self.admissions.admit(
            headers.get("authorization"), headers.get("x-api-key"), even_spent=tool.even_spent
        )

    async def _answer(self, tool: AnyTool, raw: Mapping[str, Any], caller: Admitted | None) -> str:
        query = validated(tool.query, raw)
        context = replace(self.context, caller=caller)
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


def _quota(caller: Admitted | None) -> Quota | None:
    return None if caller is None else caller.quota


def quota_headers(quota: Quota | None) -> dict[str, str]:
    """Return the headers that carry a quota; none without one."""
    if quota is None:
        return {}
    return {
        "X-RateLimit-Limit": str(quota.daily_limit),
        "X-RateLimit-Remaining": str(quota.remaining_today),
        "X-RateLimit-Reset": quota.resets_at,
    }


def internal_error() -> ApiError:
    """Return what a caller may know of an unexpected failure."""
    return ApiError(
        "unavailable",
        f"Internal error; the operator's log says more. Retry after {INTERNAL_RETRY_S} seconds.",
        500,
        retry_after_s=INTERNAL_RETRY_S,
    )


def store_failure(error: StoreError, where: str) -> ApiError:
    """Log that the store failed at a tool or route, and return what the caller should read."""
    log.error("store_failed", at=where, **failure_facts(error))
    return unavailable(
        "The store cannot be used at the moment; the operator's log says more. "
        f"Retry after {STORE_RETRY_S} seconds.",
        STORE_RETRY_S,
    )


def error_text(error: ApiError, docs: str, access: HowToGetAccess | None = None) -> str:
    """Return the one error body of SPEC.md as minified JSON."""
    body = ErrorBody(error=error.code, message=error.message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True)

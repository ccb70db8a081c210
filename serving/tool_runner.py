"""One call of one tool as both faces make it: key, then arguments, then the answer as JSON text."""

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import structlog
from pydantic import BaseModel

from access.plan import how_to_get_access
from access.quota import Admissions, Admitted
from schemas.errors import ApiError, ErrorBody, HowToGetAccess, failure_facts, unavailable
from schemas.usage import Allowance
from serving.arguments import validated
from serving.context import Context
from serving.freshness import changes_at
from serving.http import Fields
from serving.response_cache import Answer, Rendered
from serving.snapshot_cache import Board
from serving.tool import Tool
from store.errors import StoreError

AnyTool = Tool[Any, Any]
Arguments = Callable[[], Mapping[str, Any]]
# Hears of each call its tool, what it came to (`OK` or the code of the refusal), and its seconds.
Observed = Callable[[str, str, float], None]
OK = "ok"
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
STORE_RETRY_S = INTERNAL_RETRY_S = 60
MOST_SPELLINGS, LONGEST_SPELLING = 1024, 256

log = structlog.get_logger("calls")


class Outcome(NamedTuple):
    """What a call came to: the answer, which is the Error object where `error` is set.

    `quota` is what the call left of its key's; None where no key was needed or none was live.
    """

    answer: Answer
    error: ApiError | None
    quota: Allowance | None


class Asked(NamedTuple):
    """A query, and the text that is the same for equal queries of equal tools alone."""

    query: BaseModel
    place: str


class Calls:
    """Runs tools on a context for whoever is admitted."""

    def __init__(
        self,
        admissions: Admissions,
        context: Context,
        observed: Observed = lambda tool, outcome, seconds: None,
    ) -> None:
        self.context = context
        self._admissions = admissions
        self._observed = observed
        self._asked: dict[tuple[str, str | bytes], Asked] = {}

    async def outcome(
        self, tool: AnyTool, fields: Fields, spelling: str | bytes, arguments: Arguments
    ) -> Outcome:
        """Admit a call, then read its arguments and answer them; nothing is raised.

        Where the `spelling` of two calls is equal, so are their `arguments`.
        """
        began = perf_counter()
        outcome = await self._outcome(tool, fields, spelling, arguments)
        error = outcome.error
        self._observed(tool.name, OK if error is None else error.code, perf_counter() - began)
        return outcome

    async def _outcome(
        self, tool: AnyTool, fields: Fields, spelling: str | bytes, arguments: Arguments
    ) -> Outcome:
        caller: Admitted | None = None
        try:
            if tool.keyed:
                caller = await self._admissions.admit(
                    _text(fields, b"authorization"),
                    _text(fields, b"x-api-key"),
                    even_spent=tool.even_spent,
                )
            asked = self._read(tool, spelling, arguments)
            at_hand = self.context.boards.at_hand() if tool.rests_on_board else None
            answer = self._kept(at_hand, asked) or await self._answer(tool, asked, caller)
            return Outcome(answer, None, _quota(caller))
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = store_failure(failure, tool.name)
        except Exception as failure:
            log.error("call_failed", tool=tool.name, **failure_facts(failure))
            error = internal_error()
        return Outcome(Answer(self.refusal(error)), error, error.quota or _quota(caller))

    def refusal(self, error: ApiError) -> bytes:
        """Return the Error object of a refusal as minified JSON."""
        access = how_to_get_access(self.context.base_url) if error.code in ACCESS_CODES else None
        return error_text(error, self.context.docs, access)

    def _read(self, tool: AnyTool, spelling: str | bytes, arguments: Arguments) -> Asked:
        """Return what arguments ask for; callers repeat themselves, so some of it is kept."""
        asked = self._asked.get((tool.name, spelling))
        if asked is None:
            query = validated(tool.query, arguments())
            asked = Asked(query, f"{tool.name} {query!r}")
            if len(spelling) <= LONGEST_SPELLING:
                if len(self._asked) >= MOST_SPELLINGS:
                    self._asked.pop(next(iter(self._asked)))
                self._asked[tool.name, spelling] = asked
        return asked

    async def _answer(self, tool: AnyTool, asked: Asked, caller: Admitted | None) -> Answer:
        """Return the answer to a query; what rests on the board is kept with it."""
        if not tool.rests_on_board:
            return await _rendered(tool, asked.query, self.context.called_by(caller))
        return await kept_with_board(
            self.context, asked.place, lambda: _rendered(tool, asked.query, self.context)
        )

    def _kept(self, board: Board | None, asked: Asked) -> Answer | None:
        """Return the answer that is kept with a board, where it is true by now."""
        return None if board is None else board.answers.at(asked.place, self.context.clock())


async def kept_with_board(
    context: Context, place: str, render: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Return what rests on the board alone, rendered where none that is kept is true by now."""
    board, now = await context.boards.board(), context.clock()
    answer = None if board is None else board.answers.at(place, now)
    if answer is None:
        answer = await render()
        if board is not None:
            board.answers.keep(place, Rendered(answer, now, changes_at(board, now)))
    return answer


async def _rendered(tool: AnyTool, query: BaseModel, context: Context) -> Answer:
    result = await tool.handler(query, context)
    if isinstance(result, Answer):
        return result
    return Answer(result.model_dump_json(by_alias=True).encode())


def _text(fields: Fields, name: bytes) -> str | None:
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


def _quota(caller: Admitted | None) -> Allowance | None:
    return None if caller is None else caller.quota


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


def error_text(error: ApiError, docs: str, access: HowToGetAccess | None = None) -> bytes:
    """Return the one error body of SPEC.md as minified JSON."""
    body = ErrorBody(error=error.code, message=error.message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True).encode()

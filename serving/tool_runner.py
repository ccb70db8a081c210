"""Runs a tool call for either transport: checks the key, parses arguments, returns JSON text."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import structlog
from pydantic import BaseModel
from starlette.types import Scope

from access.billing.provider import ASK_OPERATOR_HINT, BUY_KEY_HINT, describe_purchase
from access.keys import Caller, QuotaGuard, identify_key
from access.throttle import find_client
from schemas.errors import (
    ApiError,
    ErrorBody,
    HowToGetAccess,
    describe_failure,
    forget_frames,
    unavailable_error,
)
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.usage import QuotaUsage
from serving.arguments import ArgumentError, Problem, parse_arguments
from serving.context import Context
from serving.fair_share import CallerId, FairShare
from serving.freshness import find_expiry
from serving.http import IS_KEY_LIVE, KEY_HASH_KEY, REQUEST_ID_KEY, HeaderMap
from serving.response_cache import CacheEntry, ResponseBody
from serving.tool import Tool, render_nothing
from store.access_rows import LoggedCall, Transport
from store.errors import StoreError
from store.failure_log import FailureLog

AnyTool = Tool[Any, Any]
ArgumentsReader = Callable[[], Mapping[str, Any]]
# Called after each call with (tool name, `OK` or the outcome of the error, seconds).
OnCall = Callable[[str, str, float], None]
# Called after each call with a known key with its hash and the call.
OnKeyCall = Callable[[bytes, LoggedCall], None]
OK = "ok"
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
STORE_RETRY_S = INTERNAL_RETRY_S = 60
# Bounds of the cache of parsed queries: at most 256 KB of keys.
MAX_RAW_KEYS, MAX_RAW_KEY_CHARS = 1024, 256

log = structlog.get_logger("calls")


class CallResult(NamedTuple):
    """The response of a call, which is an Error object if `error` is set.

    `quota` is the key's quota after the call; None if no key was needed or the key is not live.
    `key_hash` is None if the call has no key.
    """

    response: ResponseBody
    error: ApiError | None
    quota: QuotaUsage | None
    key_hash: bytes | None = None


@dataclass
class ParsedQuery:
    """A query of a tool; `as_of` is the past instant that it names, None for the present.

    `is_valid` is set once the tool has accepted the values, and will accept them again.
    """

    tool_name: str
    query: BaseModel
    as_of: str | None
    is_valid: bool = False

    @cached_property
    def key(self) -> str:
        """The key of the response in caches, unique to the tool and the query's values."""
        return f"{self.tool_name} {self.query!r}"


class ToolRunner:
    """Runs tools for callers that the quota guard authorizes."""

    def __init__(
        self,
        quota_guard: QuotaGuard,
        context: Context,
        on_call: OnCall = lambda tool, outcome, seconds: None,
        on_key_call: OnKeyCall = lambda key_hash, call: None,
        fair_share: FairShare | None = None,
    ) -> None:
        self.context = context
        self._on_key_call = on_key_call
        self._quota_guard = quota_guard
        self._on_call = on_call
        self._fair_share = fair_share or FairShare()
        self._parsed_queries: OrderedDict[tuple[str, str | bytes], ParsedQuery] = OrderedDict()
        self.failures = FailureLog()

    def with_context(self, context: Context) -> "ToolRunner":
        """Return a runner of the same tools over other data; its calls are not counted."""
        return ToolRunner(self._quota_guard, context)

    async def run(
        self,
        tool: AnyTool,
        headers: HeaderMap,
        read_raw_key: Callable[[], str | bytes],
        read_arguments: ArgumentsReader,
        scope: Scope | None = None,
    ) -> CallResult:
        """Authorize and count a call, then parse its arguments and run the tool; never raises.

        `read_raw_key` returns what identifies the arguments: calls with the same raw key must have
        the same arguments. `scope` is the ASGI scope of the request, which names the client.
        """
        started_at = perf_counter()
        places = self._fair_share.places
        try:
            # A call gets its place before it is counted, so a call without one costs nothing.
            caller_id = _identify_caller(tool, headers, scope or {})
            if not places.try_take(caller_id):
                await places.wait(caller_id, scope)
        except ApiError as refusal:
            result = self._build_error_result(refusal)
        else:
            try:
                result = await self._run(tool, caller_id, read_raw_key, read_arguments)
            finally:
                places.leave(caller_id)
        error = result.error
        outcome = OK if error is None else error.outcome
        self._on_call(tool.name, outcome, perf_counter() - started_at)
        return result

    async def parse(self, tool: AnyTool, raw: Mapping[str, Any]) -> BaseModel:
        """Return the query of a page's tool; one ArgumentError names every bad argument."""
        try:
            query: BaseModel = parse_arguments(tool.query, raw)
        except ArgumentError as error:
            problems = await self._find_problems(tool, error.rest)
            raise ArgumentError(*error.problems, *(problems or ())) from None
        return query

    async def fetch(self, tool: AnyTool, query: BaseModel, caller_id: CallerId) -> ResponseBody:
        """Return a tool's response for a page of a signed-in viewer; it counts for no key.

        ApiError as the tool raises it, or 429 if the viewer has too many calls in progress.
        """
        # The same places, turns and cache as calls with a key, so a page cannot slow those down.
        places = self._fair_share.places
        if not places.try_take(caller_id):
            await places.wait(caller_id)
        try:
            parsed = _to_parsed_query(tool, query)
            if parsed.as_of is not None:
                await self._await_past_budget(caller_id, parsed.as_of)
            response = self._respond_at_once(tool, parsed, is_repeated=False)
            return response or await self._get_response(
                tool, parsed, caller_id, None, is_repeated=False
            )
        finally:
            places.leave(caller_id)

    def report_key_call(
        self, scope: Scope, tool: AnyTool, transport: Transport, result: CallResult, status: int
    ) -> None:
        """Report a call for the log of its key; a key that is missing or unknown has none."""
        if result.quota is None or result.key_hash is None:
            return
        scope[IS_KEY_LIVE] = True
        error = result.error
        call = LoggedCall(
            at=self.context.clock(),
            request_id=scope.get(REQUEST_ID_KEY, b"").decode(),
            tool=tool.name,
            transport=transport,
            outcome=OK if error is None else error.code,
            status=status if error is None else error.status,
        )
        self._on_key_call(result.key_hash, call)

    async def _run(
        self,
        tool: AnyTool,
        caller_id: CallerId,
        read_raw_key: Callable[[], str | bytes],
        read_arguments: ArgumentsReader,
    ) -> CallResult:
        caller: Caller | None = None
        try:
            # First, because a caller without a live key may cost nothing more.
            if isinstance(caller_id, bytes):
                caller = await self._quota_guard.authorize(
                    caller_id, allow_over_quota=tool.allow_over_quota
                )
            raw_key = read_raw_key()
            parsed = self._parsed_queries.get((tool.name, raw_key))
            query = parsed or _parse_query(tool, read_arguments)
            if isinstance(query, ParsedQuery) and query.as_of is not None:
                await self._await_past_budget(caller_id, query.as_of)
            query = await self._check(tool, query)
            if isinstance(query, ArgumentError):
                raise query
            if parsed is None:
                self._cache_query(tool, raw_key, query)
            # Most responses are cached or made at once, without awaiting.
            is_repeated = parsed is not None
            response = self._respond_at_once(tool, query, is_repeated=is_repeated)
            if response is None:
                response = await self._get_response(
                    tool, query, caller_id, caller, is_repeated=is_repeated
                )
            quota, key_hash = _get_quota(caller), _get_key_hash(caller_id)
            return CallResult(response, None, quota, key_hash)
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = self.log_store_failure(failure, tool.name)
        except Exception as failure:
            self.failures.write(log.error, "call_failed", describe_failure(failure), tool=tool.name)
            error = internal_error()
        return self._build_error_result(error, caller, caller_id)

    def _build_error_result(
        self, error: ApiError, caller: Caller | None = None, caller_id: CallerId = ""
    ) -> CallResult:
        forget_frames(error)
        quota = error.quota or _get_quota(caller)
        body = ResponseBody(self.format_error(error))
        return CallResult(body, error, quota, _get_key_hash(caller_id))

    def log_store_failure(self, error: StoreError, location: str) -> ApiError:
        """Log a failure of the store in a tool or route, and return the error for the caller."""
        self.failures.write(log.error, "store_failed", describe_failure(error), at=location)
        return unavailable_error(
            "The store is unavailable; details are in the operator's log. "
            f"Retry after {STORE_RETRY_S} seconds.",
            STORE_RETRY_S,
            names_operator=True,
        )

    def format_error(self, error: ApiError) -> bytes:
        """Return the Error object of an error as minified JSON.

        If a key is missing or refused, it says how to get one.
        """
        context = self.context
        if error.code not in ACCESS_CODES:
            return format_error_body(error, context.docs_url, operator=context.operator)
        access = describe_purchase(context.base_url) if context.sells_keys else None
        ask_operator = context.operator.complete(ASK_OPERATOR_HINT)
        hint = BUY_KEY_HINT if context.sells_keys else ask_operator
        return format_error_body(error, context.docs_url, access, hint)

    def _cache_query(self, tool: AnyTool, raw_key: str | bytes, parsed: ParsedQuery) -> None:
        """Cache a parsed query by raw key, because clients repeat their queries."""
        if len(raw_key) > MAX_RAW_KEY_CHARS:
            return
        # A plain dict would search for its first key past all that were removed before.
        if len(self._parsed_queries) >= MAX_RAW_KEYS:
            self._parsed_queries.popitem(last=False)
        self._parsed_queries[tool.name, raw_key] = parsed

    async def _await_past_budget(self, caller_id: CallerId, as_of: str) -> None:
        """Wait until the caller may request a past snapshot; raise ApiError 429 if that is long.

        An `as_of` that will be refused is not limited.
        """
        snapshot = self.context.snapshots.peek()
        if snapshot is not None:
            try:
                self.context.parse_as_of(as_of, snapshot)
            except ArgumentError:
                return
        if wait_s := self._fair_share.past_budget.reserve(caller_id):
            await asyncio.sleep(wait_s)

    async def _check(
        self, tool: AnyTool, query: ParsedQuery | ArgumentError
    ) -> ParsedQuery | ArgumentError:
        """Return the error of all bad arguments, or the query if none is known to be bad."""
        if isinstance(query, ArgumentError):
            problems = await self._find_problems(tool, query.rest)
            return ArgumentError(*query.problems, *(problems or ()))
        if query.is_valid:
            return query
        problems = await self._find_problems(tool, query.query)
        # Of valid values, only those of `as_of` become outdated.
        query.is_valid = problems == () and query.as_of is None
        return ArgumentError(*problems) if problems else query

    async def _find_problems(
        self, tool: AnyTool, query: BaseModel | None
    ) -> tuple[Problem, ...] | None:
        """Return the problems that only the tool can find, None if they cannot be known now."""
        try:
            await tool.check(query, self.context)
        except ArgumentError as error:
            return error.problems
        except Exception:
            # The handler fails in the same way.
            return None
        return ()

    async def _get_response(
        self,
        tool: AnyTool,
        parsed: ParsedQuery,
        caller_id: CallerId,
        caller: Caller | None,
        *,
        is_repeated: bool,
    ) -> ResponseBody:
        """Return the response to a query, from the cache if it depends only on the snapshot."""
        if not tool.depends_on_snapshot:
            return await _render_response(tool, parsed.query, self.context.with_caller(caller))
        share, is_past = self._fair_share, parsed.as_of is not None
        if not is_past and self.context.snapshots.peek() is None:
            # Not within a turn, because all calls share the read of a new snapshot.
            await self.context.snapshots.snapshot()
            if response := self._respond_at_once(tool, parsed, is_repeated=is_repeated):
                return response
        async with share.take_turn(caller_id, is_slow=is_past):
            if is_past:
                await share.start_work()
                # Hardly one instant is requested twice, so these would only displace others.
                return await _render_response(tool, parsed.query, self.context)
            # Another call may have rendered it while this one waited.
            if response := self._respond_at_once(tool, parsed, is_repeated=is_repeated):
                return response
            await share.start_work()
            return await get_or_render(
                self.context,
                parsed.key,
                lambda: _render_response(tool, parsed.query, self.context),
            )

    def _respond_at_once(
        self, tool: AnyTool, parsed: ParsedQuery, *, is_repeated: bool
    ) -> ResponseBody | None:
        """Return a response that needs no I/O and little work, else None."""
        snapshot = self.context.snapshots.peek() if tool.depends_on_snapshot else None
        if snapshot is None:
            return None
        if tool.render_at_once is render_nothing:
            return snapshot.responses.get(parsed.key, self.context.clock())
        # Pollers send another `since` in each call, and such a response would only displace others.
        if not is_repeated:
            return tool.render_at_once(parsed.query, self.context, snapshot)
        now = self.context.clock()
        response = snapshot.responses.get(parsed.key, now)
        if response is None:
            response = tool.render_at_once(parsed.query, self.context, snapshot)
            if response is not None:
                snapshot.responses.put(
                    parsed.key, CacheEntry(response, now, find_expiry(snapshot, now))
                )
        return response


async def get_or_render(
    context: Context, key: str, render: Callable[[], Awaitable[ResponseBody]]
) -> ResponseBody:
    """Return the cached response for this snapshot, rendering it if missing or expired."""
    snapshot, now = await context.snapshots.snapshot(), context.clock()
    response = None if snapshot is None else snapshot.responses.get(key, now)
    if response is None:
        response = await render()
        if snapshot is not None:
            snapshot.responses.put(key, CacheEntry(response, now, find_expiry(snapshot, now)))
    return response


def _identify_caller(tool: AnyTool, headers: HeaderMap, scope: Mapping[str, Any]) -> CallerId:
    """Return the hash of the caller's key, or its network if the tool needs no key.

    Raise ApiError 401 if a key is needed and missing or malformed.
    """
    if tool.requires_key:
        key_hash: bytes | None = scope.get(KEY_HASH_KEY)
        return key_hash or identify_key(
            _decode_header(headers, b"authorization"), _decode_header(headers, b"x-api-key")
        )
    return find_client((scope.get("client") or ("unknown", 0))[0])


def _get_key_hash(caller_id: CallerId) -> bytes | None:
    return caller_id if isinstance(caller_id, bytes) else None


def _parse_query(tool: AnyTool, read_arguments: ArgumentsReader) -> ParsedQuery | ArgumentError:
    """Return the parsed query, or the error of its arguments, to which the tool may add."""
    try:
        return _to_parsed_query(tool, parse_arguments(tool.query, read_arguments()))
    except ArgumentError as error:
        return error


def _to_parsed_query(tool: AnyTool, query: BaseModel) -> ParsedQuery:
    # Not getattr(): for a missing attribute, pydantic takes a microsecond.
    return ParsedQuery(tool.name, query, vars(query).get("as_of"))


async def _render_response(tool: AnyTool, query: BaseModel, context: Context) -> ResponseBody:
    result = await tool.handler(query, context)
    if isinstance(result, ResponseBody):
        return result
    # An unfiltered state takes 10 ms to build and as long to serialize. Others go in between.
    await asyncio.sleep(0)
    return ResponseBody(result.model_dump_json(by_alias=True).encode())


def _decode_header(headers: HeaderMap, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _get_quota(caller: Caller | None) -> QuotaUsage | None:
    return None if caller is None else caller.quota


def internal_error() -> ApiError:
    """Return the error that a caller receives after an unexpected failure."""
    return ApiError(
        "unavailable",
        "Internal error; details are in the operator's log. "
        f"Retry after {INTERNAL_RETRY_S} seconds.",
        500,
        retry_after_s=INTERNAL_RETRY_S,
        names_operator=True,
    )


def format_error_body(
    error: ApiError,
    docs: str,
    access: HowToGetAccess | None = None,
    hint: str = "",
    operator: Operator = UNNAMED_OPERATOR,
) -> bytes:
    """Return the error body of both transports as minified JSON; `hint` ends the message."""
    message = f"{error.describe(operator)} {hint}".rstrip()
    body = ErrorBody(error=error.code, message=message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True).encode()

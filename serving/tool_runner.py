"""Runs a tool call for either transport: checks the key, parses arguments, returns JSON text."""

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import structlog
from pydantic import BaseModel
from starlette.types import Scope

from access.keys import hash_key, read_key_headers
from access.plan import ASK_OPERATOR_HINT, BUY_KEY_HINT, describe_purchase
from access.quota import Caller, QuotaGuard
from schemas.errors import ApiError, ErrorBody, HowToGetAccess, describe_failure, unavailable_error
from schemas.usage import QuotaUsage
from serving.arguments import ArgumentError, parse_arguments
from serving.context import Context
from serving.freshness import find_expiry
from serving.http import REQUEST_ID_KEY, HeaderMap, read_headers
from serving.response_cache import CacheEntry, ResponseBody
from serving.snapshot_cache import Snapshot
from serving.tool import Tool
from store.access_rows import LoggedCall, Transport
from store.errors import StoreError

AnyTool = Tool[Any, Any]
ArgumentsReader = Callable[[], Mapping[str, Any]]
# Called after each call with (tool name, `OK` or error code, seconds).
OnCall = Callable[[str, str, float], None]
# Called after each call with a known key with its hash and the call.
OnKeyCall = Callable[[bytes, LoggedCall], None]
OK = "ok"
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
KEY_HEADERS = (b"authorization", b"x-api-key")
STORE_RETRY_S = INTERNAL_RETRY_S = 60
# Bounds of the cache of parsed queries: at most 256 KB of keys.
MAX_RAW_KEYS, MAX_RAW_KEY_CHARS = 1024, 256

log = structlog.get_logger("calls")


class CallResult(NamedTuple):
    """The response of a call, which is an Error object if `error` is set.

    `quota` is the key's quota after the call; None if no key was needed or the key is not live.
    `key_hash` is set if the call succeeded with a key.
    """

    response: ResponseBody
    error: ApiError | None
    quota: QuotaUsage | None
    key_hash: bytes | None = None


class ParsedQuery(NamedTuple):
    """A query and its cache key, which is unique to the tool and the query's values."""

    query: BaseModel
    key: str


class ToolRunner:
    """Runs tools for callers that the quota guard authorizes."""

    def __init__(
        self,
        quota_guard: QuotaGuard,
        context: Context,
        on_call: OnCall = lambda tool, outcome, seconds: None,
        on_key_call: OnKeyCall = lambda key_hash, call: None,
    ) -> None:
        self.context = context
        self._on_key_call = on_key_call
        self._quota_guard = quota_guard
        self._on_call = on_call
        self._parsed_queries: dict[tuple[str, str | bytes], ParsedQuery] = {}

    async def run(
        self,
        tool: AnyTool,
        headers: HeaderMap,
        raw_key: str | bytes,
        read_arguments: ArgumentsReader,
    ) -> CallResult:
        """Authorize a call, parse its arguments and run the tool; never raises.

        `raw_key` identifies the arguments: calls with the same one must have the same arguments.
        """
        started_at = perf_counter()
        result = await self._run(tool, headers, raw_key, read_arguments)
        error = result.error
        self._on_call(tool.name, OK if error is None else error.code, perf_counter() - started_at)
        return result

    def report_key_call(
        self, scope: Scope, tool: AnyTool, transport: Transport, result: CallResult, status: int
    ) -> None:
        """Report a call for the log of its key; a key that is missing or unknown has none."""
        if result.quota is None:
            return
        error = result.error
        call = LoggedCall(
            at=self.context.clock(),
            request_id=scope.get(REQUEST_ID_KEY, b"").decode(),
            tool=tool.name,
            transport=transport,
            outcome=OK if error is None else error.code,
            status=status if error is None else error.status,
        )
        # Refusals are rare, so only they hash the key a second time.
        self._on_key_call(result.key_hash or _hash_sent_key(scope), call)

    async def _run(
        self,
        tool: AnyTool,
        headers: HeaderMap,
        raw_key: str | bytes,
        read_arguments: ArgumentsReader,
    ) -> CallResult:
        caller: Caller | None = None
        try:
            # The call is counted here, before its arguments are parsed, so a refused argument
            # counts too.
            if tool.requires_key:
                caller = await self._quota_guard.authorize(
                    _decode_header(headers, b"authorization"),
                    _decode_header(headers, b"x-api-key"),
                    allow_over_quota=tool.allow_over_quota,
                )
            parsed = self._parsed_queries.get((tool.name, raw_key)) or await self._parse_query(
                tool, raw_key, read_arguments
            )
            # The cached response is looked up without awaiting, which covers most calls.
            snapshot = self.context.snapshots.peek() if tool.depends_on_snapshot else None
            response = self._peek_response(snapshot, parsed) or await self._get_response(
                tool, parsed, caller
            )
            key_hash = None if caller is None else caller.key_hash
            return CallResult(response, None, _get_quota(caller), key_hash)
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = log_store_failure(failure, tool.name)
        except Exception as failure:
            log.error("call_failed", tool=tool.name, **describe_failure(failure))
            error = internal_error()
        return CallResult(
            ResponseBody(self.format_error(error)), error, error.quota or _get_quota(caller)
        )

    def format_error(self, error: ApiError) -> bytes:
        """Return the Error object of an error as minified JSON.

        If a key is missing or refused, it says how to get one.
        """
        context = self.context
        if error.code not in ACCESS_CODES:
            return format_error_body(error, context.docs_url)
        access = describe_purchase(context.base_url) if context.sells_keys else None
        hint = BUY_KEY_HINT if context.sells_keys else ASK_OPERATOR_HINT
        return format_error_body(error, context.docs_url, access, hint)

    async def _parse_query(
        self, tool: AnyTool, raw_key: str | bytes, read_arguments: ArgumentsReader
    ) -> ParsedQuery:
        """Return the parsed query and cache it by raw key, because clients repeat their queries."""
        try:
            query = parse_arguments(tool.query, read_arguments())
        except ArgumentError as error:
            raise await self._add_problems(tool, error) from None
        parsed = ParsedQuery(query, f"{tool.name} {query!r}")
        if len(raw_key) <= MAX_RAW_KEY_CHARS:
            # A dict keeps insertion order, so the first key is the oldest entry.
            if len(self._parsed_queries) >= MAX_RAW_KEYS:
                self._parsed_queries.pop(next(iter(self._parsed_queries)))
            self._parsed_queries[tool.name, raw_key] = parsed
        return parsed

    async def _add_problems(self, tool: AnyTool, error: ArgumentError) -> ArgumentError:
        """Return the error with the problems, too, that only the tool can find."""
        try:
            await tool.check(error.rest, self.context)
        except ArgumentError as other:
            return ArgumentError(*error.problems, *other.problems)
        except ApiError:
            # Nothing has been computed yet, so only the problems found so far are known.
            return error
        return error

    async def _get_response(
        self, tool: AnyTool, parsed: ParsedQuery, caller: Caller | None
    ) -> ResponseBody:
        """Return the response to a query, from the cache if it depends only on the snapshot."""
        if not tool.depends_on_snapshot:
            return await _render_response(tool, parsed.query, self.context.with_caller(caller))
        return await get_or_render(
            self.context, parsed.key, lambda: _render_response(tool, parsed.query, self.context)
        )

    def _peek_response(self, snapshot: Snapshot | None, parsed: ParsedQuery) -> ResponseBody | None:
        """Return the response cached for a snapshot if it is still valid, else None."""
        return (
            None if snapshot is None else snapshot.responses.get(parsed.key, self.context.clock())
        )


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


async def _render_response(tool: AnyTool, query: BaseModel, context: Context) -> ResponseBody:
    result = await tool.handler(query, context)
    if isinstance(result, ResponseBody):
        return result
    return ResponseBody(result.model_dump_json(by_alias=True).encode())


def _hash_sent_key(scope: Scope) -> bytes:
    headers = read_headers(scope)
    return hash_key(read_key_headers(*(_decode_header(headers, name) for name in KEY_HEADERS)))


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
    )


def log_store_failure(error: StoreError, location: str) -> ApiError:
    """Log a failure of the store in a tool or route, and return the error for the caller."""
    log.error("store_failed", at=location, **describe_failure(error))
    return unavailable_error(
        "The store is unavailable; details are in the operator's log. "
        f"Retry after {STORE_RETRY_S} seconds.",
        STORE_RETRY_S,
    )


def format_error_body(
    error: ApiError, docs: str, access: HowToGetAccess | None = None, hint: str = ""
) -> bytes:
    """Return the error body of both transports as minified JSON; `hint` ends the message."""
    message = f"{error.message} {hint}".rstrip()
    body = ErrorBody(error=error.code, message=message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True).encode()

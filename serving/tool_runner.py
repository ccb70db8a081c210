"""Runs a tool call for either transport: checks the key, parses arguments, returns JSON text."""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import structlog
from pydantic import BaseModel
from starlette.types import Scope

from access.billing.provider import ASK_OPERATOR_HINT, BUY_KEY_HINT, describe_purchase
from access.keys_and_quota import Caller, QuotaGuard, identify_key
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
from schemas.result import Freshness
from schemas.usage import QuotaUsage
from serving.argument_values import resolve_relative_time
from serving.arguments import ArgumentError, parse_arguments
from serving.context import Context
from serving.fair_share import CallerId, FairShare
from serving.freshness import NOTED_CHARS, format_size_note, keep_response
from serving.http import IS_KEY_LIVE, KEY_HASH_KEY, REQUEST_ID_KEY, SENT_KEY_HASH, HeaderMap
from serving.response_cache import ResponseBody
from serving.snapshot import Snapshot
from serving.tool import Tool
from store.access_rows import LoggedCall, Transport
from store.failure_log import FailureLog
from store.store_errors import StoreError

AnyTool = Tool[Any, Any]
ArgumentsReader = Callable[[], Mapping[str, Any]]
# Called after each call with (tool name, `OK` or the outcome of the error, seconds).
OnCall = Callable[[str, str, float], None]
# Called after each call with a known key with its hash and the call.
OnKeyCall = Callable[[bytes, LoggedCall], None]
OK = "ok"
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})
STORE_RETRY_S = INTERNAL_RETRY_S = 60

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
        self.failures = FailureLog()

    def with_context(self, context: Context) -> "ToolRunner":
        """Return a runner of the same tools over other data; its calls are not counted."""
        return ToolRunner(self._quota_guard, context)

    async def run(
        self,
        tool: AnyTool,
        headers: HeaderMap,
        read_arguments: ArgumentsReader,
        scope: Scope | None = None,
    ) -> CallResult:
        """Authorize and count a call, then parse its arguments and run the tool; never raises.

        `scope` is the ASGI scope of the request, which names the client.
        """
        started_at = perf_counter()
        scope = {} if scope is None else scope
        response = error = caller = places = None
        caller_id: CallerId = ""
        try:
            # A call gets its place before it is counted, so a call without one costs nothing.
            if tool.requires_key:
                caller_id = scope.get(KEY_HASH_KEY) or scope.get(SENT_KEY_HASH) or ""
                if not caller_id:
                    sent = [headers.get(name) for name in (b"authorization", b"x-api-key")]
                    texts = [None if one is None else one.decode("latin-1") for one in sent]
                    caller_id = scope[SENT_KEY_HASH] = identify_key(*texts)
            else:
                caller_id = find_client((scope.get("client") or ("unknown", 0))[0])
            places = await self._fair_share.take_place(caller_id, scope)
            # First, because a caller without a live key may cost nothing more.
            if isinstance(caller_id, bytes):
                caller = await self._quota_guard.authorize(
                    caller_id, allow_over_quota=tool.allow_over_quota
                )
            query = await self.parse(tool, read_arguments())
            response = await self._get_response(tool, query, caller_id, caller)
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = self.log_store_failure(failure, tool.name)
        except Exception as failure:
            self.failures.write(log.error, "call_failed", describe_failure(failure), tool=tool.name)
            error = internal_error()
        finally:
            if places is not None:
                places.release()
        quota, outcome = None if caller is None else caller.quota, OK
        if error is not None:
            forget_frames(error)
            quota, outcome = error.quota or quota, error.outcome
            response = ResponseBody(self.format_error(error))
        assert response is not None
        self._on_call(tool.name, outcome, perf_counter() - started_at)
        key_hash = caller_id if isinstance(caller_id, bytes) else None
        return CallResult(response, error, quota, key_hash)

    async def parse(self, tool: AnyTool, raw: Mapping[str, Any]) -> BaseModel:
        """Return the query of a tool; one ArgumentError names every bad argument."""
        try:
            query: BaseModel = parse_arguments(tool.query, raw)
        except ArgumentError as error:
            problems = error.problems
            # If the check fails otherwise, problems that only the tool can find are not known now.
            with suppress(Exception):
                try:
                    if tool.check is not None:
                        await tool.check(error.rest, self.context)
                except ArgumentError as others:
                    problems += others.problems
            raise ArgumentError(*problems) from None
        now, values = self.context.clock(), vars(query)
        times = {
            name: resolve_relative_time(text, now)
            for name in ("since", "until", "as_of")
            # Only an instant has a hyphen.
            if (text := values.get(name)) is not None and "-" not in text
        }
        return query.model_copy(update=times) if times else query

    async def fetch(self, tool: AnyTool, query: BaseModel, caller_id: CallerId) -> ResponseBody:
        """Return a tool's response for a page of a signed-in viewer; it counts for no key.

        ApiError as the tool raises it, or 429 if the viewer has too many calls in progress.
        """
        # The same places, turns and cache as calls with a key, so a page cannot slow those down.
        places = await self._fair_share.take_place(caller_id)
        try:
            return await self._get_response(tool, query, caller_id, None)
        finally:
            places.release()

    def report_key_call(
        self, scope: Scope, tool: AnyTool, transport: Transport, result: CallResult, status: int
    ) -> None:
        """Report a call for the log of its key; a key that is missing or unknown has none."""
        if result.quota is None or result.key_hash is None:
            return
        error = result.error
        scope[IS_KEY_LIVE] = error is None or error.code not in ACCESS_CODES
        call = LoggedCall(
            at=self.context.clock(),
            request_id=scope.get(REQUEST_ID_KEY, b"").decode(),
            tool=tool.name,
            transport=transport,
            outcome=OK if error is None else error.code,
            status=status if error is None else error.status,
        )
        self._on_key_call(result.key_hash, call)

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

    async def _get_response(
        self, tool: AnyTool, query: BaseModel, caller_id: CallerId, caller: Caller | None
    ) -> ResponseBody:
        """Return the response to a query, from the cache if it depends only on the snapshot."""
        if not tool.depends_on_snapshot:
            context = self.context._replace(caller=caller)
            if tool.is_light:
                return await _render_response(tool, query, context)
            async with self._fair_share.take_turn(caller_id):
                return await _render_response(tool, query, context)
        snapshots = self.context.snapshots
        if (latest := snapshots.peek()) is None:
            # Not within a turn, because all calls share the read of a new snapshot.
            await snapshots.snapshot()
            latest = snapshots.peek()
        # Most responses are cached or made at once, without awaiting.
        if (response := self._respond_at_once(tool, query, latest)) is not None:
            return response
        async with self._fair_share.take_turn(caller_id, is_past=_is_past(query)):
            # Another call may have rendered it while this one waited.
            response = self._respond_at_once(tool, query, snapshots.peek())
            if response is not None:
                return response
            snapshot, now = await snapshots.snapshot(), self.context.clock()
            response = await _render_response(tool, query, self.context)
            # Anybody can name any assets in a call without a key, and so displace every response.
            is_kept = tool.requires_key or vars(query).get("ticker") is None
            if snapshot is not None and tool.render_at_once is None and is_kept:
                keep_response(
                    snapshot, _build_key(tool, query), response, now, is_past=_is_past(query)
                )
            return response

    def _respond_at_once(
        self, tool: AnyTool, query: BaseModel, snapshot: Snapshot | None
    ) -> ResponseBody | None:
        """Return a response that needs no I/O and little work, else None."""
        if snapshot is None:
            return None
        if tool.render_at_once is not None:
            return tool.render_at_once(query, self.context, snapshot)
        cache = snapshot.past_responses if _is_past(query) else snapshot.responses
        return cache.get(_build_key(tool, query), self.context.clock())


def _is_past(query: BaseModel) -> bool:
    # Not getattr(): for a missing attribute, pydantic takes a microsecond.
    return vars(query).get("as_of") is not None


def _build_key(tool: AnyTool, query: BaseModel) -> Hashable:
    return tool.name, *vars(query).values()


async def _render_response(tool: AnyTool, query: BaseModel, context: Context) -> ResponseBody:
    result = await tool.handler(query, context)
    if isinstance(result, ResponseBody):
        return result
    # An unfiltered state takes 10 ms to build and as long to serialize. Others go in between.
    await asyncio.sleep(0)
    text = result.model_dump_json(by_alias=True)
    meta = getattr(result, "meta", None)
    if len(text) > NOTED_CHARS and isinstance(meta, Freshness):
        meta.note = " ".join([meta.note or "", format_size_note(len(text))]).lstrip()
        text = result.model_dump_json(by_alias=True)
    return ResponseBody(text.encode())


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

"""API keys: format, hashing and request headers, those of the operator, and the daily quota.

One statement checks keys and quotas and counts, for many calls at a time.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from schemas.errors import ApiError, rate_limited_error
from schemas.usage import QuotaUsage
from schemas.vocabulary import DAY_MS, Clock, Mode, format_instant
from store.access_rows import MAX_CALL_GROUPS, CallGroup, CountedGroup
from store.sql.access_store import AccessStore

MAX_LABEL_CHARS = 120

_API_KEY = "ek_[A-Za-z0-9_-]{43}"
_API_KEY_PATTERN = re.compile(_API_KEY, re.ASCII)
_BEARER_PATTERN = re.compile(rf"[ \t]*(?i:bearer)[ \t]+({_API_KEY})[ \t]*", re.ASCII)
SEND_KEY_HINT = "Send it as `Authorization: Bearer <API_KEY>`."
# The last five are the bytes of typographic quotes, which headers carry as Latin-1.
_QUOTES = "[\"'`<>(){}\\[\\]\xe2\x80\x98\x99\x9c\x9d]"
_MISTAKES = tuple(
    (re.compile(pattern, re.ASCII | re.DOTALL), message)
    for pattern, message in (
        # Some MCP hosts send the placeholder of their configuration file without expanding it.
        (
            r".*\$\{.*",
            "The client sent the text ${SIGNALS_API_KEY} unexpanded instead of a key: set the "
            "environment variable SIGNALS_API_KEY where the client starts, then restart it.",
        ),
        (
            rf"{_QUOTES}+((?i:bearer) +)?{_API_KEY}{_QUOTES}*|{_API_KEY}{_QUOTES}+",
            "The API key has quotes or brackets around it: send it without them. " + SEND_KEY_HINT,
        ),
        (
            r"\$\w+|%\w+%|\{.+\}|<[\w -]+>|(?i:([a-z]+[_ -])*key|undefined|null|none)",
            "The client sent a placeholder instead of a key: write the key in its place, or set "
            "the variable that it stands for where the client starts, then restart it.",
        ),
        (
            "at_[A-Za-z0-9_-]{43}",
            "An OAuth access token works only at the MCP address that it was issued for, /mcp. "
            f"Use that address, or an API key here. {SEND_KEY_HINT}",
        ),
        (
            rf"((?i:bearer) +)+{_API_KEY}",
            "The word Bearer belongs once before the key in Authorization, and not into X-Api-Key. "
            + SEND_KEY_HINT,
        ),
        (
            rf"{_API_KEY} *,.*|.*, *((?i:bearer) +)?{_API_KEY}",
            "The header for the API key has several values: send it once, with one key.",
        ),
    )
)


def hash_key(api_key: str) -> bytes:
    """Return the SHA-256 of a key, under which it is stored."""
    # A key is 256 random bits, so a slow password hash would add cost but no security.
    return sha256(api_key.encode()).digest()


def generate_key() -> str:
    """Return a new key: `ek_` and 32 random bytes in URL-safe base64."""
    return f"ek_{secrets.token_urlsafe(32)}"


def is_valid_label(text: str) -> bool:
    """Return whether a label has 1 to MAX_LABEL_CHARS printable characters."""
    return 1 <= len(text) <= MAX_LABEL_CHARS and text.isprintable()


async def create_operator_key(
    store: AccessStore, now: int, label: str, expires_at: int | None = None
) -> str:
    """Create a key of the operator at a time (epoch ms) and return it, for the only time.

    Raise ValueError for a bad label, and for a time of expiry that has passed.
    """
    if not is_valid_label(label):
        raise ValueError(f"a label must have 1 to {MAX_LABEL_CHARS} printable characters")
    if expires_at is not None and expires_at <= now:
        raise ValueError(f"a key must expire later than now, {format_instant(now)}")
    api_key = generate_key()
    await store.create_key(hash_key(api_key), label, now, expires_at)
    return api_key


def identify_key(authorization: str | None, x_api_key: str | None) -> bytes:
    """Return the hash of the key in the headers; raise ApiError 401 if they have none, or two keys.

    A key in one header wins over anything else in the other, such as a proxy's Basic credentials.
    """
    # The lookup by hash need not take constant time. Its duration can only reveal how much of a
    # SHA-256 matched, which does not help to find a key.
    bearer = None if authorization is None else _BEARER_PATTERN.fullmatch(authorization)
    plain = None if x_api_key is None else _API_KEY_PATTERN.fullmatch(x_api_key.strip())
    if bearer is not None and plain is not None and bearer[1] != plain[0]:
        raise invalid_key_error(
            "Authorization and X-Api-Key carry different keys: send one of them."
        )
    if bearer is not None:
        return hash_key(bearer[1])
    if plain is not None:
        return hash_key(plain[0])
    if authorization is None and x_api_key is None:
        raise ApiError("missing_key", f"This call needs an API key. {SEND_KEY_HINT}", 401)
    raise invalid_key_error(_find_mistake((authorization or "").strip(), (x_api_key or "").strip()))


def _find_mistake(authorization: str, x_api_key: str) -> str:
    """Return what is wrong with headers that have no key; the message quotes no value."""
    scheme, _, value = authorization.replace("\t", " ").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    # Another scheme may be a proxy's, so the key is more likely to be in the other header.
    if not is_bearer:
        value = x_api_key or authorization
    for pattern, message in _MISTAKES:
        if pattern.fullmatch(value.strip()):
            return message
    if not value:
        return f"The header for the API key is empty. {SEND_KEY_HINT}"
    if not is_bearer and not x_api_key:
        return f"The Authorization header does not use the Bearer scheme. {SEND_KEY_HINT}"
    return (
        "The API key is malformed: a key is ek_ and 43 letters, digits, - or _. "
        "Check that it was copied whole."
    )


def invalid_key_error(message: str) -> ApiError:
    """Return the ApiError 401 for a key that is malformed or unknown."""
    return ApiError("invalid_key", message, 401)


# Measured at 32 connections: with up to four turns a group has 32 calls instead of 18, which saves
# 4 of 57 microseconds per call.
MAX_LOOP_TURNS = 4


class Caller(NamedTuple):
    """The label of an admitted key, and its quota after this call."""

    label: str | None
    quota: QuotaUsage


# Calls of one key and day that wait to be counted, each with its time of arrival (epoch ms).
PendingBatch = list[tuple["asyncio.Future[CountedGroup]", int]]


class QuotaGuard:
    """Admits and counts the calls of API keys; `mode` is the server's, `clock` returns epoch ms.

    Calls that arrive in consecutive turns of the event loop, or while a batch is being written, are
    collected and counted in one commit.
    """

    def __init__(
        self,
        store: AccessStore,
        clock: Clock,
        *,
        mode: Mode | None,
        daily_limit: int,
        keys_url: str = "/settings/api-access",
    ) -> None:
        """`keys_url` is the page on which members create keys."""
        self._store = store
        self._keys_url = keys_url
        self._clock = clock
        self._mode = mode
        self._daily_limit = daily_limit
        self._pending: dict[tuple[bytes, int], PendingBatch] = {}
        self._arrival_count = 0
        self._flush_task: asyncio.Task[None] | None = None

    async def authorize(self, key_hash: bytes, *, allow_over_quota: bool = False) -> Caller:
        """Count a call of a key; raise ApiError if it is refused.

        With `allow_over_quota` an exhausted key is accepted. Raise StoreError if the key cannot be
        checked or the call cannot be counted: no call is free.
        """
        now = self._clock()
        key = (key_hash, now // DAY_MS)
        decided: asyncio.Future[CountedGroup] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(key, []).append((decided, now))
        self._arrival_count += 1
        if self._flush_task is None:
            self._flush_task = asyncio.create_task(self._flush())
        decision = await decided
        if decision.verdict == "unknown":
            raise invalid_key_error("The API key is unknown: check that it was copied whole.")
        limit, used = self._daily_limit, decision.used
        quota = QuotaUsage(
            limit, used, max(limit - used, 0), format_instant((now // DAY_MS + 1) * DAY_MS)
        )
        is_over_quota = decision.verdict == "exhausted"
        if decision.verdict == "counted" or (is_over_quota and allow_over_quota):
            return Caller(decision.label, quota)
        raise self._build_refusal(now, decision, quota)

    def _build_refusal(self, now: int, decision: CountedGroup, quota: QuotaUsage) -> ApiError:
        if decision.verdict == "revoked":
            message = "This API key was revoked for good: use another key."
            return ApiError("revoked_key", message, 403, quota=quota)
        if decision.verdict == "expired":
            assert decision.expires_at is not None
            # A key of the operator has no mode, and no page on which its holder could create one.
            remedy = (
                "use another key"
                if decision.mode is None
                else f"create a new key at {self._keys_url}"
            )
            message = f"This API key expired at {format_instant(decision.expires_at)}: {remedy}."
            return ApiError("revoked_key", message, 403, quota=quota)
        if decision.verdict == "wrong_mode":
            message = (
                f"This API key was bought in {decision.mode} mode and works only in that mode; "
                f"this server bills in {self._mode} mode."
            )
            return ApiError("not_provisioned", message, 403, quota=quota)
        retry_after_s = -(-(DAY_MS - now % DAY_MS) // 1000)
        message = (
            f"The daily quota of {self._daily_limit} calls is used up. It is reset at "
            f"{quota.resets_at}: retry after {retry_after_s} seconds."
        )
        return rate_limited_error(message, retry_after_s, quota=quota)

    async def _flush(self) -> None:
        """Count pending calls until there are none."""
        try:
            while self._pending:
                await self._coalesce()
                keys = list(self._pending)[:MAX_CALL_GROUPS]
                await self._write({key: self._pending.pop(key) for key in keys})
        finally:
            self._flush_task = None

    async def _coalesce(self) -> None:
        """Wait until a turn of the loop brings no call: a commit costs as much as six calls."""
        for _ in range(MAX_LOOP_TURNS):
            count_before = self._arrival_count
            await asyncio.sleep(0)
            if self._arrival_count == count_before:
                return

    async def _write(self, batches: Mapping[tuple[bytes, int], PendingBatch]) -> None:
        groups = [
            CallGroup(*key, len(batch), max(arrived_at for _, arrived_at in batch))
            for key, batch in batches.items()
        ]
        try:
            decisions = await self._store.count_calls(groups, self._mode, self._daily_limit)
        except Exception as error:
            # Every waiting call must end, or its request would hang.
            for batch in batches.values():
                for call, _ in batch:
                    if not call.done():
                        call.set_exception(error)
            return
        for (key, batch), group in zip(batches.items(), decisions, strict=True):
            if group.verdict == "expired":
                # The calls that arrived before the key expired are counted.
                assert group.expires_at is not None
                if early := [call for call in batch if call[1] < group.expires_at]:
                    await self._write({key: early})
                batch = [call for call in batch if call[1] >= group.expires_at]
            # The first calls get their counts, the rest the refusal.
            first_count = group.used - group.counted + 1
            for number, (future, _) in enumerate(batch):
                if future.done():  # its client disconnected; the call is counted all the same
                    continue
                is_counted = number < group.counted
                future.set_result(
                    CountedGroup(1, "counted", first_count + number, group.label)
                    if is_counted
                    else group
                )

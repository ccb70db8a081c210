"""Whether a call is let in: one statement decides it and counts it, for many calls at a time."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from access.keys import BUY, hash_key, invalid_key, sent_key
from schemas.errors import ApiError
from schemas.results import Quota
from schemas.vocabulary import DAY_MS, Instant, Mode, instant
from store.access_protocol import MOST_CALLS, AccessStore
from store.access_rows import ArrivedCall, CountedCall

Waiting = tuple[ArrivedCall, "asyncio.Future[CountedCall]"]


class Admitted(NamedTuple):
    """Whose call was let in, and what it left of the day's quota."""

    label: str | None
    quota: Quota


class Admissions:
    """Decides calls on one access store; `mode` is the server's, `clock` tells epoch ms.

    Calls that arrive while others are being written wait, and are then written together: one
    commit, however many they are.
    """

    def __init__(
        self, store: AccessStore, clock: Callable[[], int], *, mode: Mode | None, daily_limit: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._mode = mode
        self._daily_limit = daily_limit
        self._waiting: list[Waiting] = []
        self._flushing: asyncio.Task[None] | None = None

    async def admit(
        self, authorization: str | None, x_api_key: str | None, *, even_spent: bool = False
    ) -> Admitted:
        """Count a call of the key that two headers carry and let it in; ApiError says why not.

        With `even_spent` a key is let in that has no call left. StoreError where nothing can be
        counted. Looking a hash up tells at most how much of a SHA-256 matched, from which nobody
        can steer towards a key, so it needs no constant-time comparison.
        """
        call = ArrivedCall(hash_key(sent_key(authorization, x_api_key)), self._clock())
        counted = await self._counted(call)
        if counted.verdict == "unknown":
            raise invalid_key(f"The API key is unknown: check that it was copied whole. {BUY}")
        quota = self._quota(call, counted)
        if counted.verdict == "counted" or (counted.verdict == "spent" and even_spent):
            return Admitted(counted.label, quota)
        raise self._refusal(call, counted, quota)

    def _quota(self, call: ArrivedCall, counted: CountedCall) -> Quota:
        return Quota(
            daily_limit=self._daily_limit,
            used_today=counted.used,
            remaining_today=max(self._daily_limit - counted.used, 0),
            resets_at=_reset(_next_midnight(call.at)),
        )

    def _refusal(self, call: ArrivedCall, counted: CountedCall, quota: Quota) -> ApiError:
        if counted.verdict == "revoked":
            message = f"This API key was revoked and stays so: use another key. {BUY}"
            return ApiError("revoked_key", message, 403, quota=quota)
        if counted.verdict == "wrong_mode":
            message = (
                f"This API key was bought in {counted.mode} mode and works in that mode alone; "
                f"this server bills in {self._mode} mode. {BUY}"
            )
            return ApiError("not_provisioned", message, 403, quota=quota)
        retry_after_s = -(-(_next_midnight(call.at) - call.at) // 1000)
        message = (
            f"The daily quota of {self._daily_limit} calls is used up. It is reset at "
            f"{quota.resets_at}: retry after {retry_after_s} seconds."
        )
        return ApiError("rate_limited", message, 429, retry_after_s=retry_after_s, quota=quota)

    async def _counted(self, call: ArrivedCall) -> CountedCall:
        counted: asyncio.Future[CountedCall] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, counted))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await counted

    async def _flush(self) -> None:
        """Write what waits, group after group, until nothing does."""
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST_CALLS], self._waiting[MOST_CALLS:]
                await self._write(group)
        finally:
            self._flushing = None

    async def _write(self, group: list[Waiting]) -> None:
        calls = [call for call, _ in group]
        try:
            decided = await self._store.count(calls, self._mode, self._daily_limit)
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), counted in zip(group, decided, strict=True):
            if not future.done():
                future.set_result(counted)


def _next_midnight(at: int) -> int:
    return (at // DAY_MS + 1) * DAY_MS


@lru_cache(maxsize=2)
def _reset(midnight: int) -> Instant:
    return instant(midnight)

"""Whether a call is let in: one statement decides it and counts it, for many calls at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from access.keys import BUY, hash_key, invalid_key, sent_key
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.usage import Allowance
from schemas.vocabulary import DAY_MS, Instant, Mode, instant
from store.access_protocol import MOST_GROUPS, AccessStore
from store.access_rows import CallGroup, CountedGroup

MOST_TURNS = 4


class Admitted(NamedTuple):
    """Whose call was let in, and what it left of the day's quota."""

    label: str | None
    quota: Allowance


class Waiting(NamedTuple):
    """Calls of one key and day that wait together: what each is to learn, and since when."""

    calls: list["asyncio.Future[CountedGroup]"]
    times: list[int]


class Admissions:
    """Decides calls on one access store; `mode` is the server's, `clock` tells epoch ms.

    Calls that arrive turn upon turn of the event loop, or while others are being written, wait and
    are then written together: one commit, however many they are.
    """

    def __init__(
        self, store: AccessStore, clock: Clock, *, mode: Mode | None, daily_limit: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._mode = mode
        self._daily_limit = daily_limit
        self._waiting: dict[tuple[bytes, int], Waiting] = {}
        self._arrived = 0
        self._flushing: asyncio.Task[None] | None = None

    async def admit(
        self, authorization: str | None, x_api_key: str | None, *, even_spent: bool = False
    ) -> Admitted:
        """Count a call of the key that two headers carry and let it in; ApiError says why not.

        With `even_spent` a key is let in that has no call left. StoreError where nothing can be
        counted. Looking a hash up tells at most how much of a SHA-256 matched, from which nobody
        can steer towards a key, so it needs no constant-time comparison.
        """
        key_hash, now = hash_key(sent_key(authorization, x_api_key)), self._clock()
        counted = await self._counted(key_hash, now)
        if counted.verdict == "unknown":
            raise invalid_key(f"The API key is unknown: check that it was copied whole. {BUY}")
        limit, used = self._daily_limit, counted.used
        quota = Allowance(limit, used, max(limit - used, 0), _reset(now // DAY_MS))
        if counted.verdict == "counted" or (counted.verdict == "spent" and even_spent):
            return Admitted(counted.label, quota)
        raise self._refusal(now, counted, quota)

    def _refusal(self, now: int, counted: CountedGroup, quota: Allowance) -> ApiError:
        if counted.verdict == "revoked":
            message = f"This API key was revoked and stays so: use another key. {BUY}"
            return ApiError("revoked_key", message, 403, quota=quota)
        if counted.verdict == "wrong_mode":
            message = (
                f"This API key was bought in {counted.mode} mode and works in that mode alone; "
                f"this server bills in {self._mode} mode. {BUY}"
            )
            return ApiError("not_provisioned", message, 403, quota=quota)
        retry_after_s = -(-(DAY_MS - now % DAY_MS) // 1000)
        message = (
            f"The daily quota of {self._daily_limit} calls is used up. It is reset at "
            f"{quota.resets_at}: retry after {retry_after_s} seconds."
        )
        return ApiError("rate_limited", message, 429, retry_after_s=retry_after_s, quota=quota)

    def _counted(self, key_hash: bytes, now: int) -> "asyncio.Future[CountedGroup]":
        """Return what a call will be told: its own count, or the verdict on it."""
        place = (key_hash, now // DAY_MS)
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = Waiting([], [])
        counted: asyncio.Future[CountedGroup] = asyncio.get_running_loop().create_future()
        waiting.calls.append(counted)
        waiting.times.append(now)
        self._arrived += 1
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return counted

    async def _flush(self) -> None:
        """Write what waits until nothing does."""
        try:
            while self._waiting:
                await self._gathered()
                places = list(self._waiting)[:MOST_GROUPS]
                await self._write({place: self._waiting.pop(place) for place in places})
        finally:
            self._flushing = None

    async def _gathered(self) -> None:
        """Wait for a turn of the loop that brings no call, for a commit costs as much as six."""
        for _ in range(MOST_TURNS):
            arrived = self._arrived
            await asyncio.sleep(0)
            if self._arrived == arrived:
                return

    async def _write(self, waiting: Mapping[tuple[bytes, int], Waiting]) -> None:
        groups = [
            CallGroup(*place, len(asked.calls), max(asked.times))
            for place, asked in waiting.items()
        ]
        try:
            decided = await self._store.count(groups, self._mode, self._daily_limit)
        except Exception as error:
            for asked in waiting.values():
                for call in asked.calls:
                    if not call.done():
                        call.set_exception(error)
            return
        for asked, group in zip(waiting.values(), decided, strict=True):
            _tell(asked.calls, group)


def _tell(calls: Sequence["asyncio.Future[CountedGroup]"], group: CountedGroup) -> None:
    """Tell the first calls of a group their counts, in their order, and the rest why not."""
    first = group.used - group.counted + 1
    for number, call in enumerate(calls):
        if not call.done():
            is_counted = number < group.counted
            own = CountedGroup(1, "counted", first + number, group.label) if is_counted else group
            call.set_result(own)


@lru_cache(maxsize=2)
def _reset(day: int) -> Instant:
    return instant((day + 1) * DAY_MS)

"""Whether a database accepts writes: the outcome of the last ones, test writes when in doubt."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from store.store_errors import DatabaseFailureError, NotWritableError, StoreError

MIN_TEST_INTERVAL_S = 5.0

# A counted call of its own connection, or a transaction.
WriteKind = Literal["count", "transaction"]
# Commits something that leaves no trace, by way of the engine, which reports the outcome.
TestWrite = Callable[[], Awaitable[object]]


class WriteHealth:
    """Remembers the outcome of the last write of each kind; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._failures: dict[WriteKind, StoreError] = {}
        self._succeeded_at: dict[WriteKind, float] = {}
        self._tested_at = float("-inf")
        self._test: asyncio.Task[None] | None = None

    @contextmanager
    def report(self, kind: WriteKind) -> Iterator[None]:
        """Record the outcome of the writes in the block."""
        try:
            yield
        except DatabaseFailureError as error:
            self._failures[kind] = error
            raise
        self._failures.pop(kind, None)
        self._succeeded_at[kind] = self._clock()

    async def check(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        """Raise NotWritableError if the last write of any kind failed.

        First test the kinds whose last write failed or is older than `max_age_s`: all callers
        together cause one test per MIN_TEST_INTERVAL_S at most.
        """
        now = self._clock()
        since, never = now - max_age_s, float("-inf")
        doubtful = [
            kind
            for kind in tests
            if kind in self._failures or self._succeeded_at.get(kind, never) < since
        ]
        is_due = self._test is None and now - self._tested_at >= MIN_TEST_INTERVAL_S
        if doubtful and is_due:
            self._tested_at = now
            self._test = asyncio.create_task(self._run_tests([tests[kind] for kind in doubtful]))
        if self._test is not None:
            # A caller that gives up must not cancel the test that others wait for.
            await asyncio.shield(self._test)
        for error in self._failures.values():
            raise NotWritableError(str(error)) from error

    async def close(self) -> None:
        """Wait for the test in progress."""
        if self._test is not None:
            await self._test

    async def _run_tests(self, tests: list[TestWrite]) -> None:
        try:
            for test in tests:
                try:
                    await test()
                except StoreError:
                    # The engine has recorded it.
                    continue
        finally:
            self._test = None

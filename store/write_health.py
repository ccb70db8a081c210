"""Whether a database accepts writes: the outcome of the last ones, test writes when in doubt."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
        self._testing: Final = asyncio.Lock()

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
        # A caller that gives up must not end a test whose outcome others wait for.
        await asyncio.shield(self._test_in_turn(tests, max_age_s))
        for error in self._failures.values():
            raise NotWritableError(str(error)) from error

    async def close(self) -> None:
        """Wait for the test in progress."""
        async with self._testing:
            pass

    async def _test_in_turn(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        async with self._testing:
            now, never = self._clock(), float("-inf")
            doubtful = [
                kind
                for kind in tests
                if kind in self._failures or self._succeeded_at.get(kind, never) < now - max_age_s
            ]
            if not doubtful or now - self._tested_at < MIN_TEST_INTERVAL_S:
                return
            for kind in doubtful:
                # The engine has recorded it.
                with suppress(StoreError):
                    await tests[kind]()
            # After the tests: those who waited for long ones do not repeat them.
            self._tested_at = self._clock()

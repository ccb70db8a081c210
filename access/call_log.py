"""The latest calls of each key, which its member or the operator can look up, and their number.

Calls are collected in memory and stored once a second, so a crash loses at most the last second.
The numbers by day and tool are for charts; the quota is counted by QuotaGuard before each call.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import structlog

from schemas.errors import describe_failure
from schemas.vocabulary import DAY_MS
from store.access_rows import LoggedCall, ToolUsage
from store.sql.access_store import AccessStore

CALLS_KEPT_PER_KEY = 100
FLUSH_INTERVAL_S = 1.0
# A write of 500 rows holds a SQLite file for 1 to 2 ms at a time. Twenty keys have more only if
# each is used more than 25 times a second.
ROWS_PER_WRITE = 500
KEYS_PER_WRITE = 20
# Reached only while the store fails, or if more keys are used in a second. Their calls take up to
# 22 MB.
MAX_PENDING_KEYS = 1000
# Calls that the quota guard refuses are logged, but not used up.
REFUSED_OUTCOMES = frozenset({"rate_limited", "revoked_key", "not_provisioned"})

log = structlog.get_logger("calls")


class CallLog:
    """Collects and stores calls; `on_drop` is called with the number of calls that it gives up."""

    def __init__(
        self, store: AccessStore, on_drop: Callable[[int], None] = lambda count: None
    ) -> None:
        self._store = store
        self._on_drop = on_drop
        # By key hash, the key that has waited longest first. However fast one key is used, a flush
        # writes no more of its calls than are kept.
        self._pending: dict[bytes, deque[LoggedCall]] = {}
        self._flush_lock = asyncio.Lock()
        # Calls that are not stored yet, by key hash, UTC day and tool.
        self._used: Counter[tuple[bytes, int, str]] = Counter()
        self._key_ids: dict[bytes, int] = {}

    def add(self, key_hash: bytes, call: LoggedCall) -> None:
        """Add a call of a known key."""
        if call.outcome not in REFUSED_OUTCOMES:
            self._used[key_hash, call.at // DAY_MS, call.tool] += 1
        self._pending.setdefault(key_hash, deque(maxlen=CALLS_KEPT_PER_KEY)).append(call)
        if len(self._pending) > MAX_PENDING_KEYS:
            self._on_drop(len(self._pending.pop(next(iter(self._pending)))))

    async def run(self) -> None:
        """Store calls until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(FLUSH_INTERVAL_S)
                # Shielded, because calls of an interrupted write would be stored again.
                await asyncio.shield(self.flush())
        finally:
            await self.flush()

    async def flush(self) -> bool:
        """Store all pending calls; return False if that fails, after which they are pending."""
        async with self._flush_lock:
            try:
                # Calls that come meanwhile wait for the next flush: under load this one would not
                # reach their end.
                keys = list(self._pending)
                for start in range(0, len(keys), KEYS_PER_WRITE):
                    await self._write_calls(keys[start : start + KEYS_PER_WRITE])
                # Add the numbers of calls to the stored ones, each once.
                counts = list(self._used.items())
                for start in range(0, len(counts), ROWS_PER_WRITE):
                    batch = dict(counts[start : start + ROWS_PER_WRITE])
                    rows = [
                        ToolUsage(await self._find_key_id(key_hash), day, tool, used)
                        for (key_hash, day, tool), used in batch.items()
                    ]
                    await self._store.add_tool_usage(rows)
                    # Calls that came meanwhile stay.
                    self._used.subtract(batch)
                    self._used = +self._used
            except Exception as error:
                log.warning("calls_not_stored", **describe_failure(error))
                return False
        return True

    async def _write_calls(self, keys: list[bytes]) -> None:
        """Store the calls of those of some keys that are still pending."""
        batch = {key: self._pending.pop(key) for key in keys if key in self._pending}
        try:
            calls_by_id = {await self._find_key_id(key): calls for key, calls in batch.items()}
            await self._store.add_calls(calls_by_id, CALLS_KEPT_PER_KEY)
        except Exception:
            # Before those that were added since.
            for key, calls in batch.items():
                calls.extend(self._pending.pop(key, ()))
            self._pending = batch | self._pending
            raise

    async def _find_key_id(self, key_hash: bytes) -> int:
        key_id = self._key_ids.get(key_hash)
        if key_id is None:
            key_id = await self._store.find_key_id(key_hash)
            assert key_id is not None, "only calls of stored keys are logged, and keys stay stored"
            if len(self._key_ids) >= 10_000:
                self._key_ids.clear()
            self._key_ids[key_hash] = key_id
        return key_id

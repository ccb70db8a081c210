"""The latest calls of each key, which its member or the operator can look up, and their number.

Calls are collected in memory and stored once a second, so a crash loses at most the last second.
The numbers by day and tool are for charts; the quota is counted by QuotaGuard before each call.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog

from schemas.errors import describe_failure
from schemas.vocabulary import DAY_MS
from store.access_rows import LoggedCall, ToolUsage
from store.sql.access_store import AccessStore

CALLS_KEPT_PER_KEY = 100
FLUSH_INTERVAL_S = 1.0
# A write of 500 rows holds a SQLite file for 1 to 2 ms at a time.
ROWS_PER_FLUSH = 500
# Reached only while the store fails, or with calls of more keys than a flush can write.
MAX_PENDING_CALLS = 5000
# Calls that the quota guard refuses are logged, but not used up.
REFUSED_OUTCOMES = frozenset({"rate_limited", "revoked_key", "not_provisioned"})

Batch = dict[bytes, deque[LoggedCall]]

log = structlog.get_logger("calls")


class CallLog:
    """Collects and stores calls; `on_drop` is called with the number of calls that it gives up."""

    def __init__(
        self, store: AccessStore, on_drop: Callable[[int], None] = lambda count: None
    ) -> None:
        self._store = store
        self._on_drop = on_drop
        # By key hash, the key that has waited longest first.
        self._pending: Batch = {}
        self._pending_count = 0
        self._flush_lock = asyncio.Lock()
        # Calls that are not stored yet, by key hash, UTC day and tool.
        self._used: Counter[tuple[bytes, int, str]] = Counter()
        self._key_ids: dict[bytes, int] = {}
        self._is_full = asyncio.Event()

    def add(self, key_hash: bytes, call: LoggedCall) -> None:
        """Add a call of a known key."""
        if call.outcome not in REFUSED_OUTCOMES:
            self._used[key_hash, call.at // DAY_MS, call.tool] += 1
        # However fast one key is used, a flush writes no more of its calls than are kept.
        pending = self._pending.get(key_hash)
        if pending is not None and len(pending) == CALLS_KEPT_PER_KEY:
            pending.append(call)
            return
        self._put(key_hash, (call,))
        if self._pending_count >= ROWS_PER_FLUSH:
            self._is_full.set()

    async def run(self) -> None:
        """Store calls until cancelled, and once more then."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_INTERVAL_S):
                        await self._is_full.wait()
                # Shielded, because calls of an interrupted write would be stored again.
                if not await asyncio.shield(self.flush()):
                    await asyncio.sleep(FLUSH_INTERVAL_S)
        finally:
            await self.flush()

    async def flush(self) -> bool:
        """Store all pending calls; return False if that fails, after which they are pending."""
        async with self._flush_lock:
            self._is_full.clear()
            try:
                while self._pending:
                    await self._write_batch()
                # Add the numbers of calls to the stored ones, each once.
                counts = list(self._used.items())
                for start in range(0, len(counts), ROWS_PER_FLUSH):
                    batch = dict(counts[start : start + ROWS_PER_FLUSH])
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

    async def _write_batch(self) -> None:
        """Store the calls of as many keys as fit into a flush, at least of one key."""
        batch: Batch = {}
        count = 0
        for key_hash in list(self._pending):
            count += len(self._pending[key_hash])
            if batch and count > ROWS_PER_FLUSH:
                break
            batch[key_hash] = self._take(key_hash)
        try:
            calls_by_id = {
                await self._find_key_id(key_hash): calls for key_hash, calls in batch.items()
            }
            await self._store.add_calls(calls_by_id, CALLS_KEPT_PER_KEY)
        except Exception:
            # Before those that were added since.
            newer, self._pending, self._pending_count = self._pending, {}, 0
            for part in (batch, newer):
                for key_hash, calls in part.items():
                    self._put(key_hash, calls)
            raise

    def _put(self, key_hash: bytes, calls: Iterable[LoggedCall]) -> None:
        pending = self._pending.get(key_hash)
        if pending is None:
            pending = self._pending[key_hash] = deque(maxlen=CALLS_KEPT_PER_KEY)
        self._pending_count -= len(pending)
        pending.extend(calls)
        self._pending_count += len(pending)
        while self._pending_count > MAX_PENDING_CALLS:
            self._on_drop(len(self._take(next(iter(self._pending)))))

    def _take(self, key_hash: bytes) -> deque[LoggedCall]:
        calls = self._pending.pop(key_hash)
        self._pending_count -= len(calls)
        return calls

    async def _find_key_id(self, key_hash: bytes) -> int:
        key_id = self._key_ids.get(key_hash)
        if key_id is None:
            key_id = await self._store.find_key_id(key_hash)
            assert key_id is not None, "only calls of stored keys are logged, and keys stay stored"
            if len(self._key_ids) >= 10_000:
                self._key_ids.clear()
            self._key_ids[key_hash] = key_id
        return key_id

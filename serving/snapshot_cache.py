"""Caches the latest computed state and past ones as immutable snapshots."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from schemas.coverage import Coverage
from schemas.errors import NotBuiltError
from schemas.vocabulary import DAY_MS, RETENTION_MS, Tier
from serving.first_start import build_not_built_error
from serving.recent_feed import RecentFeed
from serving.snapshot import Snapshot, build_snapshot
from store.market_rows import PastKey, Statistics, StoredSnapshot

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from store.sql.market_store import MarketStore

STATISTICS_DAYS = 30
# The hourly runs of a month. A past snapshot of 251 assets takes about 0.1 MB.
MAX_PAST_SNAPSHOTS = 750


class _PastEntry(NamedTuple):
    """A past snapshot as of a version of the store; `snapshot` is None if it was not served."""

    version: int
    stored: StoredSnapshot
    snapshot: Snapshot | None


class PastSnapshotCache:
    """Caches the past snapshots that were requested last, one for each commit or hourly run."""

    def __init__(self, store: "MarketStore") -> None:
        self._store = store
        # A dict keeps insertion order, so the first key is the one used longest ago.
        self._entries: dict[PastKey, _PastEntry] = {}
        self._loads: dict[tuple[PastKey, int], asyncio.Task[_PastEntry]] = {}

    async def find(self, at: int) -> Snapshot | None:
        """Return the snapshot that was served at a time (epoch ms); None if nothing was."""
        # Read before the key: a commit in between only costs one more load.
        version = self._store.version()
        key = await self._store.past_key(at)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        if entry is None or entry.version != version:
            entry = await self._share_load(key, version)
        return entry.snapshot

    async def _share_load(self, key: PastKey, version: int) -> _PastEntry:
        """Load a snapshot; concurrent callers share one load, and none of them can cancel it."""
        task = self._loads.get((key, version))
        if task is None:
            task = asyncio.create_task(self._load(key, version))
            self._loads[key, version] = task
            task.add_done_callback(lambda done: self._on_loaded(key, version, done))
        return await asyncio.shield(task)

    def _on_loaded(self, key: PastKey, version: int, task: "asyncio.Task[_PastEntry]") -> None:
        del self._loads[key, version]
        if not task.cancelled():
            # Retrieve it: if all callers were cancelled, asyncio would log it as never retrieved.
            task.exception()

    async def _load(self, key: PastKey, version: int) -> _PastEntry:
        """Load a snapshot, or the parts of a cached one that a newer version may have changed."""
        cached = self._entries.get(key)
        known = None if cached is None else cached.stored.readings
        stored = await self._store.past_snapshot(key, known)
        if cached is not None and cached.stored == stored:
            entry = cached._replace(version=version)
        else:
            entry = _PastEntry(version, stored, build_snapshot(stored, is_past=True))
        self._entries.pop(key, None)
        self._entries[key] = entry
        if len(self._entries) > MAX_PAST_SNAPSHOTS:
            del self._entries[next(iter(self._entries))]
        return entry


class SnapshotCache:
    """Caches the store's latest snapshot, and reads it again when the store's version changes."""

    def __init__(self, store: "MarketStore") -> None:
        self.store = store
        self.recent_feed = RecentFeed(store)
        self._lock = asyncio.Lock()
        self._version: int | None = None
        self._last_read: tuple[StoredSnapshot, Snapshot | None] | None = None
        self._is_fresh = False
        self._statistics_lock = asyncio.Lock()
        self._statistics_entry: tuple[Snapshot, dict[Tier, Statistics]] | None = None
        self._past = PastSnapshotCache(store)
        self._first_market_time: int | None = None

    async def coverage(self) -> Coverage | None:
        """Return the coverage that the compute job last published, or None if there is none."""
        return (self._get_if_current() or await self._read_latest())[0].coverage

    async def explain_missing(self) -> NotBuiltError:
        """Return the error of calls that need a snapshot while there is none."""
        stored = (self._get_if_current() or await self._read_latest())[0]
        if self._first_market_time is None:
            self._first_market_time = (await self.store.progress()).first_market_time
        return build_not_built_error(stored.coverage, self._first_market_time, stored.market_time)

    async def snapshot(self) -> Snapshot | None:
        """Return the latest snapshot, or None if nothing has been computed yet."""
        return (self._get_if_current() or await self._read_latest())[1]

    def peek(self) -> Snapshot | None:
        """Return the latest snapshot without I/O; None if it has to be read or does not exist."""
        current = self._get_if_current()
        return None if current is None else current[1]

    @property
    def last(self) -> Snapshot | None:
        """The snapshot that was read last, even if the store has a newer one by now."""
        return None if self._last_read is None else self._last_read[1]

    def expire(self) -> None:
        """Make the next caller read the latest state, because the store has a newer one."""
        self._version, self._is_fresh = None, False

    async def snapshot_at(self, at: int) -> Snapshot | None:
        """Return the snapshot that was served at a time (epoch ms); None before the first."""
        return await self._past.find(at)

    async def statistics(self, snapshot: Snapshot) -> dict[Tier, Statistics]:
        """Return the row counts of the 30 days up to a snapshot, computed once per snapshot."""
        # The lock makes concurrent callers share one count, which scans all rows of the window.
        async with self._statistics_lock:
            if self._statistics_entry is None or self._statistics_entry[0] is not snapshot:
                counts = {tier: await self._count_volume(tier, snapshot) for tier in RETENTION_MS}
                self._statistics_entry = (snapshot, counts)
            return self._statistics_entry[1]

    async def _count_volume(self, tier: Tier, snapshot: Snapshot) -> Statistics:
        return await self.store.statistics(
            tier,
            after=snapshot.newest_at - STATISTICS_DAYS * DAY_MS,
            until=snapshot.stored.last_created_at,
            visible_after=snapshot.market_time - RETENTION_MS[tier],
        )

    def _get_if_current(self) -> tuple[StoredSnapshot, Snapshot | None] | None:
        """Return the last read state if it is current; checked once per turn of the event loop."""
        # SQLite's version is a word in shared memory, so it is read in the loop: a thread takes ten
        # times as long, and a timer would serve the old version after a commit was reported.
        if not self._is_fresh:
            if self._last_read is None or self.store.version() != self._version:
                return None
            self._is_fresh = True
            asyncio.get_running_loop().call_soon(self._expire)
        return self._last_read

    def _expire(self) -> None:
        self._is_fresh = False

    async def _read_latest(self) -> tuple[StoredSnapshot, Snapshot | None]:
        """Read the latest state; concurrent callers share one read."""
        async with self._lock:
            # The version is read first. If a commit lands before the rows are read, the next check
            # sees another version and reads again, which is harmless.
            version = self.store.version()
            if self._last_read is None or version != self._version:
                stored = await self.store.snapshot()
                snapshot = build_snapshot(stored)
                if snapshot is not None:
                    await self.recent_feed.follow(snapshot)
                self._last_read, self._version = (stored, snapshot), version
            return self._last_read

"""Caches the latest computed state and past ones as immutable snapshots."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from schemas.coverage import Coverage
from schemas.errors import NotBuiltError
from schemas.vocabulary import DAY_MS, RETENTION_MS, SourceKind, Tier
from serving.first_start import build_not_built_error
from serving.past_index import PastIndex
from serving.recent_feed import RecentFeed
from serving.snapshot import Snapshot, build_snapshot
from store.market_rows import PastKey, Statistics, StoredSnapshot

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from store.sql.market_store import MarketStore

STATISTICS_DAYS = 30
# Those of a client that reads several tools or pages at one time. Each takes about 0.1 MB at 251
# assets, and building another one about 1 ms.
MAX_PAST_SNAPSHOTS = 100


class _PastEntry(NamedTuple):
    """A past snapshot as of a version of the store; `snapshot` is None if it was not served."""

    version: int | None
    stored: StoredSnapshot
    snapshot: Snapshot | None


class PastSnapshotCache:
    """Caches the past snapshots that were requested last, one for each commit or hourly run."""

    def __init__(self, store: "MarketStore", index: PastIndex | None) -> None:
        self._store = store
        self._index = index
        # A dict keeps insertion order, so the first key is the one used longest ago.
        self._entries: dict[PastKey, _PastEntry] = {}
        self._loads: dict[tuple[PastKey, int | None], asyncio.Task[_PastEntry]] = {}

    async def find(self, at: int, latest: StoredSnapshot, version: int | None) -> Snapshot | None:
        """Return the snapshot that was served at a time (epoch ms); None if nothing was.

        `latest` is the latest state as of a version of the store.
        """
        if self._index is not None and await self._index.prepare(latest):
            key = self._index.find_key(at)
        else:
            key = await self._store.past_key(at)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        if entry is None or version is None or entry.version != version:
            entry = await self._share_load(key, latest, version)
        return entry.snapshot

    async def _share_load(
        self, key: PastKey, latest: StoredSnapshot, version: int | None
    ) -> _PastEntry:
        """Load a snapshot; concurrent callers share one load, and none of them can cancel it."""
        task = self._loads.get((key, version))
        if task is None:
            task = asyncio.create_task(self._load(key, latest, version))
            self._loads[key, version] = task
            task.add_done_callback(lambda done: self._on_loaded(key, version, done))
        return await asyncio.shield(task)

    def _on_loaded(
        self, key: PastKey, version: int | None, task: "asyncio.Task[_PastEntry]"
    ) -> None:
        del self._loads[key, version]
        if not task.cancelled():
            # Retrieve it: if all callers were cancelled, asyncio would log it as never retrieved.
            task.exception()

    async def _load(self, key: PastKey, latest: StoredSnapshot, version: int | None) -> _PastEntry:
        """Load a snapshot, or the parts of a cached one that a newer version may have changed."""
        cached = self._entries.get(key)
        known = None if cached is None else cached.stored.readings
        stored = None if self._index is None else self._index.build(key, latest)
        if stored is None:
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


_LatestRead = tuple[StoredSnapshot, Snapshot | None]


class SnapshotCache:
    """Caches the store's latest snapshot, and reads it again when the store's version changes."""

    def __init__(
        self,
        store: "MarketStore",
        recent_feed: RecentFeed | None = None,
        past_index: PastIndex | None = None,
    ) -> None:
        """Follow a store; without `recent_feed`, every page of the feed is read from the store.

        Without `past_index`, past snapshots are.
        """
        self.store = store
        self.recent_feed = recent_feed
        self._reading: asyncio.Task[_LatestRead] | None = None
        self._version: int | None = None
        self._last_read: _LatestRead | None = None
        self._is_fresh = False
        self._statistics_lock = asyncio.Lock()
        self._statistics_entry: tuple[Snapshot, dict[Tier, Statistics]] | None = None
        self._past = PastSnapshotCache(store, past_index)
        self._first_market_time: int | None = None

    async def coverage(self) -> Coverage | None:
        """Return the coverage that the compute job last published, or None if there is none."""
        return (self._get_if_current() or await self._read_latest())[0].coverage

    async def source(self) -> SourceKind | None:
        """Return the source of the bars, or None before the first start has published it."""
        # A store never changes its source, so no call has to wait for a newer version.
        known = None if self._last_read is None else self._last_read[0].coverage
        coverage = known or await self.coverage()
        return None if coverage is None else coverage.source

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
        await self.snapshot()
        # State and version are set together, so the two belong to each other.
        latest, _ = self._last_read or await self._read_latest()
        return await self._past.find(at, latest, self._version)

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

    def _get_if_current(self) -> _LatestRead | None:
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

    async def _read_latest(self) -> _LatestRead:
        """Return a state at least as new as this call; concurrent callers share one read."""
        for _ in range(2):
            read = await self._share_read()
            # The first one may have begun before a commit that the caller knows of.
            if self._get_if_current() is not None:
                break
        return read

    async def _share_read(self) -> _LatestRead:
        """Join the read in progress, or begin one; no caller can cancel it for the others."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._on_read)
        return await asyncio.shield(self._reading)

    def _on_read(self, task: "asyncio.Task[_LatestRead]") -> None:
        self._reading = None
        if not task.cancelled():
            # Retrieve it: if all callers were cancelled, asyncio would log it as never retrieved.
            task.exception()

    async def _read(self) -> _LatestRead:
        # The version is read first. If a commit lands before the rows are read, the next check
        # sees another version and reads again, which is harmless.
        version = self.store.version()
        known = None if self._last_read is None else self._last_read[0]
        stored = await self.store.snapshot(known)
        # A checkpoint of the log, or a test write, changes the version but nothing that is cached.
        if self._last_read is not None and stored == known:
            self._version = version
            return self._last_read
        snapshot = build_snapshot(stored)
        if snapshot is not None and self.recent_feed is not None:
            self.recent_feed.keep_up(snapshot)
        self._last_read, self._version = (stored, snapshot), version
        return self._last_read

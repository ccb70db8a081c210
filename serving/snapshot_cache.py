"""Caches the latest computed state as an immutable snapshot, and rebuilds past ones."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from schemas.coverage import Coverage
from schemas.errors import NotBuiltError, describe_failure
from schemas.vocabulary import SourceKind, format_instant
from serving.snapshot import Snapshot, build_snapshot
from store.market_rows import StoredSnapshot
from store.store_errors import StoreError

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from serving.feed_ledger import Ledger
    from store.sql.market_store import MarketStore

log = structlog.get_logger("feed")

FIRST_COMPUTE_RETRY_S = 900
# A simulated market is built in seconds, and so is the first asset of live markets.
BUILDING_RETRY_S, LIVE_RETRY_S = 5, 60

_LatestRead = tuple[StoredSnapshot, Snapshot | None]


class SnapshotCache:
    """Caches the store's latest snapshot, and reads it again when the store's version changes."""

    def __init__(self, store: "MarketStore", *, loads_ledger: bool = False) -> None:
        """Follow a store; with `loads_ledger`, read the ledger before the first call needs it."""
        self.store = store
        self._loads_ledger = loads_ledger
        self._reading: asyncio.Task[_LatestRead] | None = None
        self._version: int | None = None
        self._last_read: _LatestRead | None = None
        self._is_fresh = False
        self._ledger: Ledger | None = None
        self._ledger_lock = asyncio.Lock()
        self._first_load: asyncio.Task[object] | None = None

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
        """Return the error of calls that need a snapshot while there is none.

        It says how much of the history is built, and why no more of it.
        """
        stored = (self._get_if_current() or await self._read_latest())[0]
        progress, coverage, last = await self.store.progress(), stored.coverage, stored.market_time
        needed_until = None if coverage is None else coverage.served_from
        percent = 0
        if needed_until is not None:
            percent = calculate_percent(progress.first_market_time, last, needed_until)
        if progress.outage is not None:
            reason = f"Nothing can be computed at the moment: {progress.outage}."
            return NotBuiltError(reason, LIVE_RETRY_S, percent)
        if coverage is None or needed_until is None:
            return NotBuiltError(
                "Nothing has been computed yet: the compute job has not finished its first run.",
                FIRST_COMPUTE_RETRY_S,
                percent,
            )
        if coverage.source == "live":
            return NotBuiltError(
                "No asset has its history yet. Each is served as soon as it is complete, coins "
                "first.",
                BUILDING_RETRY_S,
                percent,
            )
        built = "nothing yet" if last is None else f"up to {format_instant(last)}"
        return NotBuiltError(
            "The history is still being built, and nothing is served until it is complete: "
            f"{percent} % done, built {built}, needed up to {format_instant(needed_until)}.",
            BUILDING_RETRY_S,
            percent,
        )

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
        latest = (self._get_if_current() or await self._read_latest())[0]
        key = await self.store.past_key(at)
        # A commit may have come since the latest state was read.
        ledger = await self._load_ledger(max(latest.last_created_at, key.last_created_at))
        readings = ledger.find_readings(key.last_created_at)
        return build_snapshot(await self.store.past_snapshot(key, readings), is_past=True)

    async def ledger(self, snapshot: Snapshot) -> "Ledger":
        """Return the changes and alerts up to a snapshot; there may be later ones."""
        return await self._load_ledger(snapshot.stored.last_created_at)

    def peek_ledger(self, snapshot: Snapshot) -> "Ledger | None":
        """Return the ledger if it has all rows of a snapshot, else None."""
        ledger, until = self._ledger, snapshot.stored.last_created_at
        return ledger if ledger is not None and ledger.last_at >= until else None

    async def _load_ledger(self, until: int, *, is_commit: bool = False) -> "Ledger":
        """Return a ledger with all rows up to a time, reading the rest if it lacks some."""
        from serving.feed_ledger import read_ledger

        async with self._ledger_lock:
            if self._ledger is None or self._ledger.last_at < until or is_commit:
                self._ledger = await read_ledger(self.store, until, self._ledger)
            return self._ledger

    async def _load_first(self, snapshot: Snapshot) -> None:
        try:
            await self.ledger(snapshot)
        except StoreError:
            # The store reports its own failures, and the next call tries again.
            return
        except Exception as error:
            log.error("ledger_failed", **describe_failure(error))

    def _get_if_current(self) -> _LatestRead | None:
        """Return the last read state if it is current; checked once per turn of the event loop."""
        # SQLite's version is a word in shared memory, so it is read in the loop: a thread takes ten
        # times as long, and a timer would serve the old version after a commit was reported.
        if not self._is_fresh:
            if self._last_read is None or self.store.version() != self._version:
                return None
            self._is_fresh = True
            asyncio.get_running_loop().call_soon(setattr, self, "_is_fresh", False)
        return self._last_read

    async def _read_latest(self) -> _LatestRead:
        """Return a state at least as new as this call; concurrent callers share one read."""
        for _ in range(2):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
                # Retrieve its error: if all callers were cancelled, asyncio would log it as never
                # retrieved.
                self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            # No caller can cancel the read for the others.
            read = await asyncio.shield(self._reading)
            # The first one may have begun before a commit that the caller knows of.
            if self._get_if_current() is not None:
                break
        return read

    async def _read(self) -> _LatestRead:
        # The version is read first. If a commit lands before the rows are read, the next check
        # sees another version and reads again, which is harmless.
        version = self.store.version()
        known = None if self._last_read is None else self._last_read[0]
        stored = await self.store.snapshot()
        # A checkpoint of the log, or a test write, changes the version but nothing that is cached.
        if self._last_read is not None and stored == known:
            self._version = version
            return self._last_read
        snapshot = build_snapshot(stored)
        if self._ledger is not None:
            # Even if no row is new: assets may be, and a database may have been restored.
            await self._load_ledger(stored.last_created_at, is_commit=True)
        elif snapshot is not None and self._loads_ledger and self._first_load is None:
            self._first_load = asyncio.create_task(self._load_first(snapshot))
        self._last_read, self._version = (stored, snapshot), version
        return self._last_read


def calculate_percent(first: int | None, last: int | None, needed_until: int) -> int:
    """Return the built share of the history up to a market time (epoch ms), rounded down."""
    # The first commit begins at no known time, but it is only one of about ten.
    if first is None or last is None or first >= needed_until:
        return 0
    return 100 * (min(last, needed_until) - first) // (needed_until - first)

"""Keeps the newest rows of the feed in memory, as the JSON that results contain.

Published rows never change, so a page of them is a search and a join of bytes. Rows are escaped,
too, because a tool result repeats them as text. Older pages come from the store.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

import structlog

from schemas.errors import describe_failure
from schemas.signals import Signal
from schemas.vocabulary import DAY_MS, AssetClass, Direction, Tier, Timeframe
from serving.json_text import JsonText
from serving.signal_rows import to_signal
from serving.snapshot import Snapshot
from store.errors import StoreError
from store.market_rows import FeedQuery, FeedRow

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from store.sql.market_store import MarketStore

log = structlog.get_logger("feed")

RECENT_MS = 30 * DAY_MS
# 251 assets have about 40,000 rows of 350 bytes in 30 days, 740 bytes in both forms.
MAX_ROW_BYTES = 40_000_000
# For the rows of a run. Reading them from the store for each of many pollers would take longer.
MAX_WAIT_S = 0.25
# Converting so many rows to JSON takes about 5 ms, in which the event loop does nothing else.
ROWS_PER_READ = 500
# Beyond this offset, stepping over the rows takes longer than a page of the store.
MAX_RECENT_OFFSET = 1000
# Kinds are searched in pieces, because most pages are full after the first one.
KINDS_PER_SEARCH = 4096


class RowFilter(NamedTuple):
    """The rows that a page is made of; None stands for any value.

    `ticker` selects one asset, `tickers` several, and `asset_class` a class if both are None.
    """

    tier: Literal["universe", "alerts", "all"]
    ticker: str | None
    indicator: str | None
    timeframe: Timeframe | None
    direction: Direction | None
    asset_class: AssetClass | None = None
    tickers: tuple[str, ...] | None = None


_Owner = tuple[str, str | None, AssetClass | None]


class FeedWindow(NamedTuple):
    """The rows of a page: those with `created_at` in (`after`, `until`], epoch ms, and its size."""

    after: int
    until: int
    limit: int
    offset: int
    oldest_first: bool


class FeedPage(NamedTuple):
    """Rows of a page; `newest_at` is the largest `created_at` (epoch ms), None without rows."""

    rows: Sequence[JsonText]
    has_more: bool
    newest_at: int | None


class _Kind(NamedTuple):
    """What a filter selects rows by, apart from their tier and ticker."""

    indicator: str
    timeframe: Timeframe
    direction: Direction


class _Row(NamedTuple):
    created_at: int
    tier: Tier
    ticker: str
    asset_class: AssetClass
    kind: _Kind
    text: JsonText


@dataclass(slots=True)
class _Rows:
    """Rows sorted by time: `created_at`, the number of the kind, and the row as JSON."""

    times: "array[int]" = field(default_factory=lambda: array("q"))
    kinds: bytearray = field(default_factory=bytearray)
    texts: list[JsonText] = field(default_factory=list)

    def append(self, created_at: int, kind: int, text: JsonText) -> None:
        self.times.append(created_at)
        self.kinds.append(kind)
        self.texts.append(text)

    def drop_first(self, count: int) -> None:
        del self.times[:count], self.kinds[:count], self.texts[:count]

    def find_page(self, window: FeedWindow, selected: bytes | None) -> FeedPage:
        """Return the rows of a window, in its order.

        `selected` has a byte for each kind, 1 if its rows are wanted; None selects all rows.
        """
        start, stop = window.offset, window.offset + window.limit + 1
        positions = self.search(window, selected)
        found: Sequence[int]
        if isinstance(positions, range):
            found = positions[start:stop]
        else:
            found = [*islice(positions, start, stop)]
        page = found[: window.limit]
        newest_at = max(self.times[page[0]], self.times[page[-1]]) if page else None
        rows = [*map(self.texts.__getitem__, page)]
        return FeedPage(rows, len(found) > len(page), newest_at)

    def search(self, window: FeedWindow, selected: bytes | None) -> range | Iterator[int]:
        """Return the positions of the rows of a window, in its order, without its offset."""
        first = bisect_right(self.times, window.after)
        end = bisect_right(self.times, window.until)
        if selected is None:
            return range(first, end) if window.oldest_first else range(end - 1, first - 1, -1)
        search = _search_forwards if window.oldest_first else _search_backwards
        return search(self.kinds, selected, first, end)

    def iter_rows(
        self, window: FeedWindow, selected: bytes | None
    ) -> Iterator[tuple[int, JsonText]]:
        """Yield time and JSON of the rows of a window, in its order, without its offset."""
        for position in self.search(window, selected):
            yield self.times[position], self.texts[position]


class RecentFeed:
    """The published rows of both tiers of 30 days, fewer if they exceed `max_bytes`."""

    def __init__(self, store: "MarketStore", max_bytes: int = MAX_ROW_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._latest: Snapshot | None = None
        self._task: asyncio.Task[None] | None = None
        self._clear()

    def _clear(self) -> None:
        # By tier, also "all", and by ticker or class; both are None for the rows of all assets.
        self._rows: defaultdict[_Owner, _Rows] = defaultdict(_Rows)
        self._kinds: dict[_Kind, int] = {}
        self._selections: dict[tuple[str | None, ...], bytes | None] = {}
        self._size_bytes = 0
        # All rows with `created_at` in (begins, ends] are here.
        self._begins = self._ends = 0
        self._names: tuple[dict[str, AssetClass], dict[str, str]] = ({}, {})

    def keep_up(self, snapshot: Snapshot) -> None:
        """Begin to follow the latest snapshot; meanwhile, pages come from the store."""
        self._latest = snapshot
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow_latest())
            self._task.add_done_callback(_report_failure)

    async def wait(self) -> None:
        """Wait until the rows of the latest snapshot are here, which takes milliseconds.

        Do not wait for the first read, which takes seconds.
        """
        if self._ends and self._task is not None:
            await asyncio.wait([self._task], timeout=MAX_WAIT_S)

    async def _follow_latest(self) -> None:
        followed = None
        while self._latest is not None and followed is not self._latest:
            followed = self._latest
            await self.follow(followed)

    async def follow(self, snapshot: Snapshot) -> None:
        """Read the rows up to a snapshot that are missing here, and drop the oldest ones."""
        asset_classes = {ticker: asset.asset_class for ticker, asset in snapshot.assets.items()}
        names = asset_classes, snapshot.indicator_names
        newest_at = snapshot.stored.last_created_at
        # Rows contain these names. A feed that ends earlier is that of a restored database.
        if names != self._names or newest_at < self._ends:
            self._clear()
        oldest_at = snapshot.market_time - RECENT_MS
        if self._ends:
            rows = await self._read_newer(newest_at, snapshot)
        else:
            rows = await self._read_all(oldest_at, newest_at, snapshot)
        for row in rows:
            self._append(row)
        self._names, self._ends = names, newest_at
        self._drop_until(oldest_at)

    def find_page(self, row_filter: RowFilter, window: FeedWindow) -> FeedPage | None:
        """Return a page, or None if rows that it needs may be missing here."""
        if window.until > self._ends or window.offset > MAX_RECENT_OFFSET:
            return None
        holds_all = window.after >= self._begins
        if window.oldest_first and not holds_all:
            return None
        tier, ticker, indicator, timeframe, direction, asset_class, tickers = row_filter
        selected = self._select_kinds((indicator, timeframe, direction))
        if tickers is None:
            owner = tier, ticker, asset_class if ticker is None else None
            page = (self._rows.get(owner) or _Rows()).find_page(window, selected)
        else:
            owners = [self._rows.get((tier, each, None)) or _Rows() for each in tickers]
            page = _merge_pages(owners, window, selected)
        return page if holds_all or page.has_more else None

    async def _read_newer(self, newest_at: int, snapshot: Snapshot) -> list[_Row]:
        """Return the rows after the last one here, oldest first."""
        rows: list[_Row] = []
        after = self._ends
        while after < newest_at:
            query = FeedQuery(after, newest_at, ROWS_PER_READ, 0, oldest_first=True)
            found = await self._store.merged_feed(query, after)
            rows += _encode_rows(found, snapshot)
            after = found[-1].created_at if len(found) == ROWS_PER_READ else newest_at
        return rows

    async def _read_all(self, oldest_at: int, newest_at: int, snapshot: Snapshot) -> list[_Row]:
        """Return the rows after a time, or fewer if they are too many, oldest first."""
        # Backwards, so that of a huge feed only the rows that fit are read.
        rows: list[_Row] = []
        size_bytes, until, self._begins = 0, newest_at, 0
        while True:
            found = await self._store.merged_feed(FeedQuery(0, until, ROWS_PER_READ, 0), 0)
            encoded = _encode_rows(found, snapshot)
            rows += encoded
            size_bytes += sum(_measure(row.text) for row in encoded)
            if len(found) < ROWS_PER_READ:
                break
            until = found[-1].created_at - 1
            if until < oldest_at or size_bytes > self._max_bytes:
                self._begins = until
                break
        return rows[::-1]

    def _append(self, row: _Row) -> None:
        if row.kind not in self._kinds:
            self._kinds[row.kind] = len(self._kinds)
            self._selections.clear()
        kind = self._kinds[row.kind]
        for tier in ("all", row.tier):
            for owner in ((None, None), (row.ticker, None), (None, row.asset_class)):
                self._rows[tier, *owner].append(row.created_at, kind, row.text)
        self._size_bytes += _measure(row.text)

    def _drop_until(self, oldest_at: int) -> None:
        """Drop the rows up to a time, and as many more as the limit of bytes requires."""
        rows = self._rows["all", None, None]
        count = bisect_right(rows.times, oldest_at)
        size_bytes = self._size_bytes - sum(map(_measure, rows.texts[:count]))
        while size_bytes > self._max_bytes:
            size_bytes -= _measure(rows.texts[count])
            count += 1
        if count:
            self._begins, self._size_bytes = rows.times[count - 1], size_bytes
            for each in self._rows.values():
                each.drop_first(bisect_right(each.times, self._begins))

    def _select_kinds(self, wanted: tuple[str | None, ...]) -> bytes | None:
        """Return a byte for each kind, 1 if it matches; None if all kinds do.

        `wanted` has the fields of a kind, or None for any value.
        """
        if wanted not in self._selections:
            numbers = [n for kind, n in self._kinds.items() if _matches(kind, wanted)]
            is_all = len(numbers) == len(self._kinds)
            selected = bytes(number in numbers for number in range(256))
            self._selections[wanted] = None if is_all else selected
        return self._selections[wanted]


def _merge_pages(owners: Iterable[_Rows], window: FeedWindow, selected: bytes | None) -> FeedPage:
    """Return the page of the rows of several assets; each row has a time of its own."""
    rows = [each.iter_rows(window, selected) for each in owners]
    ordered = merge(*rows, key=itemgetter(0), reverse=not window.oldest_first)
    found = [*islice(ordered, window.offset, window.offset + window.limit + 1)]
    page = found[: window.limit]
    newest_at = max((at for at, _ in page), default=None)
    return FeedPage([text for _, text in page], len(found) > len(page), newest_at)


def _report_failure(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    # The store reports its own failures. Pages come from it until the next snapshot is followed.
    if error is not None and not isinstance(error, StoreError):
        log.error("recent_feed_failed", **describe_failure(error))


def encode_row(row: FeedRow, snapshot: Snapshot) -> JsonText:
    """Return a row of the feed as JSON."""
    return _to_json(to_signal(row, snapshot))


def _measure(text: JsonText) -> int:
    """Return the bytes of a row in both forms."""
    return len(text.plain) + len(text.escaped)


def _encode_rows(rows: Iterable[FeedRow], snapshot: Snapshot) -> list[_Row]:
    """Return rows as they are kept; those of assets that are not covered at all are not served."""
    return [_encode(row, snapshot) for row in rows if row.ticker in snapshot.assets]


def _encode(row: FeedRow, snapshot: Snapshot) -> _Row:
    signal = to_signal(row, snapshot)
    kind = _Kind(signal.indicator, signal.timeframe, signal.direction)
    names = signal.tier, row.ticker, signal.asset_class
    return _Row(row.created_at, *names, kind, _to_json(signal))


def _to_json(signal: Signal) -> JsonText:
    return JsonText.escape(signal.model_dump_json(by_alias=True).encode())


def _matches(kind: _Kind, wanted: tuple[str | None, ...]) -> bool:
    indicator, timeframe, direction = wanted
    return (
        indicator in (None, kind.indicator)
        and timeframe in (None, kind.timeframe)
        and direction in (None, kind.direction)
    )


def _search_backwards(kinds: bytearray, selected: bytes, first: int, end: int) -> Iterator[int]:
    """Yield the positions of the selected kinds in [first, end), last first."""
    while end > first:
        start = max(first, end - KINDS_PER_SEARCH)
        marks = kinds[start:end].translate(selected)
        at = marks.rfind(1)
        while at >= 0:
            yield start + at
            at = marks.rfind(1, 0, at)
        end = start


def _search_forwards(kinds: bytearray, selected: bytes, first: int, end: int) -> Iterator[int]:
    """Yield the positions of the selected kinds in [first, end), first first."""
    for start in range(first, end, KINDS_PER_SEARCH):
        marks = kinds[start : min(start + KINDS_PER_SEARCH, end)].translate(selected)
        at = marks.find(1)
        while at >= 0:
            yield start + at
            at = marks.find(1, at + 1)

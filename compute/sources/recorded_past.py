"""Compares the bars and settlements that a store holds with the recording they came from."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from compute.bars import Funding, Prices, Series, Times
from compute.schedule import find_last_run
from compute.sources.files import BARS_HEADER, FUNDING_HEADER, FilesSource
from compute.sources.source import SourceError
from compute.state_loader import build_funding, build_series
from compute.universe import Universe
from schemas.vocabulary import format_instant
from store.sql.market_store import MarketStore

ACTION = "restore the file, or set SIGNALS_DATABASE_URL to another database"


class _Rows(NamedTuple):
    """Times, oldest first, and the values of the other columns with shape (rows, columns)."""

    times: Times
    values: Prices

    @classmethod
    def from_bars(cls, bars: Series) -> Self:
        columns = (bars.open, bars.high, bars.low, bars.close, bars.volume)
        return cls(bars.open_time, np.stack(columns, axis=1))

    @classmethod
    def from_funding(cls, funding: Funding) -> Self:
        return cls(funding.settled_at, funding.rate[:, np.newaxis])

    def find_row(self, time: int) -> Prices | None:
        """Return the values of the row with a time, None if there is none."""
        index = int(np.searchsorted(self.times, time))
        is_found = index < len(self.times) and self.times[index] == time
        return self.values[index] if is_found else None


async def check_recorded_past(store: MarketStore, source: FilesSource, universe: Universe) -> None:
    """Raise SourceError if the store holds other bars or settlements than the recording.

    All that the recording has up to each asset's watermark is compared. Later rows may be added.
    """
    # The stored rows were published, and a recording cannot say why its past is another one now.
    # So nothing is restated, as it is for a split of a live stock; the operator has to decide.
    differences = [found async for found in _find_differences(store, source, universe)]
    if differences:
        others = len(differences) - 1
        more = f" ({others} other files differ too)" if others else ""
        raise SourceError(f"{differences[0]}{more}; {ACTION}")


async def _find_differences(
    store: MarketStore, source: FilesSource, universe: Universe
) -> AsyncIterator[str]:
    """Yield a line for each file of the recording that differs from the store."""
    progress = await store.progress()
    if progress.source != source.name or progress.market_time is None:
        return
    coverage = (await store.snapshot()).coverage
    covered = {asset.ticker for asset in coverage.assets if asset.timeframes} if coverage else ()
    done_hour = find_last_run(progress.market_time)
    for ticker in sorted(await store.publish_from()):
        native = source.get_native_timeframe(ticker)
        if native is None:
            continue
        bars = build_series(await store.bars(ticker), native)
        # An asset that was not covered for a while continues at its last stored bar.
        is_continued = ticker in covered or not len(bars)
        until = done_hour if is_continued else int(bars.close_time[-1])
        # A removed asset has no bars that close after its removal.
        until = min(until, universe.end_time_by_ticker.get(ticker, until + 1) - 1)
        recorded = await source.fetch(ticker, -1, until)
        stored_bars = _Rows.from_bars(bars.select(bars.close_time <= until))
        funding = build_funding(await store.funding(ticker)).select_between(-1, until)
        for what, header, stored, now in (
            (native, BARS_HEADER, stored_bars, _Rows.from_bars(recorded.bars)),
            (
                "funding",
                FUNDING_HEADER,
                _Rows.from_funding(funding),
                _Rows.from_funding(recorded.funding),
            ),
        ):
            if difference := _describe_difference(header[1:], stored, now):
                yield f"{source.get_path(ticker, what)}: {difference}"


def _describe_difference(columns: Sequence[str], stored: _Rows, recorded: _Rows) -> str:
    """Return how many rows differ, and the first of them; an empty text if all are equal."""
    times, stored_indexes, recorded_indexes = np.intersect1d(
        stored.times, recorded.times, assume_unique=True, return_indices=True
    )
    differs = stored.values[stored_indexes] != recorded.values[recorded_indexes]
    rows_by_kind = {
        "changed": times[differs.any(axis=1)],
        "removed": np.setdiff1d(stored.times, times, assume_unique=True),
        "added": np.setdiff1d(recorded.times, times, assume_unique=True),
    }
    counts = [f"{len(rows)} {kind}" for kind, rows in rows_by_kind.items() if len(rows)]
    if not counts:
        return ""
    first = int(np.concatenate(list(rows_by_kind.values())).min())
    before, now = stored.find_row(first), recorded.find_row(first)
    column = 0 if before is None or now is None else int(np.flatnonzero(before != now)[0])
    return (
        f"rows that were computed differ from the database ({', '.join(counts)}); the first has ts "
        f"{first} ({format_instant(1000 * first)}), {columns[column]}: "
        f"{_format_value(before, column)} in the database, {_format_value(now, column)} in the file"
    )


def _format_value(row: Prices | None, column: int) -> str:
    return "no row" if row is None else repr(float(row[column]))

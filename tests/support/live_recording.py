"""Writes the data of a live source to a folder of recorded bars, and replays it."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compute.bars import DAY_S, HOUR_S
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.files import FilesSource
from compute.universe import Universe
from store.market_rows import AlertRow, ChangeRow, StoredSnapshot
from store.sql.market_store import MarketStore
from store.sqlite.market_store import open_sqlite_market
from tests.doubles.venues.market import Market

ALPACA_DELAY_S = 900
# Closes (epoch seconds) and tickers.
Late = set[tuple[int, str]]


class StoredResult(NamedTuple):
    """The final content of a store."""

    snapshot: StoredSnapshot
    changes: list[ChangeRow]
    alerts: list[AlertRow]

    @classmethod
    async def load(cls, store: MarketStore) -> "StoredResult":
        changes = [row async for row in store.changes()]
        return cls(await store.snapshot(), changes, [row async for row in store.alerts()])

    def created_before(self, start: int) -> list[int]:
        """Return the times at which the changes up to a close were written, in order of closes."""
        return [row.created_at for row in _sort(self.changes) if row.close_time <= start]


def write_recording(
    folder: Path, made: Mapping[str, Market], funded: Iterable[str], begin: int, end: int
) -> Path:
    """Write the bars that close, and the settlements of the funded, in (begin, end].

    A live source fetches one more day of settlements.
    """
    folder.mkdir()
    for ticker, market in made.items():
        bars = [bar for bar in market.all_bars() if begin < _close_time(bar.open_time) <= end]
        header = ["ts", "open", "high", "low", "close", "volume"]
        _write(folder / f"{ticker}_1h.csv", header, bars)
    for ticker in funded:
        rates = [row for row in made[ticker].settlements if begin - DAY_S < row[0] <= end]
        _write(folder / f"{ticker}_funding.csv", ["ts", "funding_rate"], rates)
    return folder


async def replay_recording(folder: Path, path: Path, universe: Universe, end: int) -> StoredResult:
    """Step a folder's bars into a new store."""
    store = await open_sqlite_market(path)
    try:
        source = FilesSource(folder, universe)
        runs = await HourlyPipeline.open(
            store, source, universe, INDICATORS, lambda: to_market_ms(end)
        )
        await runs.run_until(end)
        return await StoredResult.load(store)
    finally:
        await store.close()


def find_delayed(
    live: StoredResult, replayed: StoredResult, universe: Universe, start: int
) -> Late:
    """Assert that a live store has the rows of a replay; return which came after their run.

    `start` is the close of the first start's last bars (epoch seconds), which shows nothing older.
    """
    assert live.snapshot.readings == replayed.snapshot.readings
    rows, others = _sort(live.changes), _sort(replayed.changes)
    assert _drop_times(rows, start) == _drop_times(others, start)
    expected_alerts = [alert[1:] for alert in replayed.alerts if alert.close_time > start]
    assert sorted(alert[1:] for alert in live.alerts) == sorted(expected_alerts)
    created = [row.created_at for row in live.changes]
    assert created == sorted(set(created))
    # If some rows of a run are late, the ones after them come a millisecond earlier for each.
    return {
        (row.close_time, row.ticker)
        for row, other in zip(rows, others, strict=True)
        if row.close_time > start
        and abs(row.created_at - other.created_at - _compute_delay_ms(universe, row)) >= 1000
    }


def _sort(rows: Iterable[ChangeRow]) -> list[ChangeRow]:
    return sorted(rows, key=lambda r: (r.close_time, r.timeframe, r.ticker, r.indicator))


def _drop_times(rows: Iterable[ChangeRow], start: int) -> list[tuple[object, ...]]:
    """Return rows without `created_at`; `published` only after the start."""
    return [row[1:9] + ((row.published,) if row.close_time > start else ()) for row in rows]


def _compute_delay_ms(universe: Universe, row: ChangeRow) -> int:
    is_delayed = universe.by_ticker[row.ticker].venue == "alpaca"
    return 1000 * ALPACA_DELAY_S if is_delayed else 0


def _close_time(open_time: int) -> int:
    return -(-(open_time + HOUR_S) // HOUR_S) * HOUR_S


def _write(path: Path, header: list[str], rows: Iterable[Sequence[float]]) -> None:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(header)
        lines.writerows(rows)

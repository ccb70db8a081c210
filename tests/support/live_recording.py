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


class StoredResult(NamedTuple):
    """The final content of a store."""

    snapshot: StoredSnapshot
    changes: list[ChangeRow]
    alerts: list[AlertRow]

    @classmethod
    async def load(cls, store: MarketStore) -> "StoredResult":
        changes = [row async for row in store.changes()]
        return cls(await store.snapshot(), changes, [row async for row in store.alerts()])


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


def _close_time(open_time: int) -> int:
    return -(-(open_time + HOUR_S) // HOUR_S) * HOUR_S


def _write(path: Path, header: list[str], rows: Iterable[Sequence[float]]) -> None:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(header)
        lines.writerows(rows)

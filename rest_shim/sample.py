"""The sample, which visitors see and which is the same everywhere: a few simulated assets.

It is a store that never changes, so the same tools and pages read it as read a live one.
`python -m tools.build_sample` writes its file.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any, cast

import numpy as np

from mcp_server.tools.get_signals import render_page
from schemas.coverage import Coverage
from schemas.signals import SignalsQuery
from schemas.vocabulary import (
    TIMEFRAMES,
    UNIVERSE_RETENTION_MS,
    Timeframe,
    find_latest_run,
)
from serving.feed_ledger import Ledger, Readings, unpack
from serving.prices import Prices
from serving.snapshot import build_snapshot
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import ToolRunner
from store.market_rows import AssetBars, BarBlock, PastKey, RecentBars, StoredSnapshot
from store.sql.ledger_reads import ROW_DTYPE, FeedNames, FeedRows
from store.sql.market_store import MarketStore

SAMPLE_FILE = "sample.npz"


class SampleStore(MarketStore):
    """The sample as a store that is in memory; only what snapshots, ledgers and prices read."""

    def __init__(self) -> None:
        # It has no database, so the engine of the base class is never set.
        content = files("rest_shim").joinpath(SAMPLE_FILE).read_bytes()
        with np.load(BytesIO(content)) as arrays:
            parts: dict[str, Any] = dict(arrays)
        coverage = Coverage.model_validate_json(parts["coverage"].tobytes())
        tickers = [asset.ticker for asset in coverage.assets]
        self.rows: FeedRows = np.empty(len(parts["rows.code"]), ROW_DTYPE)
        for name in ROW_DTYPE.names or ():
            self.rows[name] = parts[f"rows.{name}"]
        self.names = FeedNames(dict(enumerate(tickers)), dict.fromkeys(range(len(tickers)), 0), {})
        self.ledger_reads = cast(Any, self)
        self._blocks: dict[str, dict[Timeframe, BarBlock]] = {
            ticker: {
                timeframe: BarBlock(ticker, timeframe, table[0].astype(np.int64), table[1:].T)
                for timeframe in TIMEFRAMES
                for table in [parts[f"{ticker}.{timeframe}"]]
            }
            for ticker in tickers
        }
        assert coverage.recorded_until is not None
        self.stored = StoredSnapshot(
            coverage=coverage,
            market_time=coverage.recorded_until,
            last_created_at=int(self.rows["created_at"][-1]),
            readings=self.build_ledger().find_readings(int(self.rows["created_at"][-1])),
            history_starts_at=coverage.recorded_until - UNIVERSE_RETENTION_MS,
            last_closes={
                ticker: int(blocks["1h"].open_time[-1]) + 3600
                for ticker, blocks in self._blocks.items()
            },
            is_sample=True,
        )

    def build_ledger(self) -> Ledger:
        """Return the changes and alerts."""
        return Ledger.build([unpack(self.rows)], self.names)

    def version(self) -> int:
        """Return the only version."""
        return 0

    async def snapshot(self) -> StoredSnapshot:
        """Return the only state."""
        return self.stored

    async def past_key(self, at: int) -> PastKey:
        """Return the key of the run that was the latest at a time (epoch ms)."""
        end = self.stored.market_time or 0
        return PastKey(None, find_latest_run(min(at, end)), min(at, self.stored.last_created_at))

    async def past_snapshot(self, key: PastKey, readings: Readings) -> StoredSnapshot:
        """Return the state of a key, with its readings."""
        return replace(
            self.stored,
            market_time=key.market_time,
            last_created_at=key.last_created_at,
            readings=readings,
            last_closes={},
        )

    async def load_rows(self, after: int, until: int) -> AsyncIterator[FeedRows]:
        """Yield the rows with `created_at` in (`after`, `until`], oldest first."""
        created_at = self.rows["created_at"]
        yield self.rows[(created_at > after) & (created_at <= until)]

    async def load_names(self) -> FeedNames:
        """Return the names of all rows."""
        return self.names

    async def asset_bars(self, ticker: str, after: int) -> AssetBars:
        """Return all bars of an asset."""
        return AssetBars(None, self._blocks.get(ticker, {}), {})

    async def recent_bars(self, span_s: int, after_number: int | None = None) -> RecentBars:
        """Return the hourly bars of all assets."""
        return RecentBars(None, [blocks["1h"] for blocks in self._blocks.values()])

    async def closes(self, closed_at: Mapping[int, Iterable[str]]) -> dict[str, float]:
        """Return the last closes by ticker: no other bar is the last one of a snapshot."""
        return {
            ticker: float(self._blocks[ticker]["1h"].values[-1, 3])
            for tickers in closed_at.values()
            for ticker in tickers
        }


@cache
def load_sample() -> SampleStore:
    """Return the sample, which every caller shares."""
    return SampleStore()


def build_sample_runner(runner: ToolRunner) -> ToolRunner:
    """Return a runner for visitors: the tools of another one, over the sample."""
    snapshots = SnapshotCache(load_sample())
    # They are made up, so no source forbids to show them.
    prices = Prices(snapshots)
    return runner.with_context(runner.context._replace(snapshots=snapshots, prices=prices))


@cache
def render_sample(limit: int = 50) -> str:
    """Return the newest rows of the sample's feed, by default all, as minified JSON."""
    store = load_sample()
    snapshot = build_snapshot(store.stored)
    assert snapshot is not None
    query = SignalsQuery(tier="all", limit=limit)
    return render_page(query, store.build_ledger(), snapshot, snapshot.newest_at).text.decode()

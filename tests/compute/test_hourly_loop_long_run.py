"""More than a year of the loop on a simulated market: nothing grows forever, nothing is lost."""

import gc
import pickle
import resource
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from mcp_server.tools.get_signals import get_signals
from schemas.signals import Signal, SignalsQuery
from schemas.vocabulary import UNIVERSE_RETENTION_MS, format_instant
from serving.context import Context
from serving.snapshot_cache import SnapshotCache
from store.market_rows import Batch, ChangeRow
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import ALTERNATING, AcceleratedClock, ClockEnded
from tests.support.store_homes import open_market_as

pytestmark = pytest.mark.clause("steps")

START = int(datetime(2026, 11, 21, 17, 22, tzinfo=UTC).timestamp())
DAYS = 400
GROWTH = 500_000  # bytes; the rows of the months between would be more


@dataclass(frozen=True)
class Size:
    """The size of a run: its assets, indicators and history, and the length of each sleep."""

    tickers: tuple[str, ...]
    indicators: tuple[Indicator, ...]
    history_s: int
    stride_s: int


SHORT = Size(("MATIC", "NVDA"), ALTERNATING, 65 * DAY_S, 10 * DAY_S)  # a change at every bar
FULL = Size(("BTC", "MATIC", "ALT", "NVDA", "IBM", "XAU"), INDICATORS, 100 * DAY_S, HOUR_S)


class Long:
    """One long run, with a copy of every row ever committed in a file."""

    def __init__(self, folder: Path, size: Size) -> None:
        packaged = load_universe()
        chosen = tuple(packaged.by_ticker[ticker] for ticker in size.tickers)
        self.universe = Universe(assets=chosen, renamed_on=packaged.renamed_on)
        self.clock = AcceleratedClock(START, step_s=size.stride_s)
        self.size = size
        self.path = folder / "m.db"
        self.copy = folder / "rows"
        self.table: list[tuple[int, int, int, int]] = []
        self.traced: list[int] = []

    async def run(self) -> None:
        """Run the loop to the end, looking at the store ten times on the way."""
        copy = self.copy

        class Copied(MarketStore):
            async def commit(self, batch: Batch) -> None:
                await super().commit(batch)
                with copy.open("ab") as file:
                    pickle.dump(list(batch.changes), file)

        self.store = await open_market_as(Copied, self.path)
        self.clock.watch = self._look
        self.clock.ends_at = START + DAYS * DAY_S
        origin = (START - self.size.history_s) // DAY_S * DAY_S
        source = SimulatedSource(self.universe, origin, self.clock)
        open_pipeline = partial(
            HourlyPipeline.open, self.store, source, self.universe, self.size.indicators, self.clock
        )
        try:
            with pytest.raises(ClockEnded):
                await HourlyLoop(open_pipeline, self.store, self.clock, self.clock.sleep).run()
            tracemalloc.stop()
            self.report = await audit_market(self.store, self.universe, self.size.indicators)
        finally:
            tracemalloc.stop()
            await self.store.close()

    async def _look(self) -> None:
        tenth = (self.clock.now_s - START) * 10 // (DAYS * DAY_S)
        if tenth <= len(self.table):
            return
        gc.collect()
        self.traced += [tracemalloc.get_traced_memory()[0]] if tracemalloc.is_tracing() else []
        held = [row async for row in self.store.changes()]
        progress = await self.store.progress()
        assert held == list(_kept(self.copy, progress.pruned_before))
        if tenth % 4 == 1:
            await self._read(held)
        if self.size is SHORT and tenth == 7:
            tracemalloc.start()
        size = sum(path.stat().st_size for path in self.path.parent.glob("m.db*"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.table.append(((self.clock.now_s - START) // DAY_S, len(held), size, peak))

    async def _read(self, held: Sequence[ChangeRow]) -> None:
        """Read the whole feed: all rows younger than the retention."""
        snapshots = SnapshotCache(self.store)
        context = Context(snapshots, "http://x", "http://x", self.clock, None, 1)
        snapshot = await context.snapshot()
        rows: list[Signal] = []
        since = datetime(2020, 1, 1, tzinfo=UTC)
        while True:
            query = SignalsQuery.model_validate(
                {"since": since.isoformat(), "limit": 200, "offset": len(rows)}
            )
            page = await get_signals(query, context)
            rows += page.signals
            if not page.pagination.has_more:
                break
        oldest = snapshot.market_time - UNIVERSE_RETENTION_MS
        young = [
            format_instant(r.created_at) for r in held if r.published and r.created_at > oldest
        ]
        assert [row.created_at for row in reversed(rows)] == young


def _kept(copy: Path, pruned_before: int) -> Iterator[ChangeRow]:
    """Yield the rows that pruning should keep: the young ones, and each cell's newest old one."""
    rows: list[ChangeRow] = []
    with copy.open("rb") as file:
        while file.peek(1):
            rows += pickle.load(file)
    newest = {row[1:4]: row.created_at for row in rows if row.created_at < pruned_before}
    for row in rows:
        if row.created_at >= pruned_before or row.created_at == newest[row[1:4]]:
            yield row


@pytest.mark.prove
@pytest.mark.parametrize("size", [SHORT, pytest.param(FULL, marks=pytest.mark.long)])
async def test_a_store_of_400_days_holds_the_retained_rows_and_no_others(
    tmp_path: Path, size: Size
):
    run = Long(tmp_path, size)
    await run.run()
    print("\n  day    rows       bytes  peak KiB")
    for day, rows, size_bytes, peak in run.table:
        print(f"{day:5d} {rows:7d} {size_bytes:11d} {peak:9d}")
    assert run.report.findings == []
    assert run.report.checked["changes"] == run.table[-1][1]
    assert len(run.table) == 10
    rows = [rows for _, rows, _, _ in run.table]
    assert rows[-1] <= 1.05 * rows[-2]
    peaks = [peak for *_, peak in run.table]
    assert peaks[-1] - peaks[4] < 20_000
    assert max(run.traced[1:], default=0) - min(run.traced[1:], default=0) < GROWTH

"""The runs: from a source through the stepper into the store, hour by nominal hour.

Replay, catch-up and live runs are this one code; they differ in how many hours a pass holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.bars import DAY_S, HOUR_S, NO_BARS, closing_time
from compute.batch_rows import (
    alert_rows,
    bar_block,
    carry_rows,
    change_rows,
    funding_rows,
    shown_alerts,
    times_in_one_sequence,
)
from compute.coverage import coverage, with_dropped
from compute.executor import Crews, here
from compute.fetch_tracker import Deliveries
from compute.indicators.contract import Indicator
from compute.schedule import last_run, market_ms
from compute.sources.source import Fetched, Source
from compute.state_loader import Restorer
from compute.stepper import ITS_INDICATOR, LEGACY_KEY, Cell, Changes
from compute.universe import Universe
from schemas.clock import Clock
from schemas.vocabulary import PERIOD_S, Timeframe
from store.errors import MarketStore
from store.market_rows import AlertRow, BarBlock, ChangeRow, FundingRow, Pass, WatermarkRow

PASS_S = 40 * DAY_S
Progressed = Callable[[int, int], None]


class Runs:
    """Brings a store up to an hour; `prepare` once, then `catch_up` as often as wished.

    After an error it must be prepared anew: what it holds may be ahead of the store.
    """

    def __init__(
        self,
        store: MarketStore,
        source: Source,
        universe: Universe,
        indicators: Sequence[Indicator],
        clock: Clock,
        crews: Crews = here,
        written: Callable[[Pass], None] = lambda work: None,
    ) -> None:
        """`clock` tells the wall clock (epoch ms), which the market clock of a source follows.

        What the code outgrew is rebuilt by one of `crews`; `written` hears of each pass committed.
        """
        self._store: Final = store
        self._source: Final = source
        self._universe: Final = universe
        self._indicators: Final = tuple(indicators)
        self._restorer: Final = Restorer(store, universe, self._indicators, crews)
        self._wall_clock: Final = clock
        self._written: Final = written
        self._committing: asyncio.Future[None] | None = None

    @property
    def done(self) -> int:
        """The hour of the last run, one before the epoch where there was none."""
        return self._done

    @property
    def due(self) -> int:
        """The hour of the newest run whose market time has come."""
        return last_run(self._now())

    @property
    def is_over(self) -> bool:
        """Whether a recording has been played to its end, so that no run will follow."""
        return self._source.ends_at is not None and self._done >= self._source.ends_at

    @property
    def late(self) -> tuple[str, ...]:
        """The assets whose bars were due at the last pass and had not come."""
        return self._deliveries.late

    @property
    def has_board(self) -> bool:
        """Whether the store holds what can be served: of live markets no history half built."""
        return self._done >= 0 and market_ms(self._done) >= (self._served_from or 0)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The assets of which a bar that closed by the last run has not come, late or not yet."""
        return self._deliveries.awaited(self._done)

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) after which bars of some assets come, each once, sorted."""
        return self._deliveries.delays

    async def prepare(self) -> None:
        """Take the lock, adopt the source, publish the coverage, load what the store holds."""
        await self._store.lock()
        started_at = await self._store.adopt_source(self._source.name, self._now())
        is_recorded = self._source.ends_at is not None
        shown_ms = 1000 * self._source.shown_history_s
        self._first_feed = 0 if is_recorded else max(0, started_at - shown_ms)
        self._backfilled = self._source.ends_at if is_recorded else last_run(started_at)
        is_shown = is_recorded or shown_ms > 0
        self._served_from = None if is_shown else market_ms(last_run(started_at))
        covered_before = await self._publish_coverage()
        native = {
            asset.ticker: timeframe
            for asset in self._universe.assets
            if (timeframe := self._source.native(asset.ticker)) is not None
        }
        self._desk = await self._restorer.desk(native)
        progress = await self._store.progress()
        self._last_created_at = progress.last_created_at
        done = -HOUR_S if progress.market_time is None else last_run(progress.market_time)
        self._done = done
        self._publish_from = await self._store.publish_from()
        behind = await self._store.watermarks()
        seen = {t: done if t in self._publish_from else -1 for t in native}
        seen |= {row.ticker: row.watermark for row in behind if row.ticker in native}
        for ticker in self._publish_from.keys() & native.keys() - covered_before:
            seen[ticker] = await self._last_close(ticker, native[ticker])
        self._deliveries = Deliveries(self._source, self._universe, seen, behind)

    def _now(self) -> int:
        """Return the market clock (epoch ms): that of a recording ends with it."""
        end = self._source.ends_at
        return self._wall_clock() if end is None else min(self._wall_clock(), market_ms(end))

    def _written_at(self, run: int) -> int | None:
        """Return the market clock, None where rows of a run are written at their nominal time."""
        is_nominal = self._backfilled is not None and run <= self._backfilled
        return None if is_nominal else self._now()

    async def _last_close(self, ticker: str, native: Timeframe) -> int:
        """Return where the stored bars of an asset end that was not covered for a while."""
        stored = await self._store.bars(ticker)
        opens = np.array([max((block.open_time[-1] for block in stored), default=-1)])
        return int(closing_time(opens, PERIOD_S[native])[0])

    async def _publish_coverage(self) -> set[str]:
        """Publish what is covered from now on; return the assets that were covered before."""
        end = self._source.ends_at
        until = None if end is None else market_ms(end)
        new = coverage(
            self._universe,
            self._source,
            self._indicators,
            self._now(),
            until,
            served_from=self._served_from,
        )
        snapshot = await self._store.snapshot()
        old = None if snapshot.market_time is None else snapshot.coverage
        today = datetime.fromtimestamp((snapshot.market_time or 0) // 1000, UTC).date()
        await self._store.publish_coverage(with_dropped(new, old, today))
        return {asset.ticker for asset in (old.assets if old else ()) if asset.timeframes}

    async def catch_up(self, until: int, progressed: Progressed = lambda done, end: None) -> None:
        """Run every hour up to `until` at which something is due, in passes of forty days.

        The passes lie on a fixed grid, so that a run killed between two of them and started again
        writes what an uninterrupted one would have written. It ends where the source ends. One
        pass is committed while the next one steps. NotReadyError where the source is not.
        """
        await self._source.ready()
        end = until if self._source.ends_at is None else min(until, self._source.ends_at)
        work: Pass | None = None
        progressed(self._begun(), end)
        while (first := self._next_hour()) is not None and first <= end:
            pass_end = min((first // PASS_S + 1) * PASS_S - HOUR_S, end)
            stepping = self._stepped(self._done + HOUR_S, pass_end, self._deliveries.live())
            work = await self._committed(work, stepping)
            progressed(self._done, end)
        if work is not None:
            await self._commit(work)
        if self._done < end:
            empty = Pass(
                market_ms(end), watermarks=self._watermarks(), written_at=self._written_at(end)
            )
            await self._commit(empty)
            self._done = end

    def _begun(self) -> int:
        """Return the hour from which a catch-up is measured."""
        first = self._next_hour()
        return self._done if first is None else max(self._done, first - HOUR_S)

    async def catch_up_late(self) -> None:
        """Run the last hour once more for the assets that were behind, if anything came.

        It is written when it comes, after the last hour of a backfill too.
        """
        self._backfilled = None
        tickers = [row.ticker for row in self._deliveries.behind]
        work = await self._stepped(self._done, self._done, tickers)
        if work.bars or work.funding or work.carries:
            await self._commit(work)

    def _next_hour(self) -> int | None:
        """Return the first hour not yet run at which a bar, new or waiting, or an alert is due."""
        hours = self._deliveries.next_closes()
        hours += self._desk.intake.waiting_for() + self._desk.alerts.waiting_for()
        return max(min(hours), self._done + HOUR_S) if hours else None

    async def _commit(self, work: Pass) -> None:
        await self._store.commit(work)
        self._written(work)

    async def _committed(self, work: Pass | None, stepping: Awaitable[Pass]) -> Pass:
        """Commit a pass while the next one steps; both have ended when either fails."""
        if work is None:
            return await stepping
        self._committing = asyncio.ensure_future(self._commit(work))
        try:
            return await stepping
        finally:
            await self._committing

    async def _stepped(self, start: int, until: int, tickers: Sequence[str]) -> Pass:
        """Fetch from some assets and step all that is due from `start` to `until`."""
        fetched = await self._deliveries.fetch(tickers, until)
        anew = {ticker: new for ticker, new in fetched.items() if new.is_anew}
        if anew:
            await self._renew(anew)
        work = await asyncio.to_thread(self._work, start, until, fetched)
        self._done = until
        return work

    async def _renew(self, fetched: Mapping[str, Fetched]) -> None:
        """Rebuild what is remembered of assets whose history is told anew, for the pass to come.

        All that was settled and published before is in the store by then.
        """
        if self._committing is not None:
            await asyncio.wait([self._committing])
        for ticker, new in fetched.items():
            series, _ = self._deliveries.until_removed(ticker, new)
            await self._restorer.renew(self._desk, ticker, series, new.why)

    def _work(self, start: int, until: int, fetched: Mapping[str, Fetched]) -> Pass:
        """Take in what was fetched and step what is due from `start` to `until`."""
        bars, funding, publish_from = self._take_in(start, fetched)
        self._publish_from.update(publish_from)
        now_s = (self._written_at(until) or market_ms(until)) // 1000
        self._deliveries.lag(until, now_s)
        stepper = self._desk.stepper
        behind = {row.ticker: row.watermark for row in self._deliveries.behind}
        due = self._desk.intake.take(stepper.row, start, until, behind)
        stepped, readings = stepper.run(due)
        alerts = self._desk.alerts.run(due, readings, until)
        changes, published = self._rows(stepped, shown_alerts(alerts, self._publish_from))
        carries, epochs = carry_rows(self._desk, self._restorer, due, alerts)
        return Pass(
            market_time=market_ms(until),
            bars=bars,
            funding=funding,
            changes=changes,
            carries=carries,
            epochs=epochs,
            publish_from=publish_from,
            watermarks=self._watermarks(),
            written_at=self._written_at(until),
            alerts=published,
        )

    def _watermarks(self) -> list[WatermarkRow]:
        """Return what is behind as far as the store knows it: who has no bars yet is not in it."""
        return [row for row in self._deliveries.behind if row.ticker in self._publish_from]

    def _take_in(
        self, start: int, fetched: Mapping[str, Fetched]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Take in what is new of some assets; a backlog from before warms up in silence."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, new in fetched.items():
            self._deliveries.seen[ticker] = new.watermark
            series, settled = self._deliveries.until_removed(ticker, new)
            self._desk.intake.add(ticker, NO_BARS if new.is_anew else series, settled)
            if len(series):
                bars.append(bar_block(self._desk, ticker, series))
            funding += funding_rows(ticker, settled)
            if ticker not in self._publish_from and (len(series) or len(settled.rate)):
                backlog = len(series) and series.close_time[0] < start and start > 0
                begun = market_ms(start) + 1 if backlog else 0
                publish_from[ticker] = max(begun, self._first_feed)
        return bars, funding, publish_from

    def _rows(
        self, changes: Changes, alerts: Sequence[Alert]
    ) -> tuple[list[ChangeRow], list[AlertRow]]:
        """Give changes and alerts their places in the one sequence of rows."""
        cells, publish_from = self._desk.stepper.cells, self._publish_from
        of_changes, of_alerts = times_in_one_sequence(
            changes,
            alerts,
            lambda run: self._written_at(run) or market_ms(run),
            self._last_created_at,
        )
        newest = [times[-1] for times in (of_changes, of_alerts) if len(times)]
        self._last_created_at = int(max(newest, default=self._last_created_at))
        return (
            change_rows(changes, cells, of_changes, self._epoch, publish_from),
            alert_rows(alerts, of_alerts, self._epoch),
        )

    def _epoch(self, cell: Cell) -> int:
        if cell.key == LEGACY_KEY:
            cell = cell._replace(key=ITS_INDICATOR)
        carry = self._desk.carries.get(cell)
        return 0 if carry is None else carry.epoch

"""Steps the bars that a source delivered and assembles the batch to commit."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from compute.bars import NO_BARS, Funding, Series, Times
from compute.batch_rows import (
    build_bar_block,
    build_feed_rows,
    build_funding_rows,
    build_missing_bars_row,
    find_publish_from,
    find_silent_hours,
)
from compute.block_step import (
    BlockResult,
    BlockTask,
    merge_alerts,
    merge_changes,
    merge_rows,
    regroup_states,
    step_block,
)
from compute.engine_state import EngineState
from compute.executor import split_into_blocks
from compute.fetch_tracker import FetchTracker
from compute.schedule import HistoryBounds, to_market_ms
from compute.sources.source import FetchResult
from compute.stepper import Cell, SeriesKey
from compute.universe import Universe
from schemas.vocabulary import Action, Clock
from store.market_rows import BarBlock, Batch, FundingRow, MissingBarsRow, WatermarkRow


class Draft(NamedTuple):
    """A batch without the results of its blocks."""

    until: int
    bars: Sequence[BarBlock]
    funding: Sequence[FundingRow]
    publish_from: Mapping[str, int]
    missing_bars: Sequence[MissingBarsRow]
    held_bars: int
    written_at: int | None
    tasks: Sequence[BlockTask]


class BatchAssembler:
    """Advances the engine state batch by batch; it counts each returned batch as committed.

    The state is one block of assets, or several between `split` and `join`.
    """

    def __init__(
        self,
        state: EngineState,
        tracker: FetchTracker,
        publish_from: Mapping[str, int],
        last_created_at: int,
        published_at: dict[Cell, dict[Action, int]],
        bounds: HistoryBounds,
        market_clock: Clock,
    ) -> None:
        """`publish_from` (epoch ms by ticker) and the times of the last rows are the store's.

        `published_at` has those of each engine and action.
        """
        self._blocks = [state]
        self._cells: Final = state.stepper.cells
        self._cell_numbers: list[Times] = [np.arange(len(self._cells))]
        self._tracker: Final = tracker
        self._publish_from_by_ticker: Final = dict(publish_from)
        self._last_created_at = last_created_at
        self._published_at: Final = published_at
        self._feed_from_ms: Final = bounds.feed_from_ms
        self._backfilled_until: int | None = bounds.backfilled_until
        self._market_clock: Final = market_clock

    @property
    def state(self) -> EngineState:
        """The state, which must be one block."""
        (state,) = self._blocks
        return state

    @property
    def block_count(self) -> int:
        """The number of blocks."""
        return len(self._blocks)

    def split(self, count: int, universe: Universe) -> None:
        """Split the state into at most `count` blocks, unless epochs still have to be stored."""
        if self.state.new_epochs:
            return
        # Ascending tickers, so that the rows of a block follow those of the block before.
        tickers = sorted(self.state.buffer.native_timeframes)
        groups = split_into_blocks(tickers, len(tickers), count)
        self._regroup(groups, universe)

    def join(self, universe: Universe) -> None:
        """Make the state one block again."""
        if self.block_count > 1:
            tickers = [t for block in self._blocks for t in block.buffer.native_timeframes]
            self._regroup([tickers], universe)

    def list_due_hours(self) -> list[int]:
        """Return the next hours at which buffered bars close or held alerts fall due."""
        return [
            hour
            for block in self._blocks
            for hour in (
                *block.buffer.find_pending_closes().values(),
                *block.alerts.list_due_hours(),
            )
        ]

    def find_pending_closes(self) -> dict[SeriesKey, int]:
        """Return the next close of each sequence that has buffered bars."""
        return {
            series_key: close
            for block in self._blocks
            for series_key, close in block.buffer.find_pending_closes().items()
        }

    def end_backfill(self) -> None:
        """Date all rows by the market clock from now on, even those of the backfill's last hour."""
        # `created_at` is when a row was written, because a past board must show the readings that
        # were served then. Only the history of a first start has nominal times.
        self._backfilled_until = None

    def assemble(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Buffer the fetched bars, step those due from `start` to `until`, and build the rows."""
        draft = self.begin(start, until, fetched)
        return self.finish(draft, list(map(step_block, draft.tasks)))

    def begin(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Draft:
        """Record the fetched bars; return the batch with a task for each block."""
        # Read once, because the cooldowns and `created_at` must go by the same time, which the
        # store records.
        written_at = self._find_written_at(until)
        bars, funding, publish_from = self._build_fetched_rows(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        self._tracker.update_lagging(until)
        return Draft(
            until,
            bars,
            funding,
            publish_from,
            [
                build_missing_bars_row(block, missing)
                for block in bars
                if len(missing := fetched[block.ticker].missing)
            ],
            sum(new.is_newly_held for new in fetched.values()),
            written_at,
            [self._build_task(block, start, until, fetched, written_at) for block in self._blocks],
        )

    def finish(self, draft: Draft, results: Sequence[BlockResult]) -> Batch:
        """Return the batch with the rows that the tasks gave, one result for each block."""
        self._blocks = [result.state for result in results]
        now_s = (draft.written_at or to_market_ms(draft.until)) // 1000
        self._tracker.update_late(draft.until, now_s, self.find_pending_closes())
        all_changes = merge_changes([result.changes for result in results], self._cell_numbers)
        engine_keys = list(self._blocks[0].alerts.versions)
        alerts = merge_alerts([result.alerts for result in results], engine_keys)
        changes, alert_rows = build_feed_rows(
            all_changes,
            alerts,
            draft.written_at,
            self._last_created_at,
            self._published_at,
            self._cells,
            self._get_epoch,
            self._publish_from_by_ticker,
        )
        newest = [rows[-1].created_at for rows in (changes, alert_rows) if len(rows)]
        self._last_created_at = max(newest, default=self._last_created_at)
        return Batch(
            market_time=to_market_ms(draft.until),
            bars=draft.bars,
            funding=draft.funding,
            changes=changes,
            carries=merge_rows([result.carries for result in results]),
            epochs=merge_rows([result.epochs for result in results]),
            publish_from=draft.publish_from,
            # Part of the commit, and so of its digest: an audit has to know which assets this
            # batch did not wait for, because they decide which longer bars could step.
            watermarks=self._list_watermarks(),
            written_at=draft.written_at,
            alerts=alert_rows,
            missing_bars=draft.missing_bars,
            held_bars=draft.held_bars,
        )

    def build_empty_batch(self, until: int) -> Batch:
        """Return a batch without rows that moves the market time to the run at `until`."""
        return Batch(
            to_market_ms(until),
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
        )

    def _regroup(self, groups: Sequence[Sequence[str]], universe: Universe) -> None:
        self._blocks = regroup_states(self._blocks, groups, universe)
        number_by_cell = {cell: number for number, cell in enumerate(self._cells)}
        self._cell_numbers = [
            np.array([number_by_cell[cell] for cell in block.stepper.cells], dtype=np.int64)
            for block in self._blocks
        ]

    def _get_block(self, ticker: str) -> EngineState:
        return next(b for b in self._blocks if ticker in b.buffer.native_timeframes)

    def _get_epoch(self, cell: Cell) -> int:
        return self._get_block(cell.ticker).get_epoch(cell)

    def _find_written_at(self, run: int) -> int | None:
        """Return the market clock, None if the rows up to a run get their nominal times."""
        is_nominal = self._backfilled_until is not None and run <= self._backfilled_until
        return None if is_nominal else self._market_clock()

    def _list_watermarks(self) -> list[WatermarkRow]:
        """Return the watermarks of the lagging and late assets that have stored bars."""
        return [row for row in self._tracker.lagging if row.ticker in self._publish_from_by_ticker]

    def _build_task(
        self,
        block: EngineState,
        start: int,
        until: int,
        fetched: Mapping[str, FetchResult],
        written_at: int | None,
    ) -> BlockTask:
        """Return the task that steps a block's bars; the tracker has its watermarks."""
        tickers = block.buffer.native_timeframes
        lagging = [row for row in self._tracker.lagging if row.ticker in tickers]
        building = {
            row.ticker: row.get_built_hour(until) for row in lagging if row.history != "followed"
        }
        arrived: dict[str, tuple[Series, Funding]] = {}
        for ticker in fetched.keys() & tickers.keys():
            series, settlements = self._tracker.cut_at_removal(ticker, fetched[ticker])
            # If the history was restated, the rebuild has already buffered these bars.
            arrived[ticker] = NO_BARS if fetched[ticker].is_restated else series, settlements
        return BlockTask(
            block,
            arrived,
            start,
            until,
            {row.ticker: row.watermark for row in lagging},
            building,
            written_at,
            find_silent_hours(building, self._publish_from_by_ticker),
        )

    def _build_fetched_rows(
        self, start: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Record the watermarks; return the rows to store and `publish_from` of new assets."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, new in fetched.items():
            self._tracker.record_watermark(ticker, new.watermark)
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            if len(series):
                source = self._tracker.get_source_name(ticker)
                bars.append(build_bar_block(self._get_block(ticker), ticker, series, source))
            funding += build_funding_rows(ticker, settlements)
            if ticker not in self._publish_from_by_ticker and (
                len(series) or len(settlements.rate)
            ):
                backlog = len(series) > 0 and series.close_time[0] < start
                publish_from[ticker] = self._find_publish_from(start, has_backlog=backlog)
        # Stored before the first bar, so that a restart knows when the history was begun.
        for ticker in self._tracker.building - self._publish_from_by_ticker.keys():
            publish_from[ticker] = self._find_publish_from(start, has_backlog=True)
        return bars, funding, publish_from

    def _find_publish_from(self, start: int, *, has_backlog: bool) -> int:
        return max(find_publish_from(start, has_backlog=has_backlog), self._feed_from_ms)

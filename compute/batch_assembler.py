"""Steps the bars that a source delivered and assembles the batch to commit."""

from collections.abc import Mapping, Sequence
from typing import Final

from compute.alerts.alert_pipeline import Alert
from compute.bars import NO_BARS
from compute.batch_rows import (
    assign_feed_times,
    build_alert_rows,
    build_bar_block,
    build_change_rows,
    build_funding_rows,
    build_missing_bars_row,
    filter_shown_alerts,
)
from compute.engine_state import EngineState
from compute.fetch_tracker import FetchTracker
from compute.schedule import HistoryBounds, to_market_ms
from compute.sources.source import FetchResult
from compute.stepper import Changes
from schemas.clock import Clock
from store.market_rows import AlertRow, BarBlock, Batch, ChangeRow, FundingRow, WatermarkRow


class BatchAssembler:
    """Advances the engine state batch by batch; it counts each returned batch as committed."""

    def __init__(
        self,
        state: EngineState,
        tracker: FetchTracker,
        publish_from: Mapping[str, int],
        last_created_at: int,
        bounds: HistoryBounds,
        market_clock: Clock,
    ) -> None:
        """`publish_from` (epoch ms by ticker) and `last_created_at` are those of the store."""
        self._state: Final = state
        self._tracker: Final = tracker
        self._publish_from_by_ticker: Final = dict(publish_from)
        self._last_created_at = last_created_at
        self._feed_from_ms: Final = bounds.feed_from_ms
        self._backfilled_until: int | None = bounds.backfilled_until
        self._market_clock: Final = market_clock

    def end_backfill(self) -> None:
        """Date all rows by the market clock from now on, even those of the backfill's last hour."""
        # `created_at` is when a row was written, because a past board must show the readings that
        # were served then. Only the history of a first start has nominal times.
        self._backfilled_until = None

    def assemble(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Buffer the fetched bars, step those due from `start` to `until`, and build the rows."""
        bars, funding, publish_from = self._add_to_buffer(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        now_s = (self._find_written_at(until) or to_market_ms(until)) // 1000
        self._tracker.update_lagging(until, now_s)
        stepper = self._state.stepper
        lagging = {row.ticker: row.watermark for row in self._tracker.lagging}
        building = {
            row.ticker: row.get_built_hour(until)
            for row in self._tracker.lagging
            if row.history != "followed"
        }
        due = self._state.buffer.take_due(stepper.row_by_series, start, until, lagging, building)
        all_changes, readings = stepper.step(due)
        alerts = self._state.alerts.run(due, readings, until, building)
        changes, alert_rows = self._build_feed_rows(
            all_changes, filter_shown_alerts(alerts, self._publish_from_by_ticker)
        )
        carries, epochs = self._state.take_carry_rows(due, alerts)
        return Batch(
            market_time=to_market_ms(until),
            bars=bars,
            funding=funding,
            changes=changes,
            carries=carries,
            epochs=epochs,
            publish_from=publish_from,
            # Part of the commit, and so of its digest: an audit has to know which assets this
            # batch did not wait for, because they decide which longer bars could step.
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
            alerts=alert_rows,
            missing_bars=[
                build_missing_bars_row(block, missing)
                for block in bars
                if len(missing := fetched[block.ticker].missing)
            ],
            held_bars=sum(new.is_newly_held for new in fetched.values()),
        )

    def build_empty_batch(self, until: int) -> Batch:
        """Return a batch without rows that moves the market time to the run at `until`."""
        return Batch(
            to_market_ms(until),
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
        )

    def _find_written_at(self, run: int) -> int | None:
        """Return the market clock, None if the rows of a run get their nominal time."""
        is_nominal = self._backfilled_until is not None and run <= self._backfilled_until
        return None if is_nominal else self._market_clock()

    def _list_watermarks(self) -> list[WatermarkRow]:
        """Return the watermarks of the lagging assets that have stored bars."""
        return [row for row in self._tracker.lagging if row.ticker in self._publish_from_by_ticker]

    def _add_to_buffer(
        self, start: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Buffer the fetched bars; return the rows to store and `publish_from` of new assets."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, new in fetched.items():
            self._tracker.record_watermark(ticker, new.watermark)
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            # If the history was restated, the rebuild has already buffered these bars.
            self._state.buffer.add(ticker, NO_BARS if new.is_restated else series, settlements)
            if len(series):
                source = self._tracker.get_source_name(ticker)
                bars.append(build_bar_block(self._state, ticker, series, source))
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
        """Return from when on (epoch ms) the changes of an asset that is new to the store show."""
        # Bars older than the batch warm up without publishing: the service did not know the asset
        # when they closed.
        starts_at = to_market_ms(start) + 1 if has_backlog and start > 0 else 0
        return max(starts_at, self._feed_from_ms)

    def _build_feed_rows(
        self, changes: Changes, alerts: Sequence[Alert]
    ) -> tuple[list[ChangeRow], list[AlertRow]]:
        """Build the rows of changes and alerts, which share one sequence of `created_at`."""
        cells, publish_from = self._state.stepper.cells, self._publish_from_by_ticker
        change_times, alert_times = assign_feed_times(
            changes,
            alerts,
            lambda run: self._find_written_at(run) or to_market_ms(run),
            self._last_created_at,
        )
        newest = [times[-1] for times in (change_times, alert_times) if len(times)]
        self._last_created_at = int(max(newest, default=self._last_created_at))
        return (
            build_change_rows(changes, cells, change_times, self._state.get_epoch, publish_from),
            build_alert_rows(alerts, alert_times, self._state.get_epoch),
        )

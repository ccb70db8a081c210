"""Steps what a source delivered, and assembles the batch that the store is to commit."""

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
    """Advances the state batch by batch, each taken as committed once it is returned."""

    def __init__(
        self,
        state: EngineState,
        tracker: FetchTracker,
        publish_from: Mapping[str, int],
        last_created_at: int,
        bounds: HistoryBounds,
        market_clock: Clock,
    ) -> None:
        """Take the stored `publish_from` (epoch ms by ticker) and the newest `created_at`."""
        self._state: Final = state
        self._tracker: Final = tracker
        self._publish_from_by_ticker: Final = dict(publish_from)
        self._last_created_at = last_created_at
        self._feed_from_ms: Final = bounds.feed_from_ms
        self._backfilled_until: int | None = bounds.backfilled_until
        self._market_clock: Final = market_clock

    def end_backfill(self) -> None:
        """Write the batches from now on at the market clock, that of the last hour too."""
        self._backfilled_until = None

    def assemble(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Buffer what was fetched, and step what is due from `start` to `until`."""
        bars, funding, publish_from = self._add_to_buffer(start, fetched)
        self._publish_from_by_ticker.update(publish_from)
        now_s = (self._find_written_at(until) or to_market_ms(until)) // 1000
        self._tracker.update_lagging(until, now_s)
        stepper = self._state.stepper
        lagging = {row.ticker: row.watermark for row in self._tracker.lagging}
        due = self._state.buffer.take_due(stepper.row_by_series, start, until, lagging)
        all_changes, readings = stepper.step(due)
        alerts = self._state.alerts.run(due, readings, until)
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
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
            alerts=alert_rows,
        )

    def build_empty_batch(self, until: int) -> Batch:
        """Return the batch of an hour up to which nothing is due."""
        return Batch(
            to_market_ms(until),
            watermarks=self._list_watermarks(),
            written_at=self._find_written_at(until),
        )

    def _find_written_at(self, run: int) -> int | None:
        """Return the market clock, None if rows of a run are written at their nominal time."""
        is_nominal = self._backfilled_until is not None and run <= self._backfilled_until
        return None if is_nominal else self._market_clock()

    def _list_watermarks(self) -> list[WatermarkRow]:
        """Return the watermarks of lagging assets, except those that have no stored bars yet."""
        return [row for row in self._tracker.lagging if row.ticker in self._publish_from_by_ticker]

    def _add_to_buffer(
        self, start: int, fetched: Mapping[str, FetchResult]
    ) -> tuple[list[BarBlock], list[FundingRow], dict[str, int]]:
        """Buffer what is new of some assets; a backlog from before warms up in silence."""
        bars: list[BarBlock] = []
        funding: list[FundingRow] = []
        publish_from: dict[str, int] = {}
        for ticker, new in fetched.items():
            self._tracker.record_watermark(ticker, new.watermark)
            series, settlements = self._tracker.cut_at_removal(ticker, new)
            self._state.buffer.add(ticker, NO_BARS if new.is_restated else series, settlements)
            if len(series):
                bars.append(build_bar_block(self._state, ticker, series))
            funding += build_funding_rows(ticker, settlements)
            if ticker not in self._publish_from_by_ticker and (
                len(series) or len(settlements.rate)
            ):
                backlog = len(series) and series.close_time[0] < start and start > 0
                starts_at = to_market_ms(start) + 1 if backlog else 0
                publish_from[ticker] = max(starts_at, self._feed_from_ms)
        return bars, funding, publish_from

    def _build_feed_rows(
        self, changes: Changes, alerts: Sequence[Alert]
    ) -> tuple[list[ChangeRow], list[AlertRow]]:
        """Give changes and alerts their places in the one sequence of rows."""
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

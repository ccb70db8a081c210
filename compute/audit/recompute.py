"""Steps the stored bars of some assets, commit by commit, as the published runs did. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.alert_pipeline import LAYOUT, Alert, AlertPipeline
from compute.audit.epochs import Epochs, get_cell
from compute.audit.feed_rows import NO_ROWS, PartRows
from compute.bar_buffer import BarBuffer
from compute.bars import HOUR_S, NO_BARS, NO_FUNDING, Funding, Series
from compute.batch_rows import NEVER, find_silent_hours
from compute.engine import hash_layout
from compute.engine_state import EngineState
from compute.indicators.contract import NO_READING, Indicator
from compute.state_loader import build_series
from compute.stepper import Cell, Changes, SeriesKey, Stepper
from compute.universe import Universe
from schemas.vocabulary import Action, Timeframe
from store.market_rows import BarBlock


@dataclass(slots=True)
class CommitPart:
    """A block's share of a commit; `run` and `previous_run` are hours in epoch seconds.

    `written_at` is that of the commit. `restated_funding` holds all settlements of assets whose
    bars are restated; `rows` are the stored rows of both tiers. `building` has the assets whose
    history the commit builds, and the hour up to which. If `wants_all_rows`, the leader needs every
    row.
    """

    previous_run: int
    run: int
    written_at: int | None = None
    bars: dict[str, list[BarBlock]] = field(default_factory=dict)
    funding: dict[str, Funding] = field(default_factory=dict)
    lagging: dict[str, int] = field(default_factory=dict)
    building: dict[str, int] = field(default_factory=dict)
    restated_funding: dict[str, Funding] = field(default_factory=dict)
    rows: PartRows = NO_ROWS
    wants_all_rows: bool = False


class Recomputed(NamedTuple):
    """The recomputed changes and alerts of a commit, in order, and the number of readings."""

    changes: Changes
    alerts: list[Alert]
    reading_count: int


class ComputedCarry(NamedTuple):
    """The carry of an indicator or engine, with the version, layout and bar that it is of."""

    version: int
    layout: str
    close_time: int
    data: bytes


class BlockStepper:
    """The state of some assets after the commits that were stepped."""

    def __init__(
        self,
        universe: Universe,
        indicators: Sequence[Indicator],
        native_timeframes: Mapping[str, Timeframe],
        epochs: Epochs,
        publish_from: Mapping[str, int],
        tickers: Sequence[str],
    ) -> None:
        """`epochs` are those of the block's assets."""
        stepper = Stepper(tickers, universe, indicators)
        block_timeframes = {
            ticker: native_timeframes[ticker] for ticker in tickers if ticker in native_timeframes
        }
        ends = {
            ticker: universe.end_time_by_ticker[ticker]
            for ticker in tickers
            if ticker in universe.end_time_by_ticker
        }
        alerts = AlertPipeline(stepper.row_by_series, universe, indicators)
        sunday_joining = universe.sunday_joining_tickers.intersection(tickers)
        buffer = BarBuffer(block_timeframes, ends, sunday_joining)
        self._state: Final = EngineState(stepper, alerts, buffer)
        self._epochs: Final = epochs
        self._publish_from: Final = publish_from
        starts = epochs.list_starts()
        self._starts = {cell: at for cell, at in starts.items() if cell.key in alerts.versions}
        first_closes = [epochs.find_start(cell) for cell in stepper.cells]
        self._first_closes: Final = np.array(
            [NEVER if close is None else close for close in first_closes], dtype=np.int64
        )
        self._stepped_from: Final[dict[SeriesKey, int]] = {}
        self._stepped_to: Final[dict[SeriesKey, int]] = {}
        self._settled_to: Final[dict[str, int]] = {}
        self._foreign_readings: Final[dict[Cell, int]] = {}
        self._published_at: Final[dict[Cell, dict[Action, int]]] = {}

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, which the changes refer to by index."""
        return self._state.stepper.cells

    def step_part(self, part: CommitPart) -> Recomputed:
        """Step a commit's bars as its run did, and keep the stored rows that later commits need."""
        # Stored rows matter twice: another version's readings can only be taken from them, and
        # cooldowns continue from the alerts that were really published.
        for ticker in sorted(part.bars.keys() | part.funding.keys()):
            self._add_to_buffer(ticker, part)
        recomputed = self._step_bars(part)
        self._keep_foreign_readings(part.rows)
        for row in part.rows.alerts:
            self._published_at.setdefault(get_cell(row), {})[row.action] = row.created_at
        return recomputed

    def get_revision(self, ticker: str) -> int:
        """Return the revision of an asset's bars."""
        return self._state.get_revision(ticker)

    def find_first_bar(self, series_key: SeriesKey) -> int | None:
        """Return the close of the first bar that a sequence stepped, None if it stepped none."""
        return self._stepped_from.get(series_key)

    def get_readings(self) -> dict[Cell, int]:
        """Return the current reading of every cell that has one."""
        return self._state.stepper.get_readings()

    def dump_carries(self) -> dict[Cell, ComputedCarry]:
        """Return the carries of indicators and engines after the last commit."""
        # An epoch may have begun after the last bar; its engines were restarted without a bar.
        self._restart_engines(cell for cell, starts in self._starts.items() if starts)
        layouts = {
            indicator.id: hash_layout(indicator) for indicator in self._state.stepper.indicators
        }
        return {
            cell: ComputedCarry(
                version,
                layouts.get(cell.key, LAYOUT),
                # An epoch begins after the last bar that its service had stepped, which may have
                # been one of Sunday's own that today's daily bars lack.
                max(self._stepped_to[series_key], self._epochs.find_last_start(cell) - 1),
                self._state.dump_carry(cell),
            )
            for series_key in sorted(
                self._stepped_to, key=self._state.stepper.row_by_series.__getitem__
            )
            for cell, version in self._state.list_cells(series_key)
            if self._epochs.has_begun(cell)
        }

    def _step_bars(self, part: CommitPart) -> Recomputed:
        stepper = self._state.stepper
        start = find_first_hour(part.previous_run, part.run)
        due = self._state.buffer.take_due(
            stepper.row_by_series, start, part.run, part.lagging, part.building
        )
        series_keys = [stepper.series_keys[row] for row in due.row.tolist()]
        firsts = due.close_time[due.first_index].tolist()
        for series_key, close in zip(series_keys, firsts, strict=True):
            self._stepped_from.setdefault(series_key, close)
        lasts = due.close_time[due.last_index].tolist()
        self._stepped_to.update(zip(series_keys, lasts, strict=True))
        changes, readings = stepper.step(due)
        self._restart_engines(self._pop_begun_epochs())
        alerts = self._state.alerts.run(
            due,
            readings,
            part.run,
            part.building,
            part.written_at,
            find_silent_hours(part.building, self._publish_from),
        )
        return Recomputed(
            self._drop_unbegun(changes), alerts, len(due.run) * len(stepper.indicators)
        )

    def _drop_unbegun(self, changes: Changes) -> Changes:
        """Drop changes from before an indicator's first epoch, and reset their readings."""
        # An indicator that is new to a store is rebuilt silently: nothing was published before.
        is_early = changes.close_time < self._first_closes[changes.cell]
        if not is_early.any():
            return changes
        for number in np.unique(changes.cell[is_early]).tolist():
            self._state.stepper.set_reading(self.cells[number], NO_READING)
        return changes.select(~is_early)

    def _pop_begun_epochs(self) -> Iterator[Cell]:
        """Yield the cells of alert engines whose next epoch has begun, once for each epoch."""
        for cell, starts in self._starts.items():
            while starts and starts[0] <= self._stepped_to.get(cell[:2], -1):
                starts.pop(0)
                yield cell

    def _restart_engines(self, cells: Iterable[Cell]) -> None:
        """Restart publishers, as a start of the service does after it rebuilt their engines."""
        for cell in cells:
            if self._state.alerts.is_followed(cell[:2]):
                self._state.alerts.restart_publisher(cell, self._published_at.get(cell, {}))

    def _add_to_buffer(self, ticker: str, part: CommitPart) -> None:
        buffer = self._state.buffer
        bars, funding = part.bars.get(ticker, []), part.funding.get(ticker, NO_FUNDING)
        if bars:
            buffer.set_native_timeframe(ticker, bars[0].timeframe)
        if ticker not in buffer.native_timeframes:
            return
        series = build_series(bars, buffer.native_timeframes[ticker])
        if bars and bars[0].revision != self._state.get_revision(ticker):
            self._state.adopt_revision(ticker, bars[0].revision)
            self._rebuild(ticker, series, part.restated_funding.get(ticker, NO_FUNDING))
            series = NO_BARS
        buffer.add(ticker, series, funding)
        if len(funding.settled_at):
            self._settled_to[ticker] = int(funding.settled_at[-1])

    def _rebuild(self, ticker: str, series: Series, settlements: Funding) -> None:
        """Rebuild an asset from the bars of another revision, as the run that fetched them did."""
        # Settlements of this commit are added later, with its bars; the rebuild precedes them.
        earlier = settlements.select_between(-1, self._settled_to.get(ticker, -1))
        for timeframe in self._state.buffer.list_timeframes(ticker):
            series_key = ticker, timeframe
            to = self._stepped_to.get(series_key, -1)
            self._state.rebuild_series(series_key, to, series, earlier, self._published_at)

    def _keep_foreign_readings(self, rows: PartRows) -> None:
        """Set the current readings that another version published; later changes start there."""
        if self._epochs.has_foreign:
            for number, after in zip(rows.cell.tolist(), rows.changes.after.tolist(), strict=True):
                if self._epochs.is_mixed(self.cells[number]):
                    self._foreign_readings[self.cells[number]] = after
        for cell, after in self._foreign_readings.items():
            closed = self._stepped_to.get(cell[:2], 0)
            if self._epochs.find_foreign_version(cell, closed) is not None:
                self._state.stepper.set_reading(cell, after)


def find_first_hour(previous_run: int, run: int) -> int:
    """Return the first hour of a commit's runs; a late one runs the last hour again."""
    return run if run == previous_run else previous_run + HOUR_S

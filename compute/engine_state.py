"""Everything that a run works on: stepper, alert engines, waiting bars, and what they remember."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute.alerts.alert_pipeline import AlertPipeline
from compute.bar_buffer import BarBuffer
from compute.bars import Funding, Series, Times, resample_bars
from compute.rebuild import HistoryBlock, SeriesHistory, rebuild_carries
from compute.stepper import Cell, SeriesKey, Stepper
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Action
from store.market_rows import CarryRow, EpochRow

PublishedHours = Mapping[Cell, Mapping[Action, int]]


@dataclass(frozen=True, slots=True)
class EngineState:
    """A run's desk, as it stands after the last committed pass.

    `unsaved` are rebuilt carries and `epochs` their epochs, both for the next pass. `generations`
    are those of the assets whose history was told anew.
    """

    stepper: Stepper
    alerts: AlertPipeline
    buffer: BarBuffer
    carries: dict[Cell, CarryRow] = field(default_factory=dict)
    unsaved_cells: set[Cell] = field(default_factory=set)
    new_epochs: list[EpochRow] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)

    def dump_carries(self, rows: Times) -> dict[Cell, bytes]:
        """Return what indicators and engines remember of some rows of the stepper, to be stored."""
        stepper = self.stepper
        series_keys: list[SeriesKey] = [stepper.series_keys[row] for row in rows.tolist()]
        found = {
            Cell(*place, indicator.id): data
            for column, indicator in enumerate(stepper.indicators)
            for place, data in zip(
                series_keys, stepper.engine.dump_carries(column, rows), strict=True
            )
        }
        followed = filter(self.alerts.is_followed, series_keys)
        cells = [Cell(*place, key) for place in followed for key in self.alerts.versions]
        return found | {cell: self.alerts.dump_carry(cell) for cell in cells}

    def list_cells(self, series_key: SeriesKey) -> list[tuple[Cell, int]]:
        """Return what remembers something of a sequence, indicators and engines, and versions."""
        versions = {i.id: i.version for i in self.stepper.indicators}
        engines = self.alerts.versions if self.alerts.is_followed(series_key) else {}
        return [(Cell(*series_key, key), version) for key, version in (versions | engines).items()]

    def get_revision(self, ticker: str) -> int:
        """Return of which generation an asset's bars are."""
        return self.revisions.get(ticker, 0)

    def resume_series(
        self, series_key: SeriesKey, stepped_to: int, bars: Series, funding: Funding
    ) -> Series:
        """Put back what a sequence has not stepped of its asset's bars; return what it has."""
        ticker, timeframe = series_key
        self.buffer.restore_series(
            ticker, timeframe, bars.select(bars.close_time > stepped_to), funding
        )
        is_native = self.buffer.native_timeframes[ticker] == timeframe
        series = bars if is_native else resample_bars(bars, TIMEFRAME_DURATIONS_S[timeframe])
        return series.select(series.close_time <= stepped_to)

    def dump_carry(self, cell: Cell) -> bytes:
        """Return what one indicator or engine remembers, to be stored."""
        if cell.key in self.alerts.versions:
            return self.alerts.dump_carry(cell)
        return self.stepper.engine.dump_carry(
            self._find_column(cell), self.stepper.row_by_series[cell[:2]]
        )

    def restore_carry(self, cell: Cell, data: bytes) -> None:
        """Put back what `carry` returned."""
        if cell.key in self.alerts.versions:
            self.alerts.restore_carry(cell, data)
        else:
            self._restore_indicator(cell, data)

    def install_carries(
        self, carries: Mapping[Cell, bytes], published_hours: PublishedHours
    ) -> None:
        """Put rebuilt carries in place; what is rebuilt of alerts publishes from the next bar on.

        `published` says of each engine at which hour it last published each action.
        """
        for cell, data in carries.items():
            if cell.key in self.alerts.versions:
                self.alerts.install_carry(cell, data, published_hours.get(cell, {}))
            else:
                self._restore_indicator(cell, data)

    def rebuild_series(
        self,
        series_key: SeriesKey,
        stepped_to: int,
        bars: Series,
        funding: Funding,
        published_hours: PublishedHours,
    ) -> None:
        """Step a sequence's bars, told anew, in silence as far as it was stepped before."""
        history = self.resume_series(series_key, stepped_to, bars, funding)
        keys = [cell.key for cell, _ in self.list_cells(series_key)]
        sequences = [SeriesHistory(series_key, history, funding, keys)]
        self.install_carries(
            rebuild_carries(HistoryBlock(self.stepper.indicators, sequences)), published_hours
        )

    def _restore_indicator(self, cell: Cell, data: bytes) -> None:
        self.stepper.engine.restore_carry(
            self._find_column(cell), self.stepper.row_by_series[cell[:2]], data
        )

    def _find_column(self, cell: Cell) -> int:
        return self.stepper.stored_keys.index(cell.key)

"""The state that a run advances: stepper, alert engines, buffered bars, carries and epochs."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from compute.alerts.alert_pipeline import LAYOUT, Alert, AlertPipeline
from compute.alerts.rules import Publisher
from compute.indicator_engine import hash_layout
from compute.indicators.contract import Indicator
from compute.stepper import (
    LEGACY_INDICATOR,
    LEGACY_KEY,
    BarBuffer,
    Cell,
    DueBars,
    SeriesKey,
    Stepper,
)
from compute.universe import Universe
from schemas.vocabulary import TIMEFRAMES, Action, Timeframe
from store.market_rows import CarryRow, EpochRow

# Epochs are stored with these words and are never rewritten.
FIRST_BAR, REPLACES = "first bar", "replaces version"
PublishedTimes = Mapping[Cell, Mapping[Action, int]]


class EngineState:
    """The carries of all indicators and engines, and a record of those that the store lacks.

    Carry rows are those of the last stepped bar. They are ahead of the store by the batches not
    committed yet, and by the carries rebuilt since the last batch.
    """

    def __init__(
        self,
        stepper: Stepper,
        alerts: AlertPipeline,
        buffer: BarBuffer,
        carries: Iterable[CarryRow] = (),
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        """Take the stored carries, and the revisions of the assets whose history was restated."""
        self.stepper: Final = stepper
        self.alerts: Final = alerts
        self.buffer: Final = buffer
        self._layouts: Final = {i.id: hash_layout(i) for i in stepper.indicators}
        self._versions: Final = {i.id: i.version for i in stepper.indicators} | dict(
            alerts.versions
        )
        # Those of the last stepped bar, or rebuilt.
        self.carries: Final = {Cell(c.ticker, c.timeframe, c.indicator): c for c in carries}
        # Those of the bars of every asset whose history was restated; 0 for all others.
        self.revisions: Final = Counter(revisions)
        self._rebuilt_cells: Final[set[Cell]] = set()
        # Those of carries that were rebuilt since the last batch.
        self.new_epochs: Final[list[EpochRow]] = []

    def get_epoch(self, cell: Cell) -> int:
        """Return the epoch of a cell's readings; the legacy key shares that of its indicator."""
        if cell.key == LEGACY_KEY:
            cell = cell._replace(key=LEGACY_INDICATOR)
        carry = self.carries.get(cell)
        return 0 if carry is None else carry.epoch

    def list_cells(self, series_key: SeriesKey) -> list[tuple[Cell, int]]:
        """Return the cells of a sequence that have carries, each with its version in this code."""
        is_followed = self.alerts.is_followed(series_key)
        return [
            (Cell(*series_key, key), version)
            for key, version in self._versions.items()
            if is_followed or key in self._layouts
        ]

    def find_stepped_to(self, ticker: str) -> dict[Timeframe, int]:
        """Return the close of each timeframe's last stepped bar, -1 if there is none."""
        return {
            timeframe: self._find_series_end((ticker, timeframe))
            for timeframe in self.buffer.list_timeframes(ticker)
        }

    def list_outdated_cells(self, series_key: SeriesKey) -> list[Cell]:
        """Return the cells of a sequence whose stored carries this code cannot continue.

        Such a carry has another version or layout, or it ends before the sequence's last stepped
        bar, as an engine's does if its asset was not followed for a while.
        """
        stepped_to = self._find_series_end(series_key)
        return [
            cell
            for cell, version in self._list_carried_cells(series_key)
            if (carry := self.carries.get(cell)) is None
            or (carry.version, carry.layout, carry.close_time)
            != (version, self._get_layout(cell), stepped_to)
        ]

    def dump_carry(self, cell: Cell) -> bytes:
        """Return the carry of one indicator or engine as bytes, to be stored."""
        if cell.key in self.alerts.versions:
            return self.alerts.dump_carry(cell)
        return self.stepper.dump_carry(cell)

    def restore_carries(self, series_key: SeriesKey) -> None:
        """Restore the stored carries of a sequence, except outdated ones."""
        outdated_cells = self.list_outdated_cells(series_key)
        for cell, _ in self._list_carried_cells(series_key):
            if cell not in outdated_cells:
                is_engine = cell.key in self.alerts.versions
                restore = self.alerts.restore_carry if is_engine else self.stepper.restore_carry
                restore(cell, self.carries[cell].data)

    def install_carries(self, carries: Mapping[Cell, bytes], published_at: PublishedTimes) -> None:
        """Install rebuilt carries; a rebuilt alert engine publishes from the next bar on.

        `published_at` has the `created_at` with which each engine last published each action.
        """
        # A publisher's past cannot be rebuilt from bars, because some of them came late. Its
        # cooldown continues from the alerts that really went out, and it holds nothing.
        for cell, data in carries.items():
            if cell.key in self.alerts.versions:
                publisher = Publisher(cell.timeframe, published_at.get(cell))
                self.alerts.restore_carry(cell, data + publisher.pack())
            else:
                self.stepper.restore_carry(cell, data)

    def begin_epochs(
        self, series_key: SeriesKey, rebuilt_cells: Container[Cell], reason: str = ""
    ) -> None:
        """Begin an epoch after the last stepped bar for each rebuilt carry of a sequence."""
        stepped_to = self._find_series_end(series_key)
        for cell, version in self._list_carried_cells(series_key):
            if cell in rebuilt_cells:
                old = self.carries.get(cell)
                epoch = 0 if old is None else old.epoch + 1
                self.carries[cell] = self._build_carry_row(
                    cell, version, epoch, stepped_to, self.dump_carry(cell)
                )
                self._rebuilt_cells.add(cell)
                if old is None:
                    change = "new to this store"
                elif old.version == version:
                    change = "was not followed for a while"
                else:
                    change = f"{REPLACES} {old.version}"
                row = self._build_epoch_row(cell, epoch, version, stepped_to + 1, reason or change)
                self.new_epochs.append(row)

    def take_carry_rows(
        self, due: DueBars, alerts: Sequence[Alert]
    ) -> tuple[list[CarryRow], list[EpochRow]]:
        """Return the carries and epochs to store with the batch that steps `due`.

        Rebuilt carries and new epochs are returned once; after that they count as stored.
        """
        epochs = list(self.new_epochs)
        # Each source of rows overrides the ones before: a cell that steps in this batch has the
        # newest carry, whether it was also rebuilt or published or not.
        rows = {cell: self.carries[cell] for cell in self._rebuilt_cells}
        # A held alert goes out when its cooldown ends, without a bar, and changes the carry.
        rows |= {
            cell: carry._replace(data=self.alerts.dump_carry(cell))
            for cell in {alert.cell for alert in alerts}
            if (carry := self.carries.get(cell)) is not None
        }
        firsts = due.close_time[due.first_index].tolist()
        lasts = due.close_time[due.last_index].tolist()
        stepped: list[SeriesKey] = [self.stepper.series_keys[row] for row in due.row.tolist()]
        followed = filter(self.alerts.is_followed, stepped)
        engines = [Cell(*key, engine) for key in followed for engine in self.alerts.versions]
        carry_data = self.stepper.dump_carries(due.row)
        carry_data |= {cell: self.alerts.dump_carry(cell) for cell in engines}
        for row, first, last in zip(due.row.tolist(), firsts, lasts, strict=True):
            for cell, version in self.list_cells(self.stepper.series_keys[row]):
                if cell not in self.carries:
                    epochs.append(self._build_epoch_row(cell, 0, version, first, FIRST_BAR))
                epoch = self.get_epoch(cell)
                rows[cell] = self._build_carry_row(cell, version, epoch, last, carry_data[cell])
        self.carries.update(rows)
        self._rebuilt_cells.clear()
        self.new_epochs.clear()
        return sorted(rows.values(), key=_rank), sorted(epochs, key=_rank)

    def _find_series_end(self, series_key: SeriesKey) -> int:
        """Return the close of a sequence's last stepped bar, -1 if there is none."""
        # By the indicators' carries only: those of engines end early if an asset is not followed.
        cells = (Cell(*series_key, key) for key in self._layouts)
        return max((self.carries[c].close_time for c in cells if c in self.carries), default=-1)

    def _list_carried_cells(self, series_key: SeriesKey) -> list[tuple[Cell, int]]:
        """Return the cells of a sequence and their versions; none if no bar was stepped."""
        return self.list_cells(series_key) if self._find_series_end(series_key) >= 0 else []

    def _get_layout(self, cell: Cell) -> str:
        return self._layouts.get(cell.key, LAYOUT)

    def _build_carry_row(
        self, cell: Cell, version: int, epoch: int, close_time: int, data: bytes
    ) -> CarryRow:
        return CarryRow(*cell, version, self._get_layout(cell), epoch, close_time, data)

    def _build_epoch_row(
        self, cell: Cell, epoch: int, version: int, from_close_time: int, reason: str
    ) -> EpochRow:
        revision = self.revisions[cell.ticker]
        return EpochRow(*cell, epoch, version, revision, from_close_time, reason)


def build_state(
    universe: Universe,
    indicators: Sequence[Indicator],
    native_timeframes: Mapping[str, Timeframe],
    carries: Iterable[CarryRow] = (),
    revisions: Mapping[str, int] | None = None,
) -> EngineState:
    """Return the state of the assets whose native timeframe is given, with nothing restored."""
    stepper = Stepper(list(native_timeframes), universe, indicators)
    alerts = AlertPipeline(stepper.row_by_series, universe, indicators)
    ends, sunday_joining = universe.end_time_by_ticker, universe.sunday_joining_tickers
    buffer = BarBuffer(native_timeframes, ends, sunday_joining)
    carries = [row for row in carries if row.ticker in native_timeframes]
    return EngineState(stepper, alerts, buffer, carries, revisions)


def _rank(row: CarryRow | EpochRow) -> tuple[int, str]:
    return TIMEFRAMES.index(row.timeframe), row.ticker

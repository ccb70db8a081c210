"""Steps some assets' stored bars as the runs did that published them, pass by pass. Pure.

An audit hands such blocks to a crew, with what each pass holds of their assets, and gets them back
with what follows; only then are rows of all assets in one sequence again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.alert_pipeline import LAYOUT, Alert, AlertDesk
from compute.audit.row_audit import Epochs, cell_of
from compute.bar_buffer import Intake
from compute.bars import HOUR_S, NO_BARS, Series, Times
from compute.engine import layout
from compute.engine_state import Desk
from compute.indicators.contract import NO_READING, Indicator
from compute.state_loader import funding_of, published_hour, series_of
from compute.stepper import Cell, Changes, Place, Stepper
from compute.universe import Universe
from schemas.vocabulary import INDICATOR_OF, Action, Timeframe
from store.market_rows import AlertRow, BarBlock, ChangeRow, FundingRow


@dataclass(slots=True)
class Part:
    """What a pass holds of a block's assets, and the hours (epoch s) of it and the one before.

    `settled` are all settlements of assets whose bars are told anew; `changes` are those of cells
    that another version read, `alerts` all.
    """

    before: int
    run: int
    bars: dict[str, list[BarBlock]] = field(default_factory=dict)
    funding: dict[str, list[FundingRow]] = field(default_factory=dict)
    behind: dict[str, int] = field(default_factory=dict)
    settled: dict[str, list[FundingRow]] = field(default_factory=dict)
    changes: list[ChangeRow] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)


class Followed(NamedTuple):
    """What follows from a part: changes and alerts in their order, and how many readings."""

    changes: Changes
    alerts: list[Alert]
    readings: int


class Carried(NamedTuple):
    """What an indicator or engine remembers, and of which code and bar it is."""

    version: int
    layout: str
    close_time: int
    data: bytes


class AuditBlock:
    """The assets as they stand after the parts that were taken in."""

    def __init__(
        self,
        universe: Universe,
        indicators: Sequence[Indicator],
        native: Mapping[str, Timeframe],
        epochs: Epochs,
        tickers: Sequence[str],
    ) -> None:
        """Take what is known of all assets."""
        self.tickers: Final = tuple(tickers)
        stepper = Stepper(tickers, universe, indicators)
        own = {ticker: native[ticker] for ticker in tickers if ticker in native}
        ends = {ticker: universe.ends[ticker] for ticker in tickers if ticker in universe.ends}
        alerts = AlertDesk(stepper.row, universe, indicators)
        self._desk: Final = Desk(stepper, alerts, Intake(own, ends))
        self._epochs: Final = epochs.of(tickers)
        starts = self._epochs.starts()
        self._starts = {cell: at for cell, at in starts.items() if cell.key in INDICATOR_OF}
        self._stepped_to: Final[dict[Place, int]] = {}
        self._settled_to: Final[dict[str, int]] = {}
        self._shown: Final[dict[Cell, int]] = {}
        self._published: Final[dict[Cell, dict[Action, int]]] = {}

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that changes number."""
        return self._desk.stepper.cells

    def take(self, part: Part) -> Followed:
        """Step what a pass holds, as its run did."""
        for ticker in sorted(part.bars.keys() | part.funding.keys()):
            self._take_in(ticker, part)
        followed = self._step(part)
        self._keep_foreign(part.changes)
        for row in part.alerts:
            self._published.setdefault(cell_of(row), {})[row.action] = published_hour(row)
        return followed

    def readings(self) -> dict[Cell, int]:
        """Return the board."""
        readings = self._desk.stepper.board.ravel().tolist()
        pairs = zip(self.cells, readings, strict=True)
        return {cell: reading for cell, reading in pairs if reading != NO_READING}

    def carries(self) -> dict[Cell, Carried]:
        """Return what indicators and engines remember in the end, sequence by sequence."""
        self._restart_engines(cell for cell, starts in self._starts.items() if starts)
        layouts = {indicator.id: layout(indicator) for indicator in self._desk.stepper.indicators}
        return {
            cell: Carried(
                version,
                layouts.get(cell.key, LAYOUT),
                self._stepped_to[place],
                self._desk.carry(cell),
            )
            for place in sorted(self._stepped_to, key=self._desk.stepper.row.__getitem__)
            for cell, version in self._desk.cells(place)
            if cell.key in layouts or self._epochs.knows(cell)
        }

    def _step(self, part: Part) -> Followed:
        stepper = self._desk.stepper
        start = part.run if part.run == part.before else part.before + HOUR_S
        due = self._desk.intake.take(stepper.row, start, part.run, part.behind)
        closes = due.close_time[due.last].tolist()
        places = (stepper.places[row] for row in due.row.tolist())
        self._stepped_to.update(zip(places, closes, strict=True))
        changes, readings = stepper.run(due)
        self._restart_engines(self._begun())
        alerts = self._desk.alerts.run(due, readings, part.run)
        return Followed(changes, alerts, len(due.run) * len(stepper.indicators))

    def _begun(self) -> Iterator[Cell]:
        """Yield the cells of which an epoch has begun, once for each epoch."""
        for cell, starts in self._starts.items():
            while starts and starts[0] <= self._stepped_to.get(cell[:2], -1):
                starts.pop(0)
                yield cell

    def _restart_engines(self, cells: Iterable[Cell]) -> None:
        """Begin publishers anew, as a start of the service does."""
        for cell in cells:
            if self._desk.alerts.follows(cell[:2]):
                self._desk.alerts.restart(cell, self._published.get(cell, {}))

    def _take_in(self, ticker: str, part: Part) -> None:
        intake = self._desk.intake
        bars, funding = part.bars.get(ticker, []), part.funding.get(ticker, [])
        if bars:
            intake.native[ticker] = bars[0].timeframe
        if ticker not in intake.native:
            return
        series = series_of(bars, intake.native[ticker])
        if bars and bars[0].generation != self._desk.generation(ticker):
            self._desk.generations[ticker] = bars[0].generation
            self._renew(ticker, series, part.settled.get(ticker, []))
            series = NO_BARS
        intake.add(ticker, series, funding_of(funding))
        if funding:
            self._settled_to[ticker] = funding[-1].settled_at

    def _renew(self, ticker: str, series: Series, settled: Sequence[FundingRow]) -> None:
        """Begin anew with the bars of another generation, as the run did that took them in."""
        earlier = funding_of(settled).between(-1, self._settled_to.get(ticker, -1))
        for timeframe in self._desk.intake.timeframes(ticker):
            place = ticker, timeframe
            to = self._stepped_to.get(place, -1)
            self._desk.renew(place, to, series, earlier, self._published)

    def _keep_foreign(self, stored: Sequence[ChangeRow]) -> None:
        """Leave on the board what another version read: the next change starts from there."""
        self._shown.update((cell_of(row), row.after) for row in stored)
        for cell, after in self._shown.items():
            closed = self._stepped_to.get(cell[:2], 0)
            if self._epochs.foreign_version(cell, closed) is not None:
                self._desk.stepper.place(cell, after)


class Work(NamedTuple):
    """A block of assets, and what some passes one after another hold of them."""

    block: AuditBlock
    parts: list[Part]


class Done(NamedTuple):
    """The block after the parts, and what followed from each."""

    block: AuditBlock
    followed: list[Followed]


def stepped(work: Work) -> Done:
    """Take in the parts; the block that is returned may be the given one."""
    return Done(work.block, [work.block.take(part) for part in work.parts])


def merged(parts: Sequence[Changes], numbers: Sequence[Times]) -> Changes:
    """Put the changes of all blocks into one order; `numbers` are those of each block's cells."""
    cell = np.concatenate([own[part.cell] for part, own in zip(parts, numbers, strict=True)])
    run = np.concatenate([part.run for part in parts])
    close_time = np.concatenate([part.close_time for part in parts])
    order = np.lexsort((cell, close_time, run))
    return Changes(
        run=run[order],
        close_time=close_time[order],
        cell=cell[order],
        before=np.concatenate([part.before for part in parts])[order],
        after=np.concatenate([part.after for part in parts])[order],
        price=np.concatenate([part.price for part in parts])[order],
    )

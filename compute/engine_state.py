"""Everything that a run works on: stepper, alert engines, waiting bars, and what they remember."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute.alerts.alert_pipeline import AlertDesk
from compute.bar_buffer import Intake
from compute.bars import Funding, Series, Times, built
from compute.rebuild import Past, Pasts, rebuilt
from compute.stepper import Cell, Place, Stepper
from schemas.vocabulary import PERIOD_S, Action
from store.market_rows import CarryRow, EpochRow

Published = Mapping[Cell, Mapping[Action, int]]


@dataclass(frozen=True, slots=True)
class Desk:
    """A run's desk, as it stands after the last committed pass.

    `unsaved` are rebuilt carries and `epochs` their epochs, both for the next pass. `generations`
    are those of the assets whose history was told anew.
    """

    stepper: Stepper
    alerts: AlertDesk
    intake: Intake
    carries: dict[Cell, CarryRow] = field(default_factory=dict)
    unsaved: set[Cell] = field(default_factory=set)
    epochs: list[EpochRow] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)

    def carried(self, rows: Times) -> dict[Cell, bytes]:
        """Return what indicators and engines remember of some rows of the stepper, to be stored."""
        stepper = self.stepper
        places: list[Place] = [stepper.places[row] for row in rows.tolist()]
        found = {
            Cell(*place, indicator.id): data
            for column, indicator in enumerate(stepper.indicators)
            for place, data in zip(places, stepper.engine.carries(column, rows), strict=True)
        }
        followed = filter(self.alerts.follows, places)
        cells = [Cell(*place, key) for place in followed for key in self.alerts.versions]
        return found | {cell: self.alerts.carry(cell) for cell in cells}

    def cells(self, place: Place) -> list[tuple[Cell, int]]:
        """Return what remembers something of a sequence, indicators and engines, and versions."""
        own = {i.id: i.version for i in self.stepper.indicators}
        engines = self.alerts.versions if self.alerts.follows(place) else {}
        return [(Cell(*place, key), version) for key, version in (own | engines).items()]

    def generation(self, ticker: str) -> int:
        """Return of which generation an asset's bars are."""
        return self.generations.get(ticker, 0)

    def resume(self, place: Place, stepped_to: int, bars: Series, funding: Funding) -> Series:
        """Put back what a sequence has not stepped of its asset's bars; return what it has."""
        ticker, timeframe = place
        self.intake.resume(ticker, timeframe, bars.where(bars.close_time > stepped_to), funding)
        own = self.intake.native[ticker] == timeframe
        series = bars if own else built(bars, PERIOD_S[timeframe])
        return series.where(series.close_time <= stepped_to)

    def carry(self, cell: Cell) -> bytes:
        """Return what one indicator or engine remembers, to be stored."""
        if cell.key in self.alerts.versions:
            return self.alerts.carry(cell)
        return self.stepper.engine.carry(self._column(cell), self.stepper.row[cell[:2]])

    def restore(self, cell: Cell, data: bytes) -> None:
        """Put back what `carry` returned."""
        if cell.key in self.alerts.versions:
            self.alerts.restore(cell, data)
        else:
            self._restore_indicator(cell, data)

    def put(self, carries: Mapping[Cell, bytes], published: Published) -> None:
        """Put rebuilt carries in place; what is rebuilt of alerts publishes from the next bar on.

        `published` says of each engine at which hour it last published each action.
        """
        for cell, data in carries.items():
            if cell.key in self.alerts.versions:
                self.alerts.renew(cell, data, published.get(cell, {}))
            else:
                self._restore_indicator(cell, data)

    def renew(
        self, place: Place, stepped_to: int, bars: Series, funding: Funding, published: Published
    ) -> None:
        """Step a sequence's bars, told anew, in silence as far as it was stepped before."""
        past = self.resume(place, stepped_to, bars, funding)
        keys = [cell.key for cell, _ in self.cells(place)]
        sequences = [Past(place, past, funding, keys)]
        self.put(rebuilt(Pasts(self.stepper.indicators, sequences)), published)

    def _restore_indicator(self, cell: Cell, data: bytes) -> None:
        self.stepper.engine.restore(self._column(cell), self.stepper.row[cell[:2]], data)

    def _column(self, cell: Cell) -> int:
        return self.stepper.keys.index(cell.key)

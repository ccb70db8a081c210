"""Replays the stored bars of some assets, commit by commit, as the published runs stepped them.

Pure. A task takes a block of assets with its parts of some commits; blocks do not depend on each
other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.alert_pipeline import LAYOUT, Alert
from compute.audit.rows import FOREIGN, NOT_BEGUN, OWN, CellIndex
from compute.bars import NO_BARS, NO_FUNDING, Funding
from compute.block_step import BlockTask, step_due
from compute.engine import hash_layout
from compute.engine_state import EngineState
from compute.indicators.contract import NO_READING
from compute.rebuild import build_series, rebuild_series
from compute.stepper import Cell, Changes, SeriesKey
from schemas.vocabulary import Action
from store.market_rows import BarBlock, CarryRow, EpochRow


@dataclass(slots=True)
class CommitPart:
    """A block's share of a commit; up to `silent_until` it is as a BlockTask.

    `restarted` has the engines that a start of the service rebuilt before, `published` the stored
    alerts with their `created_at`, `foreign` the last stored reading of the cells of another
    version.
    """

    start: int
    until: int
    written_at: int | None
    bars: dict[str, list[BarBlock]] = field(default_factory=dict)
    funding: dict[str, Funding] = field(default_factory=dict)
    lagging: dict[str, int] = field(default_factory=dict)
    building: dict[str, int] = field(default_factory=dict)
    silent_until: Mapping[str, int] = field(default_factory=dict)
    restarted: list[Cell] = field(default_factory=list)
    published: list[tuple[Cell, Action, int]] = field(default_factory=list)
    foreign: dict[Cell, int] = field(default_factory=dict)


class Replayed(NamedTuple):
    """The results of the bars of a part; changes refer to the block's cells.

    `epochs` has the epoch of each publishing engine, and of each changed cell unless it is 0;
    `built` has the assets whose history the part builds.
    """

    changes: Changes
    alerts: Sequence[Alert]
    epochs: Mapping[Cell, int]
    built: frozenset[str]
    reading_count: int


class ReplayedState(NamedTuple):
    """The state of a block after the last commit.

    `first_closes` has the close of the first bar of each sequence; `revisions` those of the assets
    whose history was restated.
    """

    readings: Mapping[Cell, int]
    carries: Sequence[CarryRow]
    first_closes: Mapping[SeriesKey, int]
    revisions: Mapping[str, int]


class BlockReplay:
    """The state of some assets after the commits that were replayed."""

    def __init__(self, state: EngineState, epochs: Iterable[EpochRow]) -> None:
        """`epochs` may have those of other assets too."""
        self.state: Final = state
        self._index: Final = CellIndex(state, epochs)
        pairs = ((Cell(row.ticker, row.timeframe, row.indicator), row) for row in epochs)
        self._newest: Final = {cell: row for cell, row in pairs if cell in self._index.numbers}
        self._stepped_from: Final[dict[SeriesKey, int]] = {}
        self._stepped_to: Final[dict[SeriesKey, int]] = {}
        self._funding: Final[dict[str, Funding]] = {}
        self._foreign: Final[dict[Cell, int]] = {}
        self._published_at: Final[dict[Cell, dict[Action, int]]] = {}

    def step(self, part: CommitPart) -> Replayed:
        """Step a commit's bars as its run did, and keep the stored rows that later commits need."""
        # Stored rows matter twice: another version's readings can only be taken from them, and
        # cooldowns continue from the alerts that were really published.
        state, stepper = self.state, self.state.stepper
        for ticker in sorted(part.bars.keys() | part.funding.keys()):
            self._buffer(ticker, part)
        for cell in filter(state.alerts.cells.__contains__, part.restarted):
            state.alerts.restart_publisher(cell, self._published_at.get(cell, {}))
        times = part.lagging, part.building, part.written_at, part.silent_until
        due, changes, alerts = step_due(BlockTask(state, {}, part.start, part.until, *times))
        series_keys = [stepper.series_keys[row] for row in due.row.tolist()]
        for key, first in zip(series_keys, due.close_time[due.first_index].tolist(), strict=True):
            self._stepped_from.setdefault(key, first)
        lasts = due.close_time[due.last_index].tolist()
        self._stepped_to.update(zip(series_keys, lasts, strict=True))
        epoch, _, kind = self._index.find_epochs(changes.cell, changes.close_time)
        # An indicator that is new to a store was rebuilt silently: it had no reading before.
        for number in np.unique(changes.cell[kind == NOT_BEGUN]).tolist():
            stepper.set_reading(stepper.cells[number], NO_READING)
        self._keep_stored_rows(part)
        later = (kind == OWN) & (epoch > 0)
        epochs = dict(zip(changes.cell[later].tolist(), epoch[later].tolist(), strict=True))
        found = self._find_epochs([(alert.cell, alert.close_time) for alert in alerts])
        own = [a for a in zip(alerts, *found, strict=True) if a[2] == OWN]
        return Replayed(
            changes.select(kind == OWN),
            [alert for alert, _, _ in own],
            {stepper.cells[number]: epoch for number, epoch in epochs.items()}
            | {alert.cell: epoch for alert, epoch, _ in own},
            frozenset(part.building),
            len(due.run) * len(stepper.indicators),
        )

    def dump(self) -> ReplayedState:
        """Return the state after the last commit, with the carries as a service stores them."""
        state = self.state
        layouts = {one.id: hash_layout(one) for one in state.stepper.indicators}
        carries = []
        for key, stepped_to in sorted(self._stepped_to.items()):
            for cell, version in state.list_cells(key):
                if epoch := self._newest.get(cell):
                    values = epoch.epoch, stepped_to, state.dump_carry(cell)
                    layout = layouts.get(cell.key, LAYOUT)
                    carries.append(CarryRow(*cell, version, layout, *values))
        readings = state.stepper.get_readings()
        return ReplayedState(readings, carries, self._stepped_from, state.revisions)

    def _buffer(self, ticker: str, part: CommitPart) -> None:
        """Buffer an asset's bars; rebuild it first if they restate its history."""
        buffer = self.state.buffer
        blocks, funding = part.bars.get(ticker, []), part.funding.get(ticker, NO_FUNDING)
        if blocks:
            buffer.set_native_timeframe(ticker, blocks[0].timeframe)
        series = build_series(blocks, buffer.native_timeframes[ticker])
        earlier = self._funding.get(ticker, NO_FUNDING)
        if blocks and blocks[0].revision != self.state.get_revision(ticker):
            self.state.adopt_revision(ticker, blocks[0].revision)
            for timeframe in buffer.list_timeframes(ticker):
                key = ticker, timeframe
                to = self._stepped_to.get(key, -1)
                rebuild_series(self.state, key, to, series, earlier, self._published_at)
            series = NO_BARS
        buffer.add(ticker, series, funding)
        self._funding[ticker] = earlier.concatenate(funding)

    def _keep_stored_rows(self, part: CommitPart) -> None:
        """Take over the readings of other versions, and the times of published alerts."""
        self._foreign.update(part.foreign)
        closes = [(cell, self._stepped_to.get(cell[:2], 0)) for cell in self._foreign]
        for cell, kind in zip(self._foreign, self._find_epochs(closes)[1], strict=True):
            if kind == FOREIGN:
                self.state.stepper.set_reading(cell, self._foreign[cell])
        for cell, action, created_at in part.published:
            self._published_at.setdefault(cell, {})[action] = created_at

    def _find_epochs(self, closes: Sequence[tuple[Cell, int]]) -> tuple[list[int], list[int]]:
        """Return the epoch of each bar, given by cell and close, and its kind."""
        numbers = [(self._index.numbers[cell], close) for cell, close in closes]
        places = np.array(numbers, dtype=np.int64).reshape(-1, 2)
        epochs, _, kinds = self._index.find_epochs(places[:, 0], places[:, 1])
        return epochs.tolist(), kinds.tolist()


def replay_commits(
    task: tuple[BlockReplay, Sequence[CommitPart]],
) -> tuple[BlockReplay, list[Replayed]]:
    """Replay a block's parts of some commits; return the advanced block, and what each gives."""
    # In a thread it is the given object; another process returns a copy of its own.
    block, parts = task
    return block, [block.step(part) for part in parts]

"""Replays the stored bars of some assets, commit by commit, as the published runs stepped them.

Pure. A task takes a block of assets with its parts of some commits; blocks do not depend on each
other. Many commits are stepped at once: that gives what stepping them one by one gives, in a
fraction of the time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.alert_pipeline import LAYOUT, Alert
from compute.alerts.engines import Firing
from compute.audit.compared_rows import FOREIGN, NOT_BEGUN, OWN, CellIndex
from compute.bar_buffer import join_due
from compute.bars import NO_BARS, NO_FUNDING, Funding
from compute.engine_state import EngineState
from compute.indicator_engine import hash_layout
from compute.indicators.contract import NO_READING
from compute.rebuild import build_series, rebuild_series
from compute.stepper import Cell, Changes, DueBars, SeriesKey
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Action
from store.market_rows import BarBlock, CarryRow, EpochRow


@dataclass(slots=True)
class CommitPart:
    """A block's share of a commit.

    `begins_epochs` says whether the commit stores epochs. `restarted` has the engines that a start
    of the service rebuilt before, `published` the stored alerts with their `created_at`, `foreign`
    the last stored reading of the cells of another version.
    """

    start: int
    until: int
    written_at: int | None
    begins_epochs: bool = False
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

    def replay(self, parts: Sequence[CommitPart]) -> Iterator[Replayed]:
        """Step the bars of some commits as their runs did; yield what each of them gives."""
        first = 0
        for end in range(1, len(parts) + 1):
            if end == len(parts) or not self._continues(parts[end], parts[end - 1]):
                yield from self._step(parts[first:end])
                first = end

    def _continues(self, part: CommitPart, before: CommitPart) -> bool:
        """Return whether a commit can be stepped together with the one before it.

        It is of a later run, and neither of them builds a history. One that restarts or restates a
        history begins a group.
        """
        if before.building or part.building or part.begins_epochs or part.restarted:
            return False
        native, state = self.state.buffer.native_timeframes, self.state
        return (
            part.until > before.until
            and not self._index.has_foreign
            and all(
                (block.timeframe, block.revision) == (native[ticker], state.revisions[ticker])
                for ticker, blocks in part.bars.items()
                for block in blocks
            )
        )

    def _take_due(self, parts: Sequence[CommitPart]) -> DueBars:
        """Buffer the bars of commits, and take those that are due at their runs."""
        buffer, rows = self.state.buffer, self.state.stepper.row_by_series
        taken = []
        for ticker in buffer.native_timeframes:
            for span in _split_parts(parts, ticker):
                if any(ticker in part.bars or ticker in part.funding for part in span):
                    self._buffer(ticker, span)
                start, until = span[0].start, span[-1].until
                if ticker in span[0].building:
                    start = 0
                watermark = span[0].lagging.get(ticker, until)
                for timeframe in buffer.list_timeframes(ticker):
                    if buffer.has_series(key := (ticker, timeframe)):
                        took = buffer.take_series(key, start, watermark, until)
                        taken.append((rows[key], *took))
        buffer.drop_settlements(parts[-1].until)
        return join_due(taken)

    def _step(self, parts: Sequence[CommitPart]) -> Iterator[Replayed]:
        """Step the bars of commits at once; keep the stored rows that later commits need."""
        # Stored rows matter twice: another version's readings can only be taken from them, and
        # cooldowns continue from the alerts that were really published.
        state, stepper = self.state, self.state.stepper
        due = self._take_due(parts)
        for cell in filter(state.alerts.cells.__contains__, parts[0].restarted):
            state.alerts.restart_publisher(cell, self._published_at.get(cell, {}))
        changes, readings = stepper.step(due)
        firings = state.alerts.step(due, readings)
        series_keys = [stepper.series_keys[row] for row in due.row.tolist()]
        for key, close in zip(series_keys, due.close_time[due.first_index].tolist(), strict=True):
            self._stepped_from.setdefault(key, close)
        lasts = due.close_time[due.last_index].tolist()
        self._stepped_to.update(zip(series_keys, lasts, strict=True))
        epoch, _, kind = self._index.find_epochs(changes.cell, changes.close_time)
        # An indicator that is new to a store was rebuilt silently: it had no reading before.
        for number in np.unique(changes.cell[kind == NOT_BEGUN]).tolist():
            stepper.set_reading(stepper.cells[number], NO_READING)
        for part in parts:
            self._keep_stored_rows(part)
        # Each bar, change and firing belongs to the first commit whose run is not before its own.
        runs = [part.until for part in parts]
        bars = np.bincount(np.searchsorted(runs, due.run), minlength=len(parts)).tolist()
        own, epoch = changes.select(kind == OWN), epoch[kind == OWN]
        ends = [0, *np.searchsorted(own.run, runs, side="right").tolist()]
        fired: list[dict[int, list[Firing]]] = [{} for _ in parts]
        for engine, found in firings.items():
            for firing in found:
                of_engine = fired[bisect_left(runs, firing.hour)].setdefault(engine, [])
                of_engine.append(firing)
        for number, part in enumerate(parts):
            times = part.until, part.building, part.written_at, part.silent_until
            alerts = state.alerts.publish(fired[number], *times)
            chosen = slice(ends[number], ends[number + 1])
            later = {
                stepper.cells[cell]: at
                for cell, at in zip(own.cell[chosen].tolist(), epoch[chosen].tolist(), strict=True)
                if at > 0
            }
            kinds = self._find_epochs([(alert.cell, alert.close_time) for alert in alerts])
            shown = [one for one in zip(alerts, *kinds, strict=True) if one[2] == OWN]
            yield Replayed(
                Changes._make(column[chosen] for column in own),
                [alert for alert, _, _ in shown],
                later | {alert.cell: at for alert, at, _ in shown},
                frozenset(part.building),
                bars[number] * len(stepper.indicators),
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

    def _buffer(self, ticker: str, parts: Sequence[CommitPart]) -> None:
        """Buffer an asset's bars; rebuild it first if they restate its history."""
        buffer = self.state.buffer
        blocks = [block for part in parts for block in part.bars.get(ticker, ())]
        settlements = (part.funding.get(ticker, NO_FUNDING) for part in parts)
        funding = reduce(Funding.concatenate, settlements)
        if blocks:
            buffer.native_timeframes[ticker] = blocks[0].timeframe
        native = buffer.native_timeframes[ticker]
        own = [
            one for one in blocks if (one.timeframe, one.revision) == (native, blocks[0].revision)
        ]
        if len(own) > 1:
            open_time = np.concatenate([one.open_time for one in own])
            values = np.concatenate([one.values for one in own])
            own = [BarBlock(ticker, native, open_time, values)]
        series = build_series(own, native)
        earlier = self._funding.get(ticker, NO_FUNDING)
        if blocks and blocks[0].revision != self.state.revisions[ticker]:
            self.state.revisions[ticker] = blocks[0].revision
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


def _split_parts(parts: Sequence[CommitPart], ticker: str) -> Iterator[Sequence[CommitPart]]:
    """Yield spans of commits at whose runs each bar and settlement of an asset came in time."""
    first = 0
    for place, part in enumerate(parts):
        before = parts[place - 1]
        if place > first and (
            ticker in part.lagging
            or ticker in before.lagging
            or any(
                block.open_time[0] + TIMEFRAME_DURATIONS_S[block.timeframe] < part.start
                for block in part.bars.get(ticker, ())
            )
            or (ticker in part.funding and part.funding[ticker].settled_at[0] <= before.until)
        ):
            yield parts[first:place]
            first = place
    yield parts[first:]


def replay_commits(
    block: BlockReplay, parts: Sequence[CommitPart]
) -> tuple[BlockReplay, list[Replayed]]:
    """Replay a block's parts of some commits; return the advanced block, and what each gives."""
    # In a thread it is the given object; another process returns a copy of its own.
    return block, [*block.replay(parts)]

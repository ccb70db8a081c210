"""Replays the stored bars of some assets, commit by commit, and compares the rows with the stored.

Pure. A task takes a block of assets with its parts of some commits; blocks do not depend on each
other. Many commits are stepped at once: that gives what stepping them one by one gives, in a
fraction of the time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.alerts.alert_pipeline import LAYOUT, Alert
from compute.alerts.rules import Firing
from compute.bars import NO_BARS, NO_FUNDING, Funding, Times
from compute.engine_state import EngineState
from compute.indicator_engine import hash_layout
from compute.indicators.contract import NO_READING
from compute.rebuild import build_series, rebuild_series
from compute.stepper import (
    LEGACY_INDICATOR,
    LEGACY_KEY,
    Cell,
    Changes,
    DueBars,
    SeriesKey,
    join_due,
)
from schemas.vocabulary import (
    ACTION_CODES,
    ENGINE_KEYS,
    INDICATORS_BY_ENGINE_KEY,
    TIMEFRAME_DURATIONS_S,
    Action,
)
from store.change_table import NO_BEFORE, ChangeColumns, ChangeTable
from store.codes import ACTIONS_BY_CODE, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import AlertRow, BarBlock, CarryRow, ChangeRow, EpochRow, FeedRow

OWN, FOREIGN, NOT_BEGUN = 0, 1, 2
# Of the columns of rows that a replay gives: small ones, because it holds all of a store.
DTYPES: Final = ("i8", "i4", "i8", "i4", "f4", "i1", "f8", "?")
CLOSE_BITS, LAST_CLOSE = 34, (1 << 34) - 1


class Rows(NamedTuple):
    """Changes and alerts in order of `created_at`; each column has shape (rows,).

    `cell` is a number in `CellIndex.cells`, -1 if there is no such cell; that of an alert is its
    engine's. `before` is NaN for a missing reading; `after` has the code of an alert's action.
    """

    created_at: Times
    cell: Times
    close_time: Times
    epoch: Times
    before: NDArray[np.float64]
    after: Times
    price: NDArray[np.float64]
    published: Times

    def select(self, chosen: Any) -> "Rows":
        """Return the chosen rows, given as a slice or an index of NumPy."""
        return Rows._make(column[chosen] for column in self)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts, at least one, in order of `created_at`."""
    joined = Rows._make(map(np.concatenate, zip(*parts, strict=True)))
    return joined.select(np.argsort(joined.created_at, kind="stable"))


class CellIndex:
    """The numbers of cells, first those of readings, then those of alert engines; their epochs."""

    def __init__(self, state: EngineState, epochs: Iterable[EpochRow]) -> None:
        """Take a state of all assets or some; `epochs` may have those of others too."""
        readings, engines = state.stepper.cells, state.alerts.cells
        self.cells: Final = (*readings, *engines)
        self.first_engine: Final = len(readings)
        self.numbers: Final = {cell: number for number, cell in enumerate(self.cells)}
        self.tickers: Final = frozenset(cell.ticker for cell in self.cells)
        versions = {c: v for key in state.stepper.series_keys for c, v in state.list_cells(key)}
        starts = [(-1, 0, 0, 0, 0)]
        for row in epochs:
            cell = Cell(row.ticker, row.timeframe, row.indicator)
            kind = OWN if row.version == versions.get(cell) else FOREIGN
            # The legacy key has the epochs of the indicator whose readings it repeats.
            for key in (row.indicator, LEGACY_KEY)[: 1 + (row.indicator == LEGACY_INDICATOR)]:
                if (number := self.numbers.get(cell._replace(key=key))) is not None:
                    close = min(max(row.from_close_time, 0), LAST_CLOSE)
                    starts.append((number, close, row.epoch, row.version, kind))
        number, close, *values = np.array(sorted(starts), dtype=np.int64).T
        self._starts: Final = (number << CLOSE_BITS) + close
        self._epoch, self._version, self._kind = values
        self.has_foreign: Final = bool((self._kind == FOREIGN).any())

    def find_epochs(self, cell: Times, close_time: Times) -> tuple[Times, Times, Times]:
        """Return the epoch of each bar of a cell, its version, and OWN, FOREIGN or NOT_BEGUN.

        A foreign epoch is one of another version than this code's.
        """
        at = (cell << CLOSE_BITS) + np.clip(close_time, 0, LAST_CLOSE)
        place = np.searchsorted(self._starts, at, side="right") - 1
        has_begun = (cell >= 0) & (self._starts[place] >> CLOSE_BITS == cell)
        kind = np.where(has_begun, self._kind[place], NOT_BEGUN)
        return np.where(has_begun, self._epoch[place], 0), self._version[place], kind

    def build_rows(self, changes: ChangeTable, alerts: Sequence[AlertRow]) -> Rows:
        """Return the rows of a batch as one table."""
        names = [Cell(c.ticker, c.timeframe, c.indicator) for c in changes.cells]
        cells = np.array([self.numbers[name] for name in names], dtype=np.int64)
        epochs = np.array([cell.epoch for cell in changes.cells], dtype=np.int64)
        fired = [
            (
                row.created_at,
                self.numbers[Cell(row.ticker, row.timeframe, ENGINE_KEYS[row.indicator])],
                *(row.close_time, row.epoch, np.nan, ACTION_CODES[row.action], row.price, 1),
            )
            for row in alerts
        ]
        own = (
            *(changes.created_at, cells[changes.cell], changes.close_time, epochs[changes.cell]),
            np.where(changes.before == NO_BEFORE, np.nan, changes.before),
            *(changes.after, changes.price, changes.published),
        )
        parts = own, zip(*fired, strict=True) if fired else [()] * len(own)
        return join_rows([Rows._make(map(np.asarray, part, DTYPES)) for part in parts])

    def iter_rows(self, rows: Rows) -> Iterator[FeedRow]:
        """Yield rows, whose cells and actions exist, one by one."""
        for at, number, close, epoch, before, after, price, published in zip(
            *(column.tolist() for column in rows), strict=True
        ):
            ticker, timeframe, key = self.cells[number]
            if number >= self.first_engine:
                indicator, action = INDICATORS_BY_ENGINE_KEY[key], ACTIONS_BY_CODE[after]
                yield AlertRow(at, ticker, indicator, timeframe, close, epoch, action, price)
            else:
                readings = None if before != before else int(before), after
                named = at, ticker, key, timeframe, close, epoch
                yield ChangeRow(*named, *readings, price, bool(published))


class StoredRows:
    """The stored rows of both tiers in order of `created_at`, even if they mean nothing.

    `is_foreign` marks those that this code cannot recompute: of another version, of an alert engine
    that it does not follow, or of an asset that the universe lacks.
    """

    def __init__(
        self,
        columns: ChangeColumns,
        is_alert: NDArray[np.bool_],
        tickers: Mapping[int, str],
        index: CellIndex,
    ) -> None:
        """Take the feed and `tickers` of StoredMarket."""
        self._tickers: Final = tickers
        self._universe: Final = index.tickers
        self._columns: Final = columns
        self.is_alert: Final = is_alert
        # As one number, which sorts faster than four columns.
        packed = np.clip(columns.asset_id, -1, 1 << 40)
        for codes in (columns.indicator, columns.timeframe):
            packed = (packed << 8) + np.clip(codes, -1, 99) + 1
        _, first, which = np.unique(
            (packed << 1) + is_alert, return_index=True, return_inverse=True
        )
        names = np.stack([*columns[1:4], is_alert])[:, first].T.tolist()
        cells = [self._find_cell(index, *one) for one in names]
        cell = np.array(cells, dtype=np.int64).reshape(-1, 2)[which]
        self.rows: Final = Rows(columns.created_at, cell[:, 0], *columns[4:])
        _, self._version, kind = index.find_epochs(self.rows.cell, self.rows.close_time)
        after, before = self.rows.after, self.rows.before
        is_reading = (np.abs(after) <= 1) & ~(np.abs(before) > 1)
        has_meaning = np.where(self.is_alert, np.isin(after, [*ACTIONS_BY_CODE]), is_reading)
        self.is_foreign: Final = ((kind == FOREIGN) | (cell[:, 1] == 1)) & has_meaning

    def describe_foreign(self, place: int) -> str:
        """Return why this code cannot recompute a row."""
        indicator = KEYS_BY_CODE[int(self._columns.indicator[place])]
        ticker = self._tickers.get(int(self._columns.asset_id[place]), "")
        if ticker not in self._universe:
            return describe_unknown(ticker)
        if self.is_alert[place]:
            return f"alerts of {indicator}: another version's"
        return f"{indicator}: version {self._version[place]}"

    def describe(self, place: int) -> str:
        """Return table and id of a row."""
        columns = self._columns
        codes = columns.asset_id[place], columns.indicator[place], columns.timeframe[place]
        named = [
            (self._tickers, KEYS_BY_CODE, TIMEFRAMES_BY_CODE)[n].get(int(code), f"code {code}")
            for n, code in enumerate(codes)
        ]
        action = ACTIONS_BY_CODE.get(int(columns.after[place]), "?")
        is_alert = bool(self.is_alert[place])
        tier = "alerts: alerts" if is_alert else "changes: universe"
        ends = columns.close_time[place], *[action] * is_alert, columns.epoch[place]
        return ".".join(map(str, (tier, *named, *ends)))

    def build_row(self, place: int) -> FeedRow:
        """Return one row of a known asset, indicator and timeframe."""
        row = self._columns.build_row(place, self._tickers)
        if not self.is_alert[place]:
            return row
        return AlertRow(*row[:6], ACTIONS_BY_CODE[row.after], row.price)

    def _find_cell(
        self, index: CellIndex, asset_id: int, code: int, timeframe: int, is_alert: int
    ) -> tuple[int, bool]:
        """Return the number of a cell, -1 if there is none, and whether this code lacks it."""
        key, ticker = KEYS_BY_CODE.get(code, ""), self._tickers.get(asset_id, "")
        engine = ENGINE_KEYS.get(key, "") if is_alert else ""
        named = ticker, TIMEFRAMES_BY_CODE.get(timeframe), engine if is_alert else key
        number = index.numbers.get(named, -1)  # type: ignore[call-overload]
        is_known = bool(ticker and named[1] and (engine or (key and not is_alert)))
        is_lacking = is_known and (ticker not in self._universe or bool(engine))
        return number, number < 0 and is_lacking


def describe_unknown(ticker: str) -> str:
    """Return why nothing of an asset can be verified that the universe lacks."""
    return f"{ticker}: not in the universe"


def stack_keys(rows: Rows, is_alert: NDArray[np.bool_]) -> Times:
    """Return the identity of rows but for their time: cell, close, epoch and an alert's action."""
    action = np.where(is_alert, rows.after, 0)
    return np.stack([rows.cell, rows.close_time, rows.epoch, action])


def compare_rows(
    expected: Rows,
    stored: StoredRows,
    index: CellIndex,
    pruned_before: tuple[int, int],
    last: int,
    *,
    is_whole: bool,
) -> Iterator[str]:
    """Yield each row that differs, is missing or does not follow from the bars.

    Changes and alerts from before `pruned_before` (epoch ms) may be missing, but for the newest of
    each cell, and of each action of an engine. `last` is the time of the last commit's last row;
    unless the replay `is_whole`, later rows are not compared.
    """
    rows, size = stored.rows, len(expected.created_at)
    places = np.minimum(np.searchsorted(expected.created_at, rows.created_at), max(size - 1, 0))
    is_same = np.full(len(places), size > 0)
    for given, found in zip(expected, rows, strict=True) if size else ():
        is_same &= (given[places] == found) | (np.isnan(given[places]) & np.isnan(found))
    is_found = np.zeros(size, dtype=np.bool_)
    is_found[places[is_same]] = True
    is_alert = expected.cell >= index.first_engine
    has_aged = expected.created_at < np.where(is_alert, *pruned_before[::-1])
    # Of the old rows only the newest of each key have to be stored.
    keys = stack_keys(expected, is_alert)[[0, 2, 3]]
    keys[1] *= is_alert
    old = np.flatnonzero(has_aged)[::-1]
    is_kept = ~has_aged
    is_kept[old[np.unique(keys[:, old], axis=1, return_index=True)[1]]] = True
    is_compared = ~stored.is_foreign & (is_whole | (rows.created_at <= last))
    strange = np.flatnonzero(~is_same & is_compared).tolist()
    absent = np.flatnonzero(~is_found).tolist() if strange else []
    by_key = dict(
        zip(map(tuple, stack_keys(expected, is_alert)[:, absent].T.tolist()), absent, strict=True)
    )
    for place, key in zip(
        strange, stack_keys(rows, stored.is_alert)[:, strange].T.tolist(), strict=True
    ):
        at = by_key.pop(tuple(key), None)
        fault = " does not follow from the bars"
        if at is not None:
            is_kept[at] = False
            fault = f": {', '.join(_list_differences(rows, place, expected, at))}"
        elif rows.created_at[place] > last:
            fault = " belongs to no commit"
        yield f"{stored.describe(place)}{fault}"
    missing = np.flatnonzero(is_kept & ~is_found)
    for at, row in zip(missing.tolist(), index.iter_rows(expected.select(missing)), strict=True):
        kept = ": pruning keeps a cell's newest old row" if has_aged[at] else ""
        yield f"{'alerts' if is_alert[at] else 'changes'}: {row.id} is missing{kept}"


def _list_differences(stored: Rows, place: int, expected: Rows, at: int) -> Iterator[str]:
    for name, found, given in zip(Rows._fields, stored, expected, strict=True):
        values = [_format(name, column[n]) for column, n in ((found, place), (given, at))]
        if values[0] != values[1]:
            yield f"{name} is {values[0]}, but the bars give {values[1]}"


def _format(name: str, value: Any) -> str:
    if name == "before":
        return "None" if np.isnan(value) else f"{value:g}"
    return str(bool(value)) if name == "published" and value in (0, 1) else str(value)


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
                    key = ticker, timeframe
                    taken.append((rows[key], *buffer.take_series(key, start, watermark, until)))
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

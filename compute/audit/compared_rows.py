"""Compares the rows that a replay gives with the stored ones: both tiers as one table. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import Times
from compute.engine_state import EngineState
from compute.stepper import LEGACY_INDICATOR, LEGACY_KEY, Cell
from schemas.vocabulary import ACTION_CODES, ENGINE_KEYS, INDICATORS_BY_ENGINE_KEY
from store.change_table import NO_BEFORE, ChangeColumns, ChangeTable
from store.codes import ACTIONS_BY_CODE, KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import AlertRow, ChangeRow, EpochRow, FeedRow

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

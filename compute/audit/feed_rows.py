"""The stored rows of commits, with changes as columns: a row is built only if it is needed."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from compute.bars import Times
from compute.stepper import Cell
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.change_columns import ChangeColumns, build_columns, concatenate
from store.codes import KEY_CODES
from store.errors import DamagedError
from store.market_rows import AlertRow, ChangeRow, FeedRow
from store.sql.market_store import MarketStore

NO_CHANGES = build_columns([])


class FeedRows(Sequence[FeedRow]):
    """Rows of both tiers in order of `created_at`.

    `change_places` and `alert_places` have the index of each change and alert in this sequence.
    """

    def __init__(
        self, changes: ChangeColumns, alerts: Sequence[AlertRow], tickers: Mapping[int, str]
    ) -> None:
        """`tickers` has the ticker of each asset by its id."""
        self.changes: Final = changes
        self.alerts: Final = alerts
        self.tickers: Final = tickers
        alert_times = np.array([row.created_at for row in alerts], dtype=np.int64)
        times = np.concatenate([alert_times, changes.created_at])
        # Of equal times, which only altered rows have, the alert is first.
        self._order: Final = np.argsort(times, kind="stable")
        self.created_at: Final[Times] = times[self._order]
        places = np.empty_like(self._order)
        places[self._order] = np.arange(len(places))
        self.alert_places: Final[Times] = places[: len(alerts)]
        self.change_places: Final[Times] = places[len(alerts) :]

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> FeedRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[FeedRow]: ...
    def __getitem__(self, place: int | slice) -> FeedRow | list[FeedRow]:
        if isinstance(place, slice):
            return [self[at] for at in range(len(self))[place]]
        at = int(self._order[place])
        if at < len(self.alerts):
            return self.alerts[at]
        return self.changes.build_row(at - len(self.alerts), self.tickers)


class FeedReader:
    """Reads the rows of a store in order; each `take` continues after the one before."""

    def __init__(self, store: MarketStore) -> None:
        self._store: Final = store
        self._pages: Final = store.change_columns()
        self._changes = NO_CHANGES
        self._alerts: list[AlertRow] | None = None
        self._alerts_taken = 0
        self._tickers: dict[int, str] = {}

    async def take(self, until: int) -> FeedRows:
        """Return the rows with `created_at` up to a time (epoch ms)."""
        if self._alerts is None:
            self._tickers = await self._store.tickers()
            self._alerts = [row async for row in self._store.alerts()]
        pages = [self._changes]
        while not len(pages[-1].created_at) or pages[-1].created_at[-1] <= until:
            page = await anext(self._pages, None)
            if page is None:
                break
            _refuse_odd_values(page)
            pages.append(page)
        changes = concatenate(pages) if len(pages) > 1 else pages[0]
        count = int(np.searchsorted(changes.created_at, until, side="right"))
        self._changes = changes.select(slice(count, None))
        first, at = self._alerts_taken, attrgetter("created_at")
        self._alerts_taken = bisect_right(self._alerts, until, first, key=at)
        alerts = self._alerts[first : self._alerts_taken]
        return FeedRows(changes.select(slice(count)), alerts, self._tickers)

    async def take_rest(self) -> FeedRows:
        """Return all rows that are left."""
        return await self.take(np.iinfo(np.int64).max)


class CellNumbers:
    """Finds the block of each change's asset, and the number of its cell in the block's stepper."""

    def __init__(self, blocks: Sequence[Sequence[str]], keys: Sequence[str]) -> None:
        """`blocks` has the tickers of each block, sorted; `keys` are the stored keys of cells."""
        self._places: Final = {
            ticker: (number, place, len(tickers))
            for number, tickers in enumerate(blocks)
            for place, ticker in enumerate(tickers)
        }
        self._keys: Final = {KEY_CODES[key]: number for number, key in enumerate(keys)}

    def find(self, changes: ChangeColumns, tickers: Mapping[int, str]) -> tuple[Times, Times]:
        """Return the block and the cell of each change; both are -1 if no block has such a cell."""
        ids, which = np.unique(changes.asset_id, return_inverse=True)
        places = [self._places.get(tickers.get(id_, ""), (-1, 0, 0)) for id_ in ids.tolist()]
        block, place, size = np.array(places, dtype=np.int64).reshape(-1, 3)[which].T
        codes, which = np.unique(changes.indicator, return_inverse=True)
        numbers = [self._keys.get(code, -1) for code in codes.tolist()]
        key = np.array(numbers, dtype=np.int64)[which]
        timeframe = changes.timeframe
        is_known = (block >= 0) & (key >= 0) & (timeframe >= 0) & (timeframe < len(TIMEFRAMES))
        cell = (timeframe * size + place) * len(self._keys) + key
        return np.where(is_known, block, -1), np.where(is_known, cell, -1)


class PartRows(NamedTuple):
    """The stored rows of a block in a commit: changes, with the cell of each, and alerts.

    A row's index is that of its change, or the number of changes plus that of its alert.
    """

    changes: ChangeColumns
    cell: Times
    alerts: Sequence[AlertRow]

    def select(self, chosen: NDArray[np.bool_]) -> "PartRows":
        """Return the chosen changes, without alerts."""
        return PartRows(self.changes.select(chosen), self.cell[chosen], ())

    def build_change_rows(self, cells: Sequence[Cell]) -> list[ChangeRow]:
        """Return the changes as rows; `cells` are those of the block."""
        columns = self.changes
        names = [cells[number] for number in self.cell.tolist()]
        befores = [None if before != before else int(before) for before in columns.before.tolist()]
        return [
            ChangeRow(at, *_name(cell), close, epoch, before, after, price, bool(shown))
            for at, cell, close, epoch, before, after, price, shown in zip(
                columns.created_at.tolist(),
                names,
                columns.close_time.tolist(),
                columns.epoch.tolist(),
                befores,
                columns.after.tolist(),
                columns.price.tolist(),
                columns.published.tolist(),
                strict=True,
            )
        ]


def _refuse_odd_values(changes: ChangeColumns) -> None:
    """Raise DamagedError if a change has a reading or mark that its column does not allow."""
    # SQLite can ignore its constraints, and code that reads such a row cannot name its reading.
    is_odd = (np.abs(changes.before) > 1) | (np.abs(changes.after) > 1)
    is_odd |= (changes.published != 0) & (changes.published != 1)
    if is_odd.any():
        raise DamagedError(f"a change of {changes.created_at[is_odd][0]} has an impossible value")


def _name(cell: Cell) -> tuple[str, str, Timeframe]:
    return cell.ticker, cell.key, cell.timeframe


NO_ROWS = PartRows(NO_CHANGES, np.empty(0, dtype=np.int64), ())

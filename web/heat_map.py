"""The rows of the board: readings by indicator, net score and prices, filtered and sorted."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.catalog import CatalogAsset
from schemas.state import AssetState
from schemas.vocabulary import (
    INDICATOR_IDS,
    READING_NAMES,
    AssetClass,
    IndicatorId,
    Reading,
    Timeframe,
)
from serving.prices import PriceSummary
from web.board_query import BoardQuery
from web.sparkline import compute_week_change

CLASS_NAMES: dict[AssetClass, str] = {"crypto": "Crypto", "stock": "Stocks", "metal": "Metals"}
VALUES: dict[Reading | None, int] = {name: value for value, name in READING_NAMES.items()}

Asset = CatalogAsset | AssetState


class Row(NamedTuple):
    """One asset: its reading on each shown timeframe by indicator, None if it has none.

    `is_watched`: the asset is in the watchlist of the URL.
    """

    ticker: str
    name: str
    asset_class: AssetClass
    readings: Mapping[IndicatorId, tuple[Reading | None, ...]]
    price: PriceSummary | None
    is_watched: bool

    @property
    def score(self) -> int | None:
        """Bullish minus bearish readings of all indicators, None if there is no reading."""
        # The votes of signals_get_confluence, which never count the outdated dexter either.
        return sum_readings(cell for cells in self.readings.values() for cell in cells)

    @property
    def week_change(self) -> float | None:
        """The change of the price over the week, as a fraction."""
        return None if self.price is None else compute_week_change(self.price)


class HeatMap(NamedTuple):
    """The rows that are left of `total` assets, and the shown indicators."""

    columns: tuple[IndicatorId, ...]
    rows: Sequence[Row]
    total: int


def sum_readings(readings: Iterable[Reading | None]) -> int | None:
    """Return bullish minus bearish readings, None if there is no reading."""
    values = [VALUES[reading] for reading in readings if reading is not None]
    return sum(values) if values else None


def build_heat_map(
    tracked: Sequence[CatalogAsset],
    states: Sequence[AssetState],
    prices: Mapping[str, PriceSummary],
    query: BoardQuery,
    watched: Collection[str] = (),
) -> HeatMap:
    """Return the view of all tracked assets and of removed ones with readings.

    `watched` are the tickers of the viewer's stored watchlist; a list in the URL precedes it.
    """
    by_ticker = {state.ticker: state for state in states}
    assets: dict[str, Asset] = {**by_ticker, **{asset.ticker: asset for asset in tracked}}
    columns = INDICATOR_IDS if query.indicator is None else (query.indicator,)
    wanted = {each.upper() for each in (watched if query.watched is None else query.watched)}
    rows = []
    for ticker, asset in sorted(assets.items()):
        state, is_watched = by_ticker.get(ticker), ticker.upper() in wanted
        readings = _read_cells(state, query.timeframes)
        row = Row(ticker, asset.name, asset.asset_class, readings, prices.get(ticker), is_watched)
        if _is_match(row, columns, query):
            rows.append(row)
    return HeatMap(columns, _sort_rows(rows, query), len(assets))


def _read_cells(
    state: AssetState | None, timeframes: Sequence[Timeframe]
) -> dict[IndicatorId, tuple[Reading | None, ...]]:
    signals = {} if state is None else state.signals
    return {
        column: tuple(signals.get(column, {}).get(timeframe) for timeframe in timeframes)
        for column in INDICATOR_IDS
    }


def _is_match(row: Row, columns: Sequence[IndicatorId], query: BoardQuery) -> bool:
    shown = (cell for column in columns for cell in row.readings[column])
    return (
        query.asset_class in (None, row.asset_class)
        and (query.direction is None or query.direction in shown)
        and (query.text or "").casefold() in f"{row.ticker} {row.name}".casefold()
        and (row.is_watched or not query.shows_watched)
    )


def _sort_rows(rows: list[Row], query: BoardQuery) -> list[Row]:
    """Return rows, given by ticker, in the order of the query; rows without a value come last."""
    is_descending = query.sort_order == "desc"
    if query.sort == "asset":
        return rows[::-1] if is_descending else rows
    values = {row.ticker: _get_value(row, query) for row in rows}
    known = [(values[row.ticker], row) for row in rows if values[row.ticker] is not None]
    # The sort is stable in both directions, so equal rows stay sorted by ticker.
    known.sort(key=lambda pair: pair[0] or 0, reverse=is_descending)
    return [row for _, row in known] + [row for row in rows if values[row.ticker] is None]


def _get_value(row: Row, query: BoardQuery) -> float | None:
    """Return the value of a row in the sorted column."""
    match query.sort:
        case "asset" | "score":
            return row.score
        case "price":
            return None if row.price is None else row.price.last_close
        case "change":
            return None if row.price is None else row.price.day_change
        case "week":
            return row.week_change
        case indicator:
            return sum_readings(row.readings[indicator])

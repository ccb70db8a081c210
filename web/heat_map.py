"""The heat map: a row per asset and a column per indicator, from signals_get_state."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.catalog import CatalogAsset
from schemas.state import AssetState
from schemas.vocabulary import INDICATOR_IDS, AssetClass, IndicatorId, Reading, Timeframe
from web.board_query import BoardQuery

CLASS_NAMES: dict[AssetClass, str] = {"crypto": "Crypto", "stock": "Stocks", "metal": "Metals"}

Asset = CatalogAsset | AssetState


class Row(NamedTuple):
    """One asset and its reading in each column, None if it has none."""

    ticker: str
    name: str
    readings: tuple[Reading | None, ...]


class HeatMap(NamedTuple):
    """The rows by asset class after filtering; `shown` of `total` assets are left."""

    columns: tuple[IndicatorId, ...]
    groups: dict[AssetClass, list[Row]]
    shown: int
    total: int


def build_heat_map(
    tracked: Sequence[CatalogAsset], states: Sequence[AssetState], query: BoardQuery
) -> HeatMap:
    """Return the filtered heat map of all tracked assets and of removed ones with readings."""
    by_ticker = {state.ticker: state for state in states}
    assets: dict[str, Asset] = {**by_ticker, **{asset.ticker: asset for asset in tracked}}
    columns = INDICATOR_IDS if query.indicator is None else (query.indicator,)
    groups: dict[AssetClass, list[Row]] = {kind: [] for kind in CLASS_NAMES}
    for ticker, asset in sorted(assets.items()):
        row = _build_row(asset, by_ticker.get(ticker), columns, query.timeframe)
        if _is_match(asset, row, query):
            groups[asset.asset_class].append(row)
    shown_groups = {kind: rows for kind, rows in groups.items() if rows}
    return HeatMap(columns, shown_groups, sum(map(len, shown_groups.values())), len(assets))


def _build_row(
    asset: Asset, state: AssetState | None, columns: Iterable[IndicatorId], timeframe: Timeframe
) -> Row:
    signals = {} if state is None else state.signals
    readings = tuple(signals.get(column, {}).get(timeframe) for column in columns)
    return Row(asset.ticker, asset.name, readings)


def _is_match(asset: Asset, row: Row, query: BoardQuery) -> bool:
    return (
        query.asset_class in (None, asset.asset_class)
        and (query.direction is None or query.direction in row.readings)
        and (query.text or "").casefold() in f"{row.ticker} {row.name}".casefold()
    )

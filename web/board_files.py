"""The current view of the board as CSV and JSON, with the rows and the order of the page."""

from collections.abc import Sequence
from typing import Any

from schemas.vocabulary import IndicatorId, Timeframe, format_instant
from web.board_model import BoardModel
from web.board_query import BoardQuery
from web.csv_text import Cell, render_csv
from web.heat_map import HeatMap, Row

# As the headers of the columns; the packaged universe is quoted in US dollars or their tokens.
PRICE_FIELDS = ("last_close_usd", "change_24h_percent", "change_7d_percent", "last_close_at")
SCORE_NOTE = "bullish minus bearish readings of all indicators on the shown timeframes"


def build_csv(model: BoardModel, heat: HeatMap, query: BoardQuery) -> bytes:
    """Return the view as CSV: a row per asset, a column per indicator and timeframe."""
    cells = [(column, place) for column in heat.columns for place in range(len(query.timeframes))]
    header = [
        *("ticker", "name", "asset_class", "net_score"),
        *(f"{column}_{query.timeframes[place]}" for column, place in cells),
        *(() if model.prices is None else PRICE_FIELDS),
        *("as_of", "source"),
    ]
    ends = (model.state.as_of, model.state.meta.source)
    rows = [
        [
            *(row.ticker, row.name, row.asset_class, row.score),
            *(row.readings[column][place] for column, place in cells),
            *(() if model.prices is None else _list_prices(row)),
            *ends,
        ]
        for row in heat.rows  # in the order of the page
    ]
    return render_csv(header, rows)


def build_json(model: BoardModel, heat: HeatMap, query: BoardQuery) -> dict[str, Any]:
    """Return the view as an object, with its source and time."""
    meta = model.state.meta
    return {
        "as_of": model.state.as_of,
        "source": meta.source,
        "note": meta.note,
        "query": query.model_dump(exclude_none=True),
        "net_score": SCORE_NOTE,
        "total_assets": heat.total,
        "assets": [
            {
                "ticker": row.ticker,
                "name": row.name,
                "asset_class": row.asset_class,
                "net_score": row.score,
                "readings": _name_readings(row, heat.columns, query.timeframes),
                **(
                    {}
                    if model.prices is None
                    else dict(zip(PRICE_FIELDS, _list_prices(row), strict=True))
                ),
            }
            for row in heat.rows
        ],
    }


def _name_readings(
    row: Row, columns: Sequence[IndicatorId], timeframes: Sequence[Timeframe]
) -> dict[str, dict[str, str | None]]:
    return {column: dict(zip(timeframes, row.readings[column], strict=True)) for column in columns}


def _list_prices(row: Row) -> tuple[Cell, ...]:
    """Return the values of PRICE_FIELDS, None for each that is unknown."""
    price = row.price
    if price is None:
        return (None,) * len(PRICE_FIELDS)
    changes = (price.day_change, row.week_change)
    percents = [None if change is None else 100 * change for change in changes]
    return price.last_close, *percents, format_instant(price.closed_at)

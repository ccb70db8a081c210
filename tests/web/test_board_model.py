"""The rows of the board: score, order and prices, calculated by hand."""

import pytest

from schemas.catalog import CatalogAsset
from schemas.state import AssetState
from serving.prices import PriceSummary
from web.board_model import BoardQuery, build_heat_map
from web.price_texts import build_path, format_percent, format_signed

pytestmark = pytest.mark.clause("pages")


def make_state(ticker: str, **words: str) -> AssetState:
    """Return readings by indicator: a letter for 1h, 4h and 1d each, a dot for none."""
    names = {"U": "bullish", "D": "bearish", "N": "neutral"}
    signals = {
        indicator: {
            timeframe: names[letter]
            for timeframe, letter in zip(("1h", "4h", "1d"), word, strict=True)
            if letter in names
        }
        for indicator, word in words.items()
    }
    return AssetState.model_validate(
        {"ticker": ticker, "name": f"{ticker} Inc", "asset_class": "stock", "signals": signals}
    )


STATES = [
    make_state("AA", ceres="UUD", enzo="NUD", dexter="UUU"),  # 4h: +2, all: 3 - 2 = +1
    make_state("BB", ceres="DDU", enzo="DDN"),  # 4h: -2, all: 1 - 4 = -3
    make_state("CC", ceres="U.U", enzo=".U."),  # 4h: +1, all: +3
    make_state("DD", ceres="..."),
]
ASSETS = [CatalogAsset(ticker=each.ticker, name=each.name, asset_class="stock") for each in STATES]
PRICES = {
    "AA": PriceSummary(110.0, 0, 0.05, (100.0, 90.0, 110.0)),  # A week: +10 %.
    "BB": PriceSummary(9.0, 0, None, (12.0, 9.0)),  # A week: -25 %.
    "CC": PriceSummary(40.0, 0, -0.01, (40.0,)),
}


def list_rows(**view: str) -> list[str]:
    heat = build_heat_map(ASSETS, STATES, PRICES, BoardQuery.model_validate(view))
    return [row.ticker for row in heat.rows]


@pytest.mark.clause("16.1")
@pytest.mark.parametrize(
    ("timeframe", "scores"), [("4h", [2, -2, 1, None]), ("all", [1, -3, 3, None])]
)
def test_the_score_is_bullish_minus_bearish_readings(timeframe, scores):
    query = BoardQuery(timeframe=timeframe, sort="asset", indicator="ceres")
    assert [row.score for row in build_heat_map(ASSETS, STATES, {}, query).rows] == scores


@pytest.mark.clause("16.2")
@pytest.mark.parametrize(
    ("sort", "descending", "ascending"),
    [
        ("asset", "DD CC BB AA", "AA BB CC DD"),
        ("score", "AA CC BB DD", "BB CC AA DD"),
        ("price", "AA CC BB DD", "BB CC AA DD"),
        ("change", "AA CC BB DD", "CC AA BB DD"),
        ("week", "AA BB CC DD", "BB AA CC DD"),
        ("ceres", "AA BB CC DD", "BB AA CC DD"),
        ("enzo", "AA CC BB DD", "BB AA CC DD"),
    ],
)
def test_each_column_sorts_and_missing_values_come_last(sort, descending, ascending):
    assert list_rows(sort=sort, order="desc") == descending.split()
    assert list_rows(sort=sort, order="asc") == ascending.split()


HOUR = 3_600_000
# The last candle of 4h was computed at 12:03 of the day 1, the one of 1h at 13:03.
AS_OF = 37 * HOUR + 180_000
CHANGED_AT = {
    ("AA", "ceres", "4h"): 36 * HOUR + 180_000,
    ("AA", "enzo", "4h"): 0,
    ("BB", "ceres", "4h"): 32 * HOUR,
    ("BB", "enzo", "4h"): 36 * HOUR + 180_000,
    ("CC", "enzo", "4h"): 12 * HOUR,
    ("CC", "ceres", "1h"): 37 * HOUR + 180_000,
}


@pytest.mark.clause("16.9")
@pytest.mark.parametrize(
    ("view", "tickers"),
    [
        ({"sort": "changed"}, "AA BB CC DD"),
        ({"sort": "changed", "order": "asc"}, "CC AA BB DD"),
        ({"sort": "changed", "timeframe": "all"}, "CC AA BB DD"),
        ({"changed": "last"}, "AA BB"),
        ({"changed": "last", "timeframe": "1h"}, "CC"),
        ({"changed": "last", "direction": "bullish"}, "AA"),
        ({"changed": "last", "indicator": "enzo"}, "BB"),
        ({"changed": "24h", "sort": "asset"}, "AA BB"),
        ({"sort": "asset", "show": "first"}, "CC AA BB DD"),
    ],
)
def test_changes_sort_and_filter_the_rows(view, tickers):
    query = BoardQuery.model_validate(view)
    heat = build_heat_map(ASSETS, STATES, PRICES, query, ["CC"], CHANGED_AT, AS_OF)
    assert [row.ticker for row in heat.rows] == tickers.split()


@pytest.mark.clause("16.9")
def test_the_strip_counts_the_last_candle_and_the_leanings_of_each_class():
    query = BoardQuery(asset_class="crypto")
    heat = build_heat_map(ASSETS, STATES, PRICES, query, (), CHANGED_AT, AS_OF)
    # AA's ceres turned bullish, BB's enzo bearish; AA and CC lean up, BB down.
    assert heat.turned == {"bullish": 1, "bearish": 1}
    assert heat.leanings == {"stock": (2, 1)}
    assert heat.rows == []


@pytest.mark.clause("16.9")
def test_of_equal_scores_the_newest_change_stands_first_then_the_best_day():
    states = [make_state(ticker, ceres="..U") for ticker in ("AA", "BB", "CC", "DD")]
    changed_at = {("CC", "ceres", "1d"): 9, ("BB", "ceres", "1d"): 5, ("AA", "ceres", "1d"): 5}
    heat = build_heat_map(ASSETS, states, PRICES, BoardQuery(timeframe="1d"), (), changed_at, AS_OF)
    assert [row.ticker for row in heat.rows] == ["CC", "AA", "BB", "DD"]


@pytest.mark.clause("16.3")
def test_the_filter_of_readings_and_the_sort_see_every_shown_timeframe():
    assert list_rows(timeframe="4h", direction="neutral") == []
    assert set(list_rows(timeframe="all", direction="neutral")) == {"AA", "BB"}
    assert list_rows(timeframe="all", sort="ceres") == ["CC", "AA", "BB", "DD"]  # 2, 1, -1


@pytest.mark.parametrize(
    ("closes", "path"),
    [
        ((), ""),
        ((5.0,), ""),
        ((5.0, 5.0), "M72 9l6 0"),
        # From the lowest, 18 px below the highest, to the middle; y grows downwards.
        ((10.0, 20.0, 15.0), "M66 19l6-18 6 9"),
    ],
)
def test_a_sparkline_runs_from_the_oldest_close_to_the_newest(closes, path):
    assert build_path(closes) == path


def test_a_long_sparkline_ends_with_the_newest_of_at_most_14_points():
    # Every third close from the newest back: 2, 5, ..., 41, over 18 px.
    path = build_path([float(close) for close in range(42)])
    assert path.startswith("M0 19l6-1 6-2 6-1")
    steps = [int(step) for step in path.partition("l6")[2].split(" 6")]
    assert (len(steps), sum(steps)) == (13, -18)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.01234, "+1.23%"),
        (-0.004, "−0.40%"),
        (0.00001, "0.00%"),
        (-0.00001, "0.00%"),
        (12, "+1200.00%"),
    ],
)
def test_changes_are_signed_percentages(fraction, text):
    assert format_percent(fraction) == text


def test_scores_are_signed():
    assert [format_signed(score) for score in (3, 0, -2)] == ["+3", "0", "−2"]

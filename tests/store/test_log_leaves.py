"""The canonical text of rows, compared with another implementation of RFC 8785."""

from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from schemas.vocabulary import ACTIONS, LOGGED_IDS, TIMEFRAMES
from serving.signal_rows import build_signal
from store.log_leaves import hash_row, render_number, render_row
from store.market_rows import AlertRow, ChangeRow, FeedRow
from tests.support.row_builders import make_change

pytestmark = pytest.mark.clause("proof")

COVERED = (
    *("id", "tier", "ticker", "indicator", "timeframe", "direction", "transition", "change_type"),
    *("action", "price", "created_at"),
)
READINGS = [(None, 0), (None, 1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)]
TICKERS = st.text("ABCXYZ0189", min_size=1, max_size=12)
# From 2001 to 2286.
TIMES = st.integers(10**12, 10**13 - 1)
PRICES = st.floats(min_value=0, allow_infinity=False) | st.integers(0, 2**53).map(float)


def serve(row: FeedRow) -> dict[str, Any]:
    """Return the covered members of a row as it is served."""
    signal = build_signal(row, "crypto", "An indicator").model_dump(by_alias=True)
    return {name: signal[name] for name in COVERED}


@given(
    st.builds(
        lambda at, ticker, indicator, timeframe, epoch, readings, price: ChangeRow(
            at, ticker, indicator, timeframe, at // 1000, epoch, *readings, price, True
        ),
        *(TIMES, TICKERS, st.sampled_from(LOGGED_IDS), st.sampled_from(TIMEFRAMES)),
        *(st.integers(0, 99), st.sampled_from(READINGS), PRICES),
    )
)
def test_the_text_of_a_change_is_canonical_json_of_the_row_as_served(row: ChangeRow) -> None:
    assert render_row(row) == rfc8785.dumps(serve(row))


@given(
    st.builds(
        lambda at, ticker, timeframe, epoch, action, price: AlertRow(
            at, ticker, "perpkit", timeframe, at // 1000, epoch, action, price
        ),
        *(TIMES, TICKERS, st.sampled_from(TIMEFRAMES), st.integers(0, 99)),
        *(st.sampled_from(ACTIONS), PRICES),
    )
)
def test_the_text_of_an_alert_is_canonical_json_of_the_row_as_served(row: AlertRow) -> None:
    assert render_row(row) == rfc8785.dumps(serve(row))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_ecmascript_writes_them(value: float) -> None:
    assert render_number(value).encode() == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (97000.0, "97000"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
    ],
)
def test_numbers_at_the_bounds_of_the_plain_form(value: float, text: str) -> None:
    assert render_number(value) == text


def test_a_leaf_is_the_hash_of_a_zero_byte_the_salt_and_the_text() -> None:
    row = make_change(1_780_000_000_000, before=-1, close_time=1_779_999_600)
    text = (
        '{"action":null,"change_type":"reversal","created_at":"2026-05-28T20:26:40.000Z",'
        '"direction":"bullish","id":"universe.BTC.enzo.1h.1779999600.0","indicator":"enzo",'
        '"price":0.3,"ticker":"BTC","tier":"universe","timeframe":"1h",'
        '"transition":{"from":"bearish","to":"bullish"}}'
    )
    salt = bytes(range(16))
    assert hash_row(row, salt) == sha256(b"\0" + salt + text.encode()).digest()

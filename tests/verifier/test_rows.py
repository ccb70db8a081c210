"""Canonical JSON of rows, compared with the library rfc8785 and with the examples of RFC 8785."""

import hashlib
import struct

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from verifier.rows import (
    COVERED,
    RowError,
    encode_canonical,
    format_number,
    hash_row,
    pick_covered,
)

pytestmark = pytest.mark.clause("verify")

ROW = {
    "id": "universe.BTC.enzo.1h.1767225600.1",
    "tier": "universe",
    "ticker": "BTC",
    "asset_class": "crypto",
    "indicator": "enzo",
    "indicator_name": "Enzo",
    "timeframe": "1h",
    "direction": "bullish",
    "transition": {"from": "neutral", "to": "bullish"},
    "change_type": "activation",
    "action": None,
    "price": 97000.0,
    "created_at": "2026-01-01T00:03:00.000Z",
}
# RFC 8785, appendix B: the bits of a double, and its text.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), RFC_NUMBERS)
def test_numbers_are_written_as_in_the_examples_of_the_standard(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert format_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_by_the_library(value):
    assert format_number(value).encode() == rfc8785.dumps(value)


@given(
    st.fixed_dictionaries(
        {name: st.none() | st.text() for name in COVERED}
        | {
            "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "transition": st.none() | st.fixed_dictionaries({"to": st.text(), "from": st.text()}),
        }
    )
)
def test_rows_are_written_as_by_the_library(row):
    assert encode_canonical(row) == rfc8785.dumps(row)


def test_the_leaf_covers_the_salt_and_the_row_without_the_names_of_the_catalog():
    text = (
        b'{"action":null,"change_type":"activation","created_at":"2026-01-01T00:03:00.000Z",'
        b'"direction":"bullish","id":"universe.BTC.enzo.1h.1767225600.1","indicator":"enzo",'
        b'"price":97000,"ticker":"BTC","tier":"universe","timeframe":"1h",'
        b'"transition":{"from":"neutral","to":"bullish"}}'
    )
    salt = bytes(range(16))
    assert hash_row(ROW, salt) == hashlib.sha256(b"\x00" + salt + text).digest()


def test_a_row_that_lacks_a_member_is_refused_by_name():
    row = {name: value for name, value in ROW.items() if name != "price"}
    with pytest.raises(RowError, match="a row has no price"):
        pick_covered(row)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], 10**400, b"x", "\ud800"])
def test_values_without_a_canonical_form_are_refused(value):
    with pytest.raises(RowError):
        hash_row(ROW | {"price": value}, b"")

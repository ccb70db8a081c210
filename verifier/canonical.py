"""The canonical JSON of rows (RFC 8785), and the hashes of their leaves. Pure."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from verifier.errors import VerifyError
from verifier.tree import hash_leaf

Row = dict[str, Any]
# Sorted, as the canonical form demands. asset_class and indicator_name come from the catalog.
COVERED: Final = (
    "action",
    "change_type",
    "created_at",
    "direction",
    "id",
    "indicator",
    "price",
    "ticker",
    "tier",
    "timeframe",
    "transition",
)
# From 10**21 on, and below 10**-6, ECMAScript writes an exponent.
MAX_PLAIN_DIGITS, MAX_LEADING_ZEROS = 21, 6


class RowError(VerifyError):
    """A row that lacks a member, or has one that no row of the feed can have."""


def pick_covered(row: Row) -> Row:
    """Return the members of a row that its leaf covers; RowError if one is missing."""
    missing = [name for name in COVERED if name not in row]
    if missing:
        raise RowError(f"a row has no {', '.join(missing)}")
    return {name: row[name] for name in COVERED}


def hash_row(row: Row, salt: bytes) -> bytes:
    """Return the hash of the leaf of a row; RowError if it has no canonical form."""
    return hash_leaf(salt + encode_canonical(pick_covered(row)))


def encode_canonical(value: object) -> bytes:
    """Return the canonical JSON of a value whose keys are ASCII."""
    try:
        return _format_value(value).encode()
    except UnicodeEncodeError:
        raise RowError("a row has text that is not Unicode") from None
    except OverflowError:
        raise RowError("a row has a number that is too large") from None


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        members = (f"{json.dumps(key)}:{_format_value(value[key])}" for key in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return format_number(float(value))
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    raise RowError(f"a row has a {type(value).__name__} where none can be")


def format_number(value: float) -> str:
    """Return a number as ECMAScript does: the shortest digits that give the same number."""
    if not math.isfinite(value):
        raise RowError(f"{value} is not a number of JSON")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    return sign + _place_point(*_split_number(abs(value)))


def _split_number(value: float) -> tuple[str, int]:
    """Return the significant digits of a positive number, and the place of its decimal point."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0)
    stripped = digits.lstrip("0")
    return stripped.rstrip("0"), point - (len(digits) - len(stripped))


def _place_point(digits: str, point: int) -> str:
    if len(digits) <= point <= MAX_PLAIN_DIGITS:
        return digits.ljust(point, "0")
    if 0 < point <= MAX_PLAIN_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if -MAX_LEADING_ZEROS < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if digits[1:] else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"

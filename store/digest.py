"""The digest chain over passes: pure functions over canonical, big-endian bytes.

Text is UTF-8 ended by a zero byte, a missing reading is 127, -0.0 counts as 0.0 (SQLite keeps
no sign of zero), and every row starts with a letter of its kind.
"""

import struct
from collections.abc import Iterable
from hashlib import sha256

from schemas.vocabulary import TIMEFRAMES
from store.protocol import BarRow, ChangeRow, FundingRow

GENESIS = bytes(32)

_BAR = struct.Struct(">q5d").pack
_FUNDING = struct.Struct(">qd").pack
_CHANGE = struct.Struct(">qqbbd?").pack
_CREATED_AT = struct.Struct(">q").pack
_NO_READING = 127


def bar_order(row: BarRow) -> tuple[str, int, int]:
    """Order bars by ticker, timeframe (as in TIMEFRAMES) and open time."""
    return row.ticker, TIMEFRAMES.index(row.timeframe), row.open_time


def funding_order(row: FundingRow) -> tuple[str, int]:
    """Order settlements by ticker and time."""
    return row.ticker, row.settled_at


def bars_digest(bars: Iterable[BarRow], funding: Iterable[FundingRow]) -> bytes:
    """Return the SHA-256 of a pass's bars and settlements, in whatever order they are given."""
    digest = sha256()
    digest.update(b"".join(map(_bar_bytes, sorted(bars, key=bar_order))))
    digest.update(b"".join(map(_funding_bytes, sorted(funding, key=funding_order))))
    return digest.digest()


def changes_digest(changes: Iterable[ChangeRow]) -> bytes:
    """Return the SHA-256 of a pass's changes, ordered by `created_at`."""
    ordered = sorted(changes, key=lambda row: row.created_at)
    return sha256(b"".join(map(_change_bytes, ordered))).digest()


def chain_digest(
    previous: bytes, market_time: int, bars_digest: bytes, changes_digest: bytes
) -> bytes:
    """Return the digest of a pass; the one before the first is GENESIS."""
    link = market_time.to_bytes(8, "big", signed=True)
    return sha256(previous + link + bars_digest + changes_digest).digest()


def _bar_bytes(row: BarRow) -> bytes:
    return f"b{row.ticker}\0{row.timeframe}\0".encode() + _BAR(
        row.open_time,
        row.open + 0.0,
        row.high + 0.0,
        row.low + 0.0,
        row.close + 0.0,
        row.volume + 0.0,
    )


def _funding_bytes(row: FundingRow) -> bytes:
    return f"f{row.ticker}\0".encode() + _FUNDING(row.settled_at, row.funding_rate + 0.0)


def _change_bytes(row: ChangeRow) -> bytes:
    before = _NO_READING if row.before is None else row.before
    cell = f"{row.ticker}\0{row.indicator}\0{row.timeframe}\0".encode()
    return (
        b"c"
        + _CREATED_AT(row.created_at)
        + cell
        + _CHANGE(row.close_time, row.epoch, before, row.after, row.price + 0.0, row.published)
    )

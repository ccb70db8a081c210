"""The digest chain over passes: pure functions over canonical, big-endian bytes.

Text is UTF-8 ended by a zero byte, a missing reading is 127, -0.0 counts as 0.0 (SQLite keeps
no sign of zero), and every row starts with a letter of its kind.
"""

import struct
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from operator import attrgetter

import numpy as np

from store.market_rows import AlertRow, BarBlock, ChangeRow, FundingRow, WatermarkRow

GENESIS = bytes(32)

_pack_alert = struct.Struct(">qqd").pack
_pack_funding = struct.Struct(">qd").pack
_pack_watermark = struct.Struct(">q?").pack
_pack_change = struct.Struct(">qqbbd?").pack
_pack_created_at = struct.Struct(">cq").pack
_NO_READING = 127


def digest_bars(
    bars: Iterable[BarBlock],
    funding: Iterable[FundingRow],
    watermarks: Iterable[WatermarkRow] = (),
) -> bytes:
    """Return the SHA-256 of what a pass took in, in whatever order it is given.

    A bar counts as `b`, ticker, timeframe, open_time (int64) and its five values (float64); one of
    a later generation as `g`, generation in decimal digits, ticker and so on.
    """
    digest = sha256()
    for block in sorted(bars, key=lambda block: (block.ticker, block.timeframe)):
        digest.update(_encode_block(block))
    digest.update(b"".join(map(_encode_funding, sorted(funding))))
    lagging = sorted(watermarks, key=lambda row: row.ticker)
    digest.update(b"".join(map(_encode_watermark, lagging)))
    return digest.digest()


def digest_changes(changes: Iterable[ChangeRow]) -> bytes:
    """Return the SHA-256 of a pass's changes, ordered by `created_at`."""
    ordered = sorted(changes, key=attrgetter("created_at"))
    return sha256(b"".join(map(_encode_change, ordered))).digest()


def digest_alerts(alerts: Iterable[AlertRow]) -> bytes | None:
    """Return the SHA-256 of a pass's alerts, ordered by `created_at`; None where there are none."""
    ordered = sorted(alerts, key=attrgetter("created_at"))
    return sha256(b"".join(map(_encode_alert, ordered))).digest() if ordered else None


def digest_commit(
    previous_digest: bytes,
    market_time: int,
    bars_digest: bytes,
    changes_digest: bytes,
    alerts_digest: bytes | None = None,
) -> bytes:
    """Return the digest of a pass; the one before the first is GENESIS.

    A pass without alerts has the digest that it had before there was an alerts tier.
    """
    time_bytes = market_time.to_bytes(8, "big", signed=True)
    parts = previous_digest + time_bytes + bars_digest + changes_digest
    return sha256(parts + (alerts_digest or b"")).digest()


def _encode_block(block: BarBlock) -> bytes:
    kind = f"g{block.revision}\0" if block.revision else "b"
    head = np.frombuffer(f"{kind}{block.ticker}\0{block.timeframe}\0".encode(), dtype=np.uint8)
    layout = [("head", "u1", head.shape), ("open_time", ">i8"), ("values", ">f8", (5,))]
    rows = np.empty(len(block), dtype=layout)
    rows["head"] = head
    rows["open_time"] = block.open_time
    rows["values"] = block.values + 0.0
    return rows.tobytes()


def _encode_funding(row: FundingRow) -> bytes:
    return f"f{row.ticker}\0".encode() + _pack_funding(row.settled_at, row.funding_rate + 0.0)


def _encode_watermark(row: WatermarkRow) -> bytes:
    return f"w{row.ticker}\0".encode() + _pack_watermark(row.watermark, row.is_late)


def _encode_change(row: ChangeRow) -> bytes:
    created_at, ticker, indicator, timeframe, close_time, epoch, before, after, price, shown = row
    if before is None:
        before = _NO_READING
    rest = _pack_change(close_time, epoch, before, after, price + 0.0, shown)
    return _pack_created_at(b"c", created_at) + _encode_cell(ticker, indicator, timeframe) + rest


def _encode_alert(row: AlertRow) -> bytes:
    created_at, ticker, indicator, timeframe, close_time, epoch, action, price = row
    rest = action.encode() + b"\0" + _pack_alert(close_time, epoch, price + 0.0)
    return _pack_created_at(b"a", created_at) + _encode_cell(ticker, indicator, timeframe) + rest


@cache
def _encode_cell(ticker: str, indicator: str, timeframe: str) -> bytes:
    return f"{ticker}\0{indicator}\0{timeframe}\0".encode()

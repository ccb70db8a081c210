"""The digest chain over commits: pure functions over canonical, big-endian bytes.

Text is UTF-8 terminated by a zero byte, a missing reading is 127, and every row starts with a
letter for its kind: b or g (bar), f (funding), w or h (watermark), s (source), c (change), a
(alert). The rest of what a commit writes, its context, is hashed as lines of JSON.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from operator import attrgetter

import numpy as np

from store.change_table import ChangeTable
from store.codes import (
    HISTORY_CODES,
    TIMEFRAME_SET_CODES,
)
from store.market_rows import (
    AlertRow,
    BarBlock,
    ChangeRow,
    FundingRow,
    SourceRow,
    WatermarkRow,
)

GENESIS = bytes(32)
# The kind of a row and its values as stored.
ContextRow = tuple[str | int | None, ...]

_pack_alert = struct.Struct(">qqd").pack
_pack_funding = struct.Struct(">qd").pack
_pack_watermark = struct.Struct(">qB").pack
_pack_created_at = struct.Struct(">cq").pack
# Rows that are encoded at a time, which bounds the memory.
_ROWS_PER_UPDATE = 20_000
# The names of a change follow its kind and `created_at`.
_NAME_AT = 9


def digest_bars(
    bars: Iterable[BarBlock],
    funding: Iterable[FundingRow],
    watermarks: Iterable[WatermarkRow] = (),
    sources: Iterable[SourceRow] = (),
) -> bytes:
    """Return the SHA-256 of a commit's inputs; the order of the arguments' rows does not matter.

    A bar is encoded as `b`, ticker, timeframe, open_time (int64) and its five values (float64). If
    its revision is above 0, `g` and the revision in decimal digits replace the `b`. A watermark of
    an asset whose history is built or being built has `h` and the code of that instead of `w`.
    """
    digest = sha256()
    for block in sorted(bars, key=lambda block: (block.ticker, block.timeframe)):
        # One structured array instead of a loop over bars: a year of history has millions of them.
        kind = f"g{block.revision}\0" if block.revision else "b"
        head = np.frombuffer(f"{kind}{block.ticker}\0{block.timeframe}\0".encode(), dtype=np.uint8)
        layout = [("head", "u1", head.shape), ("open_time", ">i8"), ("values", ">f8", (5,))]
        rows = np.empty(len(block), dtype=layout)
        rows["head"] = head
        rows["open_time"] = block.open_time
        rows["values"] = block.values + 0.0  # -0.0 becomes 0.0: SQLite stores no sign of zero
        digest.update(rows.tobytes())
    for row in sorted(funding):
        rate = _pack_funding(row.settled_at, row.funding_rate + 0.0)
        digest.update(f"f{row.ticker}\0".encode() + rate)
    for lagging in sorted(watermarks, key=lambda row: row.ticker):
        kind = "w" if lagging.history == "followed" else f"h{HISTORY_CODES[lagging.history]}\0"
        late = _pack_watermark(lagging.watermark, TIMEFRAME_SET_CODES[lagging.late])
        digest.update(f"{kind}{lagging.ticker}\0".encode() + late)
    # A commit that begins no revision adds no bytes.
    for source in sorted(sources):
        digest.update(f"s{source.ticker}\0{source.revision}\0{source.listing}\0".encode())
    return digest.digest()


def digest_changes(changes: Iterable[ChangeRow]) -> bytes:
    """Return the SHA-256 of a commit's changes, sorted by `created_at`."""
    table, digest = ChangeTable.from_rows(changes), sha256()
    ordered = table.select(np.argsort(table.created_at, kind="stable"))
    for first in range(0, len(ordered), _ROWS_PER_UPDATE):
        part = ordered.select(slice(first, first + _ROWS_PER_UPDATE))
        digest.update(_encode_changes(part))
    return digest.digest()


def digest_alerts(alerts: Iterable[AlertRow]) -> bytes | None:
    """Return the SHA-256 of a commit's alerts, sorted by `created_at`; None if there are none."""
    ordered, digest = sorted(alerts, key=attrgetter("created_at")), sha256()
    for created_at, ticker, indicator, timeframe, close_time, epoch, action, price in ordered:
        cell = _encode_cell(ticker, indicator, timeframe)
        rest = action.encode() + b"\0" + _pack_alert(close_time, epoch, price + 0.0)
        digest.update(_pack_created_at(b"a", created_at) + cell + rest)
    return digest.digest() if ordered else None


def digest_context(rows: Iterable[ContextRow]) -> bytes:
    """Return the SHA-256 of a commit's context; the order of the rows does not matter.

    A row is encoded as a JSON array, in ASCII without spaces, that ends with a line feed. The lines
    are sorted by their bytes. store/sql/market_writes.py lists the rows.
    """
    lines = sorted(f"{json.dumps(row, separators=(',', ':'))}\n".encode() for row in rows)
    return sha256(b"".join(lines)).digest()


def digest_coverage(document: str, last_digests: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the digests of a coverage that is published after each commit with these digests."""
    # The chain has no link to it, because a restart publishes the coverage again, and a store that
    # was restarted must have the same chain as one that was not.
    content = sha256(document.encode()).digest()
    return (sha256(last_digest + content).digest() for last_digest in last_digests)


def digest_commit(
    previous_digest: bytes,
    market_time: int,
    bars_digest: bytes,
    changes_digest: bytes,
    alerts_digest: bytes | None,
    context_digest: bytes,
) -> bytes:
    """Return the digest of a commit; `previous_digest` of the first commit is GENESIS."""
    time_bytes = market_time.to_bytes(8, "big", signed=True)
    parts = previous_digest + time_bytes + bars_digest + changes_digest
    # Alerts have a digest of their own because they expire earlier than changes, whose digest can
    # still be checked then. The `x` keeps a context apart from alerts, of which there may be none.
    return sha256(parts + (alerts_digest or b"") + b"x" + context_digest).digest()


def _encode_changes(table: ChangeTable) -> bytes:
    # Columns of equal width, of which the padding of the names is left out at the end.
    numbers, cell = np.unique(table.cell, return_inverse=True)
    cells = [table.cells[number] for number in numbers.tolist()]
    names = [_encode_cell(c.ticker, c.indicator, c.timeframe) for c in cells]
    width = max(map(len, names), default=0)
    layout = [
        *(("kind", "u1"), ("created_at", ">i8"), ("name", "u1", (width,)), ("close_time", ">i8")),
        *(
            ("epoch", ">i8"),
            ("before", "i1"),
            ("after", "i1"),
            ("price", ">f8"),
            ("published", "?"),
        ),
    ]
    rows = np.empty(len(table), dtype=layout)
    rows["kind"] = ord("c")
    rows["created_at"] = table.created_at
    padded = b"".join(name.ljust(width, b"\0") for name in names)
    rows["name"] = np.frombuffer(padded, dtype=np.uint8).reshape(len(names), width)[cell]
    rows["close_time"] = table.close_time
    rows["epoch"] = np.array([c.epoch for c in cells], dtype=np.int64)[cell]
    rows["before"], rows["after"] = table.before, table.after
    rows["price"] = table.price + 0.0
    rows["published"] = table.published
    is_kept = np.ones((len(names), rows.dtype.itemsize), dtype=np.bool_)
    lengths = np.array([len(name) for name in names], dtype=np.int64)
    is_kept[:, _NAME_AT : _NAME_AT + width] = np.arange(width) < lengths[:, np.newaxis]
    chosen = is_kept[cell]
    return rows.view(np.uint8).reshape(chosen.shape)[chosen].tobytes()


@cache
def _encode_cell(ticker: str, indicator: str, timeframe: str) -> bytes:
    return f"{ticker}\0{indicator}\0{timeframe}\0".encode()

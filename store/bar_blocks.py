"""Packs and unpacks blocks of bars in the layout of market_0001.sql, validating both ways."""

from collections.abc import Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from store.codes import TIMEFRAMES_BY_CODE
from store.market_rows import BarBlock
from store.sql.database import Row
from store.store_errors import DamagedError, StoreError

# A row per asset, timeframe and commit, since with a row per bar the first start waited for SQLite.
# The database cannot check these bytes, so every read validates them here, and the digest chain
# covers them.
_STORED_BAR_DTYPE = np.dtype([("open_time", "<i8"), ("values", "<f8", (5,))])


def pack_block(block: BarBlock) -> tuple[int, int, int, bytes]:
    """Return first_open, last_open, count and data; raise StoreError if the bars are invalid."""
    bars = np.empty(len(block), dtype=_STORED_BAR_DTYPE)
    bars["open_time"] = block.open_time
    bars["values"] = block.values
    if not _is_valid(bars):
        message = "expected at least one bar, ascending open times and finite values"
        raise StoreError(f"invalid bars of {block.ticker} {block.timeframe}: {message}")
    return int(block.open_time[0]), int(block.open_time[-1]), len(block), bars.tobytes()


def build_blocks(rows: Iterable[Row], after: int | None = None) -> list[BarBlock]:
    """Join rows into one block per ticker, revision and timeframe; omit bars opening up to `after`.

    A row has ticker, generation, timeframe, pass, first_open, last_open, count and data. Rows must
    be sorted by the first three columns and by time. Raise DamagedError if a row is not valid.
    """
    found = [
        _build_block(ticker, revision, code, list(block_rows), after)
        for (ticker, revision, code), block_rows in groupby(
            rows, key=lambda row: (row["ticker"], row["generation"], row["timeframe"])
        )
    ]
    return sorted(found, key=lambda block: (block.ticker, block.timeframe))


def build_packed_block(ticker: str, revision: int, code: int, data: bytes) -> BarBlock:
    """Return the block of the joined data of several rows, which may be in any order.

    Raise DamagedError if the bars are not valid.
    """
    if len(data) % _STORED_BAR_DTYPE.itemsize or code not in TIMEFRAMES_BY_CODE:
        raise DamagedError(f"bars of {ticker} are damaged: run `signals audit`")
    bars = np.frombuffer(data, dtype=_STORED_BAR_DTYPE)
    if not _is_valid(bars):
        bars = bars[np.argsort(bars["open_time"], kind="stable")]
    if not _is_valid(bars):
        raise DamagedError(f"bars of {ticker} are damaged: run `signals audit`")
    return _build_bar_block(ticker, revision, code, bars)


def find_last_open(data: bytes, until: int) -> int:
    """Return the open time of the last bar of a packed block that opens by a time."""
    # The caller has checked that the block's first bar does.
    open_times = np.frombuffer(data, dtype=_STORED_BAR_DTYPE)["open_time"]
    return int(open_times[np.searchsorted(open_times, until, side="right") - 1])


def find_close(data: bytes, until: int) -> float | None:
    """Return the close of the last bar of a packed block that opens by a time, None without one."""
    bars = np.frombuffer(data, dtype=_STORED_BAR_DTYPE)
    after = int(np.searchsorted(bars["open_time"], until, side="right"))
    return float(bars["values"][after - 1][3]) if after else None


def _build_block(
    ticker: str, revision: int, code: int, rows: list[Row], after: int | None
) -> BarBlock:
    if code not in TIMEFRAMES_BY_CODE:
        raise DamagedError(
            f"commit {rows[0]['pass']} holds bars of {ticker} with an unknown timeframe"
        )
    bars, *later = (_unpack_row(ticker, row) for row in rows)
    bars = np.concatenate([bars, *later]) if later else bars
    # Each row is valid by itself.
    if later and not _is_valid(bars):
        raise DamagedError(f"bars of {ticker} overlap in commit {rows[-1]['pass']} or before")
    if after is not None:
        bars = bars[np.searchsorted(bars["open_time"], after, side="right") :]
    return _build_bar_block(ticker, revision, code, bars)


def _build_bar_block(ticker: str, revision: int, code: int, bars: NDArray[np.void]) -> BarBlock:
    open_times, values = bars["open_time"], bars["values"]
    return BarBlock(
        ticker,
        TIMEFRAMES_BY_CODE[code],
        np.ascontiguousarray(open_times, dtype=np.int64),
        np.ascontiguousarray(values, dtype=np.float64),
        revision,
    )


def _unpack_row(ticker: str, row: Row) -> NDArray[np.void]:
    """Return the bars of one row; raise DamagedError if they contradict its columns."""
    count, data = row["count"], row["data"]
    if count >= 1 and len(data) == count * _STORED_BAR_DTYPE.itemsize:
        bars = np.frombuffer(data, dtype=_STORED_BAR_DTYPE)
        ends = (int(bars["open_time"][0]), int(bars["open_time"][-1]))
        if ends == (row["first_open"], row["last_open"]) and _is_valid(bars):
            return bars
    raise DamagedError(f"commit {row['pass']} holds damaged bars of {ticker}")


def _is_valid(bars: NDArray[np.void]) -> bool:
    """Return whether there is at least one bar, in ascending order, with finite values only."""
    open_times = bars["open_time"]
    is_ordered = bool((open_times[1:] > open_times[:-1]).all())
    return len(bars) > 0 and is_ordered and bool(np.isfinite(bars["values"]).all())

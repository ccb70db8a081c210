"""A folder of recorded bars as a source; docs/sources.md describes the format."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import structlog

from compute.bars import (
    HOUR_S,
    MAX_TIME_S,
    NO_FUNDING,
    Funding,
    RawBar,
    Series,
    find_settlement_fault,
    validate_bars,
)
from compute.sources.source import FetchResult, SourceError
from compute.universe import Universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, SourceKind, Timeframe

BARS_HEADER = ["ts", "open", "high", "low", "close", "volume"]
FUNDING_HEADER = ["ts", "funding_rate"]
_NAME = re.compile(r"(?P<ticker>.+)_(?P<what>1h|1d|funding)\.csv")
_INTEGER = re.compile(r"-?\d{1,12}")
Row = TypeVar("Row")


class FilesSource:
    """All bars of a folder, parsed and validated before any of them is used."""

    kind: SourceKind = "recorded"
    shown_history_s = 0

    def __init__(self, folder: Path, universe: Universe) -> None:
        """Read the folder; raise SourceError with the first file and row that cannot be read."""
        self.folder = folder.resolve()
        self.name = f"files:{self.folder}"
        self.rejected_counts: Counter[str] = Counter()
        self._bars: dict[str, Series] = {}
        self._native_timeframes: dict[str, Timeframe] = {}
        self._funding: dict[str, Funding] = {}
        files = self._list_files(universe)
        for (ticker, what), path in files.items():
            if what == "funding":
                self._funding[ticker] = self._read_funding(path)
            elif what == "1h" or (ticker, "1h") not in files:
                self._native_timeframes[ticker] = "1h" if what == "1h" else "1d"
                self._bars[ticker] = self._read_series(path, self._native_timeframes[ticker])
        if not any(map(len, self._bars.values())):
            raise SourceError(f"{folder}: holds no bars; expected files such as BTC_1h.csv")

    @property
    def ends_at(self) -> int | None:
        """The close of the folder's last bar."""
        return max((int(s.close_time[-1]) for s in self._bars.values() if len(s)), default=0)

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h, or 1d if the folder has only a daily file; None if it has neither."""
        return self._native_timeframes.get(ticker)

    def get_listing(self, ticker: str) -> str | None:
        """Return None: all bars come from the folder."""
        return None

    def has_off_hour_bars(self, ticker: str) -> bool:
        """Return whether any recorded hourly bar of the asset opens off the hour."""
        is_hourly = self._native_timeframes.get(ticker) == "1h"
        return is_hourly and bool((self._bars[ticker].open_time % HOUR_S != 0).any())

    def get_delay_s(self, ticker: str) -> int:
        """Return 0: a recording is complete."""
        return 0

    def get_end(self, ticker: str) -> int | None:
        """Return the close of the asset's last bar, None if the folder has no bar of it."""
        bars = self._bars.get(ticker)
        return int(bars.close_time[-1]) if bars else None

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the close of the next recorded bar."""
        times = self._bars[ticker].close_time
        index = int(np.searchsorted(times, after, side="right"))
        return int(times[index]) if index < len(times) else None

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return -1: a recording is never expected to have more bars than it has."""
        return -1

    async def check_ready(self) -> None:
        """Return at once: a recording depends on nothing outside."""

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the recorded bars and settlements in (after, until]; the watermark is `until`."""
        bars = self._bars[ticker]
        inside = (bars.close_time > after) & (bars.close_time <= until)
        funding = self._funding.get(ticker, NO_FUNDING).select_between(after, until)
        return FetchResult(bars.select(inside), funding, until)

    def _list_files(self, universe: Universe) -> dict[tuple[str, str], Path]:
        if not self.folder.is_dir():
            raise SourceError(f"{self.folder}: no such folder of bars")
        # A file that is not understood ends the start: an operator who mistypes a name should see
        # it, instead of missing an asset later.
        files: dict[tuple[str, str], Path] = {}
        for path in sorted(self.folder.glob("*.csv")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                raise SourceError(
                    f"{path}: not a bars file; "
                    "expected TICKER_1h.csv, TICKER_1d.csv or TICKER_funding.csv"
                )
            if match["ticker"] not in universe.by_ticker:
                raise SourceError(f"{path}: the universe has no ticker {match['ticker']!r}")
            files[match["ticker"], match["what"]] = path
        return files

    def _read_series(self, path: Path, native: Timeframe) -> Series:
        period_s = TIMEFRAME_DURATIONS_S[native]
        accepted_rows, rejected_rows = validate_bars(
            list(_read_rows(path, BARS_HEADER, _parse_bar)), period_s
        )
        for row, reason in rejected_rows:
            self._log_rejected_row(path, row.open_time, reason)
        return Series.from_rows(accepted_rows, period_s)

    def _read_funding(self, path: Path) -> Funding:
        rates: dict[int, float] = {}
        read = _read_rows(path, FUNDING_HEADER, lambda c: (_parse_time(c[0]), _parse_number(c[1])))
        for settled_at, rate in sorted(read, key=lambda row: row[0]):
            if fault := find_settlement_fault(settled_at, rate):
                self._log_rejected_row(path, settled_at, fault)
            elif settled_at in rates:
                self._log_rejected_row(path, settled_at, "settlement time is repeated")
            else:
                rates[settled_at] = rate
        return Funding.from_pairs(list(rates.items()))

    def _log_rejected_row(self, path: Path, ts: int, reason: str) -> None:
        self.rejected_counts[reason] += 1
        structlog.get_logger().warning("row_rejected", file=path.name, ts=ts, reason=reason)


def _read_rows(path: Path, header: list[str], parse: Callable[[list[str]], Row]) -> Iterator[Row]:
    """Yield the parsed rows of a CSV file; raise SourceError with file, row and fault."""
    row = 0
    try:
        # `utf-8-sig`, because spreadsheets put a byte-order mark before the header.
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for row, cells in enumerate(csv.reader(lines, strict=True), start=1):
                if row == 1:
                    if cells != header:
                        raise ValueError(f"the header must be {','.join(header)}")
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"{len(cells)} cells, but {len(header)} are expected")
                yield parse(cells)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: after row {row}: not UTF-8 at byte {error.start}") from None
    except (ValueError, csv.Error) as error:
        raise SourceError(f"{path}: row {row}: {error}") from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    if row == 0:
        raise SourceError(f"{path}: row 1: the header must be {','.join(header)}")


def _parse_bar(cells: list[str]) -> RawBar:
    opened, high, low, closed, volume = map(_parse_number, cells[1:])
    return RawBar(_parse_time(cells[0]), opened, high, low, closed, volume)


def _parse_time(cell: str) -> int:
    if not _INTEGER.fullmatch(cell) or not 0 <= int(cell) <= MAX_TIME_S:
        raise ValueError(f"{cell[:40]!r} is not a time in epoch seconds")
    return int(cell)


def _parse_number(cell: str) -> float:
    # `float` would take underscores between digits, which are a typing error in a CSV file.
    try:
        if "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    raise ValueError(f"{cell[:40]!r} is not a number")

"""A folder of recorded bars as a source; docs/sources.md describes the format."""

import csv
import gzip
import io
import os
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from pathlib import Path
from shlex import quote
from stat import S_ISREG
from typing import BinaryIO, NoReturn, cast

import numpy as np
import structlog

from compute.bars import (
    HOUR_S,
    MAX_TIME_S,
    NO_FUNDING,
    Funding,
    Prices,
    Times,
    find_settlement_fault,
    find_value_faults,
)
from compute.sources import bar_judgement as judgement
from compute.sources.source import FetchResult, Source, SourceError
from compute.trading_sessions import Calendar, find_next_close
from compute.universe import Universe
from schemas.vocabulary import SourceKind, Timeframe, format_instant

BARS_HEADER = ["ts", "open", "high", "low", "close", "volume"]
FUNDING_HEADER = ["ts", "funding_rate"]
JUMPS_HEADER = ["ts"]
EXPECTED_NAMES = (
    "TICKER_1h.csv, TICKER_1d.csv, TICKER_funding.csv or TICKER_jumps.csv, also as .csv.gz"
)
_NAME = re.compile(r"(?P<ticker>.+)_(?P<what>1h|1d|funding|jumps)(?i:\.csv(?:\.gz)?)")
_LIKE_BARS = re.compile(r"\.csv|_(\d+[mhdw]|funding|jumps)(\.|$)", re.IGNORECASE)
_OF_EDITOR = re.compile(r"[.#~].*|.*(~|#|\.sw[a-p])")
# How `surrogateescape` reads bytes that are no UTF-8.
_NO_UTF8 = re.compile("[\udc80-\udcff]")
MAX_TIME_DIGITS = len(str(MAX_TIME_S))
# Cells as text take some ten times the memory of columns, so few rows are held as text at a time.
CHUNK_CHARS = 1 << 18
# Rows that cannot be read are left out while they are so few; more show that a file is no bars.
ROWS_PER_UNREADABLE, MAX_UNREADABLE_ROWS = 1000, 100
MAX_LINE_BYTES = 1_000_000
MAX_FILE_BYTES = 4_000_000_000


class FilesSource(Source):
    """All bars of a folder, parsed and validated before any of them is used."""

    kind: SourceKind = "recorded"

    def __init__(
        self,
        folder: Path,
        universe: Universe,
    ) -> None:
        """Read the folder; raise SourceError with the first file and row that cannot be read."""
        # `Path.resolve` would raise if links form a loop.
        self.folder = Path(os.path.realpath(folder))
        # A path can have bytes that are no text, which a store refuses.
        self.name = f"files:{os.fsencode(self.folder).decode(errors='backslashreplace')}"
        self.rejected_counts: Counter[str] = Counter()
        self.ignored_names: list[str] = []
        self.doubts: list[str] = []
        self._universe = universe
        self._bars: dict[str, judgement.FileBars] = {}
        self._funding: dict[str, Funding] = {}
        self._files = self._list_files(universe)
        for (ticker, what), path in self._files.items():
            if what == "funding":
                self._funding[ticker] = self._read_funding(path)
            elif what != "jumps":
                self._bars[ticker] = self._read_bars(path, ticker, "1h" if what == "1h" else "1d")
        if not any(len(bars.open_time) for bars in self._bars.values()):
            raise SourceError(f"{folder}: holds no bars; expected files such as BTC_1h.csv")
        counts = [(ticker, len(bars.missing)) for ticker, bars in self._bars.items()]
        if holes := ", ".join(f"{ticker} {number}" for ticker, number in counts if number):
            self.doubts.append(f"bars missing inside the files: {holes}")
        for doubt in self.doubts:
            structlog.get_logger().warning("files_doubtful", doubt=doubt)

    @property
    def ends_at(self) -> int | None:
        """The close of the folder's last bar."""
        ends = (self.get_end(ticker) for ticker in self._bars)
        return max((end for end in ends if end is not None), default=0)

    def check_begun(self, now: int) -> None:
        """Raise SourceError if no bar has closed by a time (epoch ms)."""
        closes = (self.find_next_close(ticker, -1) for ticker in self._bars)
        first = min(close for close in closes if close is not None)
        if 1000 * first > now:
            raise SourceError(
                f"{self.folder}: all bars are in the future: the first one closes at "
                f"{format_instant(1000 * first)}, and now it is {format_instant(now)}; correct the "
                "times in the files, or the clock (--until of replay counts as the clock)"
            )

    def get_path(self, ticker: str, what: str) -> Path:
        """Return the file of an asset's 1h or 1d bars, or of its funding, even if it is missing."""
        return self._files.get((ticker, what), self.folder / f"{ticker}_{what}.csv")

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h, or 1d if the folder has only a daily file; None if it has neither."""
        bars = self._bars.get(ticker)
        return None if bars is None else bars.timeframe

    def has_off_hour_bars(self, ticker: str) -> bool:
        """Return whether a recorded bar opens off the hour, or a daily one off 00:00 UTC."""
        bars = self._bars.get(ticker)
        return bars is not None and bool((bars.open_time % bars.period_s != 0).any())

    def get_end(self, ticker: str) -> int | None:
        """Return the close of the asset's last bar, None if the folder has no bar of it."""
        bars = self._bars.get(ticker)
        return None if bars is None else bars.find_last_close()

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the close of the next recorded bar."""
        return self._bars[ticker].find_next_close(after)

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return -1: a recording is never expected to have more bars than it has."""
        return -1

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the recorded bars and settlements in (after, until]; the watermark is `until`.

        Behind the end of hourly bars it stays before the next one that the session expects, so that
        no longer bar is built without it.
        """
        bars, watermark = self._bars[ticker], until
        if bars.timeframe == "1h" and len(bars.open_time):
            hour = int(bars.open_time[-1]) // HOUR_S * HOUR_S
            end = find_next_close(self._universe.by_ticker[ticker].session, hour + HOUR_S) - 1
            watermark = max(after, min(until, max(end, bars.find_last_close() or 0)))
        funding = self._funding.get(ticker, NO_FUNDING).select_between(after, watermark)
        missing = bars.select_missing(after, until)
        return FetchResult(bars.select_between(after, until), funding, watermark, missing=missing)

    def _list_files(self, universe: Universe) -> dict[tuple[str, str], Path]:
        try:
            paths = sorted(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(f"{self.folder}: no such folder of bars") from None
        except OSError as error:
            raise SourceError(f"{self.folder}: {error.strerror}") from None
        # A file that is not understood ends the start: an operator who mistypes a name should see
        # it, instead of missing an asset later. Files that programs leave behind are only named.
        files: dict[tuple[str, str], Path] = {}
        for path in paths:
            if _LIKE_BARS.search(path.name) is None:
                continue
            if _OF_EDITOR.fullmatch(path.name):
                self.ignored_names.append(path.name)
                continue
            match = _NAME.fullmatch(path.name)
            if match is None:
                raise SourceError(f"{path}: not a bars file; expected {EXPECTED_NAMES}")
            series_key = match["ticker"], match["what"]
            if series_key[0] not in universe.by_ticker:
                raise SourceError(f"{path}: the universe has no ticker {series_key[0]!r}")
            if series_key in files:
                raise SourceError(
                    f"{path}: holds the same bars as {files[series_key].name}; keep one of them"
                )
            files[series_key] = path
        for ticker, what in files:
            if what == "1d" and (hourly := files.get((ticker, "1h"))):
                raise SourceError(
                    f"{files[ticker, what]}: the daily bars of {ticker} are built from "
                    f"{hourly.name}; keep one of the two files"
                )
        if self.ignored_names:
            structlog.get_logger().warning(
                "files_ignored", folder=str(self.folder), files=", ".join(self.ignored_names)
            )
        return files

    def _read_bars(self, path: Path, ticker: str, native: Timeframe) -> judgement.FileBars:
        """Read the accepted bars of a file into columns, oldest first."""
        session, rejected = self._universe.by_ticker[ticker].session, judgement.RejectedRows()
        bars = self._read_columns(path, native, rejected)
        verdict = judgement.judge_bars(bars, session, rejected)
        if verdict.wrong_times:
            option = " --stamp close" if "at their close" in verdict.wrong_times else ""
            raise SourceError(f"{path}: {verdict.wrong_times}{_suggest_import(path, option)}")
        if verdict.is_of_another_market:
            self.doubts.append(
                f"{path}: has bars of whole weekends, so all of them are used, although the "
                f"session of {ticker} is {session}"
            )
        if verdict.conflict_at is not None:
            self._refuse_conflict(path, BARS_HEADER, verdict.conflict_at, session, native)
        self._check_jumps(path, ticker, native, verdict.jumps)
        self._report_rejected_rows(path, rejected)
        return bars

    def _read_columns(
        self, path: Path, native: Timeframe, rejected: judgement.RejectedRows
    ) -> judgement.FileBars:
        """Read the bars of a file whose values can be right, oldest first."""
        # Arrays grow in place. Ten million bars take 480 MB; lists of parsed rows took 4.1 GB.
        times, columns = array("q"), [array("d") for _ in BARS_HEADER[1:]]
        for _, open_time, table in read_chunks(path, BARS_HEADER, rejected.unreadable):
            volumes = table[:, 4].copy()
            table[judgement.mark_without_volume(volumes), 4] = 0
            faults = find_value_faults(open_time, table)
            rejected.add(open_time, faults)
            times.frombytes(open_time[faults == 0].tobytes())
            for column, values in zip(columns, (*table.T[:4], volumes), strict=True):
                column.frombytes(values[faults == 0].tobytes())
        bars = judgement.FileBars(
            np.frombuffer(times, dtype=np.int64),
            [np.frombuffer(column, dtype=np.float64) for column in columns],
            native,
        )
        bars.reject(rejected, judgement.find_volume_faults(bars.columns[4]))
        if judgement.mark_without_volume(bars.columns[4]).any():
            bars.columns[4] = np.zeros(len(bars.open_time))
        bars.sort()
        return bars

    def _refuse_conflict(
        self, path: Path, header: list[str], time: int, session: Calendar, native: Timeframe
    ) -> NoReturn:
        """Raise SourceError with the first two rows of a time that have different values."""
        rows = [
            (int(numbers[index]), table[index].tolist())
            for numbers, times, table in read_chunks(path, header)
            for index in np.flatnonzero(
                judgement.find_opens(session, times, native) == time
            ).tolist()
        ]
        before, first = rows[0]
        after, other = next((row for row in rows if row[1] != first), rows[-1])
        names = zip(header[1:], first, other, strict=True)
        name, old, new = next(values for values in names if values[1] != values[2])
        raise SourceError(
            f"{path}: rows {before} and {after} are of the same time, {time} "
            f"({format_instant(1000 * time)}), but differ: {name} is {old!r} and {new!r}; "
            "delete the wrong ones, often bars that were still forming when they were fetched"
            + (_suggest_import(path, " --repeated last") if header == BARS_HEADER else "")
        )

    def _check_jumps(
        self, path: Path, ticker: str, native: Timeframe, found: Sequence[judgement.Jump]
    ) -> None:
        """Refuse hourly prices that jump as at a split, unless listed; daily ones are a doubt."""
        listed = self._files.get((ticker, "jumps"))
        accepted = [] if listed is None else read_table(listed, JUMPS_HEADER)[0].tolist()
        jumps = [jump for jump in found if jump.time not in accepted]
        if not jumps:
            return
        others = f" (and {len(jumps) - 1} other rows)" if len(jumps) > 1 else ""
        text = (
            f"{path}: {jumps[0].describe()}{others}; or, if the market moved so, list the row's ts "
            f"in {ticker}_jumps.csv, below the header ts"
        )
        # An hourly bar opens where the one before closed, but for a night or a halt. Over the days
        # of an old daily file the market itself may have moved so.
        if native == "1h":
            raise SourceError(text + _suggest_import(path, f" --split {jumps[0].split_option}"))
        self.doubts.append(text)

    def _read_funding(self, path: Path) -> Funding:
        rejected = judgement.RejectedRows()
        rates: dict[int, float] = {}
        times, table = read_table(path, FUNDING_HEADER, rejected.unreadable)
        order = np.argsort(times, kind="stable")
        for settled_at, rate in zip(times[order].tolist(), table[order, 0].tolist(), strict=True):
            if judgement.MAX_FUNDING_RATE < abs(rate) < inf:
                raise SourceError(
                    f"{path}: the settlement with ts {settled_at} has a rate of {rate!r}, which is "
                    f"{rate:.4%} of the position; funding_rate is a fraction, so divide all rates "
                    "by 100 if they are in percent, else delete the row"
                )
            if fault := find_settlement_fault(settled_at, rate):
                rejected.add_row(settled_at, fault)
            elif settled_at not in rates:
                rates[settled_at] = rate
            elif rates[settled_at] == rate:
                rejected.add_row(settled_at, "settlement time is repeated")
            else:
                self._refuse_conflict(path, FUNDING_HEADER, settled_at, "24x7", "1h")
        self._report_rejected_rows(path, rejected)
        return Funding.from_pairs(list(rates.items()))

    def _report_rejected_rows(self, path: Path, rejected: judgement.RejectedRows) -> None:
        """Count and log the rejected rows of a file, in one line per reason."""
        if unreadable := rejected.unreadable:
            row, fault = next(iter(unreadable.items()))
            rejected.counts[f"row cannot be read, as row {row}: {fault}"] += len(unreadable)
        self.rejected_counts += rejected.counts
        for reason, rows in rejected.counts.items():
            structlog.get_logger().warning(
                "row_rejected",
                file=path.name,
                rows=rows,
                first_ts=rejected.first_times.get(reason),
                reason=reason,
            )


def _suggest_import(path: Path, options: str) -> str:
    """Return the command that turns a file into one that this source accepts."""
    return f"; or convert it: signals import {quote(str(path))} --to DIR{options}"


def read_table(
    path: Path, header: list[str], unreadable: dict[int, str] | None = None
) -> tuple[Times, Prices]:
    """Return the times and the other columns of all rows that `read_chunks` yields."""
    _, times, table = map(np.concatenate, zip(*read_chunks(path, header, unreadable), strict=True))
    return times, table


def read_chunks(
    path: Path,
    header: list[str],
    unreadable: dict[int, str] | None = None,
) -> Iterator[tuple[Times, Times, Prices]]:
    """Yield numbers, times, and a table (rows, other columns), of successive rows of a CSV file.

    Raise SourceError with file, row and fault. If rows that cannot be read are few, they are left
    out, and `unreadable` gets the fault of each by its number. Blank lines are skipped.
    """
    unreadable = {} if unreadable is None else unreadable
    help_text = _suggest_import(path, "") if header == BARS_HEADER else ""
    try:
        with _open_binary(path) as content:
            lines = _read_lines(content)
            if _parse_csv([next(lines, "")], 1) != [(1, header)]:
                raise ValueError(f"row 1: the header must be {','.join(header)}{help_text}")
            # A file without rows has a table too.
            yield _parse_rows([], len(header))
            row = 2
            # Only lines are counted, so a row within quotes ends with its chunk.
            while chunk := _take_chunk(lines):
                rows = _parse_csv(chunk, row)
                row += len(rows)
                yield _parse_chunk(rows, len(header), unreadable)
                if len(unreadable) > MAX_UNREADABLE_ROWS:
                    break
            if len(unreadable) > min(MAX_UNREADABLE_ROWS, row // ROWS_PER_UNREADABLE):
                number, fault = next(iter(unreadable.items()))
                raise ValueError(f"row {number}: {fault}{help_text}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{path}: not a complete gzip file: {error}") from None
    except ValueError as error:
        raise SourceError(f"{path}: {error}") from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None


def _read_lines(content: BinaryIO) -> Iterator[str]:
    """Yield the lines of a text; ValueError as soon as one, or the whole, exceeds its limit."""
    # `utf-8-sig`, because spreadsheets put a byte-order mark before the header.
    lines = io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline="")
    size = 0
    for row in count(1):
        # With the two characters of its end.
        line = lines.readline(MAX_LINE_BYTES + 2)
        size += len(line)
        if not line:
            return
        if len(line.rstrip("\r\n")) > MAX_LINE_BYTES:
            raise ValueError(
                f"has a line of more than {MAX_LINE_BYTES:,} bytes, which no row of bars "
                "has; replace the file, or remove it"
            )
        if size > MAX_FILE_BYTES:
            raise ValueError(
                f"has more than {MAX_FILE_BYTES:,} bytes, unpacked; shorten it to the bars "
                "that you need, or remove it"
            )
        if not line.isascii() and _NO_UTF8.search(line):
            raise ValueError(f"row {row}: not UTF-8 text")
        yield line


def _take_chunk(lines: Iterator[str]) -> list[str]:
    chunk: list[str] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size > CHUNK_CHARS:
            break
    return chunk


def _parse_csv(lines: Sequence[str], first: int) -> list[tuple[int, list[str]]]:
    """Return the rows of some lines with their numbers, from `first` on."""
    reader = csv.reader(lines, strict=True)
    try:
        return list(enumerate(reader, first))
    except csv.Error as error:
        raise ValueError(f"row {first + reader.line_num - 1}: {error}") from None


@contextmanager
def _open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file for the block, unpacked; ValueError if it is no file or changes meanwhile."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        if not S_ISREG(before.st_mode):
            raise ValueError("not a regular file")
        with (
            open(descriptor, "rb", closefd=False) as stream,
            gzip.open(stream) if path.suffix.lower() == ".gz" else stream as content,
        ):
            yield cast(BinaryIO, content)
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ValueError("changed while it was read; start again when it is complete")
    finally:
        os.close(descriptor)


def _parse_chunk(
    rows: Sequence[tuple[int, Sequence[str]]], width: int, unreadable: dict[int, str]
) -> tuple[Times, Times, Prices]:
    """Return the numbers, times and other columns of the rows that can be read."""
    try:
        return _parse_rows(rows, width)
    except ValueError:
        # Columns are parsed as a whole, which is faster; a second look finds the rows.
        faults = {number: _find_row_fault(row, width) for number, row in rows if row}
        unreadable.update((number, fault) for number, fault in faults.items() if fault)
        return _parse_rows([row for row in rows if faults.get(row[0]) == ""], width)


def _parse_rows(
    rows: Sequence[tuple[int, Sequence[str]]], width: int
) -> tuple[Times, Times, Prices]:
    numbers = np.array([number for number, _ in rows], dtype=np.int64)
    if not rows:
        return numbers, numbers, np.empty((0, width - 1))
    times, *columns = zip(*(row for _, row in rows), strict=True)
    if len(columns) != width - 1:
        raise ValueError
    table = np.array([_parse_numbers(column) for column in columns]).reshape(width - 1, len(rows))
    return numbers, _parse_times(times), table.T


def _parse_times(cells: Sequence[str]) -> Times:
    text = "".join(cells)
    if not text.isascii() or not text.isdigit() or max(map(len, cells)) > MAX_TIME_DIGITS:
        raise ValueError
    times = np.fromiter(map(int, cells), np.int64, len(cells))
    if times.max() > MAX_TIME_S:
        raise ValueError
    return times


def _parse_numbers(cells: Sequence[str]) -> Prices:
    # `float` would take underscores between digits, which are a typing error in a CSV file.
    if "_" in "".join(cells):
        raise ValueError
    return np.fromiter(map(float, cells), np.float64, len(cells))


def _find_row_fault(row: Sequence[str], width: int) -> str:
    """Return why a row cannot be parsed, an empty text if it can."""
    if len(row) != width:
        return f"{len(row)} cells, but {width} are expected"
    for parse, cells, expected in (
        (_parse_numbers, row[1:], "a number"),
        (_parse_times, row[:1], "a time in epoch seconds"),
    ):
        for cell in cells:
            try:
                parse([cell])
            except ValueError:
                return f"{cell[:40]!r} is not {expected}"
    return ""

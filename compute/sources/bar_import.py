"""Turns files of bars in any known format into a folder of recorded bars, or adds to one.

Nothing is written while anything is doubtful that no option accepts. Bars are judged as the
recorded source judges them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Final

import numpy as np

from compute.bars import DAY_S, HOUR_S, Prices, Series, Times, find_value_faults, resample_bars
from compute.sources import bar_judgement as judgement
from compute.sources.bar_formats import ASSUMED_ZONE, FileRows, FormatOptions, read_rows
from compute.sources.files import BARS_HEADER, JUMPS_HEADER, read_table
from compute.sources.source import SourceError
from compute.trading_sessions import Calendar, list_expected_bars
from compute.universe import Universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe, format_instant

# What a file's name may add to a ticker; prices in other currencies are another market.
DOLLARS: Final = ("", "USD", "USDT", "USDC", "FDUSD", "BUSD", "TUSD")
OTHER_QUOTES: Final = (
    *("AED", "ARS", "AUD", "BRL", "CAD", "CHF", "CLP", "CNH", "CNY", "COP", "CZK", "DKK", "EUR"),
    *("GBP", "GEL", "HKD", "HUF", "IDR", "ILS", "INR", "JPY", "KRW", "KZT", "MXN", "MYR", "NGN"),
    *("NOK", "NZD", "PEN", "PHP", "PKR", "PLN", "RON", "RUB", "SAR", "SEK", "SGD", "THB", "TRY"),
    *("TWD", "UAH", "VND", "ZAR"),
)
# The share of rows, and their number, that may have faults before the columns are wrong.
MAX_FAULTY_SHARE, MAX_FAULTY_ROWS = 0.01, 1
# Kraken's names.
ALIASES: Final = {"XBT": "BTC", "XXBT": "BTC", "XDG": "DOGE"}
SHOWN_NAMES: Final = 3


@dataclass(frozen=True)
class ImportOptions:
    """What the operator accepts, and what the files do not say.

    `splits` has the number of new shares for an old one, by the day of the first bar after it.
    """

    ticker: str | None = None
    formats: FormatOptions = field(default_factory=FormatOptions)
    stamp: str | None = None
    repeated: str | None = None
    splits: Mapping[date, float] = field(default_factory=dict)
    accepted_jumps: frozenset[date] = frozenset()


# Opens, and a table of prices and volumes, of one file or of what the folder has.
Bars = tuple[Times, Prices]


class BarImport:
    """The bars of some files, and of the folder that gets them.

    `lines` describes the rows read, `doubts` those faults that no option accepts.
    """

    def __init__(self, folder: Path, universe: Universe, options: ImportOptions) -> None:
        self.lines: Final[list[str]] = []
        self.doubts: Final[list[str]] = []
        self._folder: Final = folder
        self._universe: Final = universe
        self._options: Final = options
        self._parts: Final = defaultdict[tuple[str, Timeframe], list[Bars]](list)
        self._texts: Final[dict[Path, str]] = {}
        self._applied_splits: Final[set[date]] = set()

    def read(self, path: Path) -> None:
        """Read a file; each fault becomes a doubt."""
        try:
            ticker = self._find_ticker(path)
            rows = read_rows(path, self._options.formats)
            self._add(path, ticker, rows)
        except SourceError as error:
            self.doubts.append(str(error))

    def judge(self) -> None:
        """Judge each asset's bars, joined with those that the folder has."""
        timeframes = defaultdict[str, set[Timeframe]](set)
        for ticker, native in self._parts:
            stored = (
                each for each in TIMEFRAME_DURATIONS_S if self._get_path(ticker, each).exists()
            )
            timeframes[ticker].update((native, *stored))
        for (ticker, native), parts in sorted(self._parts.items()):
            try:
                if len(timeframes[ticker]) > 1:
                    raise SourceError(
                        f"{ticker}: has hourly and daily files; daily bars are built from hourly "
                        "ones, so import one of the two"
                    )
                self._judge_asset(ticker, native, parts)
            except SourceError as error:
                self.doubts.append(str(error))
        self.doubts.extend(
            f"--split {day}:{ratio:g} was applied nowhere: no bar of this day opens nearer to the "
            "close before it divided by this ratio than to that close"
            for day, ratio in self._options.splits.items()
            if day not in self._applied_splits
        )

    def write(self) -> None:
        """Write the files, each as a whole; raise SourceError if the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path, text in self._texts.items():
                path.with_name(f".{path.name}.new").write_text(text, encoding="ascii")
            for path in self._texts:
                path.with_name(f".{path.name}.new").replace(path)
        except OSError as error:
            raise SourceError(f"{self._folder}: {error.strerror}") from None

    def _get_path(self, ticker: str, what: str) -> Path:
        packed = self._folder / f"{ticker}_{what}.csv.gz"
        return packed if packed.exists() else self._folder / f"{ticker}_{what}.csv"

    def _find_ticker(self, path: Path) -> str:
        """Return the asset that a file's name means."""
        if (ticker := self._options.ticker) is not None:
            if ticker not in self._universe.by_ticker:
                raise SourceError(f"{path}: the universe has no ticker {ticker!r}")
            return ticker
        found, quotes = set[str](), set[str]()
        words = re.findall(r"[A-Z0-9]+", path.name.upper())
        known = self._list_names()
        for word, following in pairwise([*words, ""]):
            for name in (word, word + following):
                if name in known:
                    found.add(known[name])
            # Of other words, such as BARS, the end means nothing.
            is_pair = (not word[:-3] or word[:-3] in known) and word not in known
            quotes.update(quote for quote in OTHER_QUOTES if is_pair and word.endswith(quote))
        if len(found) != 1 or quotes:
            why = f"may be of {', '.join(sorted(found))}" if found else "names no known asset"
            why = f"has prices in {', '.join(sorted(quotes))}" if quotes and found else why
            raise SourceError(f"{path}: its name {why}; say which by --ticker")
        return found.pop()

    def _list_names(self) -> dict[str, str]:
        """Return the names that files may have for each asset: tickers and source symbols."""
        names: dict[str, str] = {}
        for asset in self._universe.assets:
            symbols = [listing.symbol.partition(":")[0] for listing in asset.listings]
            own = [f"{asset.ticker}{quote}" for quote in DOLLARS]
            for name in (*own, *(re.sub("[^A-Z0-9]", "", symbol.upper()) for symbol in symbols)):
                names.setdefault(name, asset.ticker)
        for alias, ticker in ALIASES.items():
            names |= {f"{alias}{q}": ticker for q in DOLLARS if ticker in self._universe.by_ticker}
        return names

    def _add(self, path: Path, ticker: str, rows: FileRows) -> None:
        """Add a file's rows as bars of the asset's timeframe."""
        session, left_out = self._universe.by_ticker[ticker].session, judgement.RejectedRows()
        if rows.unreadable:
            left_out.counts["cannot be read"] = rows.unreadable
        times, table = self._drop_repeats(str(path), (rows.times, rows.table), left_out)
        without = judgement.mark_without_volume(table[:, 4])
        table[without, 4] = 0
        faults = find_value_faults(times, table)
        left_out.add(times, faults)
        faulty = np.count_nonzero(faults)
        if faulty > max(MAX_FAULTY_ROWS, MAX_FAULTY_SHARE * len(faults)):
            raise SourceError(
                f"{path}: {faulty} of {len(faults)} rows cannot be right, so its columns are other "
                f"ones{_format_counts(left_out)}; name them by --columns"
            )
        times, table = times[faults == 0], table[faults == 0]
        spacing_s = judgement.find_spacing(times)
        # A tail of one row does not show a period, but the folder may.
        for stored, period_s in (("1h", HOUR_S), ("1d", DAY_S)):
            if not spacing_s and self._get_path(ticker, stored).exists():
                spacing_s = period_s
        if not spacing_s:
            raise SourceError(f"a file of {ticker} has too few rows to show how far apart they are")
        is_at_close = bool(len(times) and np.count_nonzero(times % 60 == 59) * 2 > len(times))
        if self._options.stamp == "close":
            if session == "24x7" or abs(spacing_s - DAY_S) > HOUR_S:
                times = times + is_at_close - spacing_s
            # A session's daily bar belongs to the trading day in which it ends; a date names it.
            elif not is_at_close:
                times = times - (times % DAY_S != 0)
        elif is_at_close and self._options.stamp is None:
            raise SourceError(f"{path}: rows are stamped at their close; import with --stamp close")
        native: Timeframe = "1h" if spacing_s <= HOUR_S else "1d"
        if abs(spacing_s - DAY_S) > HOUR_S and (spacing_s > HOUR_S or HOUR_S % spacing_s):
            raise SourceError(
                f"{path}: most rows are {spacing_s} s apart; bars of an hour, a part of one or a "
                "day are needed"
            )
        read = f"{len(rows.times):,} rows {spacing_s} s apart"
        is_closed = judgement.find_ends(session, times, spacing_s) <= path.stat().st_mtime
        if forming := int((~is_closed).sum()):
            left_out.counts["had not closed when the file was written"] = forming
        times, table = times[is_closed], table[is_closed]
        if forming and not len(times):
            raise SourceError(f"{path}: no bar of it had closed when the file was written")
        if spacing_s < HOUR_S and len(times):
            times, table = _join_hours(session, times, table, spacing_s, left_out)
            read += f", joined to {len(times):,} hours"
        self.lines.append(
            f"{path.name}: {ticker} {native}, {read}, {_format_span(times)}, "
            f"times in {rows.zone}{_format_counts(left_out)}"
        )
        if session != "24x7" and rows.zone == ASSUMED_ZONE and len(times):
            inside = times[judgement.find_session_faults(session, times, native) == 0]
            missing = len(judgement.list_holes(session, inside, native))
            if 3 * missing > len(inside) or not len(inside):
                self.doubts.append(
                    f"{path}: if its times are in UTC, more than a quarter of the bars of its "
                    "session are missing; name their zone by --zone, such as America/New_York, or "
                    "UTC to accept it"
                )
        if len(times):
            self._parts[ticker, native].append((times, table))

    def _drop_repeats(self, name: str, bars: Bars, left_out: judgement.RejectedRows) -> Bars:
        """Return rows in order of time, one of each; rows of one time must not differ in prices."""
        order = np.argsort(bars[0], kind="stable")
        times, table = bars[0][order], bars[1][order]
        keep = self._options.repeated
        if keep is None:
            conflict = judgement.find_conflict(times, [*table.T[:4]])
            if conflict is not None:
                before, after = table[conflict - 1, :4].tolist(), table[conflict, :4].tolist()
                raise SourceError(
                    f"{name}: rows of {_format_time(int(times[conflict]))} differ: {before} and "
                    f"{after}; import with --repeated last, or first, to keep one of them"
                )
        edge = times[1:] != times[:-1]
        chosen = np.append(True, edge) if keep == "first" else np.append(edge, True)
        if dropped := int((~chosen[: len(times)]).sum()):
            left_out.counts["repeats another row"] += dropped
        return times[chosen[: len(times)]], table[chosen[: len(times)]]

    def _judge_asset(self, ticker: str, native: Timeframe, parts: Sequence[Bars]) -> None:
        session, path = self._universe.by_ticker[ticker].session, self._get_path(ticker, native)
        stored = [read_table(path, BARS_HEADER)] if path.exists() else []
        times, table = map(np.concatenate, zip(*stored, *parts, strict=True))
        left_out = judgement.RejectedRows()
        opens = judgement.find_opens(session, times, native)
        times, table = self._drop_repeats(path.name, (opens, table), left_out)
        jumps_path = self._get_path(ticker, "jumps")
        listed = set(
            read_table(jumps_path, JUMPS_HEADER)[0].tolist() if jumps_path.exists() else ()
        )
        self._apply_splits(times, table)
        for jump in judgement.list_jumps(times, table[:, 0], table[:, 3]):
            if date.fromisoformat(jump.day) in self._options.accepted_jumps:
                listed.add(jump.time)
        bars = judgement.FileBars(times, [*table.T], native)
        verdict = judgement.judge_bars(bars, session, left_out)
        if verdict.wrong_times:
            raise SourceError(f"{path.name}: {verdict.wrong_times}")
        for jump in verdict.jumps:
            if jump.time not in listed:
                self.doubts.append(
                    f"{path.name}: {jump.describe()}; import with --split {jump.split_option}, or "
                    f"with --accept-jump {jump.day} if the market moved so"
                )
        self.lines.append(
            f"{path.name}: {len(bars.open_time):,} bars, {_format_span(bars.open_time)}, "
            f"{len(bars.missing)} missing{_format_times(bars.missing)}{_format_counts(left_out)}"
        )
        rows = zip(bars.open_time.tolist(), *(c.tolist() for c in bars.columns), strict=True)
        self._add_text(path, BARS_HEADER, (f"{t},{','.join(map(repr, row))}" for t, *row in rows))
        if listed:
            self._add_text(jumps_path, JUMPS_HEADER, map(str, sorted(listed)))

    def _apply_splits(self, times: Times, table: Prices) -> None:
        """Adjust the prices before the named splits, however far the market moved with them."""
        factors = table[:-1, 3] / table[1:, 0]
        for day, ratio in self._options.splits.items():
            places = np.flatnonzero(times[1:] // DAY_S == (day - date(1970, 1, 1)).days)
            if not len(places):
                continue
            distances = np.abs(np.log(factors[places] / ratio))
            # Nearer to the ratio than to 1: otherwise the prices are adjusted already.
            if distances.min() < abs(log(ratio)) / 2:
                first = int(places[distances.argmin()]) + 1
                table[:first, :4] /= ratio
                table[:first, 4] *= ratio
                self._applied_splits.add(day)

    def _add_text(self, path: Path, header: Sequence[str], lines: Iterator[str]) -> None:
        if path.suffix == ".gz":
            raise SourceError(f"{path}: is packed; unpack it, so that rows can be added")
        self._texts[path] = "\n".join([",".join(header), *lines, ""])


def _join_hours(
    session: Calendar, times: Times, table: Prices, spacing_s: int, left_out: judgement.RejectedRows
) -> Bars:
    """Return the hourly bars of finer ones; hours at an end or a gap count only as a whole."""
    expected = list_expected_bars(session, int(times[0]), int(times[-1]) + HOUR_S)
    places = np.searchsorted(expected.close_time, times + spacing_s)
    begins = np.append(expected.begin_time, np.iinfo(np.int64).max)[places]
    is_inside = times >= begins
    if outside := int((~is_inside).sum()):
        left_out.counts["opens while its session is closed"] += outside
    times, table, begins = times[is_inside], table[is_inside], begins[is_inside]
    if not len(times):
        return times, table
    fine = Series(times, times + spacing_s, *(np.ascontiguousarray(c) for c in table.T))
    hours = resample_bars(fine, HOUR_S)
    is_whole = hours.close_time <= fine.close_time[-1]
    is_whole[0] &= times[0] == begins[0]
    # Beside a missing hour, rows that do not reach it are a part too.
    holes = judgement.list_holes(session, hours.open_time, "1h")
    first = np.searchsorted(fine.close_time, hours.close_time - HOUR_S, side="right")
    last = np.searchsorted(fine.close_time, hours.close_time, side="right") - 1
    is_late = fine.open_time[first] > begins[first]
    is_short = fine.close_time[last] < hours.close_time
    is_whole &= ~(is_late & np.isin(hours.close_time - HOUR_S, holes))
    is_whole &= ~(is_short & np.isin(hours.close_time + HOUR_S, holes))
    if parts := int((~is_whole).sum()):
        left_out.counts["is a part of an hour at an end of the file or a gap"] += parts
    hours = hours.select(is_whole)
    columns = hours.open, hours.high, hours.low, hours.close, hours.volume
    return hours.open_time, np.column_stack(columns)


def _format_time(time: int) -> str:
    return format_instant(1000 * time)[:16] + "Z"


def _format_span(times: Times) -> str:
    return f"{_format_time(int(times[0]))} to {_format_time(int(times[-1]))}" if len(times) else "-"


def _format_times(times: Times) -> str:
    shown = ", ".join(_format_time(int(time)) for time in times[:SHOWN_NAMES])
    more = ", ..." if len(times) > SHOWN_NAMES else ""
    return f" (closing {shown}{more})" if len(times) else ""


def _format_counts(left_out: judgement.RejectedRows) -> str:
    return "".join(f"; left out: {count} ({why})" for why, count in left_out.counts.items())

"""Files of all formats become a folder that the recorded source reads; nothing doubtful is written.

Expected values are worked out by hand from calendars and clocks.
"""

import csv
import gzip
import io
import os
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from compute.bars import BAR_FAULTS, DAY_S, HOUR_S
from compute.sources import bar_formats, bar_judgement as judgement
from compute.sources.bar_formats import FormatOptions, read_rows
from compute.sources.bar_import import BarImport, ImportOptions
from compute.sources.files import FilesSource
from compute.sources.source import SourceError
from compute.trading_sessions import Calendar
from compute.universe import load_universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe

pytestmark = pytest.mark.clause("sources")

UNIVERSE = load_universe()
# 2024-06-03T00:00Z, a Monday.
START = 1_717_372_800
Row = tuple[float, float, float, float, float]


def make_rows(count: int, price: float = 100.0) -> list[Row]:
    """Return rows whose price rises by 1 each."""
    return [
        (price + n, price + n + 2, price + n - 1, price + n + 1, 10.0 + n) for n in range(count)
    ]


def write_rows(path: Path, first: int, step: int, rows: list[Row]) -> Path:
    lines = (f"{first + n * step},{','.join(map(repr, row))}" for n, row in enumerate(rows))
    path.write_text("\n".join(["time,open,high,low,close,volume", *lines, ""]), encoding="utf-8")
    return path


def run_import(folder: Path, *paths: Path, **options: Any) -> BarImport:
    """Import files into a folder, unless anything is doubtful."""
    bars = BarImport(folder, UNIVERSE, ImportOptions(**options))
    for path in paths:
        bars.read(path)
    bars.judge()
    if not bars.doubts:
        bars.write()
    return bars


def load_rows(path: Path, missing: int = 0) -> dict[int, list[float]]:
    """Return what a written file has, in which the recorded source doubts only missing bars."""
    source = FilesSource(path.parent, UNIVERSE)
    holes = [f"bars missing inside the files: {path.name[:-7]} {missing}"] if missing else []
    assert (source.doubts, sum(source.rejected_counts.values())) == (holes, 0)
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        assert next(rows) == ["ts", "open", "high", "low", "close", "volume"]
        return {int(time): [float(cell) for cell in row] for time, *row in rows}


@pytest.mark.parametrize(
    ("name", "ticker"),
    [
        ("BTCUSDT-1h-2024-06.zip", "BTC"),
        ("BTC-USD.csv", "BTC"),
        ("Binance_BTCUSDT_1h.csv", "BTC"),
        ("BTC_USDT-1h.json", "BTC"),
        ("XBTUSD_60.csv", "BTC"),
        ("BINANCE_ETHUSDT, 60.csv", "ETH"),
        ("nvda.us.txt", "NVDA"),
        ("BTC_bars_open.csv", "BTC"),
        ("NVDA_1h.csv", "NVDA"),
    ],
)
def test_the_asset_is_known_by_the_name_of_the_file(tmp_path: Path, name: str, ticker: str):
    bars = BarImport(tmp_path, UNIVERSE, ImportOptions())
    bars.read(write_rows(tmp_path / name, START + 16 * HOUR_S, HOUR_S, make_rows(4)))
    assert bars.doubts == []
    assert f": {ticker} 1h, 4 rows 3600 s apart" in bars.lines[0]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("prices.csv", "names no known asset"),
        ("BTC-EUR.csv", "has prices in EUR"),
        ("BTC-INR.csv", "has prices in INR"),
        ("BTC_BTCZAR.csv", "has prices in ZAR"),
        ("ETH-BTC.csv", "may be of BTC, ETH"),
    ],
)
def test_a_name_that_leaves_the_asset_open_is_doubtful_until_it_is_given(
    tmp_path: Path, name: str, fault: str
):
    path = write_rows(tmp_path / name, START, HOUR_S, make_rows(5))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert fault in doubt
    assert doubt.endswith("say which by --ticker")
    assert not (tmp_path / "to").exists()
    run_import(tmp_path / "to", path, ticker="ADA")
    assert len(load_rows(tmp_path / "to" / "ADA_1h.csv")) == 5
    [doubt] = run_import(tmp_path / "to", path, ticker="NOPE").doubts
    assert "the universe has no ticker 'NOPE'" in doubt


def test_finer_bars_are_joined_to_whole_hours_exactly(tmp_path: Path):
    # 00:30 to 03:20 in steps of ten minutes: the hours from 01:00 to 03:00 are whole.
    path = write_rows(tmp_path / "ETHUSD_10.csv", START + HOUR_S // 2, 600, make_rows(17))
    bars = run_import(tmp_path / "to", path)
    assert "joined to 2 hours" in bars.lines[0]
    assert bars.lines[0].endswith(
        "left out: 2 (is a part of an hour at an end of the file or a gap)"
    )
    # Rows 3 to 8 and 9 to 14: first open, highest, lowest, last close, sum of volumes.
    assert load_rows(tmp_path / "to" / "ETH_1h.csv") == {
        START + HOUR_S: [103.0, 110.0, 102.0, 109.0, 13 + 14 + 15 + 16 + 17 + 18],
        START + 2 * HOUR_S: [109.0, 116.0, 108.0, 115.0, 19 + 20 + 21 + 22 + 23 + 24],
    }


def test_hours_beside_a_gap_that_have_a_part_of_their_rows_are_left_out(tmp_path: Path):
    # Ten-minute bars from 00:00 to 06:00 without those from 01:20 to 04:40; without 05:20 alone,
    # as in a market without trades for a while, an hour counts.
    path = write_rows(tmp_path / "ETH.csv", START, 600, make_rows(36))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:9], *lines[29:33], *lines[34:], ""]))
    bars = run_import(tmp_path / "to", path)
    assert bars.lines[0].endswith(
        "left out: 2 (is a part of an hour at an end of the file or a gap)"
    )
    assert [*load_rows(tmp_path / "to" / "ETH_1h.csv", 4)] == [START, START + 5 * HOUR_S]


def test_half_hours_of_a_stock_give_the_hours_of_its_session(tmp_path: Path):
    # 12:00 to 21:00 UTC: New York trades from 13:30 to 20:00.
    path = write_rows(tmp_path / "NVDA.csv", START + 12 * HOUR_S, 1800, make_rows(18))
    bars = run_import(tmp_path / "to", path)
    assert "left out: 5 (opens while its session is closed)" in bars.lines[0]
    rows = load_rows(tmp_path / "to" / "NVDA_1h.csv")
    # The first one has half an hour of trading.
    opens = [START + hour * HOUR_S for hour in range(13, 20)]
    assert [*rows] == opens
    assert rows[opens[0]] == [103.0, 105.0, 102.0, 104.0, 13.0]


def test_a_tail_and_the_file_of_a_new_asset_are_merged_into_a_folder(tmp_path: Path):
    to, rows = tmp_path / "to", make_rows(10)
    run_import(to, write_rows(tmp_path / "BTC_1h.csv", START, HOUR_S, rows[:8]))
    # A rolling export begins later than the one before, with other volumes and one more row.
    later = [(*row[:4], 1.01 * row[4]) for row in rows[4:]]
    new = write_rows(tmp_path / "ADA_1h.csv", START, HOUR_S, rows)
    bars = run_import(
        to, write_rows(tmp_path / "BTC_1h.csv", START + 4 * HOUR_S, HOUR_S, later), new
    )
    assert bars.lines[-1].endswith("left out: 4 (repeats another row)")
    assert [row[:4] for row in load_rows(to / "BTC_1h.csv").values()] == [[*r[:4]] for r in rows]
    assert len(load_rows(to / "ADA_1h.csv")) == 10
    # A tail of a single row, which does not show how far rows are apart.
    run_import(
        to, write_rows(tmp_path / "BTC_1h.csv", START + 10 * HOUR_S, HOUR_S, make_rows(1, 110))
    )
    assert len(load_rows(to / "BTC_1h.csv")) == 11


@pytest.mark.parametrize(("keep", "close"), [("first", 101.5), ("last", 102.0)])
def test_rows_of_one_time_with_other_prices_need_a_choice(tmp_path: Path, keep: str, close: float):
    rows = make_rows(5)
    forming = (*rows[1][:3], 101.5, 5.0)
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, rows)
    lines = path.read_text().splitlines()
    lines.insert(2, f"{START + HOUR_S},{','.join(map(repr, forming))}")
    path.write_text("\n".join(lines))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert "rows of 2024-06-03T01:00Z differ" in doubt
    assert "--repeated last, or first" in doubt
    run_import(tmp_path / "to", path, repeated=keep)
    assert load_rows(tmp_path / "to" / "BTC_1h.csv")[START + HOUR_S][3] == close


def test_a_revised_price_in_a_folder_needs_a_choice_too(tmp_path: Path):
    to, rows = tmp_path / "to", make_rows(5)
    run_import(to, write_rows(tmp_path / "BTC.csv", START, HOUR_S, rows))
    before = (to / "BTC_1h.csv").read_bytes()
    rows[2] = (*rows[2][:3], 102.5, 1.0)
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, rows)
    [doubt] = run_import(to, path).doubts
    assert "BTC_1h.csv: rows of 2024-06-03T02:00Z differ" in doubt
    assert (to / "BTC_1h.csv").read_bytes() == before
    run_import(to, path, repeated="last")
    assert load_rows(to / "BTC_1h.csv")[START + 2 * HOUR_S][3] == 102.5


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_jump_as_at_a_split_is_adjusted_or_accepted_by_its_day(
    tmp_path: Path, *, is_accepted: bool
):
    old, new = make_rows(30, 1000.0), make_rows(30, 103.0)
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, [*old, *new])
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert "as after a split of 10:1" in doubt
    assert "--split 2024-06-04:10, or with --accept-jump 2024-06-04" in doubt
    day = date(2024, 6, 4)
    if is_accepted:
        run_import(tmp_path / "to", path, accepted_jumps=frozenset({day}))
        first = [*old[0]]
    else:
        # Another day or ratio leaves the jump doubtful.
        assert run_import(tmp_path / "to", path, splits={date(2024, 6, 5): 10}).doubts
        assert run_import(tmp_path / "to", path, splits={day: 2}).doubts
        run_import(tmp_path / "to", path, splits={day: 10})
        first = [*(price / 10 for price in old[0][:4]), 10 * old[0][4]]
    assert load_rows(tmp_path / "to" / "BTC_1h.csv")[START] == first
    assert (tmp_path / "to" / "BTC_jumps.csv").exists() == is_accepted


@pytest.mark.parametrize(
    ("opened", "ratio"), [(100.0, 10), (91.0, 10), (112.0, 10), (890.0, 1.1), (9_300.0, 0.1)]
)
def test_a_named_split_is_applied_however_far_the_market_moved_with_it(
    tmp_path: Path, opened: float, ratio: float
):
    # Closes at 1000 before the split, which opens 9 % below to 12 % above the exact ratio.
    rows = [(970.0, 1010.0, 960.0, 1000.0, 7.0)] * 20 + [(opened,) * 4 + (7.0,)] * 20
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, rows)
    assert run_import(tmp_path / "to", path, splits={date(2024, 6, 3): ratio}).doubts == []
    written = [*load_rows(tmp_path / "to" / "BTC_1h.csv").values()]
    assert written[19] == pytest.approx([p / ratio for p in (970, 1010, 960, 1000)] + [7 * ratio])
    assert written[20] == [opened] * 4 + [7.0]


# Bars from Monday on, stamped as vendors do; New York closes at 20:00 UTC.
@pytest.mark.parametrize(
    ("ticker", "timeframe", "stamp"),
    [
        ("BTC", "1h", HOUR_S - 1),
        ("ADA", "1h", HOUR_S),
        ("BTC", "1d", DAY_S - 1),
        *(("NVDA", "1d", at) for at in (20 * HOUR_S, 20 * HOUR_S - 1, 24 * HOUR_S - 1, 0)),
    ],
)
def test_stamps_at_the_close_are_moved_to_the_opening_or_the_trading_day_if_that_is_said(
    tmp_path: Path, ticker: str, timeframe: Timeframe, stamp: int
):
    step = TIMEFRAME_DURATIONS_S[timeframe]
    path = write_rows(tmp_path / f"{ticker}.csv", START + stamp, step, make_rows(5))
    assert run_import(tmp_path / "to", path, stamp="close").doubts == []
    written = load_rows(tmp_path / "to" / f"{ticker}_{timeframe}.csv")
    assert [*written] == [START + n * step for n in range(5)]


@pytest.mark.parametrize(
    ("stamp", "step", "count", "splits", "expected"),
    [
        *((0, s, 5, {}, f"most rows are {s} s apart") for s in (4 * HOUR_S, 7 * DAY_S, 2700)),
        (HOUR_S - 1, HOUR_S, 5, {}, "rows are stamped at their close; import with --stamp close"),
        (0, HOUR_S, 1, {}, "too few rows"),
        *(
            (0, HOUR_S, 30, {day: 10}, f"--split {day}:10 was applied nowhere: ")
            for day in (date(2024, 6, 3), date(2024, 6, 9))
        ),
    ],
)
def test_a_file_with_other_bars_or_other_splits_than_said_is_doubtful(
    tmp_path: Path, stamp: int, step: int, count: int, splits: dict[date, float], expected: str
):
    path = write_rows(tmp_path / "BTC.csv", START + stamp, step, make_rows(count))
    [doubt] = run_import(tmp_path / "to", path, splits=splits).doubts
    assert expected in doubt


def test_gaps_rows_outside_the_session_and_faulty_rows_are_reported(tmp_path: Path):
    rows = make_rows(30)
    rows[20] = (1.0, 0.5, 2.0, 1.0, 1.0)
    path = write_rows(tmp_path / "NVDA.csv", START + 12 * HOUR_S, HOUR_S, rows)
    bars = run_import(tmp_path / "to", path)
    assert bars.doubts == []
    assert bars.lines[0].endswith("; left out: 1 (high is below low)")
    assert "0 missing" in bars.lines[1]
    assert "(opens while its session is closed)" in bars.lines[1]
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, make_rows(5))
    path.write_text(path.read_text().replace(f"\n{START + 2 * HOUR_S},", "\n#"))
    bars = run_import(tmp_path / "to", path)
    assert bars.doubts == []
    assert bars.lines[0].endswith("; left out: 1 (cannot be read)")
    assert "1 missing (closing 2024-06-03T03:00Z)" in bars.lines[1]


@pytest.mark.parametrize(("faulty", "is_refused"), [(1, False), (3, False), (4, True)])
def test_a_file_with_more_than_a_hundredth_of_faulty_rows_has_other_columns(
    tmp_path: Path, faulty: int, *, is_refused: bool
):
    # High and low are exchanged in some of 300 rows.
    rows = make_rows(300)
    rows[:faulty] = [(o, low, high, c, v) for o, high, low, c, v in rows[:faulty]]
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, rows)
    doubts = run_import(tmp_path / "to", path).doubts
    assert len(doubts) == is_refused
    if is_refused:
        assert "4 of 300 rows cannot be right" in doubts[0]
        assert doubts[0].endswith("left out: 4 (high is below low); name them by --columns")


def test_daily_bars_belong_to_their_trading_day_and_hourly_ones_exclude_them(tmp_path: Path):
    # At the opening of New York, 13:30 UTC, from Monday to Friday.
    path = write_rows(tmp_path / "NVDA.csv", START + 27 * HOUR_S // 2, DAY_S, make_rows(5))
    run_import(tmp_path / "to", path)
    assert [*load_rows(tmp_path / "to" / "NVDA_1d.csv")] == [START + n * DAY_S for n in range(5)]
    hourly = write_rows(tmp_path / "NVDA_1h.csv", START + 14 * HOUR_S, HOUR_S, make_rows(5))
    [doubt] = run_import(tmp_path / "to", hourly).doubts
    assert "has hourly and daily files" in doubt


def test_the_forming_bar_is_left_out_by_when_the_file_was_written(tmp_path: Path):
    # The written bars of five, by when a file of them was written after the first one's opening.
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, make_rows(5))
    left_out = "left out: 1 (had not closed when the file was written)"
    os.utime(path, (0, START + 5 * HOUR_S - 1))
    assert run_import(tmp_path / "to", path).lines[0].endswith(left_out)
    assert [*load_rows(tmp_path / "to" / "BTC_1h.csv")] == [START + n * HOUR_S for n in range(4)]
    os.utime(path, (0, START + 5 * HOUR_S))
    run_import(tmp_path / "to", path)
    assert len(load_rows(tmp_path / "to" / "BTC_1h.csv")) == 5
    os.utime(path, (0, START))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert doubt == f"{path}: no bar of it had closed when the file was written"


# New York's midnight and opening, and 00:00 UTC for the date; its session ends at 20:00 UTC.
@pytest.mark.parametrize("stamp", [0, 4 * HOUR_S, 27 * HOUR_S // 2])
def test_a_stocks_daily_bar_has_closed_with_its_session(tmp_path: Path, stamp: int):
    path = write_rows(tmp_path / "NVDA.csv", START + stamp, DAY_S, make_rows(5))
    for written_s, count in ((20 * HOUR_S, 5), (20 * HOUR_S - 1, 4)):
        os.utime(path, (0, START + 4 * DAY_S + written_s))
        to = tmp_path / str(count)
        assert run_import(to, path).doubts == []
        assert len(load_rows(to / "NVDA_1d.csv")) == count


def test_each_refusal_of_the_recorded_source_ends_with_the_import_that_helps(tmp_path: Path):
    folder = tmp_path / "bars"
    folder.mkdir()
    path, own = folder / "BTC_1h.csv", "ts,open,high,low,close,volume"
    rows = [f"{START + n * HOUR_S},{','.join(map(repr, r))}" for n, r in enumerate(make_rows(9))]
    split = [f"{START + n * HOUR_S},10.9,11,10,10.9,1" for n in range(9, 20)]
    texts = {
        "": ["time,open,high,low,close,volume", *rows],
        " --repeated last": [own, *rows, rows[3].replace(",104.0,", ",103.5,")],
        " --stamp close": [own, *(r.replace(r[:10], str(int(r[:10]) + 3599)) for r in rows)],
        " --split 2024-06-03:10": [own, *rows, *split],
    }
    for option, lines in texts.items():
        path.write_text("\n".join([*lines, ""]))
        with pytest.raises(SourceError) as caught:
            FilesSource(folder, UNIVERSE)
        assert str(caught.value).endswith(f"signals import {path} --to DIR{option}")


def test_a_zone_is_named_as_it_was_assumed(tmp_path: Path):
    path = tmp_path / "BTC.csv"
    times = "2024-06-03 02:00", "2024-06-03 03:00"
    path.write_text("Time,O,H,L,C\n" + "".join(f"{time},1,1,1,1\n" for time in times))
    assert "times in UTC, which the file does not say" in run_import(tmp_path / "a", path).lines[0]
    zone = FormatOptions(zone="Europe/Berlin")
    assert "times in Europe/Berlin" in run_import(tmp_path / "b", path, formats=zone).lines[0]
    assert [*load_rows(tmp_path / "b" / "BTC_1h.csv")] == [START, START + HOUR_S]


# A day's hours in New York: of those from 13:30 UTC on, four of seven are missing if it is UTC.
NEW_YORK = [f"2024-06-0{day} {hour:02}:30" for day in (3, 4, 5) for hour in range(9, 16)]


@pytest.mark.parametrize(
    ("zone", "opens", "missing"),
    [
        ("America/New_York", [13.5, 14.5, 15.5, 16.5, 17.5, 18.5, 19.5], 0),
        ("UTC", [13.5, 14.5, 15.5], 8),
    ],
)
def test_local_times_of_a_stock_without_a_zone_need_one(
    tmp_path: Path, zone: str, opens: list[float], missing: int
):
    path = tmp_path / "NVDA.csv"
    path.write_text("Time,O,H,L,C\n" + "".join(f"{time},1,1,1,1\n" for time in NEW_YORK))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert "more than a quarter of the bars of its session are missing" in doubt
    assert "name their zone by --zone" in doubt
    assert run_import(tmp_path / "to", path, formats=FormatOptions(zone=zone)).doubts == []
    days = [START + day * DAY_S for day in range(3)]
    wanted = [day + int(hour * HOUR_S) for day in days for hour in opens]
    assert [*load_rows(tmp_path / "to" / "NVDA_1h.csv", missing)] == wanted


def test_times_of_a_stock_that_fit_its_session_in_utc_need_no_zone(tmp_path: Path):
    path = tmp_path / "NVDA.csv"
    times = [f"2024-06-03 {hour}:30" for hour in range(13, 20)]
    path.write_text("Time,O,H,L,C\n" + "".join(f"{time},1,1,1,1\n" for time in times))
    assert run_import(tmp_path / "to", path).doubts == []


ZONE = ZoneInfo("America/New_York")
WEDNESDAY = 1_704_240_000  # 2024-01-03T00:00Z, a Wednesday


def at(*texts: str) -> np.ndarray:
    """Return times in New York, or in UTC if they end with Z."""
    times = (datetime.fromisoformat(text) for text in texts)
    zoned = (time if time.tzinfo else time.replace(tzinfo=ZONE) for time in times)
    return np.array([int(time.timestamp()) for time in zoned], dtype=np.int64)


def span(step_s: int, count: int = 30, first: int = WEDNESDAY) -> np.ndarray:
    return first + step_s * np.arange(count, dtype=np.int64)


def weekdays(clock: str) -> np.ndarray:
    """Return 40 weekdays around the change of clocks on 2024-03-10, at a time in New York."""
    days = np.arange("2024-02-19", "2024-04-13", dtype="datetime64[D]")
    return at(*(f"{day}T{clock}" for day in days[np.is_busday(days)]))


@pytest.mark.parametrize(
    ("times", "timeframe", "expected"),
    [
        (
            span(DAY_S),
            "1h",
            "most rows are 86400 s apart, but 1h bars are 3600 s apart; rename it to",
        ),
        (
            span(4 * HOUR_S),
            "1h",
            "most rows are 14400 s apart, but 1h bars are 3600 s apart; write a file",
        ),
        (span(300), "1h", "most rows are 300 s apart, but 1h bars are 3600 s apart; write a file"),
        (
            span(HOUR_S),
            "1d",
            "most rows are 3600 s apart, but 1d bars are 86400 s apart; rename it to",
        ),
        (
            span(7 * DAY_S),
            "1d",
            "most rows are 604800 s apart, but 1d bars are 86400 s apart; write a",
        ),
        (
            span(HOUR_S, first=WEDNESDAY + 3599),
            "1h",
            "rows are stamped at their close (the first",
        ),
        (
            span(DAY_S, first=WEDNESDAY + 86_399),
            "1d",
            "rows are stamped at their close (the first",
        ),
        (span(HOUR_S), "1h", ""),
        (span(HOUR_S)[::3], "1h", "most rows are 10800 s apart, but 1h bars are 3600 s apart;"),
        (np.delete(span(HOUR_S), [3, 4, 9, 15, 16, 17]), "1h", ""),
        (span(HOUR_S, first=WEDNESDAY + 1800), "1h", ""),
        (span(DAY_S, count=3), "1h", ""),
        (np.repeat(span(HOUR_S), 2), "1h", ""),
        (weekdays("00:00"), "1d", ""),
        (weekdays("16:00"), "1d", ""),
    ],
)
def test_the_spacing_of_rows_must_be_that_of_the_timeframe(
    times: np.ndarray, timeframe: Timeframe, expected: str
):
    fault = judgement.describe_wrong_times("24x7", times, timeframe)
    assert fault.startswith(expected)
    assert bool(fault) == bool(expected)


@pytest.mark.parametrize(
    ("session", "wanted"),
    [
        ("24x7", "the opening time, so subtract 86399 from each"),
        ("XNAS", "00:00 UTC of the trading day"),
    ],
)
def test_the_remedy_for_daily_stamps_at_the_close_keeps_the_trading_day(
    session: Calendar, wanted: str
):
    # 15:59:59 in New York.
    times = weekdays("15:59") + 59
    assert judgement.describe_wrong_times(session, times, "1d").endswith(f"ts must be {wanted}")


FRIDAY, MONDAY = "2024-03-08", "2024-03-11"  # clocks changed between them


@pytest.mark.parametrize(
    ("session", "stamp", "expected"),
    [
        *(("XNYS", f"{FRIDAY}T{clock}", FRIDAY) for clock in ("00:00", "09:30", "16:00", "23:00")),
        *(("XNAS", f"{MONDAY}T{clock}", MONDAY) for clock in ("00:00", "09:30", "16:00", "19:00")),
        ("XNYS", f"{FRIDAY}T00:00Z", FRIDAY),
        ("24x5", f"{MONDAY}T00:00Z", MONDAY),
        ("24x5", f"{MONDAY}T00:00", MONDAY),
        ("24x5", "2024-03-10T18:00", MONDAY),
        ("24x5", f"{MONDAY}T17:00", MONDAY),
        ("24x5", f"{MONDAY}T18:00", "2024-03-12"),
    ],
)
def test_a_daily_bar_belongs_to_its_trading_day_whatever_its_stamp(
    session: Calendar, stamp: str, expected: str
):
    opens = judgement.find_opens(session, at(stamp), "1d")
    assert opens.tolist() == at(f"{expected}T00:00Z").tolist()


def test_hourly_bars_and_coins_keep_their_stamps():
    times = at(f"{FRIDAY}T09:30", f"{FRIDAY}T16:00Z")
    assert judgement.find_opens("XNYS", times, "1h").tolist() == times.tolist()
    assert judgement.find_opens("24x7", times, "1d").tolist() == times.tolist()


REGULAR = [f"2024-07-05T{clock}" for clock in ("09:30", "10:30", "14:30", "15:30")]
ON_HOURS = [f"2024-07-05T{clock}" for clock in ("09:00", "10:00", "14:00", "15:00")]


@pytest.mark.parametrize(
    ("session", "timeframe", "inside", "outside"),
    [
        ("XNAS", "1h", REGULAR, ["2024-07-05T04:00", "2024-07-05T09:00", "2024-07-05T16:00"]),
        ("XNAS", "1h", ON_HOURS, ["2024-07-05T08:00", "2024-07-05T16:00", "2024-07-05T19:30"]),
        ("XNYS", "1h", ["2024-07-03T12:30"], ["2024-07-03T13:00", "2024-07-04T10:30"]),
        ("XNYS", "1d", ["2024-07-03T00:00Z"], ["2024-07-04T00:00Z", "2024-07-06T00:00Z"]),
        ("XNYS", "1d", ["1997-01-20T00:00Z"], ["1998-01-19T00:00Z"]),  # Martin Luther King
        (
            "24x5",
            "1h",
            ["2024-07-05T16:00", "2024-07-07T18:00", "2024-07-08T16:00"],
            ["2024-07-05T17:00", "2024-07-06T12:00", "2024-07-07T17:00", "2024-07-08T17:00"],
        ),
        ("24x7", "1h", ["2024-07-06T12:00", "2024-12-25T12:00"], []),
    ],
)
def test_bars_outside_the_session_are_found(
    session: Calendar, timeframe: Timeframe, inside: list[str], outside: list[str]
):
    times = np.sort(np.concatenate([at(*inside), at(*outside)]))
    faults = judgement.find_session_faults(session, times, timeframe)
    assert times[faults != 0].tolist() == at(*outside).tolist()
    assert {BAR_FAULTS[fault] for fault in faults[faults != 0]} <= {
        "opens while its session is closed"
    }


@pytest.mark.parametrize(
    ("close", "opened", "ratio", "remedy"),
    [
        (1208.88, 120.37, "10:1", "divide all prices before it by 10"),  # NVDA, 2024-06-10
        (499.23, 127.58, "4:1", "divide all prices before it by 4"),  # AAPL, 2020-08-31
        (90.0, 60.2, "1.5:1", "divide all prices before it by 1.5"),
        (12.0, 121.0, "1:10", "multiply all prices before it by 10"),
        (100.0, 72.0, None, ""),
        (100.0, 139.0, None, ""),
        (100.0, 57.0, None, ""),  # a fall of 43 % is none of the usual ratios
    ],
)
def test_an_open_near_a_usual_ratio_of_the_close_before_it_is_a_jump(
    close: float, opened: float, ratio: str | None, remedy: str
):
    opens, closes = (
        np.array([close, close, opened, opened]),
        np.array([close, close, opened, opened]),
    )
    jumps = list(judgement.list_jumps(span(HOUR_S, 4), opens, closes))
    assert [jump.time for jump in jumps] == ([WEDNESDAY + 2 * HOUR_S] if ratio else [])
    for jump in jumps:
        assert jump.describe().endswith(f"as after a split of {ratio}; {remedy}")


@pytest.mark.parametrize(
    ("times", "opens", "closes"),
    [
        (span(HOUR_S, 4), [100, 100, 10, 100], [100, 100, 100, 100]),  # a wrong open
        (span(HOUR_S, 4), [100, 100, 10, 10], [100, 100, 10, 100]),  # a wrong bar
        (span(6 * DAY_S, 4), [100, 100, 10, 10], [100, 100, 10, 10]),  # a hole
    ],
)
def test_a_wrong_row_and_a_hole_are_no_jump(
    times: np.ndarray, opens: list[float], closes: list[float]
):
    assert not list(judgement.list_jumps(times, np.array(opens), np.array(closes)))


def test_a_stock_with_bars_of_whole_weekends_is_of_another_market():
    fortnight = span(HOUR_S, 14 * 24)
    kept = fortnight[(fortnight // DAY_S + 3) % 7 < 5]
    assert [
        judgement.is_of_another_market(session, times)
        for session, times in (("XNYS", fortnight), ("XNYS", kept), ("24x5", fortnight))
    ] == [True, False, False]


@pytest.mark.parametrize(
    ("session", "timeframe", "times", "missing"),
    [
        ("24x7", "1h", np.delete(span(HOUR_S), range(3, 15)), span(HOUR_S)[4:16]),
        ("24x7", "1d", np.delete(span(DAY_S), [4]), span(DAY_S)[5:6]),
        ("24x7", "1h", span(HOUR_S), []),
        # Tuesday's 14:30 is missing; nights, half days and holidays are no holes.
        (
            "XNAS",
            "1h",
            at("2024-07-02T13:30", "2024-07-02T15:30", "2024-07-03T09:30"),
            at("2024-07-02T15:00"),
        ),
        ("XNAS", "1h", at("2024-07-03T12:30", "2024-07-05T09:30"), []),
        (
            "XNAS",
            "1d",
            at("2024-07-02T00:00Z", "2024-07-08T00:00Z"),
            [1_720_051_200, 1_720_224_000],
        ),
    ],
)
def test_holes_are_the_closes_that_the_session_expects(
    session: Calendar, timeframe: Timeframe, times: np.ndarray, missing: np.ndarray
):
    assert judgement.list_holes(session, times, timeframe).tolist() == list(missing)


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ([-1.0, -1.0], ["", ""]),
        ([np.nan, -1.0], ["", ""]),
        ([np.nan, 5.0, -1.0], ["a number is NaN or infinite", "", "volume is negative"]),
    ],
)
def test_a_volume_that_is_missing_everywhere_is_none(volumes: list[float], expected: list[str]):
    faults = judgement.find_volume_faults(np.array(volumes))
    assert [BAR_FAULTS[fault] for fault in faults] == expected


# 2025-01-01T00:00Z and 01:00Z: open, high, low, close and volume.
TWO_HOURS = [1_735_689_600, 1_735_693_200]
TWO_BARS = [[1.0, 3.0, 0.5, 2.0, 10.0], [2.0, 4.0, 1.0, 3.0, 11.0]]
TEXTS = ("2025-01-01 00:00:00", "2025-01-01 01:00:00")
KLINES = (
    "1735689600{z},1,3,0.5,2,10,1735693199{z},20,7,5,9,0\n1735693200{z},2,4,1,3,11,1,30,7,5,9,0\n"
)
NAMED = "{t},open,high,low,close,volume\n{a},1,3,0.5,2,10\n{b},2,4,1,3,11\n"


def named(title: str, *times: object) -> str:
    first, second = times
    return NAMED.format(t=title, a=first, b=second)


def pack_zip(
    text: str, names: tuple[str, ...] = ("bars.csv",), method: int = zipfile.ZIP_STORED
) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name in names:
            archive.writestr(name, text)
    return target.getvalue()


def build_frame() -> pl.DataFrame:
    days = [datetime.fromtimestamp(time, UTC) for time in TWO_HOURS]
    names = ("open", "high", "low", "close", "volume")
    columns = dict(zip(names, map(list, zip(*TWO_BARS, strict=True)), strict=True))
    return pl.DataFrame({"date": days, **columns})


def write_frame(write: Callable[[pl.DataFrame, io.BytesIO], object]) -> bytes:
    target = io.BytesIO()
    write(build_frame(), target)
    return target.getvalue()


MT5 = (
    "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>\r\n"
    "2025.01.01\t02:00:00\t1\t3\t0.5\t2\t10\t0\t4\r\n2025.01.01\t03:00:00\t2\t4\t1\t3\t11\t0\t4\r\n"
)
ALPACA = (
    '{"bars":{"BTC/USD":[{"t":"2025-01-01T00:00:00Z","o":1,"h":3,"l":0.5,"c":2,"v":10,"n":1},'
    '{"t":"2025-01-01T01:00:00Z","o":2,"h":4,"l":1,"c":3,"v":11,"n":1}]},"next_page_token":null}'
)
YFINANCE = (
    "Price,Close,High,Low,Open,Volume\nTicker,BTC-USD,BTC-USD,BTC-USD,BTC-USD,BTC-USD\n"
    "Datetime,,,,,\n2025-01-01 00:00:00+00:00,2,3,0.5,1,10\n2025-01-01 01:00:00+00:00,3,4,1,2,11\n"
)
DOWNLOAD = (
    "https://www.CryptoDataDownload.com\n"
    "unix,date,symbol,open,high,low,close,Volume BTC,Volume USDT\n"
    "1735693200000,2025-01-01 01:00:00,BTC/USDT,2,4,1,3,11,33\n"
    "1735689600000,2025-01-01 00:00:00,BTC/USDT,1,3,0.5,2,10,20\n"
)
GERMAN = (
    "Zeit;Open;High;Low;Close;Volume\n"
    "01.01.2025 01:00;1,0;3,0;0,5;2,0;10\n01.01.2025 02:00;2;4;1;3;11\n"
)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        pytest.param(KLINES.format(z="000"), {}, id="Binance Vision in ms"),
        pytest.param(KLINES.format(z="000000"), {}, id="Binance Vision in µs"),
        pytest.param(pack_zip(KLINES.format(z="000")), {}, id="Binance Vision packed"),
        pytest.param(DOWNLOAD, {}, id="CryptoDataDownload, newest first"),
        pytest.param(
            "Date,Symbol,Open,High,Low,Close,Volume BTC\n2025-01-01 01-AM,BTC,2,4,1,3,11\n"
            "2025-01-01 12-AM,BTC,1,3,0.5,2,10\n",
            {},
            id="CryptoDataDownload with hours of 12",
        ),
        pytest.param(named("time", *TWO_HOURS), {}, id="TradingView"),
        pytest.param(
            named("time", "2024-12-31T19:00:00-05:00", "2024-12-31T20:00:00-05:00"),
            {},
            id="TradingView in ISO 8601",
        ),
        pytest.param(YFINANCE, {}, id="yfinance with three header rows"),
        pytest.param(
            "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"
            "BTC,60,20250101,10000,1,3,0.5,2,10,0\nBTC,60,20250101,20000,2,4,1,3,11,0\n",
            {"zone": "Europe/Warsaw"},
            id="Stooq",
        ),
        pytest.param("1735689600,1,3,0.5,2,10,7\n1735693200,2,4,1,3,11,8\n", {}, id="Kraken"),
        pytest.param(
            "[[1735693200,1,4,2,3,11],[1735689600,0.5,3,1,2,10]]", {}, id="Coinbase's order"
        ),
        pytest.param(ALPACA, {}, id="Alpaca"),
        pytest.param(
            "[[1735689600000,1,3,0.5,2,10],[1735693200000,2,4,1,3,11]]", {}, id="ccxt and freqtrade"
        ),
        pytest.param(write_frame(pl.DataFrame.write_ipc), {}, id="freqtrade's feather"),
        pytest.param(write_frame(pl.DataFrame.write_parquet), {}, id="Parquet"),
        pytest.param(MT5, {"zone": "EET"}, id="MetaTrader 5"),
        pytest.param(MT5.encode("utf-16"), {"zone": "EET"}, id="MetaTrader 5 in UTF-16"),
        pytest.param(
            "2025.01.01,02:00,1,3,0.5,2,10\n2025.01.01,03:00,2,4,1,3,11\n",
            {"zone": "EET"},
            id="MetaTrader 4",
        ),
        pytest.param(named("ts", "1735689600.0", "1735693200.0"), {}, id="floats"),
        pytest.param(named("ts", *(f"{time}000000000" for time in TWO_HOURS)), {}, id="ns"),
        pytest.param(gzip.compress(named("ts", *TWO_HOURS).encode()), {}, id="gzip"),
        pytest.param(
            "\ufeff" + named('"TS"', *TWO_HOURS).replace("\n", "\r\n") + "\r\n",
            {},
            id="BOM, CRLF, quotes",
        ),
        pytest.param(
            GERMAN, {"zone": "Europe/Berlin", "columns": {"time": "Zeit"}}, id="decimal commas"
        ),
        pytest.param(
            named("ts", *TWO_HOURS).replace(",", ";").replace(";1;3;", ";1.0;3;"),
            {"columns": {"time": "1", "close": "Close"}},
            id="columns by number and name",
        ),
        pytest.param(
            named("Date", "01/01/2025 00:00", "01/01/2025 01:00"), {"dates": "mdy"}, id="US dates"
        ),
    ],
)
def test_a_file_of_a_known_format_gives_its_bars(
    tmp_path: Path, content: str | bytes, options: dict[str, object]
):
    path = tmp_path / "BTC"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = read_rows(path, FormatOptions(**options))
    found = sorted(zip(rows.times.tolist(), rows.table.tolist(), strict=True))
    assert found == list(zip(TWO_HOURS, TWO_BARS, strict=True))
    assert rows.unreadable == 0


def test_thousands_separators_and_prices_in_dollars_are_numbers(tmp_path: Path):
    path = tmp_path / "BTC.csv"
    path.write_text(
        "Date,Price,Open,High,Low,Vol.\n"
        '"Jan 02, 2025","44,957.5","$44,183.4","45,899.7",44166.7,1K\n'
    )
    rows = read_rows(path, FormatOptions())
    assert rows.table[0, :4].tolist() == [44183.4, 45899.7, 44166.7, 44957.5]
    assert rows.times.tolist() == [1_735_776_000]


def test_a_time_of_day_may_lack_its_zeros_and_must_be_one(tmp_path: Path):
    path = tmp_path / "BTC.csv"
    clocks = ("3000", "13000", "24:30")
    path.write_text(
        "date,time,open,high,low,close\n" + "".join(f"20250101,{c},1,1,1,1\n" for c in clocks)
    )
    rows = read_rows(path, FormatOptions(zone="UTC"))
    assert (rows.times - TWO_HOURS[0]).tolist() == [1800, 5400]
    assert rows.unreadable == 1


@pytest.mark.parametrize("step", [1, -1])
def test_an_hour_that_clocks_repeat_has_its_rows_in_the_order_of_the_file(
    tmp_path: Path, step: int
):
    path = tmp_path / "BTC.csv"
    times = ("00:30", "01:30", "01:30", "02:30")[::step]
    path.write_text("Time,O,H,L,C\n" + "".join(f"2024-11-03 {time},1,1,1,1\n" for time in times))
    rows = read_rows(path, FormatOptions(zone="America/New_York"))
    # 04:30, 05:30, 06:30 and 07:30 UTC.
    first = 1_730_608_200
    assert rows.times.tolist()[::step] == [first, first + 3600, first + 7200, first + 10_800]
    assert rows.zone == "America/New_York"
    assert read_rows(path, FormatOptions()).zone == "UTC, which the file does not say (--zone)"


PACKED = pack_zip("".join(map(str, range(300))), method=zipfile.ZIP_LZMA)
REFUSED: list[tuple[str | bytes, str]] = [
    ("", "no row with a time and four prices"),
    ("<html><body>403</body></html>", "no row with a time and four prices"),
    (bytes(range(256)), "no text in UTF-8"),
    ("[" * 100_000, "recursion"),
    *((rows, "has no row") for rows in ("[[]]", "[{}]")),
    ("[[1],[2]]", "too few columns"),
    (write_frame(lambda frame, file: frame.clear().write_parquet(file)), "has no row"),
    (PACKED[:50] + b"\xff" * 8 + PACKED[58:], "Corrupt input data"),
    ('{"bars":{"A":[[1,2]],"B":[[1,2]]}}', "2 lists of bars"),
    ("[[1735689600,1,3,0.5,2,10],[1]]", "not of one length"),
    (named("when", *TEXTS), "no column for time among when, open"),
    (MT5, "name their zone with --zone"),
    (named("Date", "01/02/2025", "02/02/2025"), "--dates dmy or mdy"),
    (named("Date", "noon", "evening"), "'noon' is in no known format"),
    (named("ts", *TWO_HOURS).replace(",3,", ",x,").replace(",4,", ",y,"), "2 of 2 rows cannot be"),
    (
        'ts;open;high;low;close\n1735689600;"1,234";"1,235";"1,233";"1,234"\n',
        "'1,234' has a comma or thousands; say which by --decimal",
    ),
    (
        "symbol,ts,open,high,low,close\nA,1735689600,1,1,1,1\nB,1735689600,1,1,1,1\n",
        "several symbols",
    ),
    (pack_zip("x", ("a.csv", "b.csv")), "the archive has 2 files"),
    (gzip.compress(b"x" * 100)[:-4], "incomplete"),
    (pack_zip("1" * 100)[:60], "incomplete"),
    # The flag of a password, in the local header and in the directory.
    (
        pack_zip("x")
        .replace(b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1")
        .replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"),
        "password required",
    ),
    (
        "Price,Close,Close,High,High,Low,Low,Open,Open\n"
        "Ticker,BTC-USD,ETH-USD,BTC-USD,ETH-USD,BTC-USD,ETH-USD,BTC-USD,ETH-USD\n"
        "Datetime,,,,,,,,\n2025-01-01 00:00:00+00:00,2,2,3,3,0.5,0.5,1,1\n",
        "has several columns 'open', as of several assets; choose one of each by its number, such "
        "as --columns open=8",
    ),
    ("[" + " " * 600 + "[1735689600,1,3,0.5,2,10]]", "more than 500 bytes of JSON; split it"),
    (b"PAR1" + b"x" * 20, ""),
    (named("ts", *TWO_HOURS) + "9" * 2000, "more than 1,000 bytes"),
]


@pytest.mark.parametrize(("content", "fault"), REFUSED, ids=[fault for _, fault in REFUSED])
def test_a_file_that_is_not_understood_is_refused_with_its_name_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, fault: str
):
    monkeypatch.setattr(bar_formats, "MAX_FILE_BYTES", 1000 if "9999" in str(content) else 10**9)
    monkeypatch.setattr(bar_formats, "MAX_JSON_BYTES", 500 if "  " in str(content) else 10**9)
    path = tmp_path / "BTC.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError) as caught:
        read_rows(path, FormatOptions())
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_column_are_named(tmp_path: Path):
    with pytest.raises(SourceError, match="no such file"):
        read_rows(tmp_path / "BTC.csv", FormatOptions())
    (tmp_path / "BTC.csv").write_text(named("ts", *TWO_HOURS))
    with pytest.raises(SourceError, match="has no column 'Last'"):
        read_rows(tmp_path / "BTC.csv", FormatOptions(columns={"close": "Last"}))

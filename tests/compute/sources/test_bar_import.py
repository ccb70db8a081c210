"""Files become a folder that the recorded source reads; nothing doubtful is written."""

import csv
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from compute.bars import DAY_S, HOUR_S
from compute.sources.bar_formats import FormatOptions
from compute.sources.bar_import import BarImport, ImportOptions
from compute.sources.files import FilesSource
from compute.sources.source import SourceError
from compute.universe import load_universe

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
    [doubt] = run_import(to, write_rows(tmp_path / "SOL.csv", START, HOUR_S, rows[:1])).doubts
    assert "too few rows" in doubt


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


@pytest.mark.parametrize("day", [date(2024, 6, 3), date(2024, 6, 9)])
def test_a_named_split_that_no_bar_needs_is_doubtful(tmp_path: Path, day: date):
    path = write_rows(tmp_path / "BTC.csv", START, HOUR_S, make_rows(30))
    [doubt] = run_import(tmp_path / "to", path, splits={day: 10}).doubts
    assert doubt.startswith(f"--split {day}:10 was applied nowhere: ")


def test_stamps_at_the_close_are_moved_if_that_is_said(tmp_path: Path):
    path = write_rows(tmp_path / "BTC.csv", START + HOUR_S - 1, HOUR_S, make_rows(5))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert doubt.endswith("rows are stamped at their close; import with --stamp close")
    run_import(tmp_path / "to", path, stamp="close")
    assert next(iter(load_rows(tmp_path / "to" / "BTC_1h.csv"))) == START
    path = write_rows(tmp_path / "ADA.csv", START + HOUR_S, HOUR_S, make_rows(5))
    run_import(tmp_path / "to", path, stamp="close")
    assert next(iter(load_rows(tmp_path / "to" / "ADA_1h.csv"))) == START


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


# Five days from Monday on, stamped as vendors do; New York closes at 20:00 UTC.
@pytest.mark.parametrize("stamp", [20 * HOUR_S, 20 * HOUR_S - 1, 24 * HOUR_S - 1, 0])
def test_a_stocks_daily_bar_stamped_at_its_close_stays_in_its_trading_day(
    tmp_path: Path, stamp: int
):
    path = write_rows(tmp_path / "NVDA.csv", START + stamp, DAY_S, make_rows(5))
    assert run_import(tmp_path / "to", path, stamp="close").doubts == []
    assert [*load_rows(tmp_path / "to" / "NVDA_1d.csv")] == [START + n * DAY_S for n in range(5)]


def test_a_coins_daily_bar_stamped_at_its_close_opens_a_day_before(tmp_path: Path):
    path = write_rows(tmp_path / "BTC.csv", START + DAY_S - 1, DAY_S, make_rows(5))
    run_import(tmp_path / "to", path, stamp="close")
    assert [*load_rows(tmp_path / "to" / "BTC_1d.csv")] == [START + n * DAY_S for n in range(5)]


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


@pytest.mark.parametrize("step", [4 * HOUR_S, 7 * DAY_S, 2700])
def test_bars_of_another_length_are_refused_with_their_distance(tmp_path: Path, step: int):
    path = write_rows(tmp_path / "BTC.csv", START, step, make_rows(5))
    [doubt] = run_import(tmp_path / "to", path).doubts
    assert f"most rows are {step} s apart" in doubt


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

"""If a folder of bars cannot be read, one line names file and row, and nothing is stored."""

from pathlib import Path

import pytest

from compute.bars import HOUR_S
from compute.sources.files import FilesSource
from compute.sources.source import SourceError
from compute.universe import Universe
from tests.compute.conftest import RunSignals
from tests.support.small_market import (
    DAY_S,
    END,
    START,
    list_opens,
    make_bars,
    replay_bars,
    write_bars,
    write_table,
)

pytestmark = pytest.mark.clause("sources")

HEADER = "ts,open,high,low,close,volume\n"
ROW = "3600,1,2,1,2,5\n"

# name: (file, its bytes, text that the line must contain besides the file's path)
BROKEN: dict[str, tuple[str, bytes, str]] = {
    "wrong header": ("BTC_1h.csv", f"time,{HEADER[3:]}{ROW}".encode(), "row 1: the header must be"),
    "no header": ("BTC_1h.csv", ROW.encode(), "row 1: the header must be"),
    "empty file": ("BTC_1h.csv", b"", "row 1: the header must be"),
    "a cell too few": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,1,2\n".encode(), "row 3: 5 cells"),
    "a cell too many": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,1,2,5,6\n".encode(), "row 3: 7"),
    "a blank line": ("BTC_1h.csv", f"{HEADER}{ROW}\n{ROW}".encode(), "row 3: 0 cells"),
    "not a number": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,x,2,5\n".encode(), "row 3: 'x'"),
    "an empty cell": ("BTC_1h.csv", f"{HEADER}7200,1,2,,2,5\n".encode(), "row 2: ''"),
    "a grouped number": ("BTC_1h.csv", f"{HEADER}7200,1_0,2,1,2,5\n".encode(), "row 2: '1_0'"),
    "not UTF-8": ("BTC_1h.csv", HEADER.encode() + b"7200,1,2,1,\xff,5\n", "not UTF-8"),
    "ts with decimals": ("BTC_1h.csv", f"{HEADER}7200.0,1,2,1,2,5\n".encode(), "row 2: '7200.0'"),
    "ts as a date": ("BTC_1h.csv", f"{HEADER}2024-01-01,1,2,1,2,5\n".encode(), "row 2: '2024-"),
    "ts in milliseconds": ("BTC_1h.csv", f"{HEADER}1704067200000,1,2,1,2,5\n".encode(), "row 2:"),
    "ts before 1970": ("BTC_1h.csv", f"{HEADER}-3600,1,2,1,2,5\n".encode(), "row 2: '-3600'"),
    "an open quote": ("BTC_1h.csv", f'{HEADER}"7200,1,2,1,2,5\n'.encode(), "row"),
    "an unknown ticker": ("WIF_1h.csv", f"{HEADER}{ROW}".encode(), "no ticker 'WIF'"),
    "a ticker in lower case": ("btc_1h.csv", f"{HEADER}{ROW}".encode(), "no ticker 'btc'"),
    "a stray name": ("notes.csv", b"a,b\n", "not a bars file"),
    "a timeframe that is built": ("BTC_4h.csv", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "a funding header": ("ETH_funding.csv", b"ts,rate\n7200,0.1\n", "row 1: the header must be"),
    "a funding rate": ("ETH_funding.csv", b"ts,funding_rate\n7200,none\n", "row 2: 'none'"),
    "a funding time": ("ETH_funding.csv", b"ts,funding_rate\nnow,0.1\n", "row 2: 'now'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_read_is_one_line_and_stores_nothing(
    case: str, tmp_path: Path, universe: Universe, signals: RunSignals
):
    name, text, expected_text = BROKEN[case]
    folder = tmp_path / "broken"
    folder.mkdir()
    write_bars(folder, "ETH", make_bars("ETH", list_opens(START, START + DAY_S)))
    (folder / name).write_bytes(text)
    with pytest.raises(SourceError) as caught:
        FilesSource(folder, universe)
    assert str(caught.value).startswith(f"{folder / name}: ")
    assert expected_text in str(caught.value)
    ran = signals("replay", "--bars", folder)
    assert (ran.status, ran.out, ran.err) == (1, "", f"signals: {caught.value}\n")
    assert not (tmp_path / "cli.db").exists()


def test_an_unreadable_folder_leaves_an_existing_database_as_it_was(
    tmp_path: Path, signals: RunSignals
):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_bars(folder, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    assert signals("replay", "--bars", folder).status == 0
    before = (tmp_path / "cli.db").read_bytes()
    write_table(folder / "ETH_1h.csv", HEADER.strip(), [(1, 2, 3)])
    assert signals("replay", "--bars", folder).status == 1
    assert (tmp_path / "cli.db").read_bytes() == before


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "funding alone", "header alone"])
def test_a_folder_without_bars_is_one_line_and_stores_nothing(
    kind: str, tmp_path: Path, signals: RunSignals
):
    folder = tmp_path / "folder"
    if kind == "a file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    if kind == "funding alone":
        write_table(folder / "BTC_funding.csv", "ts,funding_rate", [(7200, 0.1)])
    if kind == "header alone":
        write_table(folder / "BTC_1h.csv", HEADER.strip(), [])
    ran = signals("replay", "--bars", folder)
    assert ran.status == 1
    assert ran.err.startswith(f"signals: {folder}: ")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "cli.db").exists()


def test_a_folder_with_only_refused_bars_holds_no_bars(tmp_path: Path, universe: Universe):
    write_bars(tmp_path, "BTC", [(START, 1.0, 1.0, 2.0, 1.0, 0.0)])
    with pytest.raises(SourceError, match="holds no bars"):
        FilesSource(tmp_path, universe)


async def test_refused_rows_are_counted_by_reason_and_never_stored(
    tmp_path: Path, universe: Universe
):
    rows = make_bars("BTC", list_opens(START, START + DAY_S))
    high, negative = list(rows[3]), list(rows[5])
    high[4], negative[5] = 1e9, -1.0
    spoilt = [*rows[:3], tuple(high), rows[4], tuple(negative), *rows[6:], rows[0], rows[7]]
    write_bars(tmp_path, "BTC", spoilt)
    source = FilesSource(tmp_path, universe)
    assert source.rejected_counts == {
        "close is outside low to high": 1,
        "volume is negative": 1,
        "open time is repeated": 2,
    }
    held = await replay_bars(tmp_path / "market.db", tmp_path, universe)
    assert [row[2:] for row in held["bars"]] == [*rows[:3], rows[4], *rows[6:]]


def test_replay_reports_how_many_bars_were_rejected(tmp_path: Path, signals: RunSignals):
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = make_bars("BTC", list_opens(START, START + DAY_S))
    write_bars(folder, "BTC", [*rows, rows[0], rows[1]])
    ran = signals("replay", "--bars", folder)
    assert ran.status == 0
    *_, last = ran.err.splitlines()
    assert last == f"replayed files:{folder} to 2024-01-04T00:03:00.000Z; 2 rows rejected"
    assert ran.err.count("\n") == 2  # one line for both rejected bars, and no progress bar


async def test_a_daily_file_is_ignored_if_there_is_an_hourly_one(
    tmp_path: Path, universe: Universe
):
    rows = make_bars("NVDA", list_opens(START, START + DAY_S))
    write_bars(tmp_path, "NVDA", rows)
    (tmp_path / "NVDA_1d.csv").write_text("nothing that could be read")
    source = FilesSource(tmp_path, universe)
    assert source.get_native_timeframe("NVDA") == "1h"
    fetched = await source.fetch("NVDA", -1, END)
    assert fetched.bars.open_time.tolist() == [row[0] for row in rows]


async def test_an_asset_with_only_a_daily_file_has_daily_bars(tmp_path: Path, universe: Universe):
    write_bars(tmp_path, "IBM", make_bars("IBM", list_opens(START, START + 3 * DAY_S, 24)), "1d")
    source = FilesSource(tmp_path, universe)
    assert (source.get_native_timeframe("IBM"), source.get_native_timeframe("BTC")) == ("1d", None)
    assert source.ends_at == START + 3 * DAY_S
    assert source.find_next_close("IBM", START + DAY_S) == START + 2 * DAY_S
    assert source.find_next_close("IBM", START + 3 * DAY_S) is None


async def test_the_order_of_rows_in_a_file_does_not_matter(tmp_path: Path, universe: Universe):
    rows = make_bars("BTC", list_opens(START, START + 3 * DAY_S))
    rates = [(START + 8 * hour * HOUR_S, hour / 1000) for hour in range(9)]
    held = []
    for turn, name in ((1, "forward"), (-1, "backward")):
        folder = tmp_path / name
        folder.mkdir()
        write_bars(folder, "BTC", rows[::turn])
        write_table(folder / "BTC_funding.csv", "ts,funding_rate", rates[::turn])
        held.append(await replay_bars(tmp_path / f"{name}.db", folder, universe))
    assert held[0] == held[1]
    assert len(held[0]["bars"]) == 72
    assert len(held[0]["funding"]) == 9


async def test_a_settlement_that_is_not_finite_is_left_out(tmp_path: Path, universe: Universe):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    rates = [(START, 0.1), (START + 9, float("nan")), (START + 99, float("inf"))]
    write_table(tmp_path / "BTC_funding.csv", "ts,funding_rate", rates)
    held = await replay_bars(tmp_path / "market.db", tmp_path, universe)
    assert held["funding"] == [("BTC", START, 0.1)]


async def test_a_repeated_or_infinite_settlement_is_counted_and_the_first_of_a_time_stays(
    tmp_path: Path, universe: Universe
):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    rates = [(START + 9, float("inf")), (START, 0.1), (START, 0.2)]
    write_table(tmp_path / "BTC_funding.csv", "ts,funding_rate", rates)
    source = FilesSource(tmp_path, universe)
    assert source.rejected_counts == {
        "a rate is NaN or infinite": 1,
        "settlement time is repeated": 1,
    }
    fetched = await source.fetch("BTC", -1, START + DAY_S)
    assert fetched.funding.rate.tolist() == [0.1]


def test_files_with_other_endings_are_ignored(tmp_path: Path, universe: Universe):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    (tmp_path / "README.md").write_text("where these bars come from")
    assert FilesSource(tmp_path, universe).get_native_timeframe("BTC") == "1h"


def test_line_endings_and_a_byte_order_mark_of_spreadsheets_are_read(
    tmp_path: Path, universe: Universe
):
    text = f"{HEADER}{ROW}".replace("\n", "\r\n")
    (tmp_path / "BTC_1h.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert FilesSource(tmp_path, universe).ends_at == 7200


def test_a_store_takes_its_bars_from_one_folder_however_it_is_written(
    tmp_path: Path, signals: RunSignals
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_bars(tmp_path / name, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert signals("replay", "--bars", tmp_path / "one").status == 0
    assert signals("replay", "--bars", tmp_path / "two" / ".." / "one").status == 0
    assert signals("replay", "--bars", tmp_path / "link").status == 0
    refused = signals("replay", "--bars", tmp_path / "two")
    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert str(tmp_path / "one") in refused.err

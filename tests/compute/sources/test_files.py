"""If a folder of bars cannot be read, one line names file and row, and nothing is stored.

Neither is anything if its rows differ from those that a store computed, on both databases.
"""

import bz2
import gzip
import os
import random
import shutil
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog

from compute.audit.audit import audit_market
from compute.indicators.registry import INDICATORS
from compute.sources import files
from compute.sources.files import CHUNK_CHARS, FilesSource, read_chunks
from compute.sources.history_checks import check_recorded_past
from compute.sources.source import SourceError
from compute.universe import Universe
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.compute.conftest import RunSignals
from tests.support.row_builders import list_changes
from tests.support.signals_command import find_free_port, run_signals
from tests.support.small_market import (
    DAY_S,
    END,
    HOUR_S,
    START,
    Content,
    Row,
    audit_store,
    drop_commit_details,
    list_opens,
    make_bars,
    open_pipeline,
    replay_bars,
    write_bars,
    write_table,
    write_universe,
)
from tests.support.store_homes import StoreHome, open_and_close

pytestmark = pytest.mark.clause("sources")

HEADER = "ts,open,high,low,close,volume\n"
ROW = "3600,1,2,1,2,5\n"
# More than are parsed at a time.
CHUNK_ROWS = CHUNK_CHARS // len(ROW) + 1
END_OF_2099 = 4_102_358_400

# name: (file, its bytes, text that the line must contain besides the file's path)
BROKEN: dict[str, tuple[str, bytes, str]] = {
    "wrong header": ("BTC_1h.csv", f"time,{HEADER[3:]}{ROW}".encode(), "row 1: the header must be"),
    "no header": ("BTC_1h.csv", ROW.encode(), "row 1: the header must be"),
    "empty file": ("BTC_1h.csv", b"", "row 1: the header must be"),
    "a cell too few": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,1,2\n".encode(), "row 3: 5 cells"),
    "a cell too many": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,1,2,5,6\n".encode(), "row 3: 7"),
    "not a number": ("BTC_1h.csv", f"{HEADER}{ROW}7200,1,2,x,2,5\n".encode(), "row 3: 'x'"),
    "an empty cell": ("BTC_1h.csv", f"{HEADER}7200,1,2,,2,5\n".encode(), "row 2: ''"),
    "a grouped number": ("BTC_1h.csv", f"{HEADER}7200,1_0,2,1,2,5\n".encode(), "row 2: '1_0'"),
    "not UTF-8": ("BTC_1h.csv", HEADER.encode() + b"7200,1,2,1,\xff,5\n", "row 2: not UTF-8"),
    "ts with decimals": ("BTC_1h.csv", f"{HEADER}7200.0,1,2,1,2,5\n".encode(), "row 2: '7200.0'"),
    "ts as a date": ("BTC_1h.csv", f"{HEADER}2024-01-01,1,2,1,2,5\n".encode(), "row 2: '2024-"),
    "ts in milliseconds": ("BTC_1h.csv", f"{HEADER}1704067200000,1,2,1,2,5\n".encode(), "row 2:"),
    "ts before 1970": ("BTC_1h.csv", f"{HEADER}-3600,1,2,1,2,5\n".encode(), "row 2: '-3600'"),
    "an open quote": ("BTC_1h.csv", f'{HEADER}{ROW}"7200,1,2,1,2,5\n'.encode(), "row 3: unexp"),
    "an unknown ticker": ("WIF_1h.csv", f"{HEADER}{ROW}".encode(), "no ticker 'WIF'"),
    "a ticker in lower case": ("btc_1h.csv", f"{HEADER}{ROW}".encode(), "no ticker 'btc'"),
    "a stray name": ("notes.csv", b"a,b\n", "not a bars file"),
    "another ending": ("BTC_1h.txt", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "no ending": ("btc_funding", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "a copy": ("BTC_1h (1).csv", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "a backup": ("BTC_1h.csv.bak", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "packed by bzip2": ("BTC_1h.csv.bz2", bz2.compress(HEADER.encode()), "not a bars file"),
    "packed by zip": ("BTC_1d.zip", b"PK", "not a bars file"),
    "only named as packed": (
        "BTC_1h.csv.gz",
        f"{HEADER}{ROW}".encode(),
        "not a complete gzip file",
    ),
    "packed and cut": (
        "BTC_1h.csv.gz",
        gzip.compress(f"{HEADER}{ROW}".encode())[:-9],
        "not a complete gzip file",
    ),
    "packed without an ending": (
        "BTC_1h.csv",
        gzip.compress(HEADER.encode()),
        "row 1: not UTF-8",
    ),
    "a second file of one series": ("ETH_1h.csv.gz", b"", "holds the same bars as ETH_1h.csv;"),
    "a packed timeframe that is built": ("BTC_4h.csv.gz", b"", "not a bars file"),
    "a timeframe that is built": ("BTC_4h.csv", f"{HEADER}{ROW}".encode(), "not a bars file"),
    "a funding header": ("ETH_funding.csv", b"ts,rate\n7200,0.1\n", "row 1: the header must be"),
    "a funding rate": ("ETH_funding.csv", b"ts,funding_rate\n7200,none\n", "row 2: 'none'"),
    "a funding time": ("ETH_funding.csv", b"ts,funding_rate\nnow,0.1\n", "row 2: 'now'"),
    "funding in percent": (
        "ETH_funding.csv",
        b"ts,funding_rate\n7200,-0.0625\n",
        "ts 7200 has a rate of -0.0625, which is -6.2500% of the position; funding_rate is a frac",
    ),
    "a time with two values": (
        "BTC_1h.csv",
        f"{HEADER}{ROW}7200,2,2,2,2,0\n7200,2,2,2,2,0\n3600,1,2,1,1.5,5\n".encode(),
        "rows 2 and 5 are of the same time, 3600 (1970-01-01T01:00:00.000Z), but differ: close is "
        "2.0 and 1.5; delete the wrong ones",
    ),
    "a day with two values": (
        "NVDA_1d.csv",
        f"{HEADER}1704463200,1,2,1,2,5\n1704466800,1,2,1,1.5,5\n".encode(),
        "rows 2 and 3 are of the same time, 1704412800 (2024-01-05T00:00:00.000Z), but differ: ",
    ),
    "a settlement with two rates": (
        "ETH_funding.csv",
        b"ts,funding_rate\n7200,0.01\n7200,0.02\n",
        "rows 2 and 3 are of the same time, 7200 (1970-01-01T02:00:00.000Z), but differ: funding_ra"
        "te is 0.01 and 0.02",
    ),
    "daily bars as hourly ones": (
        "BTC_1h.csv",
        f"{HEADER}0,1,2,1,2,5\n86400,1,2,1,2,5\n172800,1,2,1,2,5\n259200,1,2,1,2,5\n".encode(),
        "most rows are 86400 s apart, but 1h bars are 3600 s apart; rename it to TICKER_1d.csv",
    ),
    "stamps at the close": (
        "BTC_1h.csv",
        f"{HEADER}3599,1,2,1,2,5\n7199,1,2,1,2,5\n".encode(),
        "rows are stamped at their close (the first has ts 3599); ts must be the opening time, so",
    ),
    "a split": (
        "NVDA_1h.csv",
        f"{HEADER}1704465000,120,121,119,120,5\n1704724200,12,12,12,12,5\n".encode(),
        "the row with ts 1704724200 (2024-01-08T14:30:00.000Z) opens at 0.1 times the close before "
        "it, as after a split of 10:1; divide all prices before it by 10; or, if the market moved s"
        "o, list the row's ts in NVDA_jumps.csv, below the header ts",
    ),
    "daily bars of an asset with hourly ones": (
        "ETH_1d.csv",
        f"{HEADER}{ROW}".encode(),
        "the daily bars of ETH are built from ETH_1h.csv; keep one of the two files",
    ),
    "many cells that are no number": (
        "BTC_1h.csv",
        f"{HEADER}{ROW * 2500}7200,1,2,1,x,5\n7200,1,2,1,x,5\n7200,1,2,1,x,5\n".encode(),
        "row 2502: 'x' is not a number",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_read_is_one_line_and_stores_nothing(
    case: str, folder: Path, tmp_path: Path, universe: Universe, signals: RunSignals
):
    name, text, expected_text = BROKEN[case]
    write_bars(folder, "ETH", make_bars("ETH", list_opens(START, START + DAY_S)))
    (folder / name).write_bytes(text)
    with pytest.raises(SourceError) as caught:
        FilesSource(folder, universe)
    assert str(caught.value).startswith(f"{folder / name}: ")
    assert expected_text in str(caught.value)
    ran = signals("replay", "--bars", folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"signals: {caught.value}\n")
    assert not (tmp_path / "cli.db").exists()


# The files of a folder, or the file in its place.
NO_BARS: dict[str, dict[str, str] | str | None] = {
    "missing": None,
    "a file": "",
    "empty": {},
    "funding alone": {"BTC_funding.csv": "ts,funding_rate\n7200,0.01\n"},
    "header alone": {"BTC_1h.csv": HEADER},
}


@pytest.mark.parametrize("content", NO_BARS.values(), ids=list(NO_BARS))
def test_a_folder_without_bars_is_one_line_and_stores_nothing(
    content: dict[str, str] | str | None, tmp_path: Path, signals: RunSignals
):
    folder = tmp_path / "folder"
    if isinstance(content, str):
        folder.write_text(content)
    elif content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    ran = signals("replay", "--bars", folder)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"signals: {folder}: ")
    assert ran.stderr.count("\n") == 1
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


def test_replay_reports_how_many_bars_were_rejected(folder: Path, signals: RunSignals):
    rows = make_bars("BTC", list_opens(START, START + DAY_S))
    write_bars(folder, "BTC", [*rows, rows[0], rows[1]])
    ran = signals("replay", "--bars", folder)
    assert ran.returncode == 0
    *_, last = ran.stderr.splitlines()
    assert last == f"replayed files:{folder} to 2024-01-04T00:03:00.000Z; 2 rows rejected"
    assert ran.stderr.count("\n") == 2  # one line for both rejected bars, and no progress bar


async def test_an_asset_with_only_a_daily_file_has_daily_bars(tmp_path: Path, universe: Universe):
    write_bars(tmp_path, "IBM", make_bars("IBM", list_opens(START, START + 3 * DAY_S, 24)), "1d")
    source = FilesSource(tmp_path, universe)
    assert (source.get_native_timeframe("IBM"), source.get_native_timeframe("BTC")) == ("1d", None)
    assert source.ends_at == START + 3 * DAY_S
    assert source.find_next_close("IBM", START + DAY_S) == START + 2 * DAY_S
    assert source.find_next_close("IBM", START + 3 * DAY_S) is None


@pytest.mark.prove
def test_rows_with_a_fault_are_logged_once_per_file_and_reason(tmp_path: Path, universe: Universe):
    count = 2 * CHUNK_ROWS + 5
    bars = [(START + n * HOUR_S, 1.0, 1.0, 2.0, 1.0, 0.0) for n in range(count)]
    first, second = make_bars("BTC", [START, START + 60])
    write_bars(tmp_path, "BTC", [*bars, first, second, first])
    rates = [(9, float("inf")), (8, float("nan")), (7, 0.01), (7, 0.01)]
    write_table(tmp_path / "BTC_funding.csv", "ts,funding_rate", rates)
    with structlog.testing.capture_logs() as logged:
        source = FilesSource(tmp_path, universe)
    assert [(row["event"], row["file"], row["reason"]) for row in logged] == [
        ("row_rejected", "BTC_1h.csv", "high is below low"),
        ("row_rejected", "BTC_1h.csv", "open time is repeated"),
        ("row_rejected", "BTC_1h.csv", "opens less than an hour after its predecessor"),
        ("row_rejected", "BTC_funding.csv", "settlement time is repeated"),
        ("row_rejected", "BTC_funding.csv", "a rate is NaN or infinite"),
    ]
    assert [(row["rows"], row["first_ts"]) for row in logged] == [
        (count, START),
        (1, START),
        (1, START + 60),
        (1, 7),
        (2, 8),
    ]
    assert source.rejected_counts.total() == count + 5


def test_files_are_loaded_with_any_case_of_their_ending_and_packed_by_gzip(
    tmp_path: Path, universe: Universe
):
    rows = make_bars("BTC", list_opens(START, START + DAY_S))
    for ticker, name in (("BTC", "BTC_1h.CSV"), ("ETH", "ETH_1h.csv.gz"), ("XAU", "XAU_1h.Csv.GZ")):
        content = write_bars(tmp_path, "NVDA", rows).read_bytes()
        is_packed = name.lower().endswith("gz")
        (tmp_path / name).write_bytes(gzip.compress(content) if is_packed else content)
        (tmp_path / "NVDA_1h.csv").unlink()
        source = FilesSource(tmp_path, universe)
        assert (source.get_native_timeframe(ticker), source.ends_at) == ("1h", START + DAY_S)


def test_files_that_editors_leave_behind_are_named_in_one_warning(
    tmp_path: Path, universe: Universe
):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    names = ["#BTC_1h.csv#", "._BTC_1h.csv", ".BTC_1h.csv.swp", ".~lock.ETH_1h.csv#", "ETH_1h.csv~"]
    for name in names:
        (tmp_path / name).write_text("x")
    (tmp_path / ".#BTC_1h.csv").symlink_to("somebody@machine.4711")
    (tmp_path / ".DS_Store").write_text("x")
    with structlog.testing.capture_logs() as logged:
        source = FilesSource(tmp_path, universe)
    (line,) = logged
    assert line["event"] == "files_ignored"
    assert sorted(line["files"].split(", ")) == sorted([*names, ".#BTC_1h.csv"])
    assert source.ignored_names == line["files"].split(", ")


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (bind_socket, "No such device"),
        (lambda path: path.symlink_to("missing"), "No such file"),
    ],
    ids=["a FIFO", "a folder", "a device", "a socket", "a dangling link"],
)
def test_what_is_no_file_is_refused_at_once(
    make: Callable[[Path], object], expected: str, tmp_path: Path, universe: Universe
):
    write_bars(tmp_path, "ETH", make_bars("ETH", list_opens(START, START + DAY_S)))
    path = tmp_path / "BTC_1h.csv"
    make(path)
    with pytest.raises(SourceError) as caught:
        FilesSource(tmp_path, universe)
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, universe: Universe):
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    write_bars(tmp_path, "BTC", make_bars("BTC", [START])).chmod(0)
    with pytest.raises(SourceError, match=r"BTC_1h\.csv: Permission denied"):
        FilesSource(tmp_path, universe)


def test_a_folder_that_is_a_loop_of_links_is_refused(tmp_path: Path, universe: Universe):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SourceError, match="loop: "):
        FilesSource(tmp_path / "loop", universe)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_long_line_or_a_large_file_is_refused_and_what_just_fits_is_read(
    tmp_path: Path,
    universe: Universe,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    is_packed: bool,
):
    text = (HEADER + ROW * 30).replace("\n", end).encode()
    path = tmp_path / ("BTC_1h.csv.gz" if is_packed else "BTC_1h.csv")
    path.write_bytes(gzip.compress(text) if is_packed else text)
    longest = len(HEADER) - 1
    for line_bytes, file_bytes, expected in (
        (longest, len(text), ""),
        (longest - 1, len(text), f"has a line of more than {longest - 1} bytes, which no row"),
        (longest, len(text) - 1, f"has more than {len(text) - 1} bytes, unpacked; shorten it"),
    ):
        monkeypatch.setattr(files, "MAX_LINE_BYTES", line_bytes)
        monkeypatch.setattr(files, "MAX_FILE_BYTES", file_bytes)
        with pytest.raises(SourceError) if expected else nullcontext() as caught:
            assert FilesSource(tmp_path, universe).get_end("BTC") == 7200
        assert not expected or str(caught.value).startswith(f"{path}: {expected}")


@pytest.mark.prove
def test_a_line_without_an_end_is_refused_before_it_is_held(tmp_path: Path, universe: Universe):
    packed = gzip.compress(HEADER.encode() + b'"' + bytes(200_000_000), 1)
    (tmp_path / "BTC_1h.csv.gz").write_bytes(packed)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="a line of more than 1,000,000 bytes"):
            FilesSource(tmp_path, universe)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_a_row_of_many_quoted_lines_ends_with_its_chunk(tmp_path: Path, universe: Universe):
    (tmp_path / "BTC_1h.csv").write_text(HEADER + '"\n",' * CHUNK_CHARS)
    with pytest.raises(SourceError, match=r"BTC_1h\.csv: row [0-9]+: unexpected end of data"):
        FilesSource(tmp_path, universe)


@pytest.mark.parametrize("command", [("replay", "--bars"), ("doctor",)])
def test_a_name_of_a_file_cannot_control_the_terminal(
    tmp_path: Path, command: tuple[str, ...], universe: Universe
):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bars\xff"))
    folder.mkdir()
    write_bars(folder, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    (folder / os.fsdecode("\x1b]0;a\x07\n\u202e_1h.csv".encode() + b"\xfe")).touch()
    given = (*command, str(folder)) if len(command) > 1 else command
    settings = {"source": f"files:{folder}"} if len(command) == 1 else {"api_key": "ek_" + "k" * 43}
    done = run_signals(tmp_path, *given, **settings)
    assert done.returncode != 0
    said = [line for line in (done.stdout + done.stderr).splitlines() if "not a bars file" in line]
    assert len(said) == 1
    assert r"bars\udcff/\u001b]0;a\u0007\n\u202e_1h.csv\udcfe: not a bars file" in said[0]
    assert said[0].isprintable()


def test_a_folder_whose_name_is_no_text_is_replayed(tmp_path: Path, signals: RunSignals):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\x1bbars\xff"))
    folder.mkdir()
    write_bars(folder, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    ran = signals("replay", "--bars", folder)
    assert ran.returncode == 0
    assert r"/\u001bbars\xff to 2" in ran.stderr
    assert ran.stderr.replace("\n", "").isprintable()


@pytest.mark.parametrize("change", ["grows", "is cut", "is written again"])
@pytest.mark.sampled(3)
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, change: str):
    opens = range(0, HOUR_S * 3 * CHUNK_ROWS, HOUR_S)
    path = write_bars(tmp_path, "BTC", [(ts, 1.0, 1.0, 1.0, 1.0, 1.0) for ts in opens])
    chunks = read_chunks(path, HEADER.strip().split(","))
    next(chunks)
    if change == "grows":
        with path.open("a") as file:
            file.write(ROW)
    elif change == "is cut":
        os.truncate(path, path.read_bytes().index(b"\n", 40 * CHUNK_ROWS) + 1)
    else:
        os.utime(path, ns=(0, 0))
    with pytest.raises(SourceError, match=r"BTC_1h\.csv: changed while it was read"):
        list(chunks)


@pytest.mark.prove
def test_rows_of_several_chunks_are_read_in_any_order(tmp_path: Path, universe: Universe):
    count = 2 * CHUNK_ROWS + 100
    rows = [(n * HOUR_S, 10.0 + n, 11.0 + n, 9.0 + n, 10.5 + n, n / 8) for n in range(count)]
    random.Random(26).shuffle(rows)
    write_bars(tmp_path, "BTC", rows)
    source = FilesSource(tmp_path, universe)
    bars = source._bars["BTC"].select_between(7 * HOUR_S, count * HOUR_S - 1)
    assert bars.open_time.tolist() == [n * HOUR_S for n in range(7, count - 1)]
    assert (bars.close_time == bars.open_time + HOUR_S).all()
    assert (bars.open - 10 == bars.open_time // HOUR_S).all()
    assert (bars.volume * 8 == bars.open_time // HOUR_S).all()
    assert source.find_next_close("BTC", 7 * HOUR_S - 1) == 7 * HOUR_S
    assert source.find_next_close("BTC", 7 * HOUR_S) == 8 * HOUR_S


async def test_one_bad_cell_of_many_rows_costs_its_row_and_blank_lines_cost_nothing(
    tmp_path: Path, universe: Universe
):
    text = f"{HEADER}{ROW * CHUNK_ROWS}7200,1,2,1,_2,5\n\n10800,2,2,1,2,5\n\n\n"
    (tmp_path / "BTC_1h.csv").write_text(text)
    source = FilesSource(tmp_path, universe)
    assert source.rejected_counts == {
        f"row cannot be read, as row {CHUNK_ROWS + 2}: '_2' is not a number": 1,
        "open time is repeated": CHUNK_ROWS - 1,
    }
    assert (await source.fetch("BTC", -1, END)).bars.open_time.tolist() == [3600, 10800]


async def test_a_file_without_volumes_has_bars_without_volume(tmp_path: Path, universe: Universe):
    rows = make_bars("XAU", list_opens(START, START + 4 * HOUR_S))
    for missing in (-1.0, float("nan")):
        write_bars(tmp_path, "XAU", [(*row[:5], missing) for row in rows])
        source = FilesSource(tmp_path, universe)
        assert source.rejected_counts == {}
        assert (await source.fetch("XAU", -1, END)).bars.volume.tolist() == [0.0] * 4


async def test_rows_outside_the_session_are_left_out_and_counted(
    tmp_path: Path, universe: Universe
):
    # 2024-01-05 in New York: 04:00 to 09:00 before the bell, 09:30 to 15:30, 16:00 to 19:00 after.
    day, premarket, after_hours = START + 2 * DAY_S, range(9, 15), range(21, 25)
    halves = [day + hour * HOUR_S + 1800 for hour in range(14, 21)]
    opens = sorted([*halves, *(day + hour * HOUR_S for hour in (*premarket, *after_hours))])
    write_bars(tmp_path, "NVDA", make_bars("NVDA", opens))
    source = FilesSource(tmp_path, universe)
    assert (await source.fetch("NVDA", -1, END)).bars.open_time.tolist() == halves
    assert source.rejected_counts == {"opens while its session is closed": 10}


def test_a_jump_that_is_listed_is_accepted_and_one_of_daily_bars_is_reported(
    tmp_path: Path, universe: Universe, signals: RunSignals
):
    rows = [(START + n * HOUR_S, *[100.0 / (5 if n > 2 else 1)] * 4, 1.0) for n in range(6)]
    write_bars(tmp_path, "BTC", rows)
    write_table(tmp_path / "BTC_jumps.csv", "ts", [(START + 3 * HOUR_S,)])
    assert FilesSource(tmp_path, universe).doubts == []
    write_bars(tmp_path, "IBM", [(START + n * DAY_S, *row[1:]) for n, row in enumerate(rows)], "1d")
    doubt = (
        f"{tmp_path / 'IBM_1d.csv'}: the row with ts {START + 3 * DAY_S} (2024-01-06T00:00:00.000Z)"
        " opens at 0.2 times the close before it, as after a split of 5:1; divide all prices before"
        " it by 5; or, if the market moved so, list the row's ts in IBM_jumps.csv, below the header"
        " ts"
    )
    assert FilesSource(tmp_path, universe).doubts == [doubt]
    examined = signals("doctor", source=f"files:{tmp_path}")
    assert f"warn source: files:{tmp_path}; {doubt}\n" in examined.stdout


@pytest.mark.parametrize("step_s", [HOUR_S, 5 * HOUR_S, DAY_S])
async def test_each_hole_is_reported_once_however_a_file_is_fetched(
    step_s: int, tmp_path: Path, universe: Universe
):
    opens = list_opens(START, START + DAY_S)
    holes = {*opens[7:19], opens[21]}
    write_bars(tmp_path, "BTC", make_bars("BTC", [at for at in opens if at not in holes]))
    with structlog.testing.capture_logs() as logged:
        source = FilesSource(tmp_path, universe)
    assert [line["doubt"] for line in logged] == ["bars missing inside the files: BTC 13"]
    missing: list[int] = []
    for after in range(START, START + 2 * DAY_S, step_s):
        fetched = await source.fetch("BTC", after, after + step_s)
        # They are stored with the bars behind them.
        assert len(fetched.bars) or not len(fetched.missing)
        missing += fetched.missing.tolist()
    assert missing == [at + HOUR_S for at in sorted(holes)]


@pytest.mark.prove
async def test_an_unfinished_longer_bar_of_a_file_that_ends_is_never_stepped(
    folder: Path, tmp_path: Path, universe: Universe
):
    hourly = make_bars("BTC", list_opens(START, START + 3 * DAY_S))
    others = make_bars("ETH", list_opens(START, START + 3 * DAY_S))
    write_bars(folder, "ETH", others)

    async def compute(name: str, bar_count: int, *until: int) -> Content:
        """Return the content of a store after runs to some hours over a file of so many bars."""
        write_bars(folder, "BTC", hourly[:bar_count])
        for hour in until:
            held = await replay_bars(tmp_path / name, folder, universe, START + hour * HOUR_S)
        assert (await audit_store(tmp_path / name, universe)).findings == []
        return held

    def last_closes(held: Content) -> dict[str, int]:
        return {row[1]: (row[6] - START) // HOUR_S for row in held["carries"] if row[0] == "BTC"}

    whole = await compute("whole.db", 41, 72)
    assert last_closes(whole) == {"1h": 41, "4h": 40, "1d": 24}
    split = await compute("split.db", 41, 17, 42, 45, 72)
    assert drop_commit_details(split) == drop_commit_details(whole)
    assert last_closes(await compute("full.db", 48, 72)) == {"1h": 48, "4h": 48, "1d": 48}
    # A file that grows later goes on at its own end.
    write_bars(folder, "ETH", make_bars("ETH", list_opens(START, START + 4 * DAY_S)))
    grown = await compute("split.db", 72, 96)
    assert last_closes(grown) == {"1h": 72, "4h": 72, "1d": 72}
    assert [row[2:] for row in grown["bars"] if row[0] == "BTC"] == hourly


# Prints the peak of a process that reads a folder. Measured: 65 bytes a row, once over 400.
PEAK_PROGRAM = """
import re, sys
from pathlib import Path
from compute.sources.files import FilesSource
from compute.universe import load_universe
folder = Path(sys.argv[1])
universe = load_universe(folder / "universe.toml")
def find_peak():  # unlike getrusage, without the memory of the process that began this one
    return re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
before = find_peak()
FilesSource(folder / "bars", universe)
print(before, find_peak())
"""


@pytest.mark.prove
def test_ten_million_rows_take_less_than_a_gigabyte(tmp_path: Path):
    count, bytes_a_row = 500_000, 80
    write_universe(tmp_path)
    (tmp_path / "bars").mkdir()
    with (tmp_path / "bars" / "BTC_1h.csv").open("w") as file:
        file.write(HEADER)
        for n in range(count):
            file.write(
                f"{n * HOUR_S},{n % 977 + 10.5},{n % 977 + 12},{n % 977 + 9},{n % 977 + 11},{n}\n"
            )
    command = [sys.executable, "-c", PEAK_PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before_kb, peak_kb = map(int, done.stdout.split())
    assert (peak_kb - before_kb) * 1024 < 48_000_000 + bytes_a_row * count
    assert before_kb * 1024 + 48_000_000 + bytes_a_row * 10_000_000 < 1_000_000_000


def test_a_folder_with_only_future_bars_is_one_line_and_stores_nothing(
    folder: Path, tmp_path: Path, signals: RunSignals
):
    write_bars(folder, "BTC", make_bars("BTC", list_opens(END_OF_2099, END_OF_2099 + DAY_S)))
    source = f"files:{folder}"
    fault = (
        f"{folder}: all bars are in the future: the first one closes at 2099-12-31T01:00:00.000Z"
    )
    for command in (("replay", "--bars", folder), ("compute",)):
        ran = signals(*command, source=source)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert ran.stderr.startswith(f"signals: {fault}")
        # Only compute opens the database first.
        assert (tmp_path / "cli.db").exists() == (command == ("compute",))
    examined = signals("doctor", source=source)
    assert examined.returncode == 1
    assert f"fix  source: {fault}" in examined.stdout


def test_line_endings_and_a_byte_order_mark_of_spreadsheets_are_read(
    tmp_path: Path, universe: Universe
):
    text = f"{HEADER}{ROW}".replace("\n", "\r\n")
    (tmp_path / "BTC_1h.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "README.md").write_text("files with other endings are ignored")
    assert FilesSource(tmp_path, universe).ends_at == 7200


@pytest.mark.prove
def test_a_store_takes_its_bars_from_one_folder_however_it_is_written(
    tmp_path: Path, signals: RunSignals
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_bars(tmp_path / name, "BTC", make_bars("BTC", list_opens(START, START + DAY_S)))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert signals("replay", "--bars", tmp_path / "one").returncode == 0
    assert signals("replay", "--bars", tmp_path / "two" / ".." / "one").returncode == 0
    assert signals("replay", "--bars", tmp_path / "link").returncode == 0
    refused = signals("replay", "--bars", tmp_path / "two")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert str(tmp_path / "one") in refused.stderr


DONE = START + 3 * DAY_S
BTC = make_bars("BTC", list_opens(START, DONE))
IBM = make_bars("IBM", list_opens(START, DONE, 24))
RATES = [(START + 8 * hour * HOUR_S + 7, hour / 10_000) for hour in range(9)]
AT = START + 5 * HOUR_S
AT_TEXT = "2024-01-03T05:00:00.000Z"


def write_folder(
    folder: Path,
    bars: Sequence[Row] = BTC,
    rates: Sequence[tuple[int, float]] = RATES,
    daily: Sequence[Row] = IBM,
) -> None:
    write_bars(folder, "BTC", bars)
    write_bars(folder, "IBM", daily, "1d")
    write_table(folder / "BTC_funding.csv", "ts,funding_rate", rates)


def scale(rows: Sequence[Row]) -> list[Row]:
    return [(row[0], *(1.5 * price for price in row[1:5]), row[5]) for row in rows]


def edit_close(rows: Sequence[Row], index: int) -> list[Row]:
    edited = list(rows)
    edited[index] = (*rows[index][:4], rows[index][3], rows[index][5])
    return edited


# Each case: how the folder is written again, the file that the error names, and its text.
CHANGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "every bar": (
        lambda folder: write_folder(folder, scale(BTC)),
        "BTC_1h.csv",
        f"(72 changed); the first has ts {START} (2024-01-03T00:00:00.000Z), open: {BTC[0][1]} in "
        f"the database, {1.5 * BTC[0][1]} in the file",
    ),
    "one close": (
        lambda folder: write_folder(folder, edit_close(BTC, 5)),
        "BTC_1h.csv",
        f"(1 changed); the first has ts {AT} ({AT_TEXT}), close: {BTC[5][4]} in the database, "
        f"{BTC[5][3]} in the file",
    ),
    "the last bar": (
        lambda folder: write_folder(folder, edit_close(BTC, 71)),
        "BTC_1h.csv",
        "(1 changed)",
    ),
    "a bar is gone": (
        lambda folder: write_folder(folder, [*BTC[:5], *BTC[6:]]),
        "BTC_1h.csv",
        f"(1 removed); the first has ts {AT} ({AT_TEXT}), open: {BTC[5][1]} in the database, "
        "no row in the file",
    ),
    "bars behind the last run": (
        lambda folder: write_folder(folder, BTC[:-9]),
        "BTC_1h.csv",
        "(9 removed)",
    ),
    "no funding": (
        lambda folder: (folder / "BTC_funding.csv").unlink(),
        "BTC_funding.csv",
        "(9 removed)",
    ),
    "bars before the first": (
        lambda folder: write_folder(
            folder, [*make_bars("ETH", list_opens(START - DAY_S, START)), *BTC]
        ),
        "BTC_1h.csv",
        "(24 added); the first has ts",
    ),
    "a daily bar": (
        lambda folder: write_folder(folder, daily=edit_close(IBM, 1)),
        "IBM_1d.csv",
        "(1 changed)",
    ),
    "hourly bars instead of daily ones": (
        lambda folder: (
            (folder / "IBM_1d.csv").unlink(),
            write_bars(folder, "IBM", make_bars("IBM", list_opens(START, DONE))),
        ),
        "IBM_1h.csv",
        "(72 added)",
    ),
    "a rate": (
        lambda folder: write_folder(folder, rates=[*RATES[:2], (RATES[2][0], 0.04), *RATES[3:]]),
        "BTC_funding.csv",
        f"(1 changed); the first has ts {RATES[2][0]} (2024-01-03T16:00:07.000Z), funding_rate: "
        "0.0002 in the database, 0.04 in the file",
    ),
    "several kinds": (
        lambda folder: write_folder(
            folder, [BTC[0], *edit_close(BTC, 5)[2:]], [*RATES, (START + 9, 0.01)], daily=scale(IBM)
        ),
        "BTC_1h.csv",
        "(1 changed, 1 removed)",
    ),
}


@pytest.fixture
async def store(home: StoreHome) -> AsyncIterator[MarketStore]:
    async with open_and_close(home.open_market()) as opened:
        yield opened


@pytest.fixture
async def computed(store: MarketStore, folder: Path, universe: Universe) -> MarketStore:
    """A store that has computed the folder of `write_folder` up to DONE."""
    write_folder(folder)
    await (await open_pipeline(store, folder, universe)).run_until(DONE)
    return store


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.sampled(3)
async def test_a_changed_past_is_refused_with_its_first_row(
    case: str, computed: MarketStore, folder: Path, universe: Universe
):
    change, name, expected_text = CHANGES[case]
    await check_recorded_past(computed, FilesSource(folder, universe), universe)
    change(folder)
    with pytest.raises(SourceError) as caught:
        await check_recorded_past(computed, FilesSource(folder, universe), universe)
    text = str(caught.value)
    assert text.startswith(f"{folder / name}: rows that were computed differ")
    assert expected_text in text
    assert "\n" not in text
    assert ("2 other files differ too" in text) == (case == "several kinds")
    assert text.endswith("restore the file, or set SIGNALS_DATABASE_URL to another database")


@pytest.mark.prove
async def test_later_and_dropped_rows_other_volumes_and_assets_are_no_change(
    computed: MarketStore, folder: Path, universe: Universe
):
    later = make_bars("BTC", list_opens(DONE, DONE + DAY_S))
    revised = [(*row[:5], 1.01 * row[5]) for row in BTC[40:]]
    write_folder(folder, [*later, *revised[::-1]], [*RATES[3:], (DONE + 7, 0.01)])
    write_bars(folder, "ETH", make_bars("ETH", list_opens(START, DONE)))
    packed = gzip.compress((folder / "BTC_1h.csv").read_bytes())
    (folder / "BTC_1h.csv").unlink()
    (folder / "BTC_1h.csv.gz").write_bytes(packed)
    source = FilesSource(folder, universe)
    await check_recorded_past(computed, source, universe)
    await (await open_pipeline(computed, folder, universe)).run_until(DONE + DAY_S)
    await check_recorded_past(computed, source, universe)
    (block,) = await computed.bars("BTC")
    assert block.open_time.tolist() == [row[0] for row in [*BTC, *later]]
    (folder / "IBM_1d.csv").unlink()
    await check_recorded_past(computed, FilesSource(folder, universe), universe)


@pytest.mark.parametrize("hours", [1, 30])
async def test_a_file_that_ended_before_the_others_may_go_on(
    hours: int, store: MarketStore, folder: Path, tmp_path: Path, universe: Universe
):
    async def list_rows(store: MarketStore) -> set[tuple[object, ...]]:
        rows = await list_changes(store)
        return {(r.ticker, r.indicator, r.timeframe, r.close_time, r.after) for r in rows}

    until = DONE + DAY_S
    eth = make_bars("ETH", list_opens(START, until))
    write_folder(folder)
    write_bars(folder, "ETH", eth[: -24 - hours])
    await (await open_pipeline(store, folder, universe)).run_until(DONE)
    async with open_and_close(open_sqlite_market(tmp_path / "fresh.db")) as fresh:
        write_bars(folder, "ETH", eth[:-24])
        # No run would follow that steps these.
        with pytest.raises(SourceError, match=rf"\({hours} added\)"):
            await check_recorded_past(store, FilesSource(folder, universe), universe)
        write_folder(folder, [*BTC, *make_bars("BTC", list_opens(DONE, until))])
        write_bars(folder, "ETH", eth)
        await check_recorded_past(store, FilesSource(folder, universe), universe)
        for one in (store, fresh):
            await (await open_pipeline(one, folder, universe)).run_until(until)
        assert await list_rows(store) == await list_rows(fresh)
        assert (await audit_market(store, universe, INDICATORS)).findings == []


async def test_a_removed_asset_gains_no_bars_after_the_others_have_passed_its_removal(
    store: MarketStore, folder: Path, universe: Universe
):
    removal = universe.end_time_by_ticker["MATIC"]
    first = removal - 5 * DAY_S
    for matic_end, btc_end, expected in (
        (removal - 2 * DAY_S, removal + DAY_S, nullcontext()),
        (removal, removal + 2 * DAY_S, pytest.raises(SourceError, match="added")),
    ):
        write_bars(folder, "MATIC", make_bars("MATIC", list_opens(first, matic_end)))
        write_bars(folder, "BTC", make_bars("BTC", list_opens(first, btc_end)))
        with expected:
            await check_recorded_past(store, FilesSource(folder, universe), universe)
            await (await open_pipeline(store, folder, universe)).run_until(btc_end)


@pytest.mark.prove
async def test_the_bars_of_a_removed_asset_are_compared_up_to_its_removal(
    store: MarketStore, bars_folder: Path, folder: Path, universe: Universe
):
    name = "MATIC_1h.csv"
    shutil.copy(bars_folder / name, folder)
    end = FilesSource(folder, universe).get_end("MATIC")
    await (await open_pipeline(store, folder, universe)).run_until(end or 0)
    lines = (folder / name).read_text().splitlines(keepends=True)
    for kept in (lines, lines[:-1]):
        (folder / name).write_text("".join(kept))
        await check_recorded_past(store, FilesSource(folder, universe), universe)
    (folder / name).write_text("".join([lines[0], lines[1].replace(",", ",1", 1), *lines[2:]]))
    with pytest.raises(SourceError, match=r"\(1 changed\)"):
        await check_recorded_past(store, FilesSource(folder, universe), universe)


@pytest.mark.prove
def test_every_command_refuses_a_changed_past_and_stores_nothing(
    folder: Path, tmp_path: Path, signals: RunSignals
):
    write_folder(folder)
    assert signals("replay", "--bars", folder).returncode == 0
    before = (tmp_path / "cli.db").read_bytes()
    write_folder(folder, edit_close(BTC, 5))
    settings = {"source": f"files:{folder}", "port": find_free_port()}
    for command in (("replay", "--bars", folder), ("compute",), ("serve", "--workers", "1")):
        ran = signals(*command, **settings)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(
            f"signals: {folder}/BTC_1h.csv: rows that were computed differ"
        )
        assert ran.stderr.count("\n") == 1
    examined = signals("doctor", **settings)
    assert examined.returncode == 1
    assert f"fix  source: {folder}/BTC_1h.csv: rows that were computed differ" in examined.stdout
    assert (tmp_path / "cli.db").read_bytes() == before


def test_the_doctor_names_rejected_rows_and_ignored_files(folder: Path, signals: RunSignals):
    write_folder(folder, [*BTC, BTC[0], BTC[1]])
    (folder / "BTC_1h.csv~").write_text("")
    source = f"files:{folder}"
    expected_line = (
        f"warn source: files:{folder}; 2 rows rejected: open time is repeated; "
        "files ignored: BTC_1h.csv~\n"
    )
    assert expected_line in signals("doctor", source=source).stdout  # before the first start
    signals("replay", "--bars", folder)
    assert expected_line in signals("doctor", source=source).stdout

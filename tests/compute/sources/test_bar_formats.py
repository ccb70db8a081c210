"""Files in the formats that vendors describe give the same bars; others are refused."""

import gzip
import io
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from compute.sources import bar_formats
from compute.sources.bar_formats import FormatOptions, read_rows
from compute.sources.source import SourceError

pytestmark = pytest.mark.clause("sources")

# 2025-01-01T00:00Z and 01:00Z: open, high, low, close and volume.
TIMES = [1_735_689_600, 1_735_693_200]
ROWS = [[1.0, 3.0, 0.5, 2.0, 10.0], [2.0, 4.0, 1.0, 3.0, 11.0]]
HOURS = ("2025-01-01 00:00:00", "2025-01-01 01:00:00")
KLINES = (
    "1735689600{z},1,3,0.5,2,10,1735693199{z},20,7,5,9,0\n1735693200{z},2,4,1,3,11,1,30,7,5,9,0\n"
)
NAMED = "{t},open,high,low,close,volume\n{a},1,3,0.5,2,10\n{b},2,4,1,3,11\n"


def named(title: str, *times: object) -> str:
    first, second = times
    return NAMED.format(t=title, a=first, b=second)


def pack_zip(text: str, names: tuple[str, ...] = ("bars.csv",)) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            archive.writestr(name, text)
    return target.getvalue()


def build_frame() -> pl.DataFrame:
    days = [datetime.fromtimestamp(time, UTC) for time in TIMES]
    names = ("open", "high", "low", "close", "volume")
    columns = dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True))
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
        pytest.param(named("time", *TIMES), {}, id="TradingView"),
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
        pytest.param(named("ts", *(f"{time}000000000" for time in TIMES)), {}, id="ns"),
        pytest.param(gzip.compress(named("ts", *TIMES).encode()), {}, id="gzip"),
        pytest.param(
            "\ufeff" + named('"TS"', *TIMES).replace("\n", "\r\n") + "\r\n",
            {},
            id="BOM, CRLF, quotes",
        ),
        pytest.param(
            GERMAN, {"zone": "Europe/Berlin", "columns": {"time": "Zeit"}}, id="decimal commas"
        ),
        pytest.param(
            named("ts", *TIMES).replace(",", ";").replace(";1;3;", ";1.0;3;"),
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
    assert found == list(zip(TIMES, ROWS, strict=True))
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


REFUSED: list[tuple[str | bytes, str]] = [
    ("", "no row with a time and four prices"),
    ("<html><body>403</body></html>", "no row with a time and four prices"),
    (bytes(range(256)), "no text in UTF-8"),
    ("[" * 100_000, "recursion"),
    ('{"bars":{"A":[[1,2]],"B":[[1,2]]}}', "2 lists of bars"),
    ("[[1735689600,1,3,0.5,2,10],[1]]", "not of one length"),
    (named("when", *HOURS), "no column for time among when, open"),
    (MT5, "name their zone with --zone"),
    (named("Date", "01/02/2025", "02/02/2025"), "--dates dmy or mdy"),
    (named("Date", "noon", "evening"), "'noon' is in no known format"),
    (named("ts", *TIMES).replace(",3,", ",x,").replace(",4,", ",y,"), "2 of 2 rows cannot be"),
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
    (named("ts", *TIMES) + "9" * 2000, "more than 1,000 bytes"),
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
    (tmp_path / "BTC.csv").write_text(named("ts", *TIMES))
    with pytest.raises(SourceError, match="has no column 'Last'"):
        read_rows(tmp_path / "BTC.csv", FormatOptions(columns={"close": "Last"}))

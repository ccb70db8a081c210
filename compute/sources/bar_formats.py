"""Reads files of bars in the formats in which people have them; docs/sources.md lists these.

Formats are recognized by content. polars reads the files; this module maps their columns, numbers
and times, which are epoch seconds UTC.
"""

import csv
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from compute.bars import Prices, Times
from compute.sources.source import SourceError

MAX_FILE_BYTES: Final = 1_000_000_000
# Parsed, it needs about 20 times as much memory.
MAX_JSON_BYTES: Final = 200_000_000
SNIFFED_LINES: Final = 50
# Rows that cannot be read are left out while they are so few.
ROWS_PER_UNREADABLE: Final = 1000
ASSUMED_ZONE: Final = "UTC, which the file does not say (--zone)"
PRICES: Final = ("open", "high", "low", "close")
# What columns are called, most specific first; as `_fold` returns it.
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "time": (
        *("unix", "unix timestamp", "open time", "opentime", "timestamp", "datetime", "date time"),
        *("gmt time", "local time", "time", "date", "ts", "t", "dt", "index level 0", "unnamed 0"),
        "",
    ),
    "open": ("open", "o", "open price"),
    "high": ("high", "h", "max", "high price"),
    "low": ("low", "l", "min", "low price"),
    "close": ("close", "c", "close price", "close last", "last", "price"),
    "volume": ("volume", "v", "tickvol", "vol", "base volume", "tick volume"),
}
SYMBOL_NAMES: Final = ("symbol", "ticker", "pair", "instrument")
DATE_FORMATS: Final[Mapping[str, str]] = {
    **{"%Y-%m-%d": "", "%Y.%m.%d": "", "%Y/%m/%d": "", "%Y%m%d": "", "%d.%m.%Y": ""},
    **{"%b %d, %Y": "", "%d-%b-%Y": "", "%d/%m/%Y": "dmy", "%m/%d/%Y": "mdy"},
}
STAMP: Final = (
    r"(?i)^(?P<day>[a-z]{3} \d{1,2}, \d{4}|\d{1,2}-[a-z]{3}-\d{4}|\d[\d./-]*\d)"
    r"(?:[ T]+(?P<h>[01]?\d|2[0-4])(?::?(?P<m>[0-5]\d))?(?::?(?P<s>[0-5]\d))?(?:\.\d+)?"
    r"[- ]?(?P<half>am|pm)?)?"
    r" ?(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})?$"
)
# An epoch time in seconds has at most 10 digits before the year 2286, one in ms 13, and so on.
_EPOCH: Final = r"^\d{9,19}(?:\.0*)?$"
_UNITS: Final = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3))


@dataclass(frozen=True)
class FormatOptions:
    """What the operator says of files whose content does not.

    `columns` maps `time`, `open` and so on to the file's names or numbers of columns.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    decimal: str | None = None
    dates: str | None = None


class FileRows(NamedTuple):
    """The rows of a file in its order: times, a table of PRICES and volume, shape (rows, 5).

    `zone` says how times were read, `unreadable` counts the rows that are left out.
    """

    times: Times
    table: Prices
    zone: str
    unreadable: int


def read_rows(path: Path, options: FormatOptions) -> FileRows:
    """Read a file; SourceError names the fault and the option that helps."""
    try:
        return _parse_frame(*_load_frame(_unpack(path)), options)
    # RuntimeError has recursion, and the passwords and unknown methods of archives.
    except (ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
        raise SourceError(f"{path}: {str(error).splitlines()[0][:300]}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path}: is packed, but incomplete: {error}") from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def _unpack(path: Path) -> bytes:
    """Return the content of a file, unpacked."""
    if not path.is_file():
        raise ValueError("no such file")
    with path.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            if len(members) != 1:
                raise ValueError(f"the archive has {len(members)} files; unpack it first")
            with archive.open(members[0]) as packed:
                content = packed.read(MAX_FILE_BYTES + 1)
    elif content.startswith(b"\x1f\x8b"):
        with gzip.open(io.BytesIO(content)) as unpacked:
            content = unpacked.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES:,} bytes, unpacked; split it")
    return content


def _load_frame(content: bytes) -> tuple[pl.DataFrame, list[list[str]]]:
    """Return the cells, and the names of each column: none if the file has no header."""
    if content.startswith(b"PAR1") or content.startswith(b"ARROW1"):
        read = pl.read_parquet if content.startswith(b"PAR1") else pl.read_ipc
        frame = read(io.BytesIO(content))
        return frame, [[name] for name in frame.columns]
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is no text in UTF-8, and no other known format") from None
    if text.lstrip()[:1] not in ("[", "{"):
        return _load_csv(text)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"has more than {MAX_JSON_BYTES:,} bytes of JSON; split it")
    return _load_json(text)


def _load_json(text: str) -> tuple[pl.DataFrame, list[list[str]]]:
    lists = list(_find_lists(json.loads(text, parse_float=str, parse_int=str)))
    if len(lists) != 1:
        raise ValueError(f"has {len(lists)} lists of bars; give each asset a file of its own")
    rows = lists[0]
    if isinstance(rows[0], dict):
        names = [*rows[0]]
        rows = [[row.get(name) for name in names] for row in rows if isinstance(row, dict)]
        headers = [[name] for name in names]
    else:
        headers = [[] for _ in rows[0]]
    width = len(headers)
    if any(not isinstance(row, list) or len(row) != width for row in rows):
        raise ValueError("its rows are not of one length")
    cells = [[None if cell is None else str(cell) for cell in row] for row in rows]
    schema = {f"column_{number}": pl.String for number in range(1, width + 1)}
    return pl.DataFrame(cells, schema=schema, orient="row"), headers


def _find_lists(value: Any) -> Iterator[list[Any]]:
    """Yield the lists of rows in a document of JSON."""
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _find_lists(inner)


def _load_csv(text: str) -> tuple[pl.DataFrame, list[list[str]]]:
    lines = text[: 1000 * SNIFFED_LINES].splitlines()[:SNIFFED_LINES]
    # The separator that most lines have most often; a decimal comma comes no more often.
    counts = {mark: sorted(line.count(mark) for line in lines if line) for mark in "\t;|,"}
    separator = max(counts, key=lambda mark: (counts[mark] or [0])[len(counts[mark]) // 2])
    rows = [next(csv.reader([line], delimiter=separator), []) for line in lines]
    numbered = (sum(map(_is_number, row)) >= len(PRICES) for row in rows)
    first = next((place for place, is_data in enumerate(numbered) if is_data), None)
    if first is None:
        raise ValueError("has no row with a time and four prices in its first lines")
    width = len(rows[first])
    heads = [row for row in rows[:first] if len(row) == width]
    frame = pl.read_csv(
        text.encode(),
        separator=separator,
        has_header=False,
        skip_lines=first,
        infer_schema=False,
        truncate_ragged_lines=True,
        new_columns=[f"column_{number}" for number in range(1, width + 1)],
    )
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    return frame, [[row[place] for row in heads] for place in range(width)]


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[$€£]?-?\.?\d[\d.,']*(?:[eE][+-]?\d+)?", cell.strip()) is not None


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def _parse_frame(
    frame: pl.DataFrame, headers: Sequence[Sequence[str]], options: FormatOptions
) -> FileRows:
    if frame.is_empty():
        raise ValueError("has no row")
    is_metatrader = any(name.startswith("<") for names in headers for name in names)
    found = _find_columns(frame, headers, options.columns)
    for place, names in enumerate(headers):
        is_symbol = any(_fold(name) in SYMBOL_NAMES for name in names)
        if is_symbol and place not in found.values() and frame.to_series(place).n_unique() > 1:
            raise ValueError("has bars of several symbols; give each asset a file of its own")
    stamps = frame.to_series(found["time"])
    if "clock" in found:
        clock = frame.to_series(found["clock"]).cast(pl.String).fill_null("")
        # Some vendors leave leading zeros away: in a column with 160000, 3000 is 00:30:00.
        widest = clock.str.extract(r"^(\d{1,6})$").str.len_chars().max()
        if isinstance(widest, int):
            padded = clock.str.zfill(widest + widest % 2)
            clock = clock.zip_with(~clock.str.contains(r"^\d{1,6}$"), padded)
        stamps = stamps.cast(pl.String).str.strip_chars() + " " + clock.str.strip_chars()
        is_metatrader |= not any(headers)
    if is_metatrader and options.zone is None:
        raise ValueError("has the times of a broker's server; name their zone with --zone")
    times, zone = _parse_times(stamps, options)
    columns = _parse_numbers([frame.to_series(found[name]) for name in PRICES], options.decimal)
    if "volume" in found:
        columns += _parse_numbers([frame.to_series(found["volume"])], options.decimal)
    else:
        columns.append(pl.zeros(len(frame), eager=True))
    table = np.column_stack([column.fill_null(np.nan).to_numpy() for column in columns])
    is_read = (times.is_not_null()).to_numpy() & ~np.isnan(table[:, :4]).any(axis=1)
    bad = int(len(is_read) - is_read.sum())
    if bad > max(1, len(is_read) // ROWS_PER_UNREADABLE):
        cells = frame.row(int(is_read.argmin()))
        raise ValueError(f"{bad} of {len(is_read)} rows cannot be read, such as {cells!r:.150}")
    if not is_read.any():
        raise ValueError("has no row that can be read")
    values = times.fill_null(0).to_numpy()[is_read].astype(np.int64)
    return FileRows(values, table[is_read], zone, bad)


def _find_columns(
    frame: pl.DataFrame, headers: Sequence[Sequence[str]], chosen: Mapping[str, str]
) -> dict[str, int]:
    """Return the place of each column; `clock` is that of the time of day, if it has its own."""
    folded = [[_fold(name) for name in names] for names in headers]
    found = {role: _find_chosen(name, folded) for role, name in chosen.items()}
    if not any(map(any, folded)):
        return _find_unnamed(frame) | found
    for role, names in NAMES.items():
        free = [place for place in range(len(folded)) if place not in found.values()]
        matches = [place for name in names for place in free if name in folded[place]]
        # Such as `Volume BTC`; vendors list that of the asset first.
        matches += [p for p in free if role == "volume" and any("volume" in n for n in folded[p])]
        if matches and role not in found:
            found[role] = matches[0]
            name = next((name for name in names if name in folded[matches[0]]), None)
            if role in PRICES and sum(name in folded[place] for place in free) > 1:
                raise ValueError(
                    f"has several columns {name!r}, as of several assets; choose one of each by "
                    f"its number, such as --columns {role}={matches[0] + 1}"
                )
    dates = [place for place, names in enumerate(folded) if "date" in names]
    if dates and found.get("time") not in (None, dates[0]) and "time" in folded[found["time"]]:
        found |= {"time": dates[0], "clock": found["time"]}
    missing = [name for name in ("time", *PRICES) if name not in found]
    if missing:
        names = ", ".join(name for column in headers for name in column[:1])
        raise ValueError(
            f"no column for {', '.join(missing)} among {names:.150}; name it, such as "
            f"--columns {missing[0]}=NAME"
        )
    return found


def _find_chosen(name: str, folded: Sequence[Sequence[str]]) -> int:
    """Return the place of the column that the operator names, or numbers from 1."""
    places = [place for place, names in enumerate(folded) if _fold(name) in names]
    if name.isdecimal() and 1 <= int(name) <= len(folded):
        places.append(int(name) - 1)
    if not places:
        raise ValueError(f"has no column {name!r}")
    return places[0]


def _find_unnamed(frame: pl.DataFrame) -> dict[str, int]:
    """Return the places of columns without names: time, prices in an order that fits, volume."""
    start = 2 if frame.width > 1 and ":" in str(frame.row(0)[1]) else 1
    if frame.width < start + len(PRICES):
        raise ValueError("has too few columns for a time and four prices")
    # Coinbase gives low, high, open and close; nearly all others open, high, low and close.
    orders = (PRICES, ("low", "high", "open", "close"))
    cells = [frame.to_series(start + place) for place in range(len(PRICES))]
    prices = [column.to_numpy() for column in _parse_numbers(cells, None)]
    fits = []
    for order in orders:
        named = dict(zip(order, prices, strict=True))
        low, high = named["low"], named["high"]
        fits.append(sum(((low <= p) & (p <= high)).sum() for p in (named["open"], named["close"])))
    order = orders[int(np.argmax(fits))]
    found = {"time": 0} | {name: start + place for place, name in enumerate(order)}
    if start == 2:
        found["clock"] = 1
    if frame.width > start + len(PRICES):
        found["volume"] = start + len(PRICES)
    return found


def _parse_numbers(columns: Sequence[pl.Series], decimal: str | None) -> list[pl.Series]:
    """Return columns as numbers, null where a cell is none."""
    if all(column.dtype.is_numeric() for column in columns):
        return [column.cast(pl.Float64) for column in columns]
    texts = [column.cast(pl.String).str.replace_all(r"[\s'_$€£]", "") for column in columns]
    cells = pl.concat([text.rename("cell") for text in texts]).drop_nulls()
    if decimal is None:
        decimal = _find_decimal(cells)
    other = "." if decimal == "," else ","
    return [
        text.str.replace_all(other, "", literal=True)
        .str.replace_all(decimal, ".", literal=True)
        .cast(pl.Float64, strict=False)
        for text in texts
    ]


def _find_decimal(cells: pl.Series) -> str:
    with_comma = cells.filter(cells.str.contains(",", literal=True))
    if not len(with_comma):
        return "."
    with_both = with_comma.filter(with_comma.str.contains(".", literal=True))
    if len(with_both):
        return "," if with_both[0].rfind(",") > with_both[0].rfind(".") else "."
    if not with_comma.str.contains(r"^-?\d{1,3}(?:,\d{3})+$").all():
        return ","
    # Only thousands, if other cells have a point.
    if cells.str.contains(".", literal=True).any():
        return "."
    raise ValueError(f"{with_comma[0]!r} has a comma or thousands; say which by --decimal")


def _parse_times(stamps: pl.Series, options: FormatOptions) -> tuple[pl.Series, str]:
    """Return times as epoch seconds, null where one cannot be read, and how they were read."""
    if stamps.dtype == pl.Date:
        stamps = stamps.cast(pl.Datetime("us"))
    if isinstance(stamps.dtype, pl.Datetime):
        if stamps.dtype.time_zone is not None:
            return stamps.dt.epoch("s"), "UTC"
        return _to_utc(stamps, options.zone)
    texts = stamps.cast(pl.String).str.strip_chars()
    is_epoch = texts.drop_nulls().str.contains(_EPOCH)
    if 2 * is_epoch.sum() > len(is_epoch):
        numbers = texts.str.replace(r"\.0*$", "").cast(pl.Int64, strict=False)
        for least, divisor in _UNITS:
            finer = pl.when(numbers >= least).then(numbers // divisor).otherwise(numbers)
            numbers = pl.select(finer).to_series()
        return numbers, "UTC"
    parts = texts.str.extract_groups(STAMP).struct.unnest()
    days = _parse_days(texts, parts["day"], options)
    hours, minutes, seconds = (pl.col(name).cast(pl.Int64).fill_null(0) for name in "hms")
    half, zone = pl.col("half").str.to_lowercase(), pl.col("zone").str.replace(":", "")
    offset = zone.str.slice(1).cast(pl.Int64, strict=False).fill_null(0)
    minutes = pl.when(hours == 24).then(pl.when(minutes + seconds == 0).then(0)).otherwise(minutes)
    moved = parts.select(
        seconds=3600
        * pl.when(half.is_null()).then(hours).otherwise(hours % 12 + 12 * (half == "pm"))
        + 60 * minutes
        + seconds,
        shift=pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
        * (offset // 100 * 3600 + offset % 100 * 60),
    )
    local = days.cast(pl.Datetime("us")) + (1_000_000 * moved["seconds"]).cast(pl.Duration("us"))
    if parts["zone"].is_not_null().any():
        return local.dt.epoch("s") - moved["shift"], "UTC"
    # A daily bar's date is a day, in any zone.
    return _to_utc(local, "UTC" if parts["h"].is_null().all() else options.zone)


def _parse_days(stamps: pl.Series, texts: pl.Series, options: FormatOptions) -> pl.Series:
    """Return dates in the one format that fits nearly all of them."""
    fitting: dict[str, pl.Series] = {}
    for pattern, order in DATE_FORMATS.items():
        if options.dates is None or order in ("", options.dates):
            days = texts.str.to_date(pattern, strict=False)
            if days.null_count() <= max(1, len(days) // ROWS_PER_UNREADABLE):
                fitting[pattern] = days
    if not fitting:
        raise ValueError(f"the time {stamps[0]!r} is in no known format")
    fewest = min(days.null_count() for days in fitting.values())
    first, *others = (days for days in fitting.values() if days.null_count() == fewest)
    if any(not first.equals(other, null_equal=True) for other in others):
        raise ValueError(
            f"{stamps[0]!r} may begin with a day or a month; say which by --dates dmy or mdy"
        )
    least, most = first.min(), first.max()
    if not (isinstance(least, date) and isinstance(most, date) and 1900 < least.year < 2200):
        raise ValueError(f"the time {stamps[0]!r} is in no known format")
    return first


def _to_utc(local: pl.Series, zone: str | None) -> tuple[pl.Series, str]:
    """Return local times as epoch seconds; rows of an hour that clocks repeat are in order."""
    if zone is None:
        return local.dt.epoch("s"), ASSUMED_ZONE
    ZoneInfo(zone)
    known = local.drop_nulls()
    is_newest_first = len(known) > 1 and known[0] > known[-1]
    is_earlier = local.is_last_distinct() if is_newest_first else local.is_first_distinct()
    ambiguous = pl.Series(["earliest" if one else "latest" for one in is_earlier])
    frame = pl.DataFrame({"local": local, "ambiguous": ambiguous})
    in_zone = frame.select(
        pl.col("local").dt.replace_time_zone(
            zone, ambiguous=pl.col("ambiguous"), non_existent="null"
        )
    ).to_series()
    return in_zone.dt.epoch("s"), zone

"""Small folders of synthetic bars and funding, runs over them, and the content of the store.

Prices are whole cents from an integer generator, so the files are identical on every machine.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import astuple
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from compute.audit.audit import OnProgress, Report, audit_market
from compute.executor import OpenExecutor, open_local_executor
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.files import FilesSource
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe, compute_midnight_s
from serving.feed_ledger import read_ledger
from serving.signal_rows import FeedQuery
from store.market_rows import FeedRow, StoredSnapshot
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.support.row_builders import EVER, list_changes, list_commits, list_epochs, to_rows
from tests.support.store_homes import open_and_close

HOUR_S = 3600
DAY_S = 86_400
START = int(datetime(2024, 1, 3, tzinfo=UTC).timestamp())  # a Wednesday
DENSE = START + 215 * DAY_S
REMOVED_ON = date(1970, 1, 1) + timedelta(days=DENSE // DAY_S + 4)
RENAMED_ON = date(1970, 1, 1) + timedelta(days=DENSE // DAY_S + 10)
END = DENSE + 14 * DAY_S

Row = tuple[int, float, float, float, float, float]

# ticker: (asset class, session, added_on, removed_on). Only HYPE was added after the renaming. IBM
# trades every day, so that a short time has many of its daily bars.
ASSETS: Mapping[str, tuple[str, str, date, date | None]] = {
    "BTC": ("crypto", "24x7", date(2024, 1, 1), None),
    "ETH": ("crypto", "24x7", date(2024, 1, 1), None),
    "HYPE": ("crypto", "24x7", RENAMED_ON, None),
    "IBM": ("stock", "24x7", date(2024, 1, 1), None),
    "MATIC": ("crypto", "24x7", date(2024, 1, 1), REMOVED_ON),
    "NVDA": ("stock", "XNAS", date(2024, 1, 1), None),
    "XAU": ("metal", "24x5", date(2024, 1, 1), None),
}


# Assets with alert engines; IBM (daily), XAU and MATIC (4h) have enough bars for alerts.
ALERT_TICKERS = ("BTC", "IBM", "MATIC", "XAU")


class Content(dict[str, list[tuple[Any, ...]]]):
    """Rows by kind; compared with ==, with a short text in a failure."""

    def __repr__(self) -> str:
        return f"Content({ {name: len(rows) for name, rows in self.items()} })"


class RandomStream:
    """Knuth's 64-bit linear congruential generator, one stream per name."""

    def __init__(self, name: str) -> None:
        self.state = int.from_bytes(name.encode(), "big") * 0x9E3779B97F4A7C15 % 2**64

    def draw_below(self, bound: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


def make_bars(name: str, opens: Iterable[int]) -> list[Row]:
    """Return a bar at every opening time, with drifts that turn so that readings change."""
    draw = RandomStream(name)
    close, drift = 1_000_000 + 1000 * draw.draw_below(1000), 0
    rows: list[Row] = []
    for ts in opens:
        if draw.draw_below(24) == 0:
            drift = draw.draw_below(161) - 80
        opened, close = close, close + close * (draw.draw_below(201) - 100 + drift) // 10_000
        high = max(opened, close) + close * draw.draw_below(60) // 10_000
        low = min(opened, close) - close * draw.draw_below(60) // 10_000
        rows.append(
            (ts, opened / 100, high / 100, low / 100, close / 100, draw.draw_below(10**6) / 10)
        )
    return rows


def list_opens(first: int, last: int, step: int = 1) -> range:
    return range(first, last, step * HOUR_S)


def find_longer_close(ticker: str, ended: int, timeframe: Timeframe) -> int:
    """Return when the bar of a timeframe closes that a bar which ended at `ended` belongs to."""
    period_s = TIMEFRAME_DURATIONS_S[timeframe]
    close = -(-ended // period_s) * period_s
    is_sunday = f"{datetime.fromtimestamp(close - DAY_S, UTC):%A}" == "Sunday"
    return close + DAY_S if (ticker, timeframe) == ("XAU", "1d") and is_sunday else close


def write_bars(folder: Path, ticker: str, rows: Sequence[Row], timeframe: str = "1h") -> Path:
    return write_table(folder / f"{ticker}_{timeframe}.csv", "ts,open,high,low,close,volume", rows)


def write_funding(folder: Path, ticker: str, first: int, last: int, per_day: int = 3) -> Path:
    """Write settlements a few seconds after the hour, some large enough to close the gate."""
    draw = RandomStream(f"{ticker} funding")
    times = range(first + 7, last, DAY_S // per_day)
    rows = [(at, (draw.draw_below(4001) - 2000) / 1_000_000) for at in times]
    return write_table(folder / f"{ticker}_funding.csv", "ts,funding_rate", rows)


def write_table(path: Path, header: str, rows: Iterable[Iterable[float]]) -> Path:
    lines = [header, *(",".join(map(repr, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_small_market(parent: Path) -> Path:
    """Write the small market: each timeframe of some asset passes bar 200.

    BTC and ETH are dense but short; MATIC has two bars every four hours and is removed; XAU has two
    bars per trading day and another on Sundays; NVDA has hourly bars in exchange hours; HYPE starts
    late; IBM is daily.
    """
    folder = parent / "bars"
    folder.mkdir()
    dense = list(list_opens(DENSE, END))
    write_bars(folder, "BTC", make_bars("BTC", dense))
    write_bars(folder, "ETH", make_bars("ETH", dense[:100] + dense[109:230] + dense[231:]))
    write_bars(folder, "HYPE", make_bars("HYPE", dense[100:]))
    write_bars(folder, "IBM", make_bars("IBM", list_opens(START, END, 24)), "1d")
    removal = compute_midnight_s(REMOVED_ON)
    # The first two of every four hours.
    sparse = [
        at + hour
        for at in list_opens(removal - 35 * DAY_S, removal + DAY_S, 4)
        for hour in (0, HOUR_S)
    ]
    # From 13:30 to 19:30, Monday to Friday.
    weekdays = [day for day in range(END - 42 * DAY_S, END, DAY_S) if (day // DAY_S + 3) % 7 < 5]
    session = [day + 13 * HOUR_S + 1800 + hour * HOUR_S for day in weekdays for hour in range(7)]
    # At 23:00 on Sundays, at 05:00 and 06:00 on others.
    hours = {"Sunday": (23,), "Saturday": ()}
    metal = [
        day + hour * HOUR_S
        for day in range(END - 315 * DAY_S, END, DAY_S)
        for hour in hours.get(f"{datetime.fromtimestamp(day, UTC):%A}", (5, 6))
    ]
    write_bars(folder, "MATIC", make_bars("MATIC", sparse))
    write_bars(folder, "NVDA", make_bars("NVDA", session))
    write_bars(folder, "XAU", make_bars("XAU", metal))
    write_funding(folder, "BTC", DENSE - DAY_S, END)
    write_funding(folder, "MATIC", removal - 30 * DAY_S, removal + DAY_S)
    return folder


def copy_to_folder(folder: Path, tickers: Iterable[str], parent: Path) -> Path:
    part = parent / "some"
    part.mkdir()
    copy_files(folder, tickers, part)
    return part


def copy_files(folder: Path, tickers: Iterable[str], to: Path) -> None:
    for ticker in tickers:
        for path in folder.glob(f"{ticker}_*.csv"):
            shutil.copy(path, to)


def write_universe(parent: Path, renamed_on: date = RENAMED_ON) -> Path:
    """Write the small market's universe file."""
    text = f'[universe]\nrenamed_on = {renamed_on}\nrenamed = {{dexter = "enzo"}}\n'
    for ticker, (asset_class, session, added_on, removed_on) in ASSETS.items():
        text += f'\n[[asset]]\nticker = "{ticker}"\nname = "{ticker}"\nvenue = "made up"\n'
        text += f'asset_class = "{asset_class}"\nsession = "{session}"\nsymbol = "{ticker}"\n'
        text += f"added_on = {added_on}\n"
        text += "alerts = true\n" if ticker in ALERT_TICKERS else ""
        text += f"removed_on = {removed_on}\n" if removed_on else ""
    path = parent / "universe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load_small_universe(parent: Path) -> Universe:
    return load_universe(write_universe(parent))


def open_store(path: Path) -> AbstractAsyncContextManager[MarketStore]:
    return open_and_close(open_sqlite_market(path))


async def open_pipeline(
    store: MarketStore,
    folder: Path,
    universe: Universe,
    indicators: Sequence[Indicator] = INDICATORS,
    open_executor: OpenExecutor = open_local_executor,
) -> HourlyPipeline:
    source = FilesSource(folder, universe)
    return await HourlyPipeline.open(
        store, source, universe, indicators, lambda: to_market_ms(END), open_executor
    )


async def replay_bars(
    path: Path,
    folder: Path,
    universe: Universe,
    until: int = END,
    indicators: Sequence[Indicator] = INDICATORS,
    open_executor: OpenExecutor = open_local_executor,
) -> Content:
    async with open_store(path) as store:
        await (await open_pipeline(store, folder, universe, indicators, open_executor)).run_until(
            until
        )
        return await load_content(store)


async def audit_store(
    path: Path,
    universe: Universe,
    indicators: Sequence[Indicator] = INDICATORS,
    open_executor: OpenExecutor = open_local_executor,
    progressed: OnProgress = lambda done, end: None,
) -> Report:
    async with open_store(path) as store:
        return await audit_market(store, universe, indicators, open_executor, progressed)


async def load_content(store: MarketStore) -> Content:
    progress = await store.progress()
    return Content(
        bars=[tuple(row) for row in to_rows(await store.bars())],
        funding=[tuple(row) for row in await store.funding()],
        changes=[tuple(row) for row in await list_changes(store)],
        alerts=[tuple(row) async for row in store.alerts()],
        carries=[tuple(row) for row in await store.carries()],
        readings=[astuple(row) for row in await store.readings()],
        epochs=sorted(astuple(row) for row in await list_epochs(store)),
        publish_from=sorted((await store.publish_from()).items()),
        market_time=[(progress.market_time, progress.last_created_at)],
        passes=[astuple(row) for row in await list_commits(store)],
    )


def drop_commit_details(content: Content) -> Content:
    """Return the content without the parts that depend on the size of batches."""
    return Content({name: rows for name, rows in content.items() if name != "passes"})


def select_tickers(content: Content, tickers: Iterable[str]) -> Content:
    """Return the rows of some tickers without `created_at`, which depends on the other tickers."""
    chosen = set(tickers)
    own = Content(
        (name, [row for row in content[name] if row[0] in chosen])
        for name in ("bars", "funding", "carries", "readings", "epochs", "publish_from")
    )
    for name in ("changes", "alerts"):
        own[name] = sorted(row[1:] for row in content[name] if row[1] in chosen)
    return own


EVERYTHING = FeedQuery("all", 0, 0, EVER, limit=100_000, oldest_first=True)


async def list_feed(store: MarketStore) -> list[FeedRow]:
    """Return the published rows of both tiers, oldest first."""
    ledger = await read_ledger(store, EVER, None)
    return ledger.build_rows(ledger.find_page(EVERYTHING)[0])


async def load_past(store: MarketStore, at: int) -> StoredSnapshot:
    """Return the state that was the latest at a time (epoch ms)."""
    key = await store.past_key(at)
    ledger = await read_ledger(store, EVER, None)
    return await store.past_snapshot(key, ledger.find_readings(key.last_created_at))

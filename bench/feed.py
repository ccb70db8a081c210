"""Measure pages of the feed at 0.5, 1 and 10 million rows, bytes per row, and a migration.

`python -m bench.feed` reads stores of a year through the real market store: every combination of
filters, tier and order, for the first page, the 20th page and a poll. The best of many rounds
counts, because other load can only slow a read down; the reads that seem to have grown most are
therefore repeated at every size. The peer is half a million rows with the indexes of migration 3,
which scanned one index and skipped the rows that the other filters exclude.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from statistics import median

from bench.feed_store import ALERTS_BEGIN, BEGIN, END, build_store
from bench.table import Row, format_table
from schemas.vocabulary import RETENTION_MS, TIMEFRAME_CODES, Tier
from store.codes import KEY_CODES
from store.market_rows import FeedQuery
from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.market_store import open_sqlite_market
from store.sqlite.schema import MARKET_MIGRATIONS, migrate

HALF, ONE, TEN = "0.5 million", "1 million", "10 million"
SIZES = {HALF: (500_000, 251), ONE: (1_000_000, 251), TEN: (10_000_000, 20 * 251)}
FORMER_MIGRATIONS = MARKET_MIGRATIONS[:3]
MAX_GROWTH = 1.3
ROUNDS = 6
REPEATS, MOST_GROWN_COUNT, REPEAT_ROUNDS = 6, 15, 50
ANY = FeedQuery(after=BEGIN - 1, until=END, limit=51, offset=0)
FILTERS = [
    {"ticker": ticker, "indicator": indicator, "timeframe": timeframe, "direction": direction}
    for ticker, indicator, timeframe, direction in (
        ("T7", "enzo", "1h", 1),
        ("T7", "reversals", "1d", 0),
        ("T7", "trend_oracle", "1d", 0),
    )
]
OFFSETS = {"first page": 0, "20th page": 950, "poll": 0}
# The number of changes and of alerts that a poll without filters returns.
NEW_ROWS, NEW_ALERTS = 100, 20


@dataclass(frozen=True, slots=True)
class Read:
    """A read of the feed of one tier, or of both if `tier` is None; `query.after` is set later."""

    tier: Tier | None
    page: str
    query: FeedQuery

    def __str__(self) -> str:
        query = self.query
        filters = [query.ticker, query.indicator, query.timeframe, query.direction]
        filter_texts = [str(value) for value in filters if value is not None]
        order = "oldest" if query.oldest_first else "newest"
        filters = " ".join(filter_texts) or "no filter"
        return f"{self.tier or 'all'}, {self.page}, {order} first, {filters}"


Reader = Callable[[Read], Awaitable[object]]
Best = dict[str, dict[Read, float]]


def list_reads() -> list[Read]:
    """Return every combination of tier, page, order and filters.

    The filters match many, few or no rows.
    """
    found = {
        Read(tier, page, replace(query, offset=OFFSETS[page], oldest_first=oldest_first))
        for tier in (*RETENTION_MS, None)
        for page in OFFSETS
        for query in list_queries()
        for oldest_first in (False, True)
    }
    return sorted(found, key=str)


def list_queries() -> Iterator[FeedQuery]:
    """Yield a query for every subset of each set of filters."""
    for filters in FILTERS:
        for number in range(len(filters) + 1):
            for names in combinations(filters, number):
                yield replace(ANY, **{name: filters[name] for name in names})


async def create_reader(store: MarketStore) -> Reader:
    """Return a reader of a store; its polls request only the newest rows."""
    (change,) = await store.changes_feed(replace(ANY, limit=1, offset=NEW_ROWS))
    (alert,) = await store.alerts_feed(replace(ANY, limit=1, offset=NEW_ALERTS))

    async def read(one: Read) -> None:
        is_poll = one.page == "poll"
        after = change.created_at if is_poll else ANY.after
        alerts_after = alert.created_at if is_poll else ALERTS_BEGIN - 1
        if one.tier == "universe":
            await store.changes_feed(replace(one.query, after=after))
        elif one.tier == "alerts":
            await store.alerts_feed(replace(one.query, after=alerts_after))
        else:
            await store.merged_feed(replace(one.query, after=after), alerts_after)

    return read


def create_former_reader(connections: SqliteEngine) -> Reader:
    """Return a reader that runs the former SQL for pages of changes, without building rows.

    Skipping that work makes the former times too short, which favours the peer.
    """

    async def read(one: Read) -> None:
        if one.tier == "universe" and one.page != "poll":
            async with connections.acquire_connection() as db:
                sql, values = build_former_statement(one.query)
                await db.execute(sql, *values)

    return read


def build_former_statement(query: FeedQuery) -> tuple[str, list[object]]:
    """Return the former SQL statement of a page of changes, and its values."""
    conditions = {
        "asset_id = (SELECT id FROM assets WHERE ticker = ?)": query.ticker,
        "indicator = ?": query.indicator and KEY_CODES[query.indicator],
        "timeframe = ?": query.timeframe and TIMEFRAME_CODES[query.timeframe],
        '"after" = ?': query.direction,
    }
    filters = {condition: value for condition, value in conditions.items() if value is not None}
    # INDEXED BY forces the index of that time; today's planner might choose another.
    sql = f"""
        SELECT c.*, (SELECT ticker FROM assets WHERE id = c.asset_id)
        FROM changes c INDEXED BY {choose_former_index(query)}
        WHERE published = 1 AND created_at > ? AND created_at <= ?
        {"".join(f"AND {condition} " for condition in filters)}
        ORDER BY created_at {"ASC" if query.oldest_first else "DESC"} LIMIT ? OFFSET ?
    """
    return sql, [query.after, query.until, *filters.values(), query.limit, query.offset]


def choose_former_index(query: FeedQuery) -> str:
    """Return the index that the former statement used."""
    if query.ticker is not None:
        return "cell" if query.indicator and query.timeframe else "feed_asset"
    if query.indicator is not None:
        return "feed_indicator"
    if query.timeframe is not None:
        return "feed_timeframe"
    return "feed_all" if query.direction is None else "feed_direction"


async def time_by_turns(
    best: Best, reads: Iterable[Read], readers: dict[str, Reader], rounds: int
) -> None:
    """Record the shortest time of each read by each reader in `best`, in seconds."""
    for _, one in product(range(rounds), reads):
        for name, read in readers.items():
            begun = time.perf_counter()
            await read(one)
            taken = time.perf_counter() - begun
            best[name][one] = min(taken, best[name].get(one, taken))


async def time_reads(folder: Path) -> Best:
    """Time every read on every store in a folder."""
    async with AsyncExitStack() as stores:
        readers: dict[str, Reader] = {}
        for name in SIZES:
            store = await open_sqlite_market(folder / name)
            stores.push_async_callback(store.close)
            readers[name] = await create_reader(store)
        connections = await SqliteEngine.open(folder / "former", FORMER_MIGRATIONS)
        stores.push_async_callback(connections.close)
        best: Best = {name: {} for name in (*readers, "former")}
        all_reads = list_reads()
        await time_by_turns(
            best, all_reads, {**readers, "former": create_former_reader(connections)}, ROUNDS
        )
        for _ in range(REPEATS):
            most_grown = sorted(all_reads, key=lambda one: compute_growth(best, one))[
                -MOST_GROWN_COUNT:
            ]
            await time_by_turns(best, most_grown, readers, REPEAT_ROUNDS)
        return best


def compute_growth(best: Best, read: Read) -> float:
    """Return the time of a read at 10 million rows divided by that at 1 million."""
    return best[TEN][read] / best[ONE][read]


def measure_bytes_per_row(path: Path) -> dict[str, float]:
    """Return the bytes per change of the table of changes and of each of its indexes."""
    with closing(sqlite3.connect(path)) as db:
        (rows,) = db.execute("SELECT count(*) FROM changes").fetchone()
        pages = db.execute(
            "SELECT d.name, sum(d.pgsize) FROM dbstat d JOIN sqlite_schema s USING (name) "
            "WHERE s.tbl_name = 'changes' GROUP BY d.name ORDER BY 2 DESC"
        )
        return {name: size / rows for name, size in pages}


def rows() -> list[Row]:
    """Build the stores, time reads and a migration, and return the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size, (number, assets) in SIZES.items():
            build_store(folder / size, number, assets, MARKET_MIGRATIONS)
        build_store(folder / "former", *SIZES[HALF], FORMER_MIGRATIONS)
        best = asyncio.run(time_reads(folder))
        return [*list_speed_rows(best), *list_size_rows(folder), time_migration(folder / "former")]


def list_speed_rows(best: Best) -> Iterator[Row]:
    """Yield the growth of reads with the number of rows, and the slowest reads."""
    every = best[TEN]
    worst = max(every, key=lambda one: compute_growth(best, one))
    yield Row(
        f"feed, 1 to 10 million rows: growth of the worst of {len(every)} reads ({worst})",
        f"{compute_growth(best, worst):.2f} times",
        target=f"{MAX_GROWTH} times",
        is_met=compute_growth(best, worst) <= MAX_GROWTH,
    )
    yield Row("the same, median", f"{median(compute_growth(best, one) for one in every):.2f} times")
    for size in SIZES:
        slowest = max(every, key=lambda one: best[size][one])
        yield Row(f"feed, slowest read of {size} rows ({slowest})", format_ms(best[size][slowest]))
    paged = [one for one in every if one.tier == "universe" and one.page != "poll"]
    for of, label in ((max, "slowest"), (median, "median")):
        now = of([best[HALF][one] for one in paged])
        then = of([best["former"][one] for one in paged])
        yield Row(
            f"{label} page of changes, 0.5 million rows, against the former indexes",
            format_ms(now),
            format_ms(then),
            f"{then / now:.1f}",
        )


def list_size_rows(folder: Path) -> Iterator[Row]:
    """Yield the bytes per change, in total and by table and index."""
    now, then = measure_bytes_per_row(folder / HALF), measure_bytes_per_row(folder / "former")
    ratio = sum(then.values()) / sum(now.values())
    yield Row(
        "bytes per change", *(f"{sum(one.values()):.0f}" for one in (now, then)), f"{ratio:.2f}"
    )
    for name, size in now.items():
        yield Row(f"of these, {name}", f"{size:.1f}", f"{then[name]:.1f}" if name in then else "")


def time_migration(path: Path) -> Row:
    """Migrate the former store to the current schema and return the time."""
    begun = time.perf_counter()
    migrate(path, MARKET_MIGRATIONS)
    taken = time.perf_counter() - begun
    return Row("migration of 0.5 million rows, with its copy", f"{taken:.1f} s")


def format_ms(seconds: float) -> str:
    """Format seconds as milliseconds."""
    return f"{seconds * 1000:.2f} ms"


def main() -> None:
    """Print the table."""
    print(format_table(rows()))


if __name__ == "__main__":
    main()

"""What a market store reads, as functions over a read transaction."""

from collections.abc import Iterable

from schemas.coverage import Coverage
from schemas.vocabulary import Timeframe
from store.bar_blocks import build_blocks
from store.codes import KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.errors import StoreError
from store.market_rows import (
    BarBlock,
    CarryRow,
    CommitRow,
    EpochRow,
    FundingRow,
    Progress,
    ReadingRow,
    StoredSnapshot,
    WatermarkRow,
)
from store.sql.database import Database, fetch_value

Readings = dict[str, dict[str, dict[Timeframe, int]]]

_SELECT_BARS = """
SELECT a.ticker, b.generation, b.timeframe, b.pass, b.first_open, b.last_open, b.count, b.data
"""
# The sign in `+a.id` keeps SQLite from looking for the asset of every bar instead.
_LATEST_REVISION = "(SELECT max(generation) FROM bars WHERE asset_id = a.id)"
_TICKER_CONDITION = "(CAST(?1 AS TEXT) IS NULL OR a.ticker = ?1)"
# Named one by one, each is a search of the index.
_ALL_TIMEFRAMES = ", ".join(map(str, TIMEFRAMES_BY_CODE))
_SELECT_FUNDING = "SELECT a.ticker, f.settled_at, f.funding_rate "
_SELECT_COMMITS = """
SELECT number, market_time, written_at, first_created_at, last_created_at, bars_digest,
  changes_digest, alerts_digest, digest
FROM passes
"""


async def load_progress(db: Database) -> Progress:
    """Return how far the store has come."""
    return Progress(
        source=await fetch_value(db, "SELECT value FROM facts WHERE key = 'source'"),
        market_time=await load_market_time(db),
        last_created_at=await load_last_created_at(db),
        commit_count=await fetch_value(db, "SELECT coalesce(max(number), 0) FROM passes"),
        pruned_before=await _load_prune_cutoff(db, "pruned_before"),
        alerts_pruned_before=await _load_prune_cutoff(db, "alerts_pruned_before"),
    )


async def _load_prune_cutoff(db: Database, key: str) -> int:
    return int(await fetch_value(db, "SELECT value FROM facts WHERE key = ?", key) or 0)


async def load_market_time(db: Database) -> int | None:
    """Return the recorded market clock."""
    time: int | None = await fetch_value(db, "SELECT market_time FROM clock")
    return time


async def load_last_created_at(db: Database) -> int:
    """Return the newest `created_at` of both tiers, 0 where there is none."""
    sql = """
        SELECT coalesce((SELECT max(created_at) FROM changes), 0),
          coalesce((SELECT max(created_at) FROM alerts), 0)
    """
    newest: int = max((await db.execute(sql))[0])
    return newest


async def load_bars(
    db: Database, ticker: str | None, after: int, revision: int | None
) -> list[BarBlock]:
    """Return bars of a generation, or each asset's newest, that open after a time.

    A block per ticker and timeframe.
    """
    sql = _SELECT_BARS + (
        "FROM assets a JOIN bars b "
        f"ON b.asset_id = +a.id AND b.generation = coalesce(?3, {_LATEST_REVISION}) "
        f"WHERE {_TICKER_CONDITION} AND b.timeframe IN ({_ALL_TIMEFRAMES}) AND b.last_open > ?2 "
        "ORDER BY a.ticker, b.timeframe, b.last_open"
    )
    return build_blocks(await db.execute(sql, ticker, after, revision), after)


async def load_revisions(db: Database) -> dict[str, int]:
    """Return the generation of the bars of every asset of which bars were told anew."""
    found = await db.execute(f"SELECT a.ticker, {_LATEST_REVISION} FROM assets a ORDER BY a.ticker")
    return {ticker: revision for ticker, revision in found if revision}


async def load_funding(db: Database, ticker: str | None, after: int) -> list[FundingRow]:
    """Return settlements after a time, by ticker and time."""
    sql = _SELECT_FUNDING + (
        "FROM assets a JOIN funding f ON f.asset_id = +a.id "
        f"WHERE {_TICKER_CONDITION} AND f.settled_at > ?2 "
        "ORDER BY a.ticker, f.settled_at"
    )
    return [FundingRow(*row) for row in await db.execute(sql, ticker, after)]


async def load_carries(db: Database) -> list[CarryRow]:
    """Return every carry, by ticker, timeframe and indicator."""
    sql = """
        SELECT a.ticker, c.timeframe, c.indicator, c.version, c.layout, c.epoch, c.close_time,
          c.data
        FROM carries c JOIN assets a ON a.id = c.asset_id
        ORDER BY a.ticker, c.timeframe, c.indicator
    """
    return [
        CarryRow(ticker, TIMEFRAMES_BY_CODE[timeframe], KEYS_BY_CODE[indicator], *rest)
        for ticker, timeframe, indicator, *rest in await db.execute(sql)
    ]


async def load_readings(db: Database) -> list[ReadingRow]:
    """Return the board, by ticker, indicator and timeframe."""
    sql = """
        SELECT a.ticker, r.timeframe, r.indicator, r.reading
        FROM readings r JOIN assets a ON a.id = r.asset_id
        ORDER BY a.ticker, r.indicator, r.timeframe
    """
    return [
        ReadingRow(ticker, TIMEFRAMES_BY_CODE[timeframe], KEYS_BY_CODE[indicator], reading)
        for ticker, timeframe, indicator, reading in await db.execute(sql)
    ]


async def load_epochs(db: Database) -> list[EpochRow]:
    """Return every epoch, oldest first."""
    sql = """
        SELECT a.ticker, e.timeframe, e.indicator, e.epoch, e.version, e.generation,
          e.from_close_time, e.reason
        FROM epochs e JOIN assets a ON a.id = e.asset_id
        ORDER BY e.id
    """
    return [
        EpochRow(ticker, TIMEFRAMES_BY_CODE[timeframe], KEYS_BY_CODE[indicator], *rest)
        for ticker, timeframe, indicator, *rest in await db.execute(sql)
    ]


async def load_publish_from(db: Database) -> dict[str, int]:
    """Return per ticker from when its changes are published."""
    return dict(await db.execute("SELECT ticker, publish_from FROM assets ORDER BY ticker"))


async def load_commits(db: Database) -> list[CommitRow]:
    """Return the digest chain, oldest first."""
    return [CommitRow(*row) for row in await db.execute(_SELECT_COMMITS + "ORDER BY number")]


async def load_commit(db: Database, number: int) -> CommitRow:
    """Return one link of the digest chain; StoreError for an unknown pass."""
    found = await db.execute(_SELECT_COMMITS + "WHERE number = ?", number)
    if not found:
        raise StoreError(f"there is no pass {number}")
    return CommitRow(*found[0])


async def load_bars_of_commit(db: Database, number: int) -> list[BarBlock]:
    """Return the bars that a pass took in."""
    sql = _SELECT_BARS + (
        "FROM bars b JOIN assets a ON a.id = b.asset_id WHERE b.pass = ? "
        "ORDER BY a.ticker, b.generation, b.timeframe, b.last_open"
    )
    return build_blocks(await db.execute(sql, number))


async def load_funding_of_commit(db: Database, number: int) -> list[FundingRow]:
    """Return the settlements that a pass took in."""
    sql = _SELECT_FUNDING + (
        "FROM funding f JOIN assets a ON a.id = f.asset_id WHERE f.pass = ? "
        "ORDER BY a.ticker, f.settled_at"
    )
    return [FundingRow(*row) for row in await db.execute(sql, number)]


async def load_last_watermarks(db: Database) -> list[WatermarkRow]:
    """Return the assets for which the last pass could not wait, by ticker."""
    return await load_watermarks(db, await fetch_value(db, "SELECT max(number) FROM passes"))


async def load_watermarks(db: Database, number: int | None) -> list[WatermarkRow]:
    """Return the assets for which a pass could not wait, by ticker."""
    sql = """
        SELECT a.ticker, w.watermark, w.is_late
        FROM watermarks w JOIN assets a ON a.id = w.asset_id WHERE w.pass = ? ORDER BY a.ticker
    """
    rows = await db.execute(sql, number)
    return [WatermarkRow(ticker, at, bool(is_late)) for ticker, at, is_late in rows]


async def count_unreferenced(db: Database) -> int:
    """Return how many bars, settlements and watermarks belong to no pass."""
    sql = """
        SELECT
          (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM bars
            WHERE pass NOT IN (SELECT number FROM passes))
          + (SELECT count(*) FROM funding WHERE pass NOT IN (SELECT number FROM passes))
          + (SELECT count(*) FROM watermarks WHERE pass NOT IN (SELECT number FROM passes))
    """
    count: int = await fetch_value(db, sql)
    return count


async def load_snapshot(db: Database) -> StoredSnapshot:
    """Return the latest state."""
    published_coverage = await load_coverage(db)
    return StoredSnapshot(
        coverage=published_coverage,
        market_time=await load_market_time(db),
        last_created_at=await load_last_created_at(db),
        readings=group_readings(await load_readings(db)),
        late_tickers=await find_late_tickers(
            db, await load_last_watermarks(db), published_coverage
        ),
        history_starts_at=await load_history_start(db),
    )


async def load_coverage(db: Database) -> Coverage | None:
    """Return the published coverage."""
    document = await fetch_value(db, "SELECT document FROM coverage")
    return None if document is None else Coverage.model_validate_json(document)


async def load_history_start(db: Database) -> int | None:
    """Return from when on it is known what was latest: when the feed and its first pass began."""
    sql = """
        SELECT coalesce(written_at, first_created_at, market_time),
          coalesce((SELECT min(publish_from) FROM assets), 0)
        FROM passes WHERE number = 1
    """
    first = await db.execute(sql)
    return max(first[0]) if first else None


def group_readings(rows: Iterable[ReadingRow]) -> Readings:
    """Return readings by ticker, stored key and timeframe."""
    by_ticker: Readings = {}
    for row in rows:
        cells = by_ticker.setdefault(row.ticker, {}).setdefault(row.indicator, {})
        cells[row.timeframe] = row.reading
    return by_ticker


async def find_late_tickers(
    db: Database, rows: Iterable[WatermarkRow], published_coverage: Coverage | None
) -> tuple[str, ...]:
    """Return the tickers of which more was due, sorted.

    Of a source that grows, those too of which nothing has come yet.
    """
    tickers = {row.ticker for row in rows if row.is_late}
    if published_coverage is not None and published_coverage.recorded_until is None:
        published_from = await load_publish_from(db)
        tickers |= {
            a.ticker
            for a in published_coverage.tracked
            if a.timeframes and a.ticker not in published_from
        }
    return tuple(sorted(tickers))

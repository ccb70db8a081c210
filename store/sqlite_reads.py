"""What the SQLite market store reads, as functions over a connection in a read transaction."""

from collections.abc import Iterable
from typing import Any

from aiosqlite import Connection

from schemas.coverage import Coverage
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.protocol import StoreError
from store.rows import (
    BarBlock,
    CarryRow,
    ChangeRow,
    EpochRow,
    FeedQuery,
    FundingRow,
    PassContent,
    PassRow,
    Progress,
    ReadingRow,
    Snapshot,
    Statistics,
    WatermarkRow,
)
from store.sqlite_bars import blocks
from store.sqlite_codes import INDICATOR_CODES, INDICATORS, TIMEFRAME_CODES

_BARS = "SELECT a.ticker, b.timeframe, b.pass, b.first_open, b.last_open, b.count, b.data "
_FUNDING = "SELECT a.ticker, f.settled_at, f.funding_rate "
_CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id), c.indicator, c.timeframe,
  c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
_PASS = """
SELECT number, market_time, written_at, first_created_at, last_created_at, bars_digest,
  changes_digest, digest
FROM passes
"""
_PUBLISHED = """
FROM changes INDEXED BY feed_all WHERE published = 1 AND created_at > ? AND created_at <= ?
"""
COUNTS = f"""
SELECT indicator, timeframe, "after", count(*) {_PUBLISHED} GROUP BY indicator, timeframe, "after"
"""
OLDEST = f"SELECT min(created_at) {_PUBLISHED}"


async def all_rows(db: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return every row of a query; no cursor outlives the call."""
    return [tuple(row) for row in await db.execute_fetchall(sql, values)]


async def one_value(db: Connection, sql: str, *values: object) -> Any:
    """Return the first column of the first row, or None."""
    rows = await all_rows(db, sql, *values)
    return rows[0][0] if rows else None


async def progress(db: Connection) -> Progress:
    """Return how far the store has come."""
    return Progress(
        source=await one_value(db, "SELECT value FROM facts WHERE key = 'source'"),
        market_time=await market_time(db),
        last_created_at=await last_created_at(db),
        passes=await one_value(db, "SELECT coalesce(max(number), 0) FROM passes"),
        pruned_before=int(
            await one_value(db, "SELECT value FROM facts WHERE key = 'pruned_before'") or 0
        ),
    )


async def market_time(db: Connection) -> int | None:
    """Return the recorded market clock."""
    time: int | None = await one_value(db, "SELECT market_time FROM clock")
    return time


async def last_created_at(db: Connection) -> int:
    """Return the newest `created_at`, 0 where there is none."""
    newest: int = await one_value(db, "SELECT coalesce(max(created_at), 0) FROM changes")
    return newest


async def version(db: Connection) -> int:
    """Return a number that moves when another connection has committed."""
    number: int = await one_value(db, "PRAGMA data_version")
    return number


async def bars(db: Connection, ticker: str | None, after: int) -> list[BarBlock]:
    """Return bars that open after a time, a block per ticker and timeframe."""
    sql = _BARS + (
        "FROM assets a CROSS JOIN bars b ON b.asset_id = a.id "
        "WHERE (?1 IS NULL OR a.ticker = ?1) AND b.timeframe IN (0, 1, 2) AND b.last_open > ?2 "
        "ORDER BY a.ticker, b.timeframe, b.last_open"
    )
    return blocks(await all_rows(db, sql, ticker, after), after)


async def funding(db: Connection, ticker: str | None, after: int) -> list[FundingRow]:
    """Return settlements after a time, by ticker and time."""
    sql = _FUNDING + (
        "FROM assets a CROSS JOIN funding f ON f.asset_id = a.id "
        "WHERE (?1 IS NULL OR a.ticker = ?1) AND f.settled_at > ?2 "
        "ORDER BY a.ticker, f.settled_at"
    )
    return [FundingRow(*row) for row in await all_rows(db, sql, ticker, after)]


async def carries(db: Connection) -> list[CarryRow]:
    """Return every carry, by ticker, timeframe and indicator."""
    sql = """
        SELECT a.ticker, c.timeframe, c.indicator, c.version, c.layout, c.epoch, c.close_time,
          c.data
        FROM carries c JOIN assets a ON a.id = c.asset_id
        ORDER BY a.ticker, c.timeframe, c.indicator
    """
    return [
        CarryRow(ticker, TIMEFRAMES[timeframe], INDICATORS[indicator], *rest)
        for ticker, timeframe, indicator, *rest in await all_rows(db, sql)
    ]


async def readings(db: Connection) -> list[ReadingRow]:
    """Return the board, by ticker, indicator and timeframe."""
    sql = """
        SELECT a.ticker, r.timeframe, r.indicator, r.reading
        FROM readings r JOIN assets a ON a.id = r.asset_id
        ORDER BY a.ticker, r.indicator, r.timeframe
    """
    return [
        ReadingRow(ticker, TIMEFRAMES[timeframe], INDICATORS[indicator], reading)
        for ticker, timeframe, indicator, reading in await all_rows(db, sql)
    ]


async def epochs(db: Connection) -> list[EpochRow]:
    """Return every epoch, oldest first."""
    sql = """
        SELECT a.ticker, e.timeframe, e.indicator, e.epoch, e.version, e.generation,
          e.from_close_time, e.reason
        FROM epochs e JOIN assets a ON a.id = e.asset_id
        ORDER BY e.id
    """
    return [
        EpochRow(ticker, TIMEFRAMES[timeframe], INDICATORS[indicator], *rest)
        for ticker, timeframe, indicator, *rest in await all_rows(db, sql)
    ]


async def publish_from(db: Connection) -> dict[str, int]:
    """Return per ticker from when its changes are published."""
    return dict(await all_rows(db, "SELECT ticker, publish_from FROM assets ORDER BY ticker"))


async def passes(db: Connection) -> list[PassRow]:
    """Return the digest chain, oldest first."""
    return [PassRow(*row) for row in await all_rows(db, _PASS + "ORDER BY number")]


async def pass_content(db: Connection, number: int) -> PassContent:
    """Return the rows of one pass in the order of its digests; StoreError for an unknown pass."""
    found = await all_rows(db, _PASS + "WHERE number = ?", number)
    if not found:
        raise StoreError(f"there is no pass {number}")
    row = PassRow(*found[0])
    bars_sql = _BARS + (
        "FROM bars b JOIN assets a ON a.id = b.asset_id WHERE b.pass = ? "
        "ORDER BY a.ticker, b.timeframe, b.last_open"
    )
    funding_sql = _FUNDING + (
        "FROM funding f JOIN assets a ON a.id = f.asset_id WHERE f.pass = ? "
        "ORDER BY a.ticker, f.settled_at"
    )
    changes_sql = _CHANGE + (
        "FROM changes c WHERE c.created_at BETWEEN ? AND ? ORDER BY c.created_at"
    )
    return PassContent(
        blocks(await all_rows(db, bars_sql, number)),
        [FundingRow(*row) for row in await all_rows(db, funding_sql, number)],
        await watermarks(db, number),
        _change_rows(await all_rows(db, changes_sql, row.first_created_at, row.last_created_at)),
    )


async def last_watermarks(db: Connection) -> list[WatermarkRow]:
    """Return the assets for which the last pass could not wait, by ticker."""
    return await watermarks(db, await one_value(db, "SELECT max(number) FROM passes"))


async def watermarks(db: Connection, number: int | None) -> list[WatermarkRow]:
    """Return the assets for which a pass could not wait, by ticker."""
    sql = """
        SELECT a.ticker, w.watermark, w.is_late
        FROM watermarks w JOIN assets a ON a.id = w.asset_id WHERE w.pass = ? ORDER BY a.ticker
    """
    rows = await all_rows(db, sql, number)
    return [WatermarkRow(ticker, at, bool(is_late)) for ticker, at, is_late in rows]


async def orphans(db: Connection) -> int:
    """Return how many bars, settlements and watermarks belong to no pass."""
    sql = """
        SELECT
          (SELECT coalesce(sum(count), 0) FROM bars WHERE pass NOT IN (SELECT number FROM passes))
          + (SELECT count(*) FROM funding WHERE pass NOT IN (SELECT number FROM passes))
          + (SELECT count(*) FROM watermarks WHERE pass NOT IN (SELECT number FROM passes))
    """
    count: int = await one_value(db, sql)
    return count


async def changes_after(db: Connection, created_at: int, limit: int) -> list[ChangeRow]:
    """Return the oldest changes after a `created_at`."""
    sql = _CHANGE + "FROM changes c WHERE c.created_at > ? ORDER BY c.created_at LIMIT ?"
    return _change_rows(await all_rows(db, sql, created_at, limit))


async def snapshot(db: Connection) -> Snapshot:
    """Return the latest state; the version is read first, in the same transaction."""
    number = await version(db)
    document = await one_value(db, "SELECT document FROM coverage")
    board: dict[str, dict[str, dict[Timeframe, int]]] = {}
    for row in await readings(db):
        cells = board.setdefault(row.ticker, {}).setdefault(row.indicator, {})
        cells[row.timeframe] = row.reading
    return Snapshot(
        version=number,
        coverage=None if document is None else Coverage.model_validate_json(document),
        market_time=await market_time(db),
        last_created_at=await last_created_at(db),
        readings=board,
        late=tuple(row.ticker for row in await last_watermarks(db) if row.is_late),
    )


async def feed(db: Connection, query: FeedQuery) -> list[ChangeRow]:
    """Return one page of published rows, newest first."""
    sql, values = feed_statement(query)
    return _change_rows(await all_rows(db, sql, *values))


def feed_statement(query: FeedQuery) -> tuple[str, list[object]]:
    """Write the statement of a page and its values; it names its index, so it can't scan."""
    conditions = ["c.published = 1", "c.created_at > ?", "c.created_at <= ?"]
    values: list[object] = [query.after, query.until]
    for condition, value in _filters(query):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    sql = f"""{_CHANGE}
        FROM changes c INDEXED BY {_feed_index(query)}
        WHERE {" AND ".join(conditions)}
        ORDER BY c.created_at DESC LIMIT ? OFFSET ?"""
    return sql, [*values, query.limit, query.offset]


async def statistics(db: Connection, after: int, until: int, kept_after: int) -> Statistics:
    """Count the published rows of a window; tell when the oldest kept one was created."""
    return Statistics(
        counts={
            (INDICATORS[indicator], TIMEFRAMES[timeframe], reading): count
            for indicator, timeframe, reading, count in await all_rows(db, COUNTS, after, until)
        },
        oldest=await one_value(db, OLDEST, kept_after, until),
    )


def _filters(query: FeedQuery) -> list[tuple[str, object]]:
    """Pair each condition with its value, None where it is not asked for; -1 matches nothing."""
    indicator = query.indicator and INDICATOR_CODES.get(query.indicator, -1)
    timeframe = query.timeframe and TIMEFRAME_CODES.get(query.timeframe, -1)
    return [
        ("c.asset_id = (SELECT id FROM assets WHERE ticker = ?)", query.ticker),
        ("c.indicator = ?", indicator),
        ("c.timeframe = ?", timeframe),
        ('c."after" = ?', query.direction),
    ]


def _feed_index(query: FeedQuery) -> str:
    """Choose the most selective index that also keeps the order."""
    if query.ticker is not None:
        is_cell = query.indicator is not None and query.timeframe is not None
        return "feed_cell" if is_cell else "feed_asset"
    if query.indicator is not None:
        return "feed_indicator"
    if query.timeframe is not None:
        return "feed_timeframe"
    return "feed_all" if query.direction is None else "feed_direction"


def _change_rows(rows: Iterable[tuple[Any, ...]]) -> list[ChangeRow]:
    return [
        ChangeRow(created_at, ticker, INDICATORS[indicator], TIMEFRAMES[timeframe], *rest)
        for created_at, ticker, indicator, timeframe, *rest in map(_with_truth, rows)
    ]


def _with_truth(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make the last column, `published`, a bool."""
    return *row[:-1], bool(row[-1])

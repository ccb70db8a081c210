"""What the SQLite market store reads, as functions over a connection in a read transaction."""

from collections.abc import Iterable

from aiosqlite import Connection

from schemas.coverage import Coverage
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.protocol import StoreError
from store.rows import (
    BarBlock,
    CarryRow,
    EpochRow,
    FundingRow,
    PassRow,
    Progress,
    ReadingRow,
    Snapshot,
    WatermarkRow,
)
from store.sqlite_bars import blocks
from store.sqlite_codes import INDICATORS
from store.sqlite_rows import all_rows, one_value

Readings = dict[str, dict[str, dict[Timeframe, int]]]

_BARS = """
SELECT a.ticker, b.generation, b.timeframe, b.pass, b.first_open, b.last_open, b.count, b.data
"""
_GENERATION = "(SELECT max(generation) FROM bars WHERE asset_id = a.id)"
_FUNDING = "SELECT a.ticker, f.settled_at, f.funding_rate "
_PASS = """
SELECT number, market_time, written_at, first_created_at, last_created_at, bars_digest,
  changes_digest, alerts_digest, digest
FROM passes
"""


async def progress(db: Connection) -> Progress:
    """Return how far the store has come."""
    return Progress(
        source=await one_value(db, "SELECT value FROM facts WHERE key = 'source'"),
        market_time=await market_time(db),
        last_created_at=await last_created_at(db),
        passes=await one_value(db, "SELECT coalesce(max(number), 0) FROM passes"),
        pruned_before=await _horizon(db, "pruned_before"),
        alerts_pruned_before=await _horizon(db, "alerts_pruned_before"),
    )


async def _horizon(db: Connection, key: str) -> int:
    return int(await one_value(db, "SELECT value FROM facts WHERE key = ?", key) or 0)


async def market_time(db: Connection) -> int | None:
    """Return the recorded market clock."""
    time: int | None = await one_value(db, "SELECT market_time FROM clock")
    return time


async def last_created_at(db: Connection) -> int:
    """Return the newest `created_at` of both tiers, 0 where there is none."""
    sql = """
        SELECT max(
          (SELECT coalesce(max(created_at), 0) FROM changes),
          (SELECT coalesce(max(created_at), 0) FROM alerts)
        )
    """
    newest: int = await one_value(db, sql)
    return newest


async def bars(
    db: Connection, ticker: str | None, after: int, generation: int | None
) -> list[BarBlock]:
    """Return bars of a generation, or each asset's newest, that open after a time.

    A block per ticker and timeframe.
    """
    sql = _BARS + (
        "FROM assets a CROSS JOIN bars b "
        f"ON b.asset_id = a.id AND b.generation = coalesce(?3, {_GENERATION}) "
        "WHERE (?1 IS NULL OR a.ticker = ?1) AND b.timeframe IN (0, 1, 2) AND b.last_open > ?2 "
        "ORDER BY a.ticker, b.timeframe, b.last_open"
    )
    return blocks(await all_rows(db, sql, ticker, after, generation), after)


async def generations(db: Connection) -> dict[str, int]:
    """Return the generation of the bars of every asset of which bars were told anew."""
    found = await all_rows(db, f"SELECT a.ticker, {_GENERATION} FROM assets a ORDER BY a.ticker")
    return {ticker: generation for ticker, generation in found if generation}


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


async def one_pass(db: Connection, number: int) -> PassRow:
    """Return one link of the digest chain; StoreError for an unknown pass."""
    found = await all_rows(db, _PASS + "WHERE number = ?", number)
    if not found:
        raise StoreError(f"there is no pass {number}")
    return PassRow(*found[0])


async def bars_of_pass(db: Connection, number: int) -> list[BarBlock]:
    """Return the bars that a pass took in."""
    sql = _BARS + (
        "FROM bars b JOIN assets a ON a.id = b.asset_id WHERE b.pass = ? "
        "ORDER BY a.ticker, b.generation, b.timeframe, b.last_open"
    )
    return blocks(await all_rows(db, sql, number))


async def funding_of_pass(db: Connection, number: int) -> list[FundingRow]:
    """Return the settlements that a pass took in."""
    sql = _FUNDING + (
        "FROM funding f JOIN assets a ON a.id = f.asset_id WHERE f.pass = ? "
        "ORDER BY a.ticker, f.settled_at"
    )
    return [FundingRow(*row) for row in await all_rows(db, sql, number)]


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


async def snapshot(db: Connection) -> Snapshot:
    """Return the latest state."""
    covered = await coverage(db)
    return Snapshot(
        coverage=covered,
        market_time=await market_time(db),
        last_created_at=await last_created_at(db),
        readings=board(await readings(db)),
        late=await late(db, await last_watermarks(db), covered),
        past_from=await past_from(db),
    )


async def coverage(db: Connection) -> Coverage | None:
    """Return the published coverage."""
    document = await one_value(db, "SELECT document FROM coverage")
    return None if document is None else Coverage.model_validate_json(document)


async def past_from(db: Connection) -> int | None:
    """Return from when on it is known what was latest: when the feed and its first pass began."""
    sql = """
        SELECT max(
          (SELECT coalesce(written_at, first_created_at, market_time) FROM passes WHERE number = 1),
          (SELECT coalesce(min(publish_from), 0) FROM assets)
        )
    """
    at: int | None = await one_value(db, sql)
    return at


def board(rows: Iterable[ReadingRow]) -> Readings:
    """Return readings by ticker, stored key and timeframe."""
    by_ticker: Readings = {}
    for row in rows:
        cells = by_ticker.setdefault(row.ticker, {}).setdefault(row.indicator, {})
        cells[row.timeframe] = row.reading
    return by_ticker


async def late(
    db: Connection, rows: Iterable[WatermarkRow], covered: Coverage | None
) -> tuple[str, ...]:
    """Return the tickers of which more was due, sorted.

    Of a source that grows, those too of which nothing has come yet.
    """
    tickers = {row.ticker for row in rows if row.is_late}
    if covered is not None and covered.recorded_until is None:
        known = await publish_from(db)
        tickers |= {a.ticker for a in covered.tracked if a.timeframes and a.ticker not in known}
    return tuple(sorted(tickers))

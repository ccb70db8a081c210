"""What the SQLite market store writes, as functions over a connection in a write transaction."""

import asyncio
from dataclasses import dataclass

from aiosqlite import Connection

from schemas.vocabulary import UNIVERSE_RETENTION_MS
from store.digest import (
    GENESIS,
    bar_order,
    bars_digest,
    chain_digest,
    changes_digest,
    funding_order,
)
from store.protocol import Pass, StoreError
from store.sqlite_codes import INDICATOR_CODES, TIMEFRAME_CODES
from store.sqlite_reads import all_rows, last_created_at, market_time, one_value


@dataclass(frozen=True, slots=True)
class _Head:
    """What a pass follows."""

    number: int
    market_time: int | None
    created_at: int
    digest: bytes


async def write_pass(db: Connection, work: Pass) -> None:
    """Write a pass; StoreError where its times do not follow those in the store."""
    head = await _head(db)
    _refuse_disorder(head, work)
    number = head.number + 1
    await _write_clock(db, head, work)
    assets = await _write_assets(db, work)
    await _write_bars(db, work, assets, number)
    await _write_changes(db, work, assets)
    await _write_carries(db, work, assets)
    await _write_epochs(db, work, assets)
    await _write_link(db, head, work)


async def adopt_source(db: Connection, source: str) -> str:
    """Remember the source where none is known; return the one that is known."""
    await db.execute_fetchall(
        "INSERT INTO facts (key, value) VALUES ('source', ?) ON CONFLICT DO NOTHING", (source,)
    )
    known: str = await one_value(db, "SELECT value FROM facts WHERE key = 'source'")
    return known


async def write_coverage(db: Connection, document: str) -> None:
    """Replace the published coverage."""
    await db.execute_fetchall(
        "INSERT INTO coverage (id, document) VALUES (1, ?) "
        "ON CONFLICT DO UPDATE SET document = excluded.document",
        (document,),
    )


async def prune(db: Connection) -> int:
    """Delete changes beyond retention but each cell's newest such row; return how many."""
    now = await market_time(db)
    if now is None:
        return 0
    sql = """
        DELETE FROM changes WHERE created_at < ?1 AND created_at NOT IN (
          SELECT max(created_at) FROM changes WHERE created_at < ?1
          GROUP BY asset_id, indicator, timeframe
        )
    """
    before = now - UNIVERSE_RETENTION_MS
    await db.execute_fetchall(
        "INSERT INTO facts (key, value) VALUES ('pruned_before', ?) "
        "ON CONFLICT DO UPDATE SET value = excluded.value",
        (str(before),),
    )
    async with db.execute(sql, (before,)) as cursor:
        return cursor.rowcount


async def _head(db: Connection) -> _Head:
    newest = await all_rows(db, "SELECT number, digest FROM passes ORDER BY number DESC LIMIT 1")
    number, digest = newest[0] if newest else (0, GENESIS)
    return _Head(number, await market_time(db), await last_created_at(db), digest)


def _refuse_disorder(head: _Head, work: Pass) -> None:
    if head.market_time is not None and work.market_time < head.market_time:
        raise StoreError(f"market time may not go back: {work.market_time} < {head.market_time}")
    newest = head.created_at
    for change in work.changes:
        if change.created_at <= newest:
            raise StoreError(f"created_at must grow: {change.created_at} <= {newest}")
        newest = change.created_at


async def _write_clock(db: Connection, head: _Head, work: Pass) -> None:
    sql = (
        "INSERT INTO clock (market_time, id) VALUES (?, 1)"
        if head.market_time is None
        else "UPDATE clock SET market_time = ? WHERE id = 1"
    )
    await db.execute_fetchall(sql, (work.market_time,))


async def _write_assets(db: Connection, work: Pass) -> dict[str, int]:
    """Create the assets that the pass mentions first; return the id of every ticker."""
    known = {ticker for (ticker,) in await all_rows(db, "SELECT ticker FROM assets")}
    kinds = (work.bars, work.funding, work.changes, work.carries, work.epochs)
    mentioned = {row.ticker for rows in kinds for row in rows}
    await _insert(
        db,
        "INSERT INTO assets (ticker, publish_from) VALUES (?, ?)",
        [(ticker, work.publish_from.get(ticker, 0)) for ticker in sorted(mentioned - known)],
    )
    return dict(await all_rows(db, "SELECT ticker, id FROM assets"))


async def _write_bars(db: Connection, work: Pass, assets: dict[str, int], number: int) -> None:
    await _insert(
        db,
        "INSERT INTO bars (asset_id, timeframe, open_time, open, high, low, close, volume, pass) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                row.open_time,
                row.open,
                row.high,
                row.low,
                row.close,
                row.volume,
                number,
            )
            for row in sorted(work.bars, key=bar_order)
        ],
    )
    await _insert(
        db,
        "INSERT INTO funding (asset_id, settled_at, funding_rate, pass) VALUES (?, ?, ?, ?)",
        [
            (assets[row.ticker], row.settled_at, row.funding_rate, number)
            for row in sorted(work.funding, key=funding_order)
        ],
    )


async def _write_changes(db: Connection, work: Pass, assets: dict[str, int]) -> None:
    """Append the changes and move the board to what they say."""
    await _insert(
        db,
        "INSERT INTO changes (created_at, asset_id, indicator, timeframe, close_time, epoch, "
        '"before", "after", price, published) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
        [
            (
                row.created_at,
                assets[row.ticker],
                INDICATOR_CODES[row.indicator],
                TIMEFRAME_CODES[row.timeframe],
                row.close_time,
                row.epoch,
                row.before,
                row.after,
                row.price,
                int(row.published),
            )
            for row in work.changes
        ],
    )
    newest = {(row.ticker, row.timeframe, row.indicator): row.after for row in work.changes}
    await _insert(
        db,
        "INSERT INTO readings (asset_id, timeframe, indicator, reading) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET reading = excluded.reading",
        [
            (assets[ticker], TIMEFRAME_CODES[timeframe], INDICATOR_CODES[indicator], after)
            for (ticker, timeframe, indicator), after in newest.items()
        ],
    )


async def _write_carries(db: Connection, work: Pass, assets: dict[str, int]) -> None:
    await _insert(
        db,
        "INSERT INTO carries (asset_id, timeframe, indicator, version, layout, epoch, close_time, "
        "data) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "version = excluded.version, layout = excluded.layout, epoch = excluded.epoch, "
        "close_time = excluded.close_time, data = excluded.data",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                INDICATOR_CODES[row.indicator],
                row.version,
                row.layout,
                row.epoch,
                row.close_time,
                row.data,
            )
            for row in work.carries
        ],
    )


async def _write_epochs(db: Connection, work: Pass, assets: dict[str, int]) -> None:
    await _insert(
        db,
        "INSERT INTO epochs (asset_id, timeframe, indicator, epoch, version, generation, "
        "from_close_time, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                INDICATOR_CODES[row.indicator],
                row.epoch,
                row.version,
                row.generation,
                row.from_close_time,
                row.reason,
            )
            for row in work.epochs
        ],
    )


async def _write_link(db: Connection, head: _Head, work: Pass) -> None:
    """Append the pass to the digest chain."""
    bars = await asyncio.to_thread(bars_digest, work.bars, work.funding)
    changes = await asyncio.to_thread(changes_digest, work.changes)
    link = chain_digest(head.digest, work.market_time, bars, changes)
    first = work.changes[0].created_at if work.changes else None
    last = work.changes[-1].created_at if work.changes else None
    await db.execute_fetchall(
        "INSERT INTO passes (number, market_time, first_created_at, last_created_at, "
        "bars_digest, changes_digest, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (head.number + 1, work.market_time, first, last, bars, changes, link),
    )


async def _insert(db: Connection, sql: str, rows: list[tuple[object, ...]]) -> None:
    if rows:
        async with db.executemany(sql, rows):
            pass

"""What the SQLite market store writes, as functions over a connection in a write transaction."""

import asyncio
from dataclasses import dataclass

from aiosqlite import Connection

from schemas.vocabulary import UNIVERSE_RETENTION_MS
from store.digest import (
    GENESIS,
    bars_digest,
    chain_digest,
    changes_digest,
)
from store.protocol import StoreError
from store.rows import Pass
from store.sqlite_bars import packed
from store.sqlite_codes import INDICATOR_CODES, TIMEFRAME_CODES
from store.sqlite_reads import all_rows, last_created_at, market_time

PRUNED_AT_ONCE = 5000
ROWS_A_STATEMENT = (2000, 200, 20, 1)


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
    await _write_watermarks(db, work, assets, number)
    await _write_changes(db, work, assets)
    await _write_carries(db, work, assets)
    await _write_epochs(db, work, assets)
    await _write_link(db, head, work)


async def adopt_source(db: Connection, source: str, started_at: int) -> tuple[str, int]:
    """Remember source and start where none are known; return those that are known."""
    sql = "INSERT INTO facts (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
    await _insert(db, sql, [("source", source), ("started_at", str(started_at))])
    known = dict(await all_rows(db, "SELECT key, value FROM facts"))
    return known["source"], int(known["started_at"])


async def write_coverage(db: Connection, document: str) -> None:
    """Replace the published coverage."""
    await db.execute_fetchall(
        "INSERT INTO coverage (id, document) VALUES (1, ?) "
        "ON CONFLICT DO UPDATE SET document = excluded.document",
        (document,),
    )


async def prune_horizon(db: Connection) -> int | None:
    """Record from when on rows must still be there, and return it; None before the first pass."""
    now = await market_time(db)
    if now is None:
        return None
    before = now - UNIVERSE_RETENTION_MS
    await db.execute_fetchall(
        "INSERT INTO facts (key, value) VALUES ('pruned_before', ?) "
        "ON CONFLICT DO UPDATE SET value = excluded.value",
        (str(before),),
    )
    return before


async def prune(db: Connection, before: int) -> int:
    """Delete some of the changes before a time but each cell's newest; return how many."""
    sql = """
        DELETE FROM changes WHERE created_at IN (
          SELECT created_at FROM changes WHERE created_at < ?1 AND created_at NOT IN (
            SELECT max(created_at) FROM changes WHERE created_at < ?1
            GROUP BY asset_id, indicator, timeframe
          )
          ORDER BY created_at LIMIT ?2
        )
    """
    async with db.execute(sql, (before, PRUNED_AT_ONCE)) as cursor:
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
    kinds = (work.bars, work.funding, work.changes, work.carries, work.epochs, work.watermarks)
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
        "INSERT INTO bars (asset_id, timeframe, pass, first_open, last_open, count, data) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (assets[block.ticker], TIMEFRAME_CODES[block.timeframe], number, *packed(block))
            for block in work.bars
        ],
    )
    await _insert(
        db,
        "INSERT INTO funding (asset_id, settled_at, funding_rate, pass) VALUES (?, ?, ?, ?)",
        [
            (assets[ticker], settled_at, rate, number)
            for ticker, settled_at, rate in sorted(work.funding)
        ],
    )


async def _write_watermarks(
    db: Connection, work: Pass, assets: dict[str, int], number: int
) -> None:
    await _insert(
        db,
        "INSERT INTO watermarks (pass, asset_id, watermark, is_late) VALUES (?, ?, ?, ?)",
        [(number, assets[row.ticker], row.watermark, int(row.is_late)) for row in work.watermarks],
    )


async def _write_changes(db: Connection, work: Pass, assets: dict[str, int]) -> None:
    """Append the changes and move the board to what they say."""
    await _insert(
        db,
        "INSERT INTO changes (created_at, asset_id, indicator, timeframe, close_time, epoch, "
        '"before", "after", price, published) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
        [
            (created_at, assets[ticker], INDICATOR_CODES[key], TIMEFRAME_CODES[timeframe], *rest)
            for created_at, ticker, key, timeframe, *rest in work.changes
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
    bars = await asyncio.to_thread(bars_digest, work.bars, work.funding, work.watermarks)
    changes = await asyncio.to_thread(changes_digest, work.changes)
    link = chain_digest(head.digest, work.market_time, bars, changes)
    first = work.changes[0].created_at if work.changes else None
    last = work.changes[-1].created_at if work.changes else None
    await db.execute_fetchall(
        "INSERT INTO passes (number, market_time, written_at, first_created_at, last_created_at, "
        "bars_digest, changes_digest, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (head.number + 1, work.market_time, work.written_at, first, last, bars, changes, link),
    )


async def _insert(db: Connection, sql: str, rows: list[tuple[object, ...]]) -> None:
    """Insert rows, many a statement: each statement lets another thread run, which may not yield.

    `sql` has the placeholders of one row.
    """
    one, done = f"({', '.join('?' * len(rows[0]))})" if rows else "", 0
    for size in ROWS_A_STATEMENT:
        many = sql.replace(one, ", ".join([one] * size))
        while len(rows) - done >= size:
            await db.execute_fetchall(many, [v for row in rows[done : done + size] for v in row])
            done += size

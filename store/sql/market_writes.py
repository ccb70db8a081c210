"""What a market store writes, as functions over a write transaction."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from schemas.vocabulary import ALERTS_RETENTION_MS, UNIVERSE_RETENTION_MS
from store.bar_blocks import packed
from store.codes import ACTION_CODES, INDICATOR_CODES, TIMEFRAME_CODES
from store.digest import (
    GENESIS,
    alerts_digest,
    bars_digest,
    chain_digest,
    changes_digest,
)
from store.errors import StoreError
from store.market_rows import AlertRow, ChangeRow, Pass
from store.sql.database import Database, one_value
from store.sql.market_reads import last_created_at, market_time

PRUNED_AT_ONCE = 5000
MOVING = "moving_from"
HORIZONS = {"changes": "pruned_before", "alerts": "alerts_pruned_before"}
# What keeps its newest old row: a cell is the base of past boards, an action that of a cooldown
# which goes on after an engine was rebuilt.
BASES = {
    "changes": "asset_id, indicator, timeframe",
    "alerts": "asset_id, indicator, timeframe, action, epoch",
}


_OF_CELL = "ON CONFLICT (asset_id, timeframe, indicator)"


@dataclass(frozen=True, slots=True)
class _Head:
    """What a pass follows."""

    number: int
    market_time: int | None
    created_at: int
    digest: bytes


async def write_pass(db: Database, work: Pass) -> None:
    """Write a pass; StoreError where its times do not follow those in the store."""
    head = await _head(db)
    _refuse_disorder(head, work)
    number = head.number + 1
    await write_clock(db, head.market_time, work.market_time)
    assets = await _write_assets(db, work)
    await _write_bars(db, work, assets, number)
    await _write_watermarks(db, work, assets, number)
    await _write_rows(db, work, assets)
    await _write_board(db, work, assets)
    await _write_carries(db, work, assets)
    await _write_epochs(db, work, assets)
    await _write_link(db, head, work)


async def adopt_source(db: Database, source: str, started_at: int) -> tuple[str, int]:
    """Remember source and start where none are known; return those that are known.

    StoreError where a move into this store is not finished.
    """
    if await one_value(db, "SELECT 1 FROM facts WHERE key = ?", MOVING):
        raise StoreError("a move into this database is not finished: run `signals migrate` again")
    facts = [("source", source), ("started_at", str(started_at))]
    await db.insert("facts", "key, value", facts, "ON CONFLICT DO NOTHING")
    known = dict(await db.rows("SELECT key, value FROM facts"))
    return known["source"], int(known["started_at"])


async def write_coverage(db: Database, document: str) -> None:
    """Replace the published coverage."""
    replaced = "ON CONFLICT (id) DO UPDATE SET document = excluded.document"
    await db.insert("coverage", "id, document", [(1, document)], replaced)


async def prune_horizons(db: Database) -> dict[str, int]:
    """Record from when on rows of each table must still be there, and return it.

    Nothing is old before the first pass.
    """
    now = await market_time(db)
    if now is None:
        return {}
    kept_ms = {"changes": UNIVERSE_RETENTION_MS, "alerts": ALERTS_RETENTION_MS}
    before = {table: now - kept for table, kept in kept_ms.items()}
    facts = [(HORIZONS[table], str(at)) for table, at in before.items()]
    replaced = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    await db.insert("facts", "key, value", facts, replaced)
    return before


async def prune(db: Database, table: str, before: int) -> int:
    """Delete some rows before a time but the newest of each cell or base; return how many."""
    sql = f"""
        DELETE FROM {table} WHERE created_at IN (
          SELECT created_at FROM {table} WHERE created_at < ?1 AND created_at NOT IN (
            SELECT max(created_at) FROM {table} WHERE created_at < ?1
            GROUP BY {BASES[table]}
          )
          ORDER BY created_at LIMIT ?2
        ) RETURNING 1
    """
    return len(await db.rows(sql, before, PRUNED_AT_ONCE))


async def _head(db: Database) -> _Head:
    newest = await db.rows("SELECT number, digest FROM passes ORDER BY number DESC LIMIT 1")
    number, digest = newest[0] if newest else (0, GENESIS)
    return _Head(number, await market_time(db), await last_created_at(db), digest)


def _refuse_disorder(head: _Head, work: Pass) -> None:
    if head.market_time is not None and work.market_time < head.market_time:
        raise StoreError(f"market time may not go back: {work.market_time} < {head.market_time}")
    for rows in (work.changes, work.alerts):  # their order between them, the database holds
        newest = head.created_at
        for row in rows:
            if row.created_at <= newest:
                raise StoreError(f"created_at must grow: {row.created_at} <= {newest}")
            newest = row.created_at


async def write_clock(db: Database, before: int | None, market_time: int) -> None:
    """Set the recorded market clock, which says `before`."""
    sql = (
        "INSERT INTO clock (market_time, id) VALUES (?, 1)"
        if before is None
        else "UPDATE clock SET market_time = ? WHERE id = 1"
    )
    await db.rows(sql, market_time)


async def _write_assets(db: Database, work: Pass) -> dict[str, int]:
    """Create the assets that the pass mentions first; return the id of every ticker."""
    known = {ticker for (ticker,) in await db.rows("SELECT ticker FROM assets")}
    rows = (work.bars, work.funding, work.changes, work.alerts, work.carries, work.epochs)
    mentioned = {row.ticker for kind in (*rows, work.watermarks) for row in kind}
    await db.insert(
        "assets",
        "ticker, publish_from",
        [(ticker, work.publish_from.get(ticker, 0)) for ticker in sorted(mentioned - known)],
    )
    return dict(await db.rows("SELECT ticker, id FROM assets"))


async def _write_bars(db: Database, work: Pass, assets: dict[str, int], number: int) -> None:
    await db.insert(
        "bars",
        "asset_id, generation, timeframe, pass, first_open, last_open, count, data",
        [
            (
                *(assets[block.ticker], block.generation, TIMEFRAME_CODES[block.timeframe]),
                *(number, *packed(block)),
            )
            for block in work.bars
        ],
    )
    await db.insert(
        "funding",
        "asset_id, settled_at, funding_rate, pass",
        [
            (assets[ticker], settled_at, rate, number)
            for ticker, settled_at, rate in sorted(work.funding)
        ],
    )


async def _write_watermarks(db: Database, work: Pass, assets: dict[str, int], number: int) -> None:
    await db.insert(
        "watermarks",
        "pass, asset_id, watermark, is_late",
        [(number, assets[row.ticker], row.watermark, int(row.is_late)) for row in work.watermarks],
    )


async def _write_rows(db: Database, work: Pass, assets: dict[str, int]) -> None:
    """Append changes and alerts in their one order, by which the database holds them."""
    done = 0
    for alert in work.alerts:
        before = bisect_left(work.changes, alert.created_at, key=attrgetter("created_at"))
        await _write_changes(db, work.changes[done:before], assets)
        await _write_alert(db, alert, assets)
        done = before
    await _write_changes(db, work.changes[done:], assets)


async def _write_changes(
    db: Database, changes: Sequence[ChangeRow], assets: dict[str, int]
) -> None:
    await db.insert(
        "changes",
        "created_at, asset_id, indicator, timeframe, close_time, epoch, "
        '"before", "after", price, published',
        [
            (created_at, assets[ticker], INDICATOR_CODES[key], TIMEFRAME_CODES[timeframe], *rest)
            for created_at, ticker, key, timeframe, *rest in changes
        ],
    )


async def _write_alert(db: Database, alert: AlertRow, assets: dict[str, int]) -> None:
    created_at, ticker, indicator, timeframe, close_time, epoch, action, price = alert
    names = INDICATOR_CODES[indicator], TIMEFRAME_CODES[timeframe]
    row = created_at, assets[ticker], *names, close_time, epoch, ACTION_CODES[action], price
    columns = "created_at, asset_id, indicator, timeframe, close_time, epoch, action, price"
    await db.insert("alerts", columns, [row])


async def _write_board(db: Database, work: Pass, assets: dict[str, int]) -> None:
    """Move the board to what the changes say."""
    newest = {(row.ticker, row.timeframe, row.indicator): row.after for row in work.changes}
    await db.insert(
        "readings",
        "asset_id, timeframe, indicator, reading",
        [
            (assets[ticker], TIMEFRAME_CODES[timeframe], INDICATOR_CODES[indicator], after)
            for (ticker, timeframe, indicator), after in newest.items()
        ],
        f"{_OF_CELL} DO UPDATE SET reading = excluded.reading",
    )


async def _write_carries(db: Database, work: Pass, assets: dict[str, int]) -> None:
    await db.insert(
        "carries",
        "asset_id, timeframe, indicator, version, layout, epoch, close_time, data",
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
        f"{_OF_CELL} DO UPDATE SET version = excluded.version, layout = excluded.layout, "
        "epoch = excluded.epoch, close_time = excluded.close_time, data = excluded.data",
    )


async def _write_epochs(db: Database, work: Pass, assets: dict[str, int]) -> None:
    await db.insert(
        "epochs",
        "asset_id, timeframe, indicator, epoch, version, generation, from_close_time, reason",
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


async def _write_link(db: Database, head: _Head, work: Pass) -> None:
    """Append the pass to the digest chain."""
    bars = await asyncio.to_thread(bars_digest, work.bars, work.funding, work.watermarks)
    changes = await asyncio.to_thread(changes_digest, work.changes)
    alerts = alerts_digest(work.alerts)
    link = chain_digest(head.digest, work.market_time, bars, changes, alerts)
    times = [row.created_at for rows in (work.changes[:1], work.changes[-1:]) for row in rows]
    times += [row.created_at for row in work.alerts]
    first, last = min(times, default=None), max(times, default=None)
    await db.insert(
        "passes",
        "number, market_time, written_at, first_created_at, last_created_at, "
        "bars_digest, changes_digest, alerts_digest, digest",
        [
            (
                *(head.number + 1, work.market_time, work.written_at, first, last),
                *(bars, changes, alerts, link),
            )
        ],
    )

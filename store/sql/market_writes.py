"""Writes of the market store, as functions over an open write transaction."""

import asyncio
from collections.abc import Mapping

import numpy as np

from schemas.vocabulary import (
    ACTION_CODES,
    TIMEFRAME_CODES,
)
from store.bar_blocks import pack_block
from store.change_table import ChangeTable
from store.codes import HISTORY_CODES, KEY_CODES, TIMEFRAME_SET_CODES
from store.digest import (
    GENESIS,
    ContextRow,
    digest_alerts,
    digest_bars,
    digest_changes,
    digest_commit,
    digest_context,
)
from store.market_rows import Batch, SourceRow
from store.sql.database import Database
from store.sql.market_reads import load_last_created_at, load_market_time, load_sources
from store.sql.transparency_log import LEAVES_PER_APPEND, append_leaves
from store.store_errors import DamagedError, StoreError

# Each row may change a page of its own, and the spare file of SQLite must have room for their log:
# of three million changes, 1,000 rows took 7.7 MB and 5,000 took 18 MB.
ROWS_PER_PRUNE = 1000
MOVE_SOURCE_KEY = "moving_from"
ACCESS_ID_KEY = "access_store_id"
PRUNE_CUTOFF_KEYS = {"changes": "pruned_before", "alerts": "alerts_pruned_before"}
# Pruning keeps the newest old row of each group. Past snapshots start from the one of a cell. The
# one of an action and epoch continues the cooldown of an alert engine after a rebuild.
RETAINED_GROUPS = {
    "changes": "asset_id, indicator, timeframe",
    "alerts": "asset_id, indicator, timeframe, action, epoch",
}


CHANGE_COLUMNS = (
    "created_at, asset_id, indicator, timeframe, close_time, epoch, "
    '"before", "after", price, published'
)
ALERT_COLUMNS = "created_at, asset_id, indicator, timeframe, close_time, epoch, action, price"
_ON_CELL_CONFLICT = "ON CONFLICT (asset_id, timeframe, indicator)"


# The facts by which the history of a store was built.
HASHED_FACTS = ("source", "started_at")
# Each has the kind of its rows; the first column is the number of the commit.
_CONTEXT_TABLES = {
    "asset": "SELECT pass, ticker, publish_from FROM assets WHERE pass BETWEEN ? AND ?",
    "epoch": """
        SELECT e.pass, a.ticker, e.timeframe, e.indicator, e.epoch, e.version, e.generation,
          e.from_close_time, e.reason
        FROM epochs e JOIN assets a ON a.id = e.asset_id WHERE e.pass BETWEEN ? AND ?
    """,
    "missing": """
        SELECT m.pass, a.ticker, m.generation, m.count, m.first_close, m.last_close
        FROM missing_bars m JOIN assets a ON a.id = m.asset_id WHERE m.pass BETWEEN ? AND ?
    """,
    "source": """
        SELECT s.pass, a.ticker, s.generation, s.listing
        FROM sources s JOIN assets a ON a.id = s.asset_id WHERE s.pass BETWEEN ? AND ?
    """,
    "pass": """
        SELECT number, market_time, written_at, first_created_at, last_created_at
        FROM passes WHERE number BETWEEN ? AND ?
    """,
}
_LIST_FACTS = f"""
SELECT key, value FROM facts WHERE key IN ({", ".join("?" for _ in HASHED_FACTS)})
"""


async def write_batch(db: Database, batch: Batch) -> None:
    """Write a batch; raise StoreError if its times are not later than the stored ones."""
    last_number, last_digest = await load_chain_end(db)
    market_time = await load_market_time(db)
    changes = ChangeTable.from_rows(batch.changes)
    if market_time is not None and batch.market_time < market_time:
        raise StoreError(f"market_time must not decrease: {batch.market_time} < {market_time}")
    # Only the order within each tier is checked here; triggers check the order across both tiers.
    last_created_at = await load_last_created_at(db)
    alert_times = np.array([row.created_at for row in batch.alerts], dtype=np.int64)
    for created_at in (changes.created_at, alert_times):
        before = np.append(last_created_at, created_at)[:-1]
        if (is_early := created_at <= before).any():
            at = int(np.argmax(is_early))
            raise StoreError(f"created_at must grow: {created_at[at]} <= {before[at]}")
    number = last_number + 1
    await write_clock(db, market_time, batch.market_time)
    assets = await _write_assets(db, batch, changes, number)
    sources = await _write_inputs(db, batch, assets, number)
    await _write_feed_rows(db, batch, changes, assets)
    while await append_leaves(db) == LEAVES_PER_APPEND:
        pass
    await _write_state(db, batch, changes, assets, number)
    # A backfill batch hashes millions of bars, which would block the event loop for too long.
    bars = await asyncio.to_thread(
        digest_bars, batch.bars, batch.funding, batch.watermarks, sources
    )
    digests = bars, await asyncio.to_thread(digest_changes, changes), digest_alerts(batch.alerts)
    times = np.concatenate([changes.created_at, alert_times])
    ends = (int(times.min()), int(times.max())) if len(times) else (None, None)
    commit_times = number, batch.market_time, batch.written_at, *ends
    # The first commit also covers the facts.
    context = await load_context(db, number if last_number else 0, number)
    context_digest = digest_context([*context, ("pass", *commit_times)])
    digest = digest_commit(last_digest, batch.market_time, *digests, context_digest)
    await db.insert(
        "passes",
        "number, market_time, written_at, first_created_at, last_created_at, "
        "bars_digest, changes_digest, alerts_digest, context_digest, digest",
        [(*commit_times, *digests, context_digest, digest)],
    )


async def load_context(db: Database, first: int, last: int) -> list[ContextRow]:
    """Return the context of the commits from one number to another; from 0 on, with the facts.

    Each row has its kind and the number of its commit before its values; a fact has no number.
    """
    rows = [
        (kind, *row)
        for kind, sql in _CONTEXT_TABLES.items()
        for row in await db.execute(sql, first, last)
    ]
    if first == 0:
        rows += [("fact", *row) for row in await db.execute(_LIST_FACTS, *HASHED_FACTS)]
    return rows


async def load_facts(db: Database) -> dict[str, str]:
    """Return the key-value facts of the store, such as its source."""
    return {row["key"]: row["value"] for row in await db.execute("SELECT key, value FROM facts")}


def parse_fact_time(facts: Mapping[str, str], key: str) -> int:
    """Return a time (epoch ms) among the facts, 0 if it is missing; DamagedError if it is none."""
    try:
        return int(facts.get(key, 0))
    except ValueError as error:
        raise DamagedError(f"facts: {key} is no time") from error


async def load_chain_end(db: Database) -> tuple[int, bytes]:
    """Return the number and the digest of the last commit, which the next one follows."""
    newest = await db.execute("SELECT number, digest FROM passes ORDER BY number DESC LIMIT 1")
    return (newest[0]["number"], newest[0]["digest"]) if newest else (0, GENESIS)


async def write_clock(db: Database, previous: int | None, market_time: int) -> None:
    """Set the recorded market clock; `previous` is its stored value, None if there is none."""
    # No upsert: the insert trigger refuses a second row before ON CONFLICT is reached.
    sql = (
        "INSERT INTO clock (market_time, id) VALUES (?, 1)"
        if previous is None
        else "UPDATE clock SET market_time = ? WHERE id = 1"
    )
    await db.execute(sql, market_time)


async def _write_assets(
    db: Database, batch: Batch, changes: ChangeTable, number: int
) -> dict[str, int]:
    """Insert the assets that are new in this batch; return the id of every ticker."""
    stored_tickers = {row["ticker"] for row in await db.execute("SELECT ticker FROM assets")}
    rows = batch.bars, batch.funding, changes.cells, batch.alerts, batch.carries, batch.epochs
    mentioned_tickers = {row.ticker for kind in (*rows, batch.watermarks) for row in kind}
    await db.insert(
        "assets",
        "ticker, publish_from, pass",
        [
            (ticker, batch.publish_from.get(ticker, 0), number)
            for ticker in sorted(mentioned_tickers - stored_tickers)
        ],
    )
    return {row["ticker"]: row["id"] for row in await db.execute("SELECT ticker, id FROM assets")}


async def _write_inputs(
    db: Database, batch: Batch, assets: dict[str, int], number: int
) -> list[SourceRow]:
    """Write the rows that sources delivered; return the sources that were not recorded yet."""
    await db.insert(
        "bars",
        "asset_id, generation, timeframe, pass, first_open, last_open, count, data",
        [
            (
                *(assets[block.ticker], block.revision, TIMEFRAME_CODES[block.timeframe]),
                *(number, *pack_block(block)),
            )
            for block in batch.bars
        ],
    )
    await db.insert(
        "funding",
        "asset_id, settled_at, funding_rate, pass",
        [
            (assets[ticker], settled_at, rate, number)
            for ticker, settled_at, rate in sorted(batch.funding)
        ],
    )
    # If a revision already has another source, the insert fails, and so does the commit.
    stored = {(row.ticker, row.revision, row.listing) for row in await load_sources(db)}
    new = [
        SourceRow(block.ticker, block.revision, block.source, number)
        for block in batch.bars
        if block.source is not None and (block.ticker, block.revision, block.source) not in stored
    ]
    await db.insert(
        "sources",
        "asset_id, generation, listing, pass",
        [(assets[row.ticker], *row[1:]) for row in new],
    )
    await db.insert(
        "watermarks",
        "pass, asset_id, watermark, late, history",
        [
            (
                *(number, assets[row.ticker], row.watermark),
                *(TIMEFRAME_SET_CODES[row.late], HISTORY_CODES[row.history]),
            )
            for row in batch.watermarks
        ],
    )
    await db.insert(
        "missing_bars",
        "pass, asset_id, generation, count, first_close, last_close",
        [(number, assets[row.ticker], *row[1:]) for row in batch.missing_bars],
    )
    return new


async def _write_feed_rows(
    db: Database, batch: Batch, changes: ChangeTable, assets: dict[str, int]
) -> None:
    """Append changes and alerts in the common order of `created_at`."""
    # The append-only triggers accept a row only after all rows of both tiers, so the two lists are
    # merged. Alerts are few: each is one insert between slices of changes.
    cells = [
        (assets[c.ticker], KEY_CODES[c.indicator], TIMEFRAME_CODES[c.timeframe], c.epoch)
        for c in changes.cells
    ]
    codes = np.array(cells, dtype=np.int64).reshape(-1, 4)
    asset_ids, indicators, timeframes, epochs = codes[changes.cell].T.tolist()
    columns = (
        *(changes.created_at.tolist(), asset_ids, indicators, timeframes),
        *(changes.close_time.tolist(), epochs, changes.list_before(), changes.after.tolist()),
        *(changes.price.tolist(), changes.published.tolist()),
    )
    rows, done = list(zip(*columns, strict=True)), 0
    for created_at, ticker, indicator, timeframe, close_time, epoch, action, price in batch.alerts:
        before = int(np.searchsorted(changes.created_at, created_at))
        await db.insert("changes", CHANGE_COLUMNS, rows[done:before])
        names = KEY_CODES[indicator], TIMEFRAME_CODES[timeframe]
        alert = created_at, assets[ticker], *names, close_time, epoch, ACTION_CODES[action], price
        await db.insert("alerts", ALERT_COLUMNS, [alert])
        done = before
    await db.insert("changes", CHANGE_COLUMNS, rows[done:])


async def _write_state(
    db: Database, batch: Batch, changes: ChangeTable, assets: dict[str, int], number: int
) -> None:
    """Write readings, of which the newest change of a cell wins, carries and epochs."""
    await db.insert(
        "readings",
        "asset_id, timeframe, indicator, reading",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                KEY_CODES[row.indicator],
                row.after,
            )
            for row in changes.find_newest()
        ],
        f"{_ON_CELL_CONFLICT} DO UPDATE SET reading = excluded.reading",
    )
    await db.insert(
        "carries",
        "asset_id, timeframe, indicator, version, layout, epoch, close_time, data",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                KEY_CODES[row.indicator],
                row.version,
                row.layout,
                row.epoch,
                row.close_time,
                row.data,
            )
            for row in batch.carries
        ],
        f"{_ON_CELL_CONFLICT} DO UPDATE SET version = excluded.version, layout = excluded.layout, "
        "epoch = excluded.epoch, close_time = excluded.close_time, data = excluded.data",
    )
    await db.insert(
        "epochs",
        "asset_id, timeframe, indicator, epoch, version, generation, from_close_time, reason, pass",
        [
            (
                assets[row.ticker],
                TIMEFRAME_CODES[row.timeframe],
                KEY_CODES[row.indicator],
                row.epoch,
                row.version,
                row.revision,
                row.from_close_time,
                row.reason,
                number,
            )
            for row in batch.epochs
        ],
    )

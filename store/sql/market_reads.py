"""Reads that parts of the market store share, as functions over an open transaction.

Here it is decided which assets a snapshot calls late, or whose history is being built.
"""

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from schemas.coverage import Coverage
from schemas.vocabulary import (
    DAY_MS,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    Timeframe,
    find_latest_run,
)
from store.bar_blocks import find_last_open
from store.codes import (
    ACTIONS_BY_CODE,
    HISTORIES_BY_CODE,
    KEYS_BY_CODE,
    TIMEFRAME_SETS_BY_CODE,
    TIMEFRAMES_BY_CODE,
)
from store.market_rows import (
    AlertRow,
    ChangeRow,
    SourceRow,
    StoredSnapshot,
    WatermarkRow,
)
from store.sql.database import Database, Row, fetch_value
from store.sql.market_statements import COUNT_MISSING_BARS, LIST_LAST_BARS, LIST_SOURCES

Readings = dict[str, dict[str, dict[Timeframe, int]]]

SELECT_READINGS = """
SELECT a.ticker, r.timeframe, r.indicator, r.reading
FROM readings r JOIN assets a ON a.id = r.asset_id
"""
# A past board must be one that was served: not before the first commit was written, nor before the
# first asset's changes are published.
FIRST_SERVED = """
SELECT coalesce(written_at, first_created_at, market_time),
  coalesce((SELECT min(publish_from) FROM assets), 0)
FROM passes WHERE number = 1
"""
LATEST_COMMIT_AT = """
SELECT number, market_time FROM passes INDEXED BY passes_written
WHERE coalesce(written_at, market_time) <= ?
ORDER BY coalesce(written_at, market_time) DESC, number DESC LIMIT 1
"""
IS_NOMINAL = "SELECT written_at IS NULL FROM passes WHERE number = ?"
LAST_CREATED_AT = """
SELECT last_created_at FROM passes WHERE number <= ? AND last_created_at IS NOT NULL
ORDER BY number DESC LIMIT 1
"""


def decode_cell(row: Row) -> dict[str, Any]:
    """Return a row as a dict, with the codes of timeframe and indicator replaced by names."""
    timeframe, indicator = TIMEFRAMES_BY_CODE[row["timeframe"]], KEYS_BY_CODE[row["indicator"]]
    return {**row, "timeframe": timeframe, "indicator": indicator}


async def load_market_time(db: Database) -> int | None:
    """Return the recorded market clock, or None before the first commit."""
    time: int | None = await fetch_value(db, "SELECT market_time FROM clock")
    return time


async def load_last_created_at(db: Database) -> int:
    """Return the newest `created_at` of both tiers, 0 if there is no row."""
    sql = """
        SELECT coalesce((SELECT max(created_at) FROM changes), 0),
          coalesce((SELECT max(created_at) FROM alerts), 0)
    """
    newest: int = max((await db.execute(sql))[0])
    return newest


async def load_publish_from(db: Database) -> dict[str, int]:
    """Return the market time (ms) from which each ticker's changes are published."""
    rows = await db.execute("SELECT ticker, publish_from FROM assets ORDER BY ticker")
    return {row["ticker"]: row["publish_from"] for row in rows}


async def load_last_number(db: Database) -> int | None:
    """Return the number of the last commit, or None if there is none."""
    number: int | None = await fetch_value(db, "SELECT max(number) FROM passes")
    return number


async def load_watermarks(db: Database, number: int | None) -> list[WatermarkRow]:
    """Return the assets whose bars were incomplete at a commit, sorted by ticker."""
    sql = """
        SELECT a.ticker, w.watermark, w.late, w.history
        FROM watermarks w JOIN assets a ON a.id = w.asset_id WHERE w.pass = ? ORDER BY a.ticker
    """
    rows = await db.execute(sql, number)
    return [
        WatermarkRow(ticker, watermark, TIMEFRAME_SETS_BY_CODE[late], HISTORIES_BY_CODE[history])
        for ticker, watermark, late, history in rows
    ]


async def load_sources(db: Database) -> list[SourceRow]:
    """Return the recorded sources, sorted by ticker and revision."""
    return [SourceRow(*row) for row in await db.execute(LIST_SOURCES)]


async def load_coverage(db: Database) -> Coverage | None:
    """Return the published coverage, or None if none was published.

    An asset's listing is that of its stored bars; the published one, if it has none yet.
    """
    document = await fetch_value(db, "SELECT document FROM coverage")
    if document is None:
        return None
    coverage = _parse_coverage(document)
    if coverage.source != "live":
        return coverage
    # In order of revision, so the newest one wins.
    listings = {row.ticker: row.listing for row in await load_sources(db)}
    if all(a.listing == listings.get(a.ticker, a.listing) for a in coverage.assets):
        return coverage
    assets = tuple(
        asset.model_copy(update={"listing": listings.get(asset.ticker, asset.listing)})
        for asset in coverage.assets
    )
    return coverage.model_copy(update={"assets": assets})


# It changes only when a compute process starts, but is loaded with every snapshot. Two entries,
# because tests and moves have two stores open.
@lru_cache(maxsize=2)
def _parse_coverage(document: str) -> Coverage:
    return Coverage.model_validate_json(document)


async def load_last_closes(db: Database, number: int | None, market_time: int) -> dict[str, int]:
    """Return the close (epoch s) of the newest bar of each ticker that has one.

    These are the bars that the readings of a commit rest on, as of its run at `market_time` (ms).
    """
    run_s = (find_latest_run(market_time) - RUN_DELAY_MS) // 1000
    closes: dict[str, int] = {}
    for row in await db.execute(LIST_LAST_BARS, number=number, run_s=run_s):
        data, opened = row["data"], row["last_open"]
        if data is not None:
            opened = find_last_open(data, row["opened_by"])
        if opened is not None:
            period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[row["timeframe"]]]
            close = -(-(opened + period_s) // period_s) * period_s
            closes[row["ticker"]] = max(close, closes.get(row["ticker"], 0))
    return closes


async def load_snapshot(
    db: Database,
    number: int | None,
    market_time: int | None,
    last_created_at: int,
    readings: Readings,
) -> StoredSnapshot:
    """Return a state with its readings; `number` is that of the commit it follows, if any."""
    published_coverage = await load_coverage(db)
    watermarks = await load_watermarks(db, number)
    published_from = await load_publish_from(db)
    building, unbuilt = find_building_tickers(watermarks, published_from)
    first = await db.execute(FIRST_SERVED)
    time = market_time or 0
    counted_from = (time - COUNTED_HISTORY_MS) // 1000
    missing = await db.execute(COUNT_MISSING_BARS, after=counted_from, until=time // 1000)
    return StoredSnapshot(
        coverage=published_coverage,
        market_time=market_time,
        last_created_at=last_created_at,
        readings=readings,
        late=find_late(watermarks, published_coverage, published_from),
        building_tickers=building,
        unbuilt_tickers=unbuilt,
        history_starts_at=max(first[0]) if first else None,
        last_closes=await load_last_closes(db, number, time),
        missing_bars={row["ticker"]: row["count"] for row in missing},
    )


async def load_grouped_readings(db: Database) -> Readings:
    """Return the current readings as nested dicts: ticker, stored key, timeframe."""
    # This is the longest piece of work in the event loop for a snapshot: 3 ms instead of 16 with a
    # ReadingRow per cell. Equal readings share one dict, so that a snapshot takes 0.1 MB, not 0.4.
    packed: dict[str, dict[int, int]] = {}
    for ticker, timeframe, indicator, reading in await db.fetch_packed(
        "ticker, timeframe, indicator, reading", SELECT_READINGS
    ):
        cells = packed.setdefault(ticker, {})
        cells[indicator] = cells.get(indicator, 0) | (reading + 2) << (2 * timeframe)
    return {
        ticker: {KEYS_BY_CODE[code]: _unpack_readings(bits) for code, bits in cells.items()}
        for ticker, cells in packed.items()
    }


@cache
def _unpack_readings(bits: int) -> dict[Timeframe, int]:
    """Return the readings that hold two bits for each timeframe's code: 0 is none, else + 2."""
    return {
        timeframe: (bits >> (2 * code) & 3) - 2
        for code, timeframe in TIMEFRAMES_BY_CODE.items()
        if bits >> (2 * code) & 3
    }


def parse_change(row: Iterable[Any]) -> ChangeRow:
    """Return a change from the columns of SELECT_CHANGE."""
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, shown = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return ChangeRow(at, ticker, *names, closed, epoch, before, after, price, bool(shown))


def parse_alert(row: Iterable[Any]) -> AlertRow:
    """Return an alert from the columns of SELECT_ALERT."""
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    names = KEYS_BY_CODE[indicator], TIMEFRAMES_BY_CODE[timeframe]
    return AlertRow(at, ticker, *names, closed, epoch, ACTIONS_BY_CODE[action], price)


# The first start of a live source fetches as much; older holes no longer move a reading.
COUNTED_HISTORY_MS = 330 * DAY_MS


def find_building_tickers(
    rows: Iterable[WatermarkRow], published_from: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the assets whose history is being built, and those that a first start lacks.

    The latter never had all of it, and are not assets which a universe file added later.
    """
    building = [row for row in rows if row.history == "building"]
    if not building:
        return (), ()
    # The feed of all assets of a first start begins at one time, that of later ones after it.
    first = min(published_from.values())
    unbuilt = [
        row.ticker for row in building if not row.late and published_from.get(row.ticker) == first
    ]
    return tuple(row.ticker for row in building), tuple(unbuilt)


def find_late(
    rows: Iterable[WatermarkRow],
    published_coverage: Coverage | None,
    published_from: Mapping[str, int],
) -> dict[str, tuple[Timeframe, ...]]:
    """Return the timeframes on which each late asset is late, by ticker, sorted.

    If the source is live, these include assets that never had a bar.
    """
    late = {row.ticker: row.late for row in rows if row.late}
    # An asset that never had a bar has no watermark row. Such a live asset is late because it has a
    # source, which fails: an empty result would not say so. Past snapshots too use today's assets.
    if published_coverage is not None and published_coverage.recorded_until is None:
        late |= {
            a.ticker: tuple(a.timeframes)
            for a in published_coverage.tracked
            if a.timeframes and a.ticker not in published_from
        }
    return dict(sorted(late.items()))

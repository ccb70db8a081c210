"""Builds stores with a year of feed, of any size: the real schema, with rows inserted in bulk."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from schemas.vocabulary import DAY_MS, HOUR_MS, INDICATOR_IDS, RUN_DELAY_MS
from store.sqlite.schema import migrate

BEGIN = 1_764_547_200_000
HOURS = 365 * 24
# Only 219 hours are drawn at random; repeated 40 times, they fill the 8,760 hours of a year.
DRAWN_HOURS = 219
END = BEGIN + HOURS * HOUR_MS
ALERTS, ALERTS_BEGIN = 20_000, END - 90 * DAY_MS
RARE = 37


def draw_changes(rows: int, assets: int) -> list[list[object]]:
    """Draw the changes of DRAWN_HOURS hours: columns of hour, position in it, and the row's fields.

    trend_oracle is never neutral, reversals on 1d not yet (see `insert_rare`), and perpkit is not
    published.
    """
    rng, count = np.random.default_rng(8), rows * DRAWN_HOURS // HOURS
    cells = np.unique(
        np.stack(
            [
                rng.integers(0, DRAWN_HOURS, count),
                rng.integers(0, assets, count),
                rng.choice(7, count, p=[0.10, 0.12, 0.22, 0.14, 0.20, 0.12, 0.10]),
                rng.choice(3, count, p=[0.75, 0.19, 0.06]),
            ]
        ),
        axis=1,
    )
    hour, asset, indicator, timeframe = cells
    after = rng.choice([-1, 0, 1], len(hour), p=[0.35, 0.3, 0.35])
    after[(after == 0) & ((indicator == 0) | ((indicator == 2) & (timeframe == 2)))] = 1
    position = np.arange(len(hour)) - np.searchsorted(hour, hour)
    return [
        column.tolist()
        for column in (hour, position, asset, indicator, timeframe, after, indicator < 6)
    ]


def build_store(path: Path, rows: int, assets: int, migrations: Sequence[str]) -> None:
    """Create a store of a year: the drawn hours repeated, a rare reading, and alerts."""
    migrate(path, migrations)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # The file is thrown away if this fails, so it needs no journal.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -64000"):
            db.execute(f"PRAGMA {pragma}")
        with drop_indexes_and_triggers(db):
            db.execute("BEGIN")
            db.executemany(
                "INSERT INTO assets (id, ticker, publish_from) VALUES (?, ?, 0)",
                list_tickers(assets),
            )
            insert_changes(db, draw_changes(rows, assets))
            insert_rare(db)
            insert_alerts(db)
            db.execute("COMMIT")


def list_tickers(assets: int) -> Iterator[tuple[int, str]]:
    """Return ids and tickers of assets."""
    return ((number, f"T{number}") for number in range(assets))


def insert_changes(db: sqlite3.Connection, columns: list[list[object]]) -> None:
    """Insert the drawn changes repeatedly, shifted to fill the year."""
    db.execute("CREATE TEMP TABLE drawn (hour, place, asset_id, indicator, timeframe, turn, shown)")
    db.executemany("INSERT INTO drawn VALUES (?, ?, ?, ?, ?, ?, ?)", zip(*columns, strict=True))
    for first in range(0, HOURS, DRAWN_HOURS):
        db.execute(
            "INSERT INTO changes SELECT :at + hour * 3600000 + 180000 + place, asset_id, "
            "indicator, timeframe, :at / 1000 + hour * 3600, 0, -turn, turn, 100 + place * 0.01, "
            "shown FROM drawn",
            {"at": BEGIN + first * HOUR_MS},
        )


def insert_rare(db: sqlite3.Connection) -> None:
    """Insert a few neutral changes of reversals on 1d, equally many in every store."""
    for number in range(RARE):
        at = BEGIN + (number * HOURS // RARE) * HOUR_MS + 2 * RUN_DELAY_MS
        db.execute(
            "INSERT INTO changes VALUES (:at, :asset_id, 2, 2, :at, 0, 1, 0, 100.0, 1)",
            {"at": at, "asset_id": number % 251},
        )


def insert_alerts(db: sqlite3.Connection) -> None:
    """Insert 90 days of alerts, the same in every store."""
    rng = np.random.default_rng(9)
    at = ALERTS_BEGIN + np.arange(ALERTS) * (90 * DAY_MS // 60_000) // ALERTS * 60_000 + 30_000
    columns = (
        at,
        rng.integers(0, 12, ALERTS),
        rng.integers(0, len(INDICATOR_IDS), ALERTS),
        rng.integers(1, 3, ALERTS),
        at,
        rng.choice([0, 1, 4], ALERTS),
    )
    db.executemany(
        "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, 0, ?, 100.0)",
        zip(*(column.tolist() for column in columns), strict=True),
    )


@contextmanager
def drop_indexes_and_triggers(db: sqlite3.Connection) -> Iterator[None]:
    """Drop the indexes and triggers during the block, then create them again."""
    dropped = db.execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL "
        "AND type IN ('index', 'trigger') AND tbl_name IN ('changes', 'alerts')"
    ).fetchall()
    for kind, name, _ in dropped:
        db.execute(f"DROP {kind} {name}")
    yield
    for _, _, sql in dropped:
        db.execute(sql)

"""Any program may open the file: the database itself must refuse to rewrite history."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.sqlite import SqliteMarketStore
from tests.store.rows import DAY_MS, NOW, alert, change, content, full, plainly, work

pytestmark = pytest.mark.clause("store")

GUARDED = (
    "alerts",
    "assets",
    "bars",
    "changes",
    "clock",
    "epochs",
    "funding",
    "passes",
    "watermarks",
)
ATTACKS = {
    "update": "UPDATE {table} SET {moved}",
    "update or replace": "UPDATE OR REPLACE {table} SET {moved}",
    "delete": "DELETE FROM {table}",
    "insert": "INSERT INTO {table} SELECT * FROM {table} LIMIT 1",
    "replace": "REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
    "insert or replace": "INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
    "upsert": "INSERT INTO {table} SELECT * FROM {table} WHERE true LIMIT 1 "
    "ON CONFLICT DO UPDATE SET {moved}",
}
MOVED = {
    "alerts": "price = price + 1",
    "assets": "publish_from = publish_from + 1",
    "bars": "data = zeroblob(length(data))",
    "changes": "price = price + 1",
    "clock": "market_time = market_time - 1",
    "epochs": "reason = 'other'",
    "funding": "funding_rate = funding_rate + 1",
    "passes": "digest = x'00'",
    "watermarks": "is_late = 0",
}
INSERT_CHANGE = (
    "INSERT OR REPLACE INTO changes SELECT {created_at}, asset_id, indicator, timeframe, "
    "{close_time}, epoch, NULL, -1, 1.0, 1 FROM changes ORDER BY created_at LIMIT 1"
)


def assert_refused(path: Path, sql: str, **pragmas: str) -> None:
    before = content(path)
    with closing(sqlite3.connect(path)) as connection:
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name} = {value}")
        with pytest.raises(sqlite3.IntegrityError), connection:
            connection.execute(sql)
    assert content(path) == before


@pytest.mark.clause("1.31", "1.32")
@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("table", GUARDED)
async def test_a_stored_row_withstands_every_way_to_rewrite_it(
    market: SqliteMarketStore, path: Path, table: str, attack: str, recursive: str
) -> None:
    await market.commit(full())
    sql = ATTACKS[attack].format(table=table, moved=MOVED[table])
    assert_refused(path, sql, recursive_triggers=recursive)


async def test_a_newer_row_cannot_replace_a_stored_change_of_the_same_id(
    market: SqliteMarketStore, path: Path
) -> None:
    await market.commit(full())
    assert_refused(path, INSERT_CHANGE.format(created_at=NOW + 99, close_time="close_time"))


@pytest.mark.parametrize("created_at", ["NULL", str(NOW + 3), str(NOW), "1", "-5"])
async def test_a_change_cannot_be_slipped_in_before_the_newest(
    market: SqliteMarketStore, path: Path, created_at: str
) -> None:
    await market.commit(full())
    assert_refused(path, INSERT_CHANGE.format(created_at=created_at, close_time="1"))


async def test_a_new_key_cannot_replace_a_stored_epoch_or_asset(
    market: SqliteMarketStore, path: Path
) -> None:
    await market.commit(full())
    assert_refused(path, "REPLACE INTO assets SELECT 99, ticker, 0 FROM assets LIMIT 1")
    assert_refused(path, "REPLACE INTO assets SELECT id, 'NEW', 0 FROM assets LIMIT 1")
    columns = "asset_id, timeframe, indicator, epoch, 9, 9, 9, 'other'"
    assert_refused(path, f"REPLACE INTO epochs SELECT 99, {columns} FROM epochs LIMIT 1")


async def test_a_pass_number_cannot_be_left_out(market: SqliteMarketStore, path: Path) -> None:
    await market.commit(full())
    assert_refused(path, "INSERT INTO passes VALUES (3, 0, NULL, NULL, NULL, x'', x'', x'', NULL)")


async def test_the_clock_may_move_on(market: SqliteMarketStore, path: Path) -> None:
    await market.commit(full())
    plainly(path, "UPDATE clock SET market_time = market_time + 1")
    assert (await market.progress()).market_time == NOW + 1


@pytest.mark.clause("1.32", "1.33")
async def test_a_change_may_be_deleted_from_the_age_of_retention_on(
    market: SqliteMarketStore, path: Path
) -> None:
    edge = NOW - 365 * DAY_MS
    await market.commit(work(NOW, changes=[change(edge - 1), change(edge)]))
    delete = f"DELETE FROM changes WHERE created_at = {edge}"
    assert_refused(path, delete)
    plainly(path, f"DELETE FROM changes WHERE created_at = {edge - 1}")
    assert plainly(path, "SELECT created_at FROM changes") == [(edge,)]


async def test_without_a_clock_no_change_is_old(market: SqliteMarketStore, path: Path) -> None:
    plainly(path, "INSERT INTO assets (ticker, publish_from) VALUES ('BTC', 0)")
    plainly(path, "INSERT INTO changes VALUES (1, 1, 0, 0, 0, 0, NULL, 1, 1.0, 1)")
    assert_refused(path, "DELETE FROM changes")


INSERT_ALERT = (
    "INSERT OR REPLACE INTO alerts SELECT {created_at}, asset_id, indicator, timeframe, "
    "{close_time}, epoch, action, 1.0 FROM alerts ORDER BY created_at LIMIT 1"
)


@pytest.mark.parametrize("created_at", ["NULL", str(NOW + 3), str(NOW), "1", "-5"])
async def test_an_alert_cannot_be_slipped_in_before_the_newest_row_of_either_tier(
    market: SqliteMarketStore, path: Path, created_at: str
) -> None:
    await market.commit(full())
    assert_refused(path, INSERT_ALERT.format(created_at=created_at, close_time="1"))
    await market.commit(work(NOW + 9, changes=[change(NOW + 9)]))
    assert_refused(path, INSERT_ALERT.format(created_at=NOW + 9, close_time="1"))


async def test_a_newer_row_cannot_replace_a_stored_alert_of_the_same_id(
    market: SqliteMarketStore, path: Path
) -> None:
    await market.commit(full())
    assert_refused(path, INSERT_ALERT.format(created_at=NOW + 99, close_time="close_time"))


@pytest.mark.clause("1.34")
async def test_an_alert_may_be_deleted_from_the_age_of_90_days_on(
    market: SqliteMarketStore, path: Path
) -> None:
    edge = NOW - 90 * DAY_MS
    await market.commit(work(NOW, alerts=[alert(edge - 1), alert(edge)]))
    assert_refused(path, f"DELETE FROM alerts WHERE created_at = {edge}")
    plainly(path, f"DELETE FROM alerts WHERE created_at = {edge - 1}")
    assert plainly(path, "SELECT created_at FROM alerts") == [(edge,)]

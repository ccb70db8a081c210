"""Changes a stored value behind the store's back, and leaves everything else as it was."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import numpy as np

from compute.audit.audit import Report, audit_market
from compute.bars import DAY_S, HOUR_S, Funding
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import to_market_ms
from compute.signing.log_signer import LogSigner, load_key
from compute.sources.source import FetchResult
from schemas.vocabulary import Clock
from store.postgres.schema import SCHEMAS
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import ALTERNATING, AcceleratedClock, ScriptedSource, march_s
from tests.support.store_homes import REFUSED, PostgresHome, RunSql, StoreHome, open_and_close

LIST_POSTGRES_COLUMNS = f"""
SELECT table_name::text, column_name::text FROM information_schema.columns
WHERE table_schema = '{SCHEMAS["market"][0]}' ORDER BY table_name, ordinal_position
"""
LIST_SQLITE_COLUMNS = """
SELECT t.name, c.name FROM main.sqlite_schema t, pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' ORDER BY t.name, c.cid
"""


class Column(NamedTuple):
    table: str
    name: str


@dataclass(frozen=True)
class Session:
    """A session in which no trigger and no foreign key holds; `read` runs a statement."""

    read: RunSql
    list_columns: str

    async def write(self, sql: str, *values: object) -> bool:
        """Run a statement; return whether the database's constraints accept it."""
        try:
            await self.read(sql, *values)
        except (*REFUSED, asyncpg.DataError):
            return False
        return True


@asynccontextmanager
async def open_unguarded(
    home: StoreHome, table: str, *, unchecked: bool = False
) -> AsyncIterator[Session]:
    """Open a session in which a table has no triggers; after it they are as before.

    If `unchecked`, the CHECK constraints of SQLite do not hold either.
    """
    if isinstance(home, PostgresHome):
        async with home.open_plain(*home.relaxing_sql) as run:
            condition = f"NOT tgisinternal AND tgrelid = '{table}'::regclass"
            triggers = await run(f"SELECT tgname FROM pg_trigger WHERE {condition}")
            await run(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            yield Session(run, LIST_POSTGRES_COLUMNS)
            for (name,) in triggers:
                await run(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")
    else:
        async with home.open_plain(f"PRAGMA ignore_check_constraints = {int(unchecked)}") as run:
            sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?"
            triggers = await run(sql, table)
            for name, _ in triggers:
                await run(f"DROP TRIGGER {name}")
            yield Session(run, LIST_SQLITE_COLUMNS)
            for _, created in triggers:
                await run(created)


async def list_columns(home: StoreHome) -> list[Column]:
    is_postgres = isinstance(home, PostgresHome)
    async with home.open_plain() as run:
        rows = await run(LIST_POSTGRES_COLUMNS if is_postgres else LIST_SQLITE_COLUMNS)
    return [Column(*row) for row in rows]


async def read_rows(session: Session, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the quoted names of a table's columns, and all rows in their order."""
    columns = await session.read(session.list_columns)
    names = [f'"{name}"' for owner, name in columns if owner == table]
    order = ", ".join(str(place) for place in range(1, len(names) + 1))
    return names, await session.read(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}")


async def replace_value(session: Session, column: Column, row: int, values: Sequence[Any]) -> bool:
    """Give a column of a row the first value that the constraints accept; False if none is."""
    names, rows = await read_rows(session, column.table)
    condition, held = _select(names, rows[row])
    sql = f'UPDATE {column.table} SET "{column.name}" = ? WHERE {condition}'
    for value in values:
        if await session.write(sql, value, *held):
            _, after = await read_rows(session, column.table)
            assert sorted(map(repr, after)) != sorted(map(repr, rows))
            return True
    return False


async def delete_row(session: Session, table: str, row: int) -> tuple[Any, ...]:
    names, rows = await read_rows(session, table)
    condition, held = _select(names, rows[row])
    assert await session.write(f"DELETE FROM {table} WHERE {condition}", *held)
    return rows[row]


def list_other_values(value: object) -> list[object]:
    """Return values of the same type that differ, the nearest first."""
    match value:
        case None:
            return [1, "x", b"x" * 32]
        case int():
            return [value + 1, value - 1, value + 2, value + 1_000_003]
        case float():
            return [value + 0.5]
        case str():
            return [f"{value}x"]
        case bytes():
            middle = len(value) // 2
            return [value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]]
    raise TypeError(f"no other value than {value!r} is known")


def _select(names: Sequence[str], row: Sequence[object]) -> tuple[str, list[object]]:
    """Return the condition that selects a row, and its parameters."""
    terms = [
        f"{name} IS NULL" if value is None else f"{name} = ?"
        for name, value in zip(names, row, strict=True)
    ]
    return " AND ".join(terms), [value for value in row if value is not None]


STARTS = march_s("06:00")
BEGINS = STARTS - 5 * DAY_S
SPLIT, LATE, MISSING = (STARTS + n * HOUR_S for n in (2, 3, 5))
HOURS = [STARTS + n * HOUR_S for n in range(10)]


class Market(ScriptedSource):
    """Two assets with alert engines and funding: one splits, the other is late and skips a bar."""

    def __init__(self) -> None:
        self.time = AcceleratedClock(to_market_ms(STARTS) // 1000)
        super().__init__(self.time, dict.fromkeys(("BTC", "ETH"), "24x7"), BEGINS)
        assets = tuple(a.model_copy(update={"alerts": True}) for a in self.universe.assets)
        self.universe = self.universe.model_copy(update={"assets": assets})
        self.splits["BTC"] = [(SPLIT, 4)]
        self.delays |= {("ETH", LATE): HOUR_S // 2, ("ETH", MISSING): None}

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        fetched = await super().fetch(ticker, after, until)
        since, last = max(after, self.begins_at) // HOUR_S, fetched.watermark // HOUR_S
        rates = [(n * HOUR_S, (n * 7919 % 100 - 50) / 1e5) for n in range(since + 1, last + 1)]
        is_skipped = ticker == "ETH" and after < MISSING < fetched.watermark
        missing = np.array([MISSING] if is_skipped else [], dtype=np.int64)
        return replace(fetched, funding=Funding.from_pairs(rates), missing=missing)


async def fill_store(home: StoreHome, key_file: Path) -> None:
    """Write the store: a first start, hourly runs and late ones, a checkpoint, and a pruning."""
    source = Market()
    async with open_and_close(home.open_market()) as store:
        pipeline = await open_pipeline(store, source)
        for hour in HOURS:
            source.time.now = to_market_ms(hour) + 4321
            await pipeline.run_until(hour)
            if hour == LATE:
                source.time.now += 1_900_000
                await pipeline.run_late()
        await sign_log(store, key_file)
        await store.record_access_id("0" * 32)
        assert await store.prune() == 0


async def continue_store(home: StoreHome, key_file: Path | None = None) -> None:
    """Run one more hour, after a restart; sign the log if there is a key."""
    source = Market()
    source.time.now = to_market_ms(HOURS[-1] + HOUR_S)
    async with open_and_close(home.open_market()) as store:
        pipeline = await open_pipeline(store, source)
        await pipeline.run_until(HOURS[-1] + HOUR_S)
        if key_file is not None:
            await sign_log(store, key_file)


async def sign_log(store: MarketStore, key_file: Path, clock: Clock = lambda: 0) -> None:
    await LogSigner(store.feed_log, key_file, "signals.example/api/v1/log", clock).sign()


async def open_pipeline(store: MarketStore, source: Market) -> HourlyPipeline:
    return await HourlyPipeline.open(store, source, source.universe, ALTERNATING, source.time)


async def audit_home(home: StoreHome, key_file: Path | None = None) -> Report:
    async with open_and_close(home.open_market()) as store:
        key = None if key_file is None else load_key(key_file)
        return await audit_market(store, Market().universe, ALTERNATING, log_key=key)

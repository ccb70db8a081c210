"""Builders of rows and batches, and access to the file by a plain sqlite3 connection.

Rows of a market store that no command reads by themselves, for tests to compare.
"""

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from access.keys_and_quota import hash_key
from access.sign_in import SESSION_MS
from schemas.vocabulary import Action, Clock, Timeframe
from store.access_rows import CallGroup, ClaimRow, MembershipRow, RetentionCutoffs, SignInRow
from store.market_rows import (
    AlertRow,
    BarBlock,
    Batch,
    CarryRow,
    ChangeRow,
    CommitRow,
    EpochRow,
    FundingRow,
    MissingBarsRow,
    WatermarkRow,
)
from store.sql import market_statements as statements
from store.sql.access_store import AccessStore
from store.sql.database import Lane
from store.sql.market_reads import decode_cell, parse_change
from store.sql.market_store import MarketStore

NOW = 1_780_000_000_000
# Cutoffs at which nothing is deleted.
NO_CUTOFFS = RetentionCutoffs(0, 0, 0, 0, 0, 0, 0, 0)
DAY_MS = 86_400_000
EVER = 2**62
TABLES = (
    "alerts",
    "assets",
    "bars",
    "carries",
    "changes",
    "clock",
    "coverage",
    "epochs",
    "facts",
    "funding",
    "log_checkpoint",
    "log_leaves",
    "log_tiles",
    "missing_bars",
    "passes",
    "readings",
    "sources",
    "watermarks",
)


class BarRow(NamedTuple):
    """One bar of a block."""

    ticker: str
    timeframe: Timeframe
    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float


def make_bar(ticker: str = "BTC", open_time: int = 0, timeframe: Timeframe = "1h") -> BarRow:
    return BarRow(ticker, timeframe, open_time, 1.5, 2.5, 0.1 + 0.2, 2.25, 1e6)


def make_blocks(*rows: BarRow, revision: int = 0, source: str | None = None) -> list[BarBlock]:
    """Return blocks of consecutive rows with the same ticker and timeframe."""
    return [
        BarBlock(
            ticker,
            timeframe,
            np.array([row.open_time for row in own], dtype=np.int64),
            np.array([row[3:] for row in own], dtype=np.float64),
            revision,
            source,
        )
        for (ticker, timeframe), group in groupby(rows, key=lambda row: row[:2])
        for own in [list(group)]
    ]


def to_rows(found: Iterable[BarBlock]) -> list[BarRow]:
    return [
        BarRow(block.ticker, block.timeframe, *row)
        for block in found
        for row in zip(block.open_time.tolist(), *block.values.T.tolist(), strict=True)
    ]


def make_change(
    created_at: int,
    ticker: str = "BTC",
    indicator: str = "enzo",
    timeframe: Timeframe = "1h",
    *,
    before: int | None = None,
    after: int = 1,
    published: bool = True,
    close_time: int | None = None,
) -> ChangeRow:
    """Return a change; each has its own bar unless `close_time` is given."""
    closed = created_at if close_time is None else close_time
    return ChangeRow(
        created_at, ticker, indicator, timeframe, closed, 0, before, after, 0.3, published
    )


def make_alert(
    created_at: int,
    action: Action = "LONG",
    ticker: str = "BTC",
    indicator: str = "perpkit",
    timeframe: Timeframe = "4h",
    *,
    close_time: int | None = None,
    epoch: int = 0,
) -> AlertRow:
    """Return an alert; each has its own bar unless `close_time` is given."""
    closed = created_at if close_time is None else close_time
    return AlertRow(created_at, ticker, indicator, timeframe, closed, epoch, action, 0.3)


def make_carry(ticker: str = "BTC", data: bytes = b"\x00\xff") -> CarryRow:
    return CarryRow(ticker, "4h", "reversals", 2, "f8", 1, 7200, data)


def make_epoch(ticker: str = "BTC", number: int = 1) -> EpochRow:
    return EpochRow(ticker, "4h", "reversals", number, 2, 1, 7200, "layout")


def make_batch(market_time: int = NOW, **parts: Any) -> Batch:
    return Batch(market_time, **{"bars": (), "funding": (), "changes": (), "carries": (), **parts})


def make_full_batch(market_time: int = NOW, *, step: int = 0) -> Batch:
    """Return a batch that writes to every table; each `step` has its own rows."""
    return make_batch(
        market_time,
        bars=make_blocks(
            make_bar("ETH", 3600 * step), make_bar("BTC", 3600 * step), source="recorded"
        ),
        funding=[FundingRow("BTC", 3600 * step, -0.0001)],
        changes=[
            make_change(NOW + 10 * step),
            make_change(NOW + 10 * step + 2, "ETH", "dexter", "1d"),
        ],
        alerts=[make_alert(NOW + 10 * step + 1), make_alert(NOW + 10 * step + 3, "CLOSE", "ETH")],
        carries=[make_carry()],
        epochs=[make_epoch(number=step)],
        watermarks=[WatermarkRow("ETH", 3600 * step - 1, late=("1h",))],
        missing_bars=[MissingBarsRow("ETH", 0, 1 + step, 3600 * step, 3600 * step + 7200)],
        publish_from={"BTC": 5, "ETH": 7},
    )


def run_sql(path: Path, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run one statement with default pragmas, as another program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


def make_call_group(key_hash: bytes, at: int) -> CallGroup:
    """Return a group of one call that arrived at a time (epoch ms)."""
    return CallGroup(key_hash, at // DAY_MS, 1, at)


async def store_membership(access: AccessStore, email: str, now: int) -> MembershipRow:
    """Store a membership of a mailbox that was just paid, with a key that nobody knows."""
    name = secrets.token_hex(8)
    member = MembershipRow("sandbox", "test", f"sb_{name}", f"sb_{name}", email, "monthly", now)
    claim = ClaimRow(
        id=name,
        token_hash=hash_key(f"claim {name}"),
        provider="sandbox",
        mode="test",
        session=member.subscription,
        contact_email=email,
        billing="monthly",
        agent_name=None,
        created_at=now,
        expires_at=now,
    )
    await access.create_claim(claim)
    await access.redeem_claim(claim, member, hash_key(name), now)
    return member


async def create_session_cookie(
    access: AccessStore, clock: Clock, *, is_member: bool = True
) -> str:
    """Return the session cookie of a new member, or of a former one if `is_member` is false."""
    token, now = secrets.token_urlsafe(32), clock()
    # Each session has its own mailbox, because signing out ends all sessions of a mailbox.
    email = f"{token[:8]}-viewer@example.com"
    member = await store_membership(access, email, now)
    if not is_member:
        await access.end_membership(member, now, "the test ended it")
    link = SignInRow(hash_key(f"link {token}"), email, now + 1)
    await access.create_sign_in_link(link)
    await access.sign_in(link.token_hash, hash_key(token), now, now + SESSION_MS)
    return f"signals_session={token}"


async def list_changes(store: MarketStore) -> list[ChangeRow]:
    """Return every stored change, published or not, oldest first."""
    async with store._engine.begin_read(Lane.BATCH) as db:
        rows = await db.execute(statements.LIST_CHANGES_AFTER, after=0, limit=EVER)
    return [parse_change(row) for row in rows]


async def list_commits(store: MarketStore) -> list[CommitRow]:
    async with store._engine.begin_read(Lane.BATCH) as db:
        return [CommitRow(**row) for row in await db.execute(statements.LIST_COMMITS)]


async def list_epochs(store: MarketStore) -> list[EpochRow]:
    async with store._engine.begin_read(Lane.BATCH) as db:
        rows = await db.execute(statements.LIST_EPOCHS)
    return [EpochRow(**decode_cell(row)) for row in rows]

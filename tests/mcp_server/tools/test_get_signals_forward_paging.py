"""A client that reads forward while runs commit receives every row once, in order.

It keeps only the last next_cursor, and writes it in various notations.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

from schemas.vocabulary import ACTIONS, STORED_KEYS, TIMEFRAMES, format_instant
from serving.argument_values import parse_instant_ms
from store.market_rows import AlertRow, Batch, ChangeRow, FeedRow
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.support.bad_inputs import SIGNALS, build_path
from tests.support.example_market import HOUR_MS, NOON
from tests.support.row_builders import list_changes
from tests.support.running_service import RunningService, Transport, run_service, served as served
from tests.support.store_homes import GatedMarket, open_and_close

pytestmark = pytest.mark.clause("feed")

TIERS = ("universe", "alerts", "all")
ZONES = [timezone(timedelta(hours=hours, minutes=30)) for hours in (-4, 0, 5)]


@dataclass
class Writer:
    """Commits runs with many rows of both tiers on a separate connection, as compute does."""

    store: MarketStore
    draw: Random
    runs_left: int
    run: int = NOON + HOUR_MS
    newest: int = NOON + 5

    async def write(self, most: int = 60) -> None:
        if self.runs_left:
            self.runs_left -= 1
            rows = [self._row() for _ in range(self.draw.randint(0, most))]
            await self.store.commit(
                Batch(
                    self.run,
                    changes=[row for row in rows if isinstance(row, ChangeRow)],
                    alerts=[row for row in rows if isinstance(row, AlertRow)],
                    written_at=self.run,
                )
            )
            self.run += HOUR_MS * self.draw.randint(0, 1)  # Or a late batch of the same hour.

    def _row(self) -> FeedRow:
        draw = self.draw
        self.newest = max(self.newest + 1, self.run)
        ticker, timeframe = draw.choice(("BTC", "ETH", "NVDA")), draw.choice(TIMEFRAMES)
        place = self.newest, ticker, draw.choice(STORED_KEYS[:7]), timeframe, self.newest, 1
        if draw.random() < 0.3:
            return AlertRow(*place, draw.choice(ACTIONS), 1.5)
        after = draw.randint(-1, 1)
        return ChangeRow(*place, draw.choice((None, -after)), after, 1.5, draw.random() < 0.8)

    async def stored(self, tier: str) -> list[str]:
        """Return the ids of all published rows of a tier, oldest first."""
        rows: list[FeedRow] = []
        if tier != "alerts":
            rows += [row for row in await list_changes(self.store) if row.published]
        if tier != "universe":
            rows += [row async for row in self.store.alerts()]
        return [row.id for row in sorted(rows, key=lambda row: row.created_at)]


@dataclass
class Reader:
    """Reads the feed forward; its state is the cursor in milliseconds and the ids read so far."""

    served: RunningService
    transport: Transport
    tier: str
    draw: Random
    cursor: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    async def page(self, limit: int) -> bool:
        """Read a page; return true if there are more."""
        arguments: dict[str, Any] = {"tier": self.tier, "order": "oldest", "limit": limit}
        if self.cursor is not None:
            arguments["since"] = self._written(self.cursor)
        answer = await requested(self.served, self.transport, **arguments)
        rows, pagination = answer["signals"], answer["pagination"]
        assert len(rows) == pagination["returned"] <= limit
        assert pagination["next_cursor"] == (rows[-1]["created_at"] if rows else None)
        assert len(rows) == limit or not pagination["has_more"]
        self.rows += rows
        if rows:
            cursor = parse_instant_ms("next_cursor", pagination["next_cursor"])
            assert self.cursor is None or cursor > self.cursor
            self.cursor = cursor
        return bool(pagination["has_more"])

    def _written(self, cursor: int) -> str:
        """Format the cursor in one of the accepted notations and zones."""
        text = format_instant(cursor)
        if self.draw.random() < 0.5:
            return text.removesuffix(self.draw.choice(["", "Z"]))
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return at.astimezone(self.draw.choice(ZONES)).isoformat(timespec="milliseconds")

    def resumed(self) -> "Reader":
        """Return a reader that resumes from the stored cursor, as after a restart."""
        return Reader(self.served, self.transport, self.tier, self.draw, self.cursor, self.rows)


async def requested(served: RunningService, transport: Transport, **arguments: Any) -> Any:
    """Return a result without validating it, which would take longer than reading it."""
    if transport == "mcp":
        return (await served.call(SIGNALS, arguments))["structuredContent"]
    return (await served.get_api(build_path(SIGNALS, arguments))).json()


async def newest_first(served: RunningService, transport: Transport, tier: str) -> list[str]:
    """Read the whole feed with offset pages while nothing is written."""
    rows: list[dict[str, Any]] = []
    while True:
        answer = await requested(served, transport, tier=tier, limit=200, offset=len(rows))
        rows += answer["signals"]
        if not answer["pagination"]["has_more"]:
            return [row["id"] for row in rows]


@asynccontextmanager
async def written_and_served(
    folder: Path, seeded: Path, draw: Random, runs: int
) -> AsyncIterator[tuple[RunningService, Writer]]:
    shutil.copytree(seeded, folder, dirs_exist_ok=True)
    async with (
        open_and_close(open_sqlite_market(folder / "market.db")) as store,
        run_service(folder, store_class=GatedMarket) as served,
    ):
        yield served, Writer(store, draw, runs)


@pytest.mark.clause("4.7.19")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("seed", "runs"),
    [(1, 8), pytest.param(2, 25, marks=pytest.mark.prove)],
)
@pytest.mark.prove
async def test_a_reader_that_restarts_while_runs_commit_gets_each_row_once_in_order(
    tmp_path: Path,
    seeded: Path,
    transport: Transport,
    tier: str,
    seed: int,
    runs: int,
):
    draw = Random(seed)
    async with written_and_served(tmp_path, seeded, draw, runs) as (served, writer):
        reader, has_more = Reader(served, transport, tier, draw), True
        while writer.runs_left or has_more:
            if draw.random() < 0.3 or not has_more:
                await writer.write()
            if draw.random() < 0.3:
                reader = reader.resumed()
            served.market.gated_reads.before = writer.write if draw.random() < 0.2 else None
            has_more = (
                await reader.page(draw.randint(1, 25))
                or served.market.gated_reads.before is not None
            )
        # A reader that is caught up gets empty pages, and keeps its cursor.
        for limit in (1, 200):
            before = reader.cursor, len(reader.rows)
            assert await reader.page(limit) is False
            assert (reader.cursor, len(reader.rows)) == before
        read = [row["id"] for row in reader.rows]
        assert len(read) > 10 * runs // 2
        assert read == await writer.stored(tier)
        assert read == (await newest_first(served, transport, tier))[::-1]
        times = [row["created_at"] for row in reader.rows]
        assert times == sorted(set(times))


@pytest.mark.parametrize("tier", TIERS)
async def test_a_page_has_no_row_newer_than_its_meta(
    tmp_path: Path, seeded: Path, transport: Transport, tier: str
):
    async with written_and_served(tmp_path, seeded, Random(5), 3) as (served, writer):
        states: list[tuple[str, list[str]]] = []

        async def write() -> None:
            run = writer.run
            await writer.write()
            states.append((format_instant(run), await writer.stored(tier)))

        await requested(served, transport, tier=tier)
        await write()
        # A run is committed each time that the snapshot was read, and its rows not yet.
        served.market.gated_reads.before = write
        page = await requested(served, transport, tier=tier, order="oldest", limit=200)
        assert (page["meta"]["as_of"], [row["id"] for row in page["signals"]]) in states[:-1]


async def test_an_empty_page_forward_says_why_and_names_no_cursor(served, transport):
    answer = await served.fetch_answer(
        transport, SIGNALS, order="oldest", since=format_instant(NOON + 5), limit=3
    )
    assert answer["signals"] == []
    assert answer["pagination"] == {
        "limit": 3,
        "offset": 0,
        "returned": 0,
        "has_more": False,
        "next_cursor": None,
    }
    assert "No such row has come since then." in answer["meta"].get("note", "")


@pytest.mark.clause("1.13", "2.2.5", "2.2.6")
async def test_the_cursor_of_a_page_is_its_newest_row_in_both_orders(served, transport):
    pages = {
        order: await served.fetch_answer(transport, SIGNALS, order=order, limit=3)
        for order in ("newest", "oldest")
    }
    assert pages["newest"] == await served.fetch_answer(transport, SIGNALS, limit=3)
    cursors = {order: page["pagination"]["next_cursor"] for order, page in pages.items()}
    # The feed's eight rows: two of 11:03, six of 12:03.
    assert cursors == {"newest": format_instant(NOON + 5), "oldest": format_instant(NOON)}
    ids = {order: [row["id"] for row in page["signals"]] for order, page in pages.items()}
    assert [row.split(".")[1] for row in ids["oldest"]] == ["BTC", "NVDA", "BTC"]
    assert not set(ids["newest"]) & set(ids["oldest"])


@pytest.mark.clause("4.7.17")
async def test_filters_and_offset_work_in_both_orders(served, transport):
    forward = await served.fetch_answer(
        transport, SIGNALS, order="oldest", ticker="BTC", offset=1, limit=2
    )
    back = await served.fetch_answer(transport, SIGNALS, ticker="BTC", offset=1, limit=2)
    assert [row["created_at"] for row in forward["signals"]] == [
        format_instant(NOON),
        format_instant(NOON + 2),
    ]
    assert back["signals"] == forward["signals"][::-1]
    assert forward["pagination"]["has_more"] is back["pagination"]["has_more"] is True

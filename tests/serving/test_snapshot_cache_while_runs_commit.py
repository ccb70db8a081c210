"""While runs commit in the same process, every result is of exactly one version.

Every run changes all readings, so a result that mixes two versions would have both directions.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest

from schemas.vocabulary import INDICATOR_IDS, READING_NAMES, format_instant
from store.market_rows import ChangeRow
from tests.support.example_market import ASSETS, HOUR_MS, NOON, make_batch, make_change
from tests.support.running_service import RunningService, Transport

pytestmark = pytest.mark.clause("feed")

READERS, CALLS, VERSIONS = 6, 10, 6
LOGGED = tuple(indicator for indicator in INDICATOR_IDS if indicator != "perpkit")
COVERED = [asset for asset in ASSETS if asset.removed_on is None]


def side(run: int) -> int:
    """Return the reading of all cells after a run."""
    return 1 if run % 2 else -1


def turned(run: int) -> list[ChangeRow]:
    """Return the changes of a run, in which every cell changes to the run's reading."""
    created_at = NOON + run * HOUR_MS
    cells = [
        (asset.ticker, indicator, timeframe)
        for asset in ASSETS
        for indicator in (*INDICATOR_IDS, *(["dexter"] * (asset.ticker in {"BTC", "MATIC"})))
        for timeframe in asset.timeframes
    ]
    return [
        make_change(created_at + place, *cell, side(run), -side(run))
        for place, cell in enumerate(cells)
    ]


def run_of(answer: dict[str, Any]) -> int:
    """Return the number of the run in a result's as_of."""
    return (milliseconds(answer["meta"]["as_of"]) - NOON) // HOUR_MS


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def check_state(answer: dict[str, Any]) -> None:
    readings = [
        reading
        for asset in answer["assets"]
        for cells in asset["signals"].values()
        for reading in cells.values()
    ]
    assert answer["as_of"] == answer["meta"]["as_of"]
    assert set(readings) == {READING_NAMES[side(run_of(answer))]}
    assert answer["counts"] == {"assets": len(answer["assets"]), "readings": len(readings)}
    assert len(readings) == len(turned(1))


def check_signals(answer: dict[str, Any]) -> None:
    """Check that a page begins with the last row of the run in its meta, and has no gaps."""
    run, rows, page = run_of(answer), answer["signals"], answer["pagination"]
    published = [row for r in range(run, run - 4, -1) for row in reversed(turned(r))]
    expected = [row for row in published if row.published][: len(rows)]
    assert [row["id"] for row in rows] == [row.id for row in expected]
    assert [row["created_at"] for row in rows] == [
        format_instant(row.created_at) for row in expected
    ]
    assert [row["direction"] for row in rows] == [READING_NAMES[row.after] for row in expected]
    assert page["returned"] == len(rows) == page["limit"]
    assert page["next_cursor"] == rows[0]["created_at"]


def check_confluence(answer: dict[str, Any]) -> None:
    reading = READING_NAMES[side(run_of(answer))]
    agree = len(answer["results"])
    assert agree == (
        len([a for a in COVERED if "4h" in a.timeframes]) if reading == "bullish" else 0
    )
    votes = {vote for result in answer["results"] for vote in result["votes"].values()}
    assert votes <= {reading}


def check_flips(answer: dict[str, Any]) -> None:
    reading = READING_NAMES[side(run_of(answer))]
    flips = [flip for group in answer["groups"] for flip in group["flips"]]
    assert {flip["to"] for flip in flips} == {reading}
    assert answer["counts"] == {"groups": len(answer["groups"]), "flips": len(flips)}
    assert len(flips) == len(LOGGED) * len([a for a in ASSETS if "1h" in a.timeframes])
    newest = max(milliseconds(flip["created_at"]) for flip in flips)
    assert (newest - NOON) // HOUR_MS == run_of(answer)


CHECKED_CALLS: tuple[tuple[str, dict[str, Any], Any], ...] = (
    ("signals_get_state", {}, check_state),
    ("signals_get_signals", {"limit": 120}, check_signals),
    ("signals_get_confluence", {"min_agree": 6}, check_confluence),
    ("signals_get_flips", {"timeframe": "1h", "hours": 3}, check_flips),
    ("signals_get_signals", {"limit": 3, "offset": 0}, check_signals),
)


async def read(
    served: RunningService, transport: Transport, first: int, seen: Counter[int]
) -> None:
    """Call one tool after another until enough versions were read; none is older than before."""
    newest, number = 0, first
    while number < first + CALLS or len(seen) < VERSIONS:
        number += 1
        tool, arguments, check = CHECKED_CALLS[number % len(CHECKED_CALLS)]
        answer = await served.fetch_answer(transport, tool, **arguments)
        check(answer)
        assert run_of(answer) >= newest
        newest = run_of(answer)
        seen[newest] += 1


async def commit_runs(served: RunningService, readers: Iterable[asyncio.Task[None]]) -> int:
    """Commit runs while readers are active; return the last one."""
    run = 4
    while not all(reader.done() for reader in readers):
        run += 1
        served.clock.now = NOON + run * HOUR_MS + 60_000
        await served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
    return run


@pytest.mark.prove
async def test_every_result_read_while_runs_commit_is_of_one_version(served: RunningService):
    for run in range(1, 5):
        await served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
    served.clock.now = NOON + 4 * HOUR_MS + 60_000
    seen = Counter[int]()
    transports: tuple[Transport, ...] = ("mcp", "rest")
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(read(served, transport, number, seen))
            for number in range(READERS)
            for transport in transports
        ]
        last = await group.create_task(commit_runs(served, readers))
    assert seen.total() >= 2 * READERS * CALLS
    final = await served.fetch_answer("mcp", "signals_get_state")
    assert run_of(final) == last


@pytest.mark.clause("4.7.19")
async def test_pages_read_one_by_one_while_runs_commit_lose_and_repeat_no_row(
    served: RunningService,
):
    """Poll with `since` while runs commit; every published row must be read once."""
    rows: list[str] = []
    since = format_instant(NOON + HOUR_MS)
    for run in range(2, 8):
        committing = asyncio.create_task(
            served.market.commit(make_batch(NOON + run * HOUR_MS, turned(run)))
        )
        served.clock.now = NOON + run * HOUR_MS + 60_000
        while True:
            was_committed = committing.done()
            page = await served.fetch_answer("rest", "signals_get_signals", since=since, limit=200)
            assert page["pagination"]["has_more"] is False
            rows += [row["id"] for row in reversed(page["signals"])]
            since = page["pagination"]["next_cursor"] or since
            if was_committed:
                break
        await committing
    assert rows == [row.id for run in range(2, 8) for row in turned(run) if row.published]

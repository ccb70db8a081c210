"""A replay asked for its past says at every hour what one that ended there had as its latest."""

from pathlib import Path
from random import Random

import pytest

from compute.bars import HOUR_S
from compute.schedule import market_ms
from compute.universe import Universe
from store.market_rows import Snapshot
from store.sqlite.market_store import SqliteMarketStore
from tests.compute.small_market import DENSE, END, Content, open_store, prepared

pytestmark = pytest.mark.clause("answers")

NEARLY_AN_HOUR_MS = HOUR_S * 1000 - 1


def latest(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.market_time, snapshot.readings, snapshot.late


async def past(store: SqliteMarketStore, at: int) -> tuple[object, ...]:
    return latest(await store.snapshot_at(at))


async def test_a_replay_in_one_piece_tells_the_boards_of_one_in_many(
    tmp_path: Path, small_parent: Path, bars_folder: Path, universe: Universe, whole: Content
):
    draw = Random(1)
    hours = sorted(draw.sample(range(DENSE + HOUR_S, END, HOUR_S), 30))
    ended: dict[int, tuple[object, ...]] = {}
    async with open_store(tmp_path / "pieces.db") as pieces:
        runs = await prepared(pieces, bars_folder, universe)
        for hour in hours:
            await runs.catch_up(hour)
            ended[market_ms(hour)] = latest(await pieces.snapshot())
        async with open_store(small_parent / "market.db") as one:
            assert len(await one.passes()) < len(hours) < len(await pieces.passes())
            for at, board in ended.items():
                assert await past(one, at) == await past(one, at + NEARLY_AN_HOUR_MS) == board
                assert await past(pieces, at) == await past(pieces, at + NEARLY_AN_HOUR_MS) == board
    assert len({str(readings) for _, readings, _ in ended.values()}) > len(hours) // 2

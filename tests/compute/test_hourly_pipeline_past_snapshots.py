"""The past snapshots of a replay equal the latest ones of replays that ended at those hours."""

from pathlib import Path
from random import Random

import pytest

from compute.bars import HOUR_S
from compute.schedule import to_market_ms
from compute.universe import Universe
from store.market_rows import StoredSnapshot
from store.sql.market_store import MarketStore
from tests.support.ledgers import load_past
from tests.support.small_market import DENSE, END, Content, open_pipeline, open_store

pytestmark = pytest.mark.clause("answers")

NEARLY_AN_HOUR_MS = HOUR_S * 1000 - 1


def latest(snapshot: StoredSnapshot) -> tuple[object, ...]:
    return snapshot.market_time, snapshot.readings, tuple(snapshot.late)


async def past(store: MarketStore, at: int) -> tuple[object, ...]:
    return latest(await load_past(store, at))


@pytest.mark.prove
async def test_a_replay_in_one_piece_shows_the_same_past_boards_as_one_in_many(
    tmp_path: Path, small_market_parent: Path, bars_folder: Path, universe: Universe, whole: Content
):
    draw = Random(1)
    hours = sorted(draw.sample(range(DENSE + HOUR_S, END, HOUR_S), 30))
    ended: dict[int, tuple[object, ...]] = {}
    async with open_store(tmp_path / "pieces.db") as pieces:
        runs = await open_pipeline(pieces, bars_folder, universe)
        for hour in hours:
            await runs.run_until(hour)
            ended[to_market_ms(hour)] = latest(await pieces.snapshot())
        async with open_store(small_market_parent / "market.db") as one:
            assert len(await one.commits()) < len(hours) < len(await pieces.commits())
            for at, expected in ended.items():
                assert await past(one, at) == await past(one, at + NEARLY_AN_HOUR_MS) == expected
                assert (
                    await past(pieces, at) == await past(pieces, at + NEARLY_AN_HOUR_MS) == expected
                )
    assert len({str(readings) for _, readings, _ in ended.values()}) > len(hours) // 2

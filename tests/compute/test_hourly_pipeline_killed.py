"""If a replay is killed by SIGKILL and run again, the store ends as after an uninterrupted one."""

import asyncio
import os
import random
import sqlite3
from pathlib import Path

import pytest

from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.files import FilesSource
from compute.universe import Universe
from store.market_rows import Batch
from tests.support.forked_command import ForkedCommand
from tests.support.signals_command import build_environment
from tests.support.small_market import (
    END,
    Content,
    audit_store,
    load_content,
    open_store,
    replay_bars,
    write_universe,
)

pytestmark = pytest.mark.clause("steps")

LIMIT_S = 60


def started(folder: Path, database: Path, universe: Path) -> ForkedCommand:
    settings = {"database_url": f"sqlite:///{database}", "universe": str(universe)}
    with open(os.devnull, "wb") as null_file:
        arguments = ("replay", "--bars", str(folder))
        return ForkedCommand(
            folder, arguments, build_environment(folder, **settings), null_file.fileno()
        )


def count_commits(database: Path) -> int:
    """Count the commits without taking part in the writing."""
    if not database.exists():
        return 0
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)
    try:
        return int(db.execute("SELECT count(*) FROM passes").fetchone()[0])
    except sqlite3.OperationalError:  # before the tables are there
        return 0
    finally:
        db.close()


def killed(process: ForkedCommand, database: Path, after: int, looks: int) -> bool:
    """Kill a replay some looks after a number of commits; return False if it had already ended."""
    try:
        while process.poll() is None and (count_commits(database) < after or looks > 0):
            looks -= count_commits(database) >= after
        process.kill()
    finally:
        status = process.wait(LIMIT_S)
    assert status in (0, -9)
    return status != 0


async def held_by(path: Path) -> Content:
    async with open_store(path) as store:
        return await load_content(store)


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.prove)])
@pytest.mark.prove
def test_a_replay_that_is_killed_and_run_again_ends_in_the_same_content(
    kills: int, tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    draw, universe_file = random.Random(kills), write_universe(tmp_path)
    done = databases = 0
    while done < kills:
        databases += 1
        database = tmp_path / f"{databases}.db"
        for _ in range(min(5, kills - done)):
            after = count_commits(database) + draw.randrange(3)
            process = started(bars_folder, database, universe_file)
            if not killed(process, database, after, draw.randrange(6)):
                break
            done += 1
        assert started(bars_folder, database, universe_file).wait(LIMIT_S) == 0
        assert asyncio.run(held_by(database)) == whole
    assert asyncio.run(audit_store(database, universe)).findings == []


async def test_a_first_start_that_ends_early_is_continued_by_the_next_start(
    tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    class EndedError(Exception):
        pass

    def end(batch: Batch) -> None:
        raise EndedError

    path, source = tmp_path / "ended.db", FilesSource(bars_folder, universe)
    async with open_store(path) as store:
        pipeline = await HourlyPipeline.open(
            store, source, universe, INDICATORS, lambda: to_market_ms(END), on_commit=end
        )
        with pytest.raises(EndedError):
            await pipeline.run_until(END)
    assert count_commits(path) == 1
    assert (await audit_store(path, universe)).findings == []
    assert await replay_bars(path, bars_folder, universe) == whole

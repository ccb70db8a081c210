"""Fixtures that more than one package's tests use."""

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.serving import Face, Served, coverage, seed, serving, stores


@pytest.fixture(params=["mcp", "rest"])
def face(request: pytest.FixtureRequest) -> Face:
    """Each face in turn: a body that uses it runs over both."""
    chosen: Face = request.param
    return chosen


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a seeded simulated store, for tests to copy."""

    async def seed_once(folder: Path) -> None:
        async with stores(folder) as (market, _):
            await seed(market, coverage())

    folder = tmp_path_factory.mktemp("seeded")
    asyncio.run(seed_once(folder))
    return folder


@pytest.fixture
async def served(tmp_path: Path, seeded: Path) -> AsyncIterator[Served]:
    """The service on a seeded simulated store."""
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def served_empty(tmp_path: Path) -> AsyncIterator[Served]:
    """The service on a store in which nothing has been computed."""
    async with serving(tmp_path) as running:
        yield running


def pytest_collection_finish() -> None:
    """Spare all that was imported from the garbage collector, which looks through it else."""
    gc.collect()
    gc.freeze()

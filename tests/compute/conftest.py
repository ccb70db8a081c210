"""Fixtures over the small market: its folder, its universe, a replayed store, the command."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from compute.universe import Universe
from tests.support.signals_command import run_signals
from tests.support.small_market import (
    Content,
    load_small_universe,
    replay_bars,
    write_small_market,
    write_universe,
)

RunSignals = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="session")
def small_market_parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="session")
def universe(small_market_parent: Path) -> Universe:
    return load_small_universe(small_market_parent)


@pytest.fixture(scope="session")
def bars_folder(small_market_parent: Path) -> Path:
    """The small market; tests that change it copy it first."""
    return write_small_market(small_market_parent)


@pytest.fixture(scope="session")
def whole(small_market_parent: Path, bars_folder: Path, universe: Universe) -> Content:
    """The content of a store after one replay of the whole folder."""
    return asyncio.run(replay_bars(small_market_parent / "market.db", bars_folder, universe))


@pytest.fixture
def signals(tmp_path: Path) -> RunSignals:
    """The command as an operator runs it on the small market, with a database in `tmp_path`."""
    universe = str(write_universe(tmp_path))

    def run(
        *arguments: object, database: Path | None = None, **settings: str
    ) -> CompletedProcess[str]:
        settings = {"universe": universe, **settings}
        url = f"sqlite:///{database or tmp_path / 'cli.db'}"
        return run_signals(tmp_path, *map(str, arguments), database_url=url, **settings)

    return run

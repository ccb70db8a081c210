"""Fixtures over the small market: its folder, its universe, a replayed store, the command."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from compute.universe import Universe
from service.commands.cli import main
from tests.support.small_market import (
    Content,
    load_small_universe,
    replay_bars,
    write_small_market,
    write_universe,
)


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of one run of the command."""

    status: int
    out: str
    err: str


RunSignals = Callable[..., CommandResult]


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
def signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[RunSignals]:
    """The command as an operator runs it, on a database in `tmp_path`, in this process."""
    monkeypatch.setenv("SIGNALS_UNIVERSE", str(write_universe(tmp_path)))
    monkeypatch.setenv("SIGNALS_METRICS_PORT", "0")

    def run(*arguments: object, database: Path | None = None) -> CommandResult:
        monkeypatch.setenv("SIGNALS_DATABASE_URL", f"sqlite:///{database or tmp_path / 'cli.db'}")
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return CommandResult(status, printed.out, printed.err)

    yield run
    structlog.reset_defaults()

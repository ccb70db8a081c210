"""Fixtures over the small market: its folder, its universe, a replayed store, the command."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from compute.universe import Universe
from service.commands.cli import main
from tests.compute.small_market import (
    Content,
    replay,
    small_folder,
    small_universe,
    write_universe,
)


@dataclass(frozen=True)
class Ran:
    """What one run of the command left: its exit status and what it printed."""

    status: int
    out: str
    err: str


Signals = Callable[..., Ran]


@pytest.fixture(scope="session")
def small_parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@pytest.fixture(scope="session")
def universe(small_parent: Path) -> Universe:
    return small_universe(small_parent)


@pytest.fixture(scope="session")
def bars_folder(small_parent: Path) -> Path:
    """The small market; tests that change it copy it first."""
    return small_folder(small_parent)


@pytest.fixture(scope="session")
def whole(small_parent: Path, bars_folder: Path, universe: Universe) -> Content:
    """What a store holds after one replay of the whole folder."""
    return asyncio.run(replay(small_parent / "market.db", bars_folder, universe))


@pytest.fixture
def signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Signals]:
    """The command as an operator runs it, on a database in `tmp_path`, in this process."""
    monkeypatch.setenv("SIGNALS_UNIVERSE", str(write_universe(tmp_path)))

    def run(*arguments: object, database: Path | None = None) -> Ran:
        monkeypatch.setenv("SIGNALS_DATABASE_URL", f"sqlite:///{database or tmp_path / 'cli.db'}")
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    yield run
    structlog.reset_defaults()

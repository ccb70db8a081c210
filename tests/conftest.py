"""Fixtures that more than one package's tests use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.serving import Face, Served, coverage, serving


@pytest.fixture(params=["mcp", "rest"])
def face(request: pytest.FixtureRequest) -> Face:
    """Each face in turn: a body that uses it runs over both."""
    chosen: Face = request.param
    return chosen


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """The service on a seeded simulated store."""
    async with serving(tmp_path, coverage()) as running:
        yield running


@pytest.fixture
async def served_empty(tmp_path: Path) -> AsyncIterator[Served]:
    """The service on a store in which nothing has been computed."""
    async with serving(tmp_path) as running:
        yield running

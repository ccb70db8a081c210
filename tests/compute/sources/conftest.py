"""The venues' double, and a live service on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from compute.bars import DAY_S
from compute.universe import Universe
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble, clock as clock, double as double
from tests.support.live_service import (
    UNIVERSE,
    LiveService,
    list_all_markets,
    open_live_service,
)
from tests.support.running_service import ManualClock


@pytest.fixture
async def made(double: VenuesDouble) -> dict[str, Market]:
    """The markets of every asset, listed on its venues."""
    return await list_all_markets(double)


Open = Callable[..., AbstractAsyncContextManager[LiveService]]


@pytest.fixture
def open_service(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, made: dict[str, Market]
) -> Open:
    """A function that starts the service, or starts it again; it has two days of history."""

    def open_one(universe: Universe = UNIVERSE, **more: Any) -> Any:
        options = {"history_s": 2 * DAY_S, "folder": tmp_path} | more
        return open_live_service(double, clock, universe=universe, **options)

    return open_one


@pytest.fixture
async def live(open_service: Open) -> AsyncIterator[LiveService]:
    async with open_service() as one:
        await one.start()
        yield one

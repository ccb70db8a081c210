"""Fixtures of the venues' double at a fixed hour."""

from collections.abc import AsyncIterator

import pytest

from tests.doubles.venues.round_number_market import NOW
from tests.doubles.venues.server import VenuesDouble, run_venues_double
from tests.support.running_service import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


@pytest.fixture
async def double(clock: ManualClock, use_single_ca: None) -> AsyncIterator[VenuesDouble]:
    async with run_venues_double(clock) as running:
        yield running

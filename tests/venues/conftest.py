"""The double, at a fixed hour."""

from collections.abc import AsyncIterator

import pytest

from tests.serving import ManualClock
from tests.venues.double import VenuesDouble, run_venues_double
from tests.venues.round_numbers import NOW


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


@pytest.fixture
async def double(clock: ManualClock, use_single_ca: None) -> AsyncIterator[VenuesDouble]:
    async with run_venues_double(clock) as running:
        yield running

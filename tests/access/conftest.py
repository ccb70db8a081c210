"""Fixtures of access: a clock, and a shop whose processor a test can hold."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.sql.access_store import AccessStore
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock
from tests.support.sandbox_shop import (
    HeldProvider,
    OpenedCheckout,
    Purchase,
    SandboxShop,
    StripeShop,
    open_counting_store,
    shop as shop,
)
from tests.support.store_homes import StoreHome, open_and_close


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def store(home: StoreHome) -> AsyncIterator[AccessStore]:
    """An access store on every engine."""
    async with open_and_close(home.open_access()) as store:
        yield store


@pytest.fixture
def billing(clock: ManualClock) -> HeldProvider:
    return HeldProvider(clock)


@pytest.fixture
async def held_shop(
    tmp_path: Path, clock: ManualClock, billing: HeldProvider
) -> AsyncIterator[SandboxShop]:
    """A shop on a provider whose payment checks can be held."""
    async with open_counting_store(tmp_path / "access.db") as store:
        yield SandboxShop(store, clock, billing)


@pytest.fixture
async def opened(shop: StripeShop) -> OpenedCheckout:
    """A checkout that is paid at Stripe."""
    return await shop.open_and_pay()


@pytest.fixture
async def bought(shop: StripeShop) -> Purchase:
    """A purchase at Stripe, with its key."""
    return await shop.buy()

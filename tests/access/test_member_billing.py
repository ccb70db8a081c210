"""Billing for members if the processor is slow: pages neither wait for it nor flood it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from access.billing.provider import SubscriptionStatus
from access.members import MemberBilling, MemberKeys, MemberPlan
from store.access_rows import MembershipRow
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock
from tests.support.sandbox_shop import HeldProvider, SandboxShop, open_counting_store

pytestmark = pytest.mark.clause("dashboard")

MINE = "a@example.com"
IN_FORCE = SubscriptionStatus(renews_at=NOON + 1)


class SlowBilling(HeldProvider):
    """A HeldProvider whose `fetch_status` can be held too."""

    fetch_count = 0

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        self.fetch_count += 1
        await self.released.wait()
        return IN_FORCE


@dataclass
class Desk:
    """A member's plan and the objects that report its status."""

    shop: SandboxShop
    billing: SlowBilling
    members: MemberKeys
    plans: list[MemberPlan] = field(default_factory=list)

    def create_billing(self, within_s: float) -> MemberBilling:
        return MemberBilling(self.members, self.billing, self.shop.clock, within_s)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock(NOON)
    billing = SlowBilling(clock)
    async with open_counting_store(tmp_path / "access.db") as store:
        shop = SandboxShop(store, clock, billing)
        billing.set_paid("cs_1")
        await shop.claim((await shop.open_checkout()).claim_token)
        billing.fetch_count = 0  # The claim has checked the membership too.
        members = MemberKeys(store, billing, shop.claims, clock)
        yield Desk(shop, billing, members, await members.list_plans(MINE))


async def test_a_slow_status_is_not_waited_for_and_shown_once_it_arrives(
    desk: Desk,
) -> None:
    billing = desk.create_billing(within_s=0.01)
    desk.billing.released.clear()
    assert await billing.fetch_statuses([plan.membership for plan in desk.plans]) == [None]
    assert await billing.fetch_statuses([plan.membership for plan in desk.plans]) == [None]
    desk.billing.released.set()
    assert await billing.fetch_statuses([plan.membership for plan in desk.plans]) == [IN_FORCE]
    assert desk.billing.fetch_count == 1


async def test_slow_payments_are_not_waited_for(desk: Desk) -> None:
    await desk.shop.open_checkout(contact_email=MINE)
    desk.billing.set_paid("cs_2")
    desk.billing.released.clear()
    assert await desk.create_billing(within_s=0.01).list_unclaimed(MINE) is None
    desk.billing.released.set()
    (claim,) = await desk.create_billing(within_s=10).list_unclaimed(MINE) or []
    assert claim.session == "cs_2"


async def test_concurrent_page_views_send_one_request(desk: Desk) -> None:
    billing = desk.create_billing(within_s=10)
    statuses = await asyncio.gather(
        *(billing.fetch_statuses([plan.membership for plan in desk.plans]) for _ in range(5))
    )
    assert statuses == [[IN_FORCE]] * 5
    assert desk.billing.fetch_count == 1

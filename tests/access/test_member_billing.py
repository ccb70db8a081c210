"""What members hear of billing where the processor is slow: it is not waited for, nor pressed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from access.billing.provider import Standing
from access.member_billing import MemberBilling
from access.member_keys import MemberKeys, Plan
from store.access_rows import MembershipRow
from tests.access.selling import HeldBilling, Shop, opened
from tests.serving import NOON, ManualClock

pytestmark = pytest.mark.clause("dashboard")

MINE = "a@example.com"
IN_FORCE = Standing(renews_at=NOON + 1)


class SlowBilling(HeldBilling):
    """A Provider whose word on a membership waits as its checks do."""

    asked = 0

    async def standing(self, member: MembershipRow) -> Standing:
        self.asked += 1
        await self.lets_go.wait()
        return IN_FORCE


@dataclass
class Desk:
    """A member's plan, and who says where it stands."""

    shop: Shop
    billing: SlowBilling
    members: MemberKeys
    plans: list[Plan] = field(default_factory=list)

    def told(self, within_s: float) -> MemberBilling:
        return MemberBilling(self.members, self.billing, self.shop.clock, within_s)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock(NOON)
    billing = SlowBilling(clock)
    async with opened(tmp_path / "access.db") as store:
        shop = Shop(store, clock, billing)
        billing.pays("cs_1")
        await shop.claim((await shop.checkout()).claim_token)
        members = MemberKeys(store, billing, shop.claims, clock)
        yield Desk(shop, billing, members, await members.plans(MINE))


async def test_a_slow_processor_is_not_waited_for_and_its_word_is_shown_once_it_came(
    desk: Desk,
) -> None:
    told = desk.told(within_s=0.01)
    desk.billing.lets_go.clear()
    assert await told.standings(desk.plans) == [None]
    assert await told.standings(desk.plans) == [None]
    desk.billing.lets_go.set()
    assert await told.standings(desk.plans) == [IN_FORCE]
    assert desk.billing.asked == 1


async def test_payments_of_a_slow_processor_are_not_waited_for_either(desk: Desk) -> None:
    await desk.shop.checkout(contact_email=MINE)
    desk.billing.pays("cs_2")
    desk.billing.lets_go.clear()
    assert await desk.told(within_s=0.01).unclaimed(MINE) is None
    desk.billing.lets_go.set()
    (claim,) = await desk.told(within_s=10).unclaimed(MINE) or []
    assert claim.session == "cs_2"


async def test_all_who_look_at_once_ask_once(desk: Desk) -> None:
    told = desk.told(within_s=10)
    said = await asyncio.gather(*(told.standings(desk.plans) for _ in range(5)))
    assert said == [[IN_FORCE]] * 5
    assert desk.billing.asked == 1

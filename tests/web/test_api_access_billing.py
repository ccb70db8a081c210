"""Billing on the API access page: plan status, unclaimed payments, and the customer portal.

The chart of 30 days of calls, by itself and on the page.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from access.billing.provider import BillingError, SandboxBilling, SubscriptionStatus
from access.members import STATUS_TTL_MS
from access.sign_in import MAIL_LIMIT
from schemas.vocabulary import DAY_MS
from store.access_rows import DayUsage, MembershipRow, ToolUsage
from tests.support.example_market import HOUR_MS, NOON
from tests.support.running_service import RunningService, Transport, fetch
from tests.support.sandbox_shop import HeldProvider
from tests.support.web_page import (
    EMAIL,
    HOME,
    MemberBrowser,
    Page,
    buy_plan,
    check_page,
    get_usage_status,
    open_member_browser,
    open_new_member,
    read_new_key,
    run_second_service,
)
from web.api_access import CHART_DAYS, build_usage_chart

pytestmark = pytest.mark.clause("dashboard")

PORTAL = "https://billing.example/session/1?a=1&b=2"
SOON = NOON + 24 * HOUR_MS


class ScriptedBilling(SandboxBilling):
    """A sandbox whose plan status is set by the test; None if the processor is down."""

    has_portal = True
    asked = 0
    says: SubscriptionStatus | None = SubscriptionStatus()

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        self.asked += 1
        if self.says is None:
            raise BillingError("the network is down")
        return self.says

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        if self.says is None:
            raise BillingError("the network is down")
        self.returns_to = return_url
        return PORTAL


@dataclass
class BilledMember:
    """A member of a service with scripted billing."""

    served: RunningService
    member: MemberBrowser
    billing: ScriptedBilling


@pytest.fixture
async def billed(served: RunningService) -> AsyncIterator[BilledMember]:
    await buy_plan(served)
    billing = ScriptedBilling(served.access, served.clock, served.base_url)
    async with (
        run_second_service(served, provider=billing) as other,
        open_member_browser(other) as member,
    ):
        yield BilledMember(other, member, billing)


async def billing_path(member: MemberBrowser) -> str:
    return (await member.find_keys_path()).replace("/keys", "/billing")


@pytest.mark.clause("18.9")
@pytest.mark.parametrize(
    ("says", "shown"),
    [
        (SubscriptionStatus(), ["Active"]),
        (
            SubscriptionStatus(renews_at=SOON),
            ["Active", "Next payment", "USD 129 on 2026-10-01 12:03 UTC"],
        ),
        (
            SubscriptionStatus(ends_at=SOON),
            ["Active", "Ends, not renewed", "2026-10-01 12:03 UTC"],
        ),
        (
            SubscriptionStatus(ends_at=SOON, due_reason="the subscription is past due"),
            ["Active, but the subscription is past due", "Ends unless paid", "2026-10-01 12:03"],
        ),
        (
            SubscriptionStatus(ended_reason="the subscription is canceled"),
            ["Ended: the subscription is canceled"],
        ),
        (None, ["Active", "The payment processor is not responding", "may be out of date"]),
    ],
)
async def test_the_page_shows_the_processors_status_or_that_it_is_unknown(
    billed: BilledMember, says: SubscriptionStatus | None, shown: list[str]
) -> None:
    billed.billing.says = says
    text = (await billed.member.get_home(*shown)).text
    assert ("The payment processor is not responding" in text) is (says is None)
    assert ("Next payment" in text) is (says == SubscriptionStatus(renews_at=SOON))


@pytest.mark.clause("18.9")
@pytest.mark.parametrize("is_final", [True, False])
async def test_a_member_whose_subscription_continues_is_not_told_to_buy_again(
    billed: BilledMember, is_final: bool
) -> None:
    (held,) = await billed.served.access.list_open_memberships("sandbox")
    reason = "the subscription is unpaid"
    await billed.served.access.end_membership(
        held, billed.served.clock(), reason, is_final=is_final
    )
    text = (await billed.member.get_home(reason)).text
    assert ("do not buy the plan again" in text) is not is_final
    assert ("To continue, buy the plan again." in text) is is_final
    if not is_final:
        await billed.served.access.resume_membership(held)
        api_key = await billed.member.create_and_read_key("again")
        assert await get_usage_status(billed.served, api_key) == 200


async def test_a_page_of_ours_leads_to_the_customer_portal(billed: BilledMember) -> None:
    answer = await billed.member.send_form(await billing_path(billed.member))
    # The policy is unchanged: forms lead to no other host.
    check_page(answer, 200, "Your billing", links=[PORTAL])
    assert answer.headers["refresh"] == f"0; url={PORTAL}"
    assert billed.billing.returns_to == f"{billed.served.base_url}{HOME}"


async def test_while_the_processor_is_down_no_portal_is_opened_and_keys_can_be_created(
    billed: BilledMember,
) -> None:
    path = await billing_path(billed.member)
    billed.billing.says = None
    answer = await billed.member.send_form(path)
    assert "temporarily unavailable" in check_page(answer, 503, "Temporarily unavailable").text
    assert answer.headers["retry-after"] == "30"
    api_key = await billed.member.create_and_read_key("laptop")
    assert await get_usage_status(billed.served, api_key) == 200


async def test_the_portal_of_another_member_is_not_found(billed: BilledMember) -> None:
    path = await billing_path(billed.member)
    async with open_new_member(billed.served, "other@example.com") as other:
        check_page(await other.send_form(path), 404, "Not found")
        forged = await billed.member.client.post(path, data={"form_token": "x"})
        check_page(forged, 403, "Something went wrong")


async def test_the_portal_is_offered_only_if_the_processor_has_one(
    served: RunningService, billed: BilledMember
) -> None:
    path = await billing_path(billed.member)
    assert path in forms_of(await billed.member.get_home())
    served.clock.now += MAIL_LIMIT.window_s * 1000
    async with open_member_browser(served) as member:
        assert path not in forms_of(await member.get_home())
        check_page(await member.send_form(path), 404, "Not found")


def forms_of(page: Page) -> list[str]:
    return [str(form["action"]).removeprefix("..") for form in page.find_all("form")]


@pytest.mark.parametrize("says", [SubscriptionStatus(renews_at=SOON), None])
async def test_reloading_the_page_queries_the_processor_once_per_ttl(
    billed: BilledMember, says: SubscriptionStatus | None
) -> None:
    billed.billing.says = says
    first = (await billed.member.get_home()).text
    assert (await billed.member.get_home()).text == first
    assert billed.billing.asked == 1
    billed.served.clock.now += STATUS_TTL_MS
    await billed.member.get_home()
    assert billed.billing.asked == 2


async def test_the_page_and_an_agents_claim_share_one_request_to_the_processor(
    served: RunningService,
) -> None:
    await buy_plan(served)
    billing = HeldProvider(served.clock, name="sandbox", mode="test")
    async with (
        run_second_service(served, provider=billing) as other,
        open_member_browser(other) as member,
    ):
        begun = (
            await other.client.post("/api/v1/access/checkout", json={"contact_email": EMAIL})
        ).json()
        claim = await other.client.post(
            "/api/v1/access/claim", json={"claim_token": begun["claim_token"]}
        )
        assert claim.json()["status"] == "pending"
        await member.get_home()
        assert billing.checks == ["cs_1"]


async def paid(served: RunningService, email: str = EMAIL) -> str:
    """Buy the plan without claiming its key; return the claim token."""
    checkout = (
        await served.client.post("/api/v1/access/checkout", json={"contact_email": email})
    ).json()
    await served.client.post(checkout["checkout_url"], data={"action": "pay"})
    return str(checkout["claim_token"])


@asynccontextmanager
async def payer(served: RunningService) -> AsyncIterator[tuple[MemberBrowser, str]]:
    """Yield a member with an unclaimed payment, and the path that creates its key."""
    async with open_member_browser(served) as member:
        page = await member.get_home("No agent has claimed its key")
        (path,) = [path for path in forms_of(page) if "payments" in path]
        yield member, path


async def test_the_key_of_an_unclaimed_payment_is_created_here_once_by_its_member(
    served: RunningService,
) -> None:
    token = await paid(served)
    async with payer(served) as (member, path):
        assert (await member.client.get(path)).headers["location"] == f"../../..{HOME}"
        forged = await member.client.post(path, data={"form_token": "x"})
        check_page(forged, 403, "Something went wrong")
        async with open_new_member(served, "other@example.com") as other:
            await other.get_home(without=["No agent has claimed"])
            check_page(await other.send_form(path), 404, "Not found")
        api_key = read_new_key(await member.send_form(path))
        assert await get_usage_status(served, api_key) == 200
        check_page(await member.send_form(path), 404, "Not found")
        await member.get_home("1 of 5 keys in use", without=["No agent has claimed"])
    claim = await fetch(
        served.client, "POST", "/api/v1/access/claim", 409, json={"claim_token": token}
    )
    assert f"{served.base_url}{HOME}" in claim.json()["message"]


# 1970-02-10, so that the first of the 30 days is 1970-01-12.
TODAY = 40
NOW = TODAY * DAY_MS + 5
STATE, CONFLUENCE = "signals_get_state", "signals_get_confluence"


@pytest.mark.clause("18.7")
def test_each_day_has_a_bar_stacked_by_tool_in_proportion_to_the_busiest_day() -> None:
    today = [("a later tool", 15), (CONFLUENCE, 15), (STATE, 30)]
    rows = [DayUsage(TODAY - 29, CONFLUENCE, 30), *(DayUsage(TODAY, *used) for used in today)]
    chart = build_usage_chart(rows, NOW)
    days = chart["days"]
    assert (len(days), chart["calls"], chart["busiest"]["calls"]) == (CHART_DAYS, 90, 60)
    assert (days[0]["date"], days[-1]["date"]) == ("1970-01-12", "1970-02-10")
    assert chart["tools"] == [
        (0, STATE, 30),
        (2, CONFLUENCE, 45),
        (7, "a later tool", 15),
    ]
    # 60 calls are as high as the chart, 120 units. The first tool stands at the bottom.
    assert days[-1]["parts"] == [(0, 60, 60), (2, 30, 30), (7, 0, 30)]
    assert (days[0]["parts"], days[1]["parts"]) == ([(2, 60, 60)], [])
    assert days[-1]["x"] + chart["bar_width"] <= chart["width"]
    # Without calls there is nothing to draw.
    chart = build_usage_chart([], NOW)
    assert (chart["calls"], chart["tools"], len(chart["days"])) == (0, [], CHART_DAYS)


@pytest.mark.clause("18.7")
async def test_the_page_shows_a_members_calls_by_day_and_tool(
    served: RunningService, transport: Transport
) -> None:
    caller = replace(served, api_key=await buy_plan(served))
    other = replace(served, api_key=await buy_plan(served, "other@example.com"))
    await other.fetch_answer("rest", STATE)
    assert await served.call_log.flush()
    async with open_member_browser(served) as member:
        # Another member's calls are not shown.
        assert "No calls yet" in (await member.get_home()).text
        for _ in range(2):
            await caller.fetch_answer(transport, STATE, ticker="BTC")
        await caller.fetch_refusal(transport, CONFLUENCE, min_agree=99)
        await served.access.add_tool_usage([ToolUsage(2, served.clock() // DAY_MS - 30, STATE, 50)])
        assert await served.call_log.flush()
        # A call with a bad argument counts; what is older than 30 days does not.
        page = await member.get_home("Calls in the last 30 days: 3")
    rows = [[cell.strip() for cell in row] for row in page.rows]
    tools = [[STATE, "2 of 3", "2"], [CONFLUENCE, "1 of 3", "1"]]
    for row in (*tools, ["2026-09-30", "3", f"{STATE} 2, {CONFLUENCE} 1"]):
        assert row in rows
    (chart,) = [one for one in page.find_all("svg") if one.get("role") == "img"]
    assert "Most on 2026-09-30: 3" in str(chart["aria-label"])
    assert [one["value"] for one in page.find_all("meter")] == ["2", "1"]
    assert not [one for _, one in page.elements if "style" in one]

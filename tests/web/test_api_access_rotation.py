"""Keys that expire, rotation and the log of requests on the pages of a member."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from access.members import MAX_NEW_KEYS_PER_DAY, MAX_ROTATIONS_PER_DAY
from schemas.vocabulary import DAY_MS, HOUR_MS
from tests.support.running_service import RunningService
from tests.support.web_page import (
    API_KEY,
    HOME,
    MemberBrowser,
    Page,
    buy_plan,
    check_page,
    get_usage_status,
    open_member_browser,
)

pytestmark = pytest.mark.clause("dashboard")

OTHER = "other@example.com"


@pytest.fixture
async def member(served: RunningService) -> AsyncIterator[MemberBrowser]:
    """A member with the key that was bought."""
    await buy_plan(served)
    async with open_member_browser(served) as member:
        yield member


async def rotate(member: MemberBrowser, label: str, **fields: str) -> str:
    """Rotate the live key with a label and return its successor."""
    path = f"{await member.find_key_path(label)}/rotate"
    page = check_page(await member.send_form(path, **fields), 201, "Your new key")
    (api_key,) = set(API_KEY.findall(page.text))
    return str(api_key)


async def get_requests(member: MemberBrowser) -> Page:
    return check_page(await member.client.get(f"{HOME}/requests"), 200, "Recent requests")


@pytest.mark.clause("5.31", "5.25")
async def test_a_key_expires_when_the_member_chose(
    served: RunningService, member: MemberBrowser
) -> None:
    path = await member.find_keys_path()
    answer = await member.send_form(path, label="month", expires="30")
    (api_key,) = set(API_KEY.findall(check_page(answer, 201, "Your new key").text))
    assert "2026-10-30 12:06 UTC" in (await member.get_home()).text
    served.clock.now += 30 * DAY_MS - 1
    assert await get_usage_status(served, api_key) == 200
    served.clock.now += 1
    assert await get_usage_status(served, api_key) == 403
    async with open_member_browser(served) as later:
        text = (await later.get_home()).text
        assert "1 of 5 keys in use" in text
        assert "expired on 2026-10-30 12:06 UTC" in text


@pytest.mark.parametrize("chosen", ["", "31", "-1", "30.0", "x", "٣٠"])
async def test_a_choice_that_the_page_does_not_offer_is_refused(
    member: MemberBrowser, chosen: str
) -> None:
    path = await member.find_keys_path()
    await member.create_and_read_key("laptop")
    key = await member.find_key_path("laptop")
    if chosen:  # An empty field is left out, as by a form without this choice.
        answer = await member.send_form(path, label="x", expires=chosen)
        refused = check_page(answer, 400, "API access")
        assert "accepted: never, 30, 90, 365" in refused.text
        answer = await member.send_form(f"{key}/rotate", overlap=chosen)
        assert "accepted: 0, 1, 24, 72" in check_page(answer, 400, "API access").text
    assert "2 of 5 keys in use" in (await member.get_home()).text


@pytest.mark.clause("5.28", "5.32")
@pytest.mark.prove
async def test_both_keys_of_a_rotation_work_until_the_overlap_ends(
    served: RunningService, member: MemberBrowser
) -> None:
    old = await member.create_and_read_key("laptop")
    new = await rotate(member, "laptop")
    assert [await get_usage_status(served, key) for key in (old, new)] == [200, 200]
    text = (await member.get_home()).text
    assert "2 of 5 keys in use" in text
    assert "replaced" in text
    served.clock.now += 24 * HOUR_MS
    assert [await get_usage_status(served, key) for key in (old, new)] == [403, 200]
    newest = await rotate(member, "laptop", overlap="0")
    assert [await get_usage_status(served, key) for key in (new, newest)] == [403, 200]


@pytest.mark.clause("5.32")
@pytest.mark.prove
async def test_neither_five_live_keys_nor_ten_new_ones_block_a_rotation(
    served: RunningService, member: MemberBrowser
) -> None:
    for number in range(MAX_NEW_KEYS_PER_DAY - 5):
        await member.create_key(f"key {number}")
        await member.send_form(f"{await member.find_key_path(f'key {number}')}/revoke")
    for label in ("second", "fourth", "fifth"):
        await member.create_and_read_key(label)
    last = await member.create_and_read_key("third")
    assert "All 5 keys of this plan are in use" in (await member.get_home()).text
    for _ in range(MAX_ROTATIONS_PER_DAY):
        last = await rotate(member, "third")
        assert await get_usage_status(served, last) == 200
    path = f"{await member.find_key_path('third')}/rotate"
    refused = check_page(await member.send_form(path), 409, "API access")
    assert f"at most {MAX_ROTATIONS_PER_DAY} times" in refused.text
    assert await get_usage_status(served, last) == 200
    served.clock.now += DAY_MS
    assert await get_usage_status(served, await rotate(member, "third")) == 200


@pytest.mark.prove
async def test_a_key_is_rotated_once_and_only_by_its_own_member(
    served: RunningService, member: MemberBrowser
) -> None:
    await member.create_and_read_key("laptop")
    path = f"{await member.find_key_path('laptop')}/rotate"
    await buy_plan(served, OTHER)
    async with open_member_browser(served, OTHER) as other:
        check_page(await other.send_form(path), 404, "Not found")
    await rotate(member, "laptop")
    refused = check_page(await member.send_form(path), 409, "API access")
    assert "rotated before" in refused.text
    check_page(await member.send_form(path.replace("/keys/", "/keys/9")), 404, "Not found")


@pytest.mark.clause("5.33")
@pytest.mark.prove
async def test_a_member_sees_the_last_calls_of_all_keys_and_of_no_other_member(
    served: RunningService, member: MemberBrowser
) -> None:
    assert "no calls yet" in (await get_requests(member)).text
    await buy_plan(served, OTHER)
    api_key = await member.create_and_read_key("laptop")
    holder = replace(served, api_key=api_key)
    await holder.get_api("/state?ticker=SECRETQUERY", authorization=f"Bearer {api_key}")
    served.clock.now += 1000
    await holder.client.get(
        "/api/v1/signals?limit=1", headers={**holder.key_headers, "x-request-id": "my-own-1"}
    )
    served.clock.now += 1000
    answer = await holder.call("signals_get_flips", {"timeframe": "1d"})
    await served.get_api("/state", authorization="Bearer ek_" + "A" * 43)
    await member.send_form(f"{await member.find_key_path('laptop')}/revoke")
    served.clock.now += 1000
    await holder.call("signals_get_state")
    await served.call_log.flush()
    page = await get_requests(member)
    rows = page.rows[1:]
    assert [row[1:6] for row in rows] == [
        ["laptop", "signals_get_state", "MCP", "revoked_key", "403"],
        ["laptop", "signals_get_flips", "MCP", "ok", "200"],
        ["laptop", "signals_get_signals", "REST", "ok", "200"],
        ["laptop", "signals_get_state", "REST", "unknown_ticker", "400"],
    ]
    assert rows[2][6] == "my-own-1"
    assert rows[1][6] == answer["_meta"]["signals/request_id"]
    assert rows[3][0] == "2026-09-30T12:06:20.000Z"
    assert "SECRETQUERY" not in page.text
    async with open_member_browser(served, OTHER) as other:
        assert "no calls yet" in (await get_requests(other)).text


async def test_a_visitor_is_sent_to_sign_in(served: RunningService) -> None:
    answer = await served.client.get(f"{HOME}/requests")
    assert answer.status_code == 303
    assert answer.headers["location"].endswith("sign-in")

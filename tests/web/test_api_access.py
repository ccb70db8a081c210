"""The API access page over real sockets, after a purchase in the sandbox.

Keys that expire, rotation and the log of requests on the pages of a member.
"""

from dataclasses import replace

import pytest

from access.members import MAX_NEW_KEYS_PER_DAY, MAX_ROTATIONS_PER_DAY
from access.sign_in import MAIL_LIMIT
from schemas.vocabulary import DAY_MS, HOUR_MS
from tests.support.running_service import RunningService, Transport
from tests.support.sandbox_shop import HeldProvider
from tests.support.web_page import (
    API_KEY,
    EMAIL,
    HOME,
    MemberBrowser,
    Page,
    buy_plan,
    check_page,
    get_usage_status,
    member as member,
    open_member_browser,
    open_new_member,
    read_new_key,
    run_second_service,
)

pytestmark = pytest.mark.clause("dashboard")

OTHER = "other@example.com"
NASTY = "<b onclick=x>&\"'</b>"
AT_FIRST = "2026-09-30 12:06 UTC"


@pytest.mark.clause("5.13")
async def test_a_member_creates_a_second_key_without_a_purchase_and_it_works_at_once(
    served: RunningService, member: MemberBrowser, transport: Transport
) -> None:
    holder = replace(served, api_key=await member.create_and_read_key("laptop"))
    answer = await holder.fetch_answer(transport, "signals_get_usage")
    assert (answer["key"], answer["mode"]) == ({"label": "laptop"}, "test")
    answer = await holder.fetch_answer(transport, "signals_get_state", ticker="BTC")
    assert answer["counts"]["assets"] == 1
    assert "2 of 5 keys in use" in (await member.get_home()).text


@pytest.mark.clause("5.28")
async def test_a_new_key_is_shown_once_with_the_lines_that_use_it(
    served: RunningService, member: MemberBrowser
) -> None:
    page = check_page(
        await member.create_key("laptop"),
        201,
        "Your new key",
        "claude mcp add",
        ".cursor/mcp.json",
        "[mcp_servers.signals]",
        served.base_url,
    )
    shown = API_KEY.findall(page.text)
    assert len(shown) == 2  # By itself, and in the line for the shell.
    assert f"export SIGNALS_API_KEY={shown[0]}" in page.text
    assert [text["data-copy"] for text in page.find_all("pre")][:3] == [
        *("the key", "the line for the shell", "the lines for Claude Code"),
    ]
    assert not API_KEY.search((await member.get_home()).text)


async def test_the_page_shows_each_key_with_its_calls_today_also_relabelled(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    await member.get_home(
        "Premium, billed monthly", "Test mode", "Active", EMAIL, AT_FIRST, "0 of 10,000", "never"
    )
    path = f"{await member.find_key_path('laptop')}/label"
    assert (await member.send_form(path, label="  server ")).status_code == 303
    assert await member.find_key_path("server")
    served.clock.now += 3_600_000
    for _ in range(2):
        assert await get_usage_status(served, api_key) == 200
    await member.get_home("2 of 10,000", "2026-09-30 13:06 UTC")
    served.clock.now += DAY_MS
    assert "2 of 10,000" not in (await member.get_home()).text


@pytest.mark.clause("3.5.5", "5.27")
async def test_a_revoked_key_is_refused_at_once_and_stays_listed(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    path = f"{await member.find_key_path('laptop')}/revoke"
    assert await get_usage_status(served, api_key) == 200
    check_page(await member.client.get(path), 200, "Revoke this key?", "laptop", "cannot be undone")
    assert await get_usage_status(served, api_key) == 200
    answer = await member.send_form(path)
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../../../..{HOME}")
    assert await get_usage_status(served, api_key) == 403
    await member.get_home("1 of 5 keys in use", f"revoked on {AT_FIRST}")
    check_page(await member.client.get(path), 404, "Not found")
    relabelled = await member.send_form(path.replace("/revoke", "/label"), label="x")
    check_page(relabelled, 404, "Not found")


@pytest.mark.clause("5.13", "5.28")
@pytest.mark.prove
async def test_a_sixth_key_is_refused_and_the_page_says_so_before(
    served: RunningService, member: MemberBrowser
) -> None:
    path = await member.find_keys_path()
    for label in ("second", "third", "fourth", "fifth"):
        await member.create_and_read_key(label)
    page = await member.get_home("All 5 keys of this plan are in use")
    assert path not in [form["action"] for form in page.find_all("form")]
    check_page(
        await member.send_form(path, label="sixth"), 409, "API access", "at most 5 live keys"
    )
    await member.send_form(f"{await member.find_key_path('second')}/revoke")
    assert await get_usage_status(served, await member.create_and_read_key("sixth")) == 200


@pytest.mark.parametrize("label", ["", "  ", "x" * 121, "a\nb", "\x1b[31m"])
async def test_an_invalid_label_is_refused(member: MemberBrowser, label: str) -> None:
    await member.create_and_read_key("laptop")
    for path in (await member.find_keys_path(), f"{await member.find_key_path('laptop')}/label"):
        page = check_page(
            await member.send_form(path, label=label),
            400,
            "API access",
            "Enter 1 to 120 characters",
        )
        (field,) = [one for one in page.find_all("input") if one.get("aria-invalid")]
        assert field["aria-describedby"] == f"{field['id']}-error" in page.ids
        # An empty field is left out of a form.
        assert field["value"] == (label if len(label) <= 120 else label[:120] + "…")
    assert "2 of 5 keys in use" in (await member.get_home()).text


async def test_labels_and_addresses_are_escaped(served: RunningService) -> None:
    email = "a&b'$x@example.com"
    async with open_new_member(served, email) as member:
        await member.create_and_read_key(NASTY)
        assert (await member.get_home(NASTY, email)).find_all("b") == []
        asked = await member.client.get(f"{await member.find_key_path(NASTY)}/revoke")
        check_page(asked, 200, "Revoke this key?", NASTY)


async def test_a_member_can_neither_see_nor_change_another_members_keys(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    keys, key = await member.find_keys_path(), await member.find_key_path("laptop")
    async with open_new_member(served, OTHER) as other:
        await other.get_home(without=["laptop", EMAIL])
        own_keys = await other.find_keys_path()
        own_key = key.replace(keys, own_keys)  # The other member's key under this membership.
        for path, known in ((keys, "membership"), (f"{own_key}/revoke", "key")):
            answer = await other.send_form(path, label="x")
            nobodys = await other.send_form(path.replace(path.split("/")[3], "987654"), label="x")
            assert answer.status_code == nobodys.status_code == 404
            assert known in answer.text
        for path in (key, own_key):
            for answer in (
                await other.client.get(f"{path}/revoke"),
                await other.send_form(f"{path}/revoke"),
                await other.send_form(f"{path}/label", label="x"),
            ):
                check_page(answer, 404, "Not found")
    assert await get_usage_status(served, api_key) == 200
    assert await member.find_key_path("laptop") == key


@pytest.mark.parametrize("id_", ["0", "-1", "x", "9" * 18, "9" * 900, "%EF%BC%91", "1%2F2"])
async def test_an_id_that_does_not_exist_is_not_found(member: MemberBrowser, id_: str) -> None:
    keys = await member.find_keys_path()
    for path in (f"{HOME}/{id_}/keys", f"{keys}/{id_}/label", f"{keys}/{id_}/revoke"):
        assert (await member.send_form(path, label="x")).status_code == 404
    assert (await member.client.get(f"{keys}/{id_}/revoke")).status_code == 404


async def test_an_ended_plan_says_why_and_gives_no_key(
    served: RunningService, member: MemberBrowser
) -> None:
    keys, api_key = await member.find_keys_path(), await member.create_and_read_key("laptop")
    (held,) = await served.access.list_memberships_by_email(EMAIL)
    await served.access.end_membership(held, served.clock(), "the payment was disputed")
    assert await get_usage_status(served, api_key) == 403
    page = await member.get_home(
        f"Ended on {AT_FIRST}: the payment was disputed", "To continue, buy the plan again"
    )
    assert keys not in " ".join(str(form["action"]) for form in page.find_all("form"))
    check_page(await member.send_form(keys, label="x"), 409, "API access")
    served.clock.now += MAIL_LIMIT.window_s * 1000
    async with open_member_browser(served) as later:
        assert "the payment was disputed" in (await later.get_home()).text
    # Each plan of a member has its own keys.
    await buy_plan(served, EMAIL.lower(), billing="yearly")
    text = (await member.get_home()).text
    assert text.index("Premium, billed monthly") < text.index("Premium, billed yearly")
    assert await get_usage_status(served, await member.create_and_read_key("laptop")) == 200


async def test_the_page_says_that_test_keys_do_not_work_on_a_live_service(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    async with run_second_service(
        served, provider=HeldProvider(served.clock, name="sandbox", mode="live")
    ) as live:
        assert await get_usage_status(live, api_key) == 403
        live.client.cookies = member.client.cookies
        there = MemberBrowser(live.client)
        await there.get_home("Test mode", "These keys were bought in test mode", "not_provisioned")
        keys = await there.find_keys_path()
        check_page(await there.send_form(keys, label="x"), 409, "API access")


async def rotate(member: MemberBrowser, label: str, **fields: str) -> str:
    """Rotate the live key with a label and return its successor."""
    path = f"{await member.find_key_path(label)}/rotate"
    return read_new_key(await member.send_form(path, **fields))


async def get_requests(member: MemberBrowser, *texts: str) -> Page:
    return check_page(await member.client.get(f"{HOME}/requests"), 200, "Recent requests", *texts)


@pytest.mark.clause("5.31", "5.25")
async def test_a_key_expires_when_the_member_chose(
    served: RunningService, member: MemberBrowser
) -> None:
    answer = await member.send_form(await member.find_keys_path(), label="month", expires="30")
    api_key = read_new_key(answer)
    assert "2026-10-30 12:06 UTC" in (await member.get_home()).text
    served.clock.now += 30 * DAY_MS - 1
    assert await get_usage_status(served, api_key) == 200
    served.clock.now += 1
    assert await get_usage_status(served, api_key) == 403
    async with open_member_browser(served) as later:
        await later.get_home("1 of 5 keys in use", "expired on 2026-10-30 12:06 UTC")


@pytest.mark.parametrize("chosen", ["31", "-1", "30.0", "x", "٣٠"])
async def test_a_choice_that_the_page_does_not_offer_is_refused(
    member: MemberBrowser, chosen: str
) -> None:
    await member.create_and_read_key("laptop")
    key = await member.find_key_path("laptop")
    for path, sent, accepted in (
        (await member.find_keys_path(), {"label": "x", "expires": chosen}, "never, 30, 90, 365"),
        (f"{key}/rotate", {"overlap": chosen}, "0, 1, 24, 72"),
    ):
        check_page(await member.send_form(path, **sent), 400, "API access", f"accepted: {accepted}")
    assert "2 of 5 keys in use" in (await member.get_home()).text


@pytest.mark.clause("5.28", "5.32")
@pytest.mark.prove
async def test_both_keys_of_a_rotation_work_until_the_overlap_ends(
    served: RunningService, member: MemberBrowser
) -> None:
    old = await member.create_and_read_key("laptop")
    assert await get_usage_status(served, old) == 200
    new = await rotate(member, "laptop")
    assert [await get_usage_status(served, key) for key in (old, new)] == [200, 200]
    # Both begin with the call before, which is counted once.
    assert await served.call_log.flush()
    await member.get_home("2 of 5 keys in use", "replaced", "Calls in the last 30 days: 3")
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
    check_page(
        await member.send_form(path), 409, "API access", f"at most {MAX_ROTATIONS_PER_DAY} times"
    )
    assert await get_usage_status(served, last) == 200
    served.clock.now += DAY_MS
    assert await get_usage_status(served, await rotate(member, "third")) == 200


@pytest.mark.prove
async def test_a_key_is_rotated_once_and_only_by_its_own_member(
    served: RunningService, member: MemberBrowser
) -> None:
    await member.create_and_read_key("laptop")
    path = f"{await member.find_key_path('laptop')}/rotate"
    async with open_new_member(served, OTHER) as other:
        check_page(await other.send_form(path), 404, "Not found")
    await rotate(member, "laptop")
    assert "rotated before" in check_page(await member.send_form(path), 409, "API access").text
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
    assert (rows[2][6], rows[1][6]) == ("my-own-1", answer["_meta"]["signals/request_id"])
    assert rows[3][0] == "2026-09-30T12:06:20.000Z"
    assert "SECRETQUERY" not in page.text
    async with open_member_browser(served, OTHER) as other:
        assert "no calls yet" in (await get_requests(other)).text

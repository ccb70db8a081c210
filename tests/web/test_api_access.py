"""The API access page over real sockets, after a purchase in the sandbox."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from access.sign_in import MAIL_LIMIT
from schemas.vocabulary import DAY_MS
from tests.support.running_service import RunningService, Transport
from tests.support.sandbox_shop import HeldProvider
from tests.support.web_page import (
    API_KEY,
    EMAIL,
    HOME,
    MemberBrowser,
    buy_plan,
    check_page,
    get_usage_status,
    open_member_browser,
    run_second_service,
)

pytestmark = pytest.mark.clause("dashboard")

OTHER = "other@example.com"
NASTY = "<b onclick=x>&\"'</b>"
AT_FIRST = "2026-09-30 12:06 UTC"


@pytest.fixture
async def member(served: RunningService) -> AsyncIterator[MemberBrowser]:
    """A member with the key that was bought."""
    await buy_plan(served)
    async with open_member_browser(served) as member:
        yield member


async def end(served: RunningService) -> None:
    """End the membership, as a report of the payment processor does."""
    (held,) = await served.access.list_memberships_by_email(EMAIL)
    await served.access.end_membership(held.row, served.clock(), "the payment was disputed")


@pytest.mark.clause("5.13")
async def test_a_member_creates_a_second_key_without_a_purchase_and_it_works_at_once(
    served: RunningService, member: MemberBrowser, transport: Transport
) -> None:
    holder = replace(served, api_key=await member.create_and_read_key("laptop"))
    answer = await holder.fetch_answer(transport, "signals_get_usage")
    assert (answer["key"], answer["mode"]) == ({"label": "laptop"}, "test")
    assert (await holder.fetch_answer(transport, "signals_get_state", ticker="BTC"))["counts"][
        "assets"
    ] == 1
    assert "2 of 5 keys in use" in (await member.get_home()).text


@pytest.mark.clause("5.28")
async def test_a_new_key_is_shown_once_with_the_lines_that_use_it(
    served: RunningService, member: MemberBrowser
) -> None:
    page = check_page(await member.create_key("laptop"), 201, "Your new key")
    shown = API_KEY.findall(page.text)
    assert len(shown) == 2  # By itself, and in the line for the shell.
    assert f"export SIGNALS_API_KEY={shown[0]}" in page.text
    for line in ("claude mcp add", ".cursor/mcp.json", "[mcp_servers.signals]", served.base_url):
        assert line in page.text
    copied = [text["data-copy"] for text in page.find_all("pre")]
    assert copied[:3] == ["the key", "the line for the shell", "the lines for Claude Code"]
    assert not API_KEY.search((await member.get_home()).text)


async def test_the_page_shows_each_key_with_its_calls_today(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    page = await member.get_home()
    for expected in ("Premium, billed monthly", "Test mode", "Active", EMAIL, AT_FIRST):
        assert expected in page.text
    assert "0 of 10,000" in page.text
    assert "never" in page.text
    served.clock.now += 3_600_000
    for _ in range(2):
        assert await get_usage_status(served, api_key) == 200
    text = (await member.get_home()).text
    assert "2 of 10,000" in text
    assert "2026-09-30 13:06 UTC" in text
    served.clock.now += DAY_MS
    assert "2 of 10,000" not in (await member.get_home()).text


@pytest.mark.clause("3.5.5", "5.27")
async def test_a_revoked_key_is_refused_at_once_and_stays_listed(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    path = f"{await member.find_key_path('laptop')}/revoke"
    assert await get_usage_status(served, api_key) == 200
    asked = check_page(await member.client.get(path), 200, "Revoke this key?")
    assert "laptop" in asked.text
    assert "cannot be undone" in asked.text
    assert await get_usage_status(served, api_key) == 200
    answer = await member.send_form(path)
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../../../..{HOME}")
    assert await get_usage_status(served, api_key) == 403
    text = (await member.get_home()).text
    assert "1 of 5 keys in use" in text
    assert f"revoked on {AT_FIRST}" in text
    check_page(await member.client.get(path), 404, "Not found")
    relabelled = await member.send_form(path.replace("/revoke", "/label"), label="x")
    check_page(relabelled, 404, "Not found")


async def test_a_relabelled_key_keeps_working(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    answer = await member.send_form(
        f"{await member.find_key_path('laptop')}/label", label="  server "
    )
    assert answer.status_code == 303
    assert await member.find_key_path("server")
    usage = await replace(served, api_key=api_key).fetch_answer("rest", "signals_get_usage")
    assert usage["key"] == {"label": "server"}


@pytest.mark.clause("5.13", "5.28")
@pytest.mark.prove
async def test_a_sixth_key_is_refused_and_the_page_says_so_before(
    served: RunningService, member: MemberBrowser
) -> None:
    path = await member.find_keys_path()
    for label in ("second", "third", "fourth", "fifth"):
        await member.create_and_read_key(label)
    page = await member.get_home()
    assert "All 5 keys of this plan are in use" in page.text
    assert path not in [form["action"] for form in page.find_all("form")]
    refused = check_page(await member.send_form(path, label="sixth"), 409, "API access")
    assert "at most 5 live keys" in refused.text
    await member.send_form(f"{await member.find_key_path('second')}/revoke")
    assert await get_usage_status(served, await member.create_and_read_key("sixth")) == 200


@pytest.mark.prove
async def test_only_one_of_several_concurrent_requests_gets_the_last_key(
    member: MemberBrowser,
) -> None:
    for label in ("second", "third", "fourth"):
        await member.create_and_read_key(label)
    token, path = (await member.get_home()).fields["form_token"], await member.find_keys_path()
    sent = {"form_token": token, "label": "last"}
    answers = await asyncio.gather(*(member.client.post(path, data=sent) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    assert "5 of 5 keys in use" in (await member.get_home()).text


@pytest.mark.parametrize("label", ["", "  ", "x" * 121, "a\nb", "\x1b[31m"])
@pytest.mark.prove
async def test_an_invalid_label_is_refused(member: MemberBrowser, label: str) -> None:
    await member.create_and_read_key("laptop")
    for path in (await member.find_keys_path(), f"{await member.find_key_path('laptop')}/label"):
        page = check_page(await member.send_form(path, label=label), 400, "API access")
        assert "Enter 1 to 120 characters" in page.text
        (field,) = [one for one in page.find_all("input") if one.get("aria-invalid")]
        assert field["aria-describedby"] == f"{field['id']}-error" in page.ids
        # An empty field is left out of a form.
        assert field["value"] == (label if len(label) <= 120 else label[:120] + "…")
    assert "2 of 5 keys in use" in (await member.get_home()).text


async def test_labels_and_addresses_are_escaped(served: RunningService) -> None:
    email = "a&b'$x@example.com"
    await buy_plan(served, email)
    async with open_member_browser(served, email) as member:
        await member.create_and_read_key(NASTY)
        page = await member.get_home()
        assert NASTY in page.text
        assert email in page.text
        assert page.find_all("b") == []
        asked = await member.client.get(f"{await member.find_key_path(NASTY)}/revoke")
        assert NASTY in check_page(asked, 200, "Revoke this key?").text


async def test_a_member_can_neither_see_nor_change_another_members_keys(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    keys, key = await member.find_keys_path(), await member.find_key_path("laptop")
    await buy_plan(served, OTHER)
    async with open_member_browser(served, OTHER) as other:
        page = await other.get_home()
        assert "laptop" not in page.text
        assert EMAIL not in page.text
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
        answer = await member.send_form(path, label="x")
        assert answer.status_code == 404
    assert (await member.client.get(f"{keys}/{id_}/revoke")).status_code == 404


async def test_an_ended_plan_says_why_and_gives_no_key(
    served: RunningService, member: MemberBrowser
) -> None:
    keys, api_key = await member.find_keys_path(), await member.create_and_read_key("laptop")
    await end(served)
    assert await get_usage_status(served, api_key) == 403
    page = await member.get_home()
    assert f"Ended on {AT_FIRST}: the payment was disputed" in page.text
    assert "To continue, buy the plan again" in page.text
    assert keys not in " ".join(str(form["action"]) for form in page.find_all("form"))
    check_page(await member.send_form(keys, label="x"), 409, "API access")
    served.clock.now += MAIL_LIMIT.window_s * 1000
    async with open_member_browser(served) as later:
        assert "the payment was disputed" in (await later.get_home()).text


async def test_each_plan_of_a_member_has_its_own_keys(
    served: RunningService, member: MemberBrowser
) -> None:
    await end(served)
    await buy_plan(served, EMAIL.lower(), billing="yearly")
    page = await member.get_home()
    assert page.text.index("Premium, billed monthly") < page.text.index("Premium, billed yearly")
    assert await get_usage_status(served, await member.create_and_read_key("laptop")) == 200


async def test_the_page_says_that_test_keys_do_not_work_on_a_live_service(
    served: RunningService, member: MemberBrowser
) -> None:
    api_key = await member.create_and_read_key("laptop")
    billing = HeldProvider(served.clock, name="sandbox", mode="live")
    async with run_second_service(served, provider=billing) as live:
        assert await get_usage_status(live, api_key) == 403
        live.client.cookies = member.client.cookies
        there = MemberBrowser(live.client)
        page = await there.get_home()
        for expected in ("Test mode", "These keys were bought in test mode", "not_provisioned"):
            assert expected in page.text
        keys = await there.find_keys_path()
        check_page(await there.send_form(keys, label="x"), 409, "API access")

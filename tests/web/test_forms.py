"""Other sites can neither act for a member nor sign a visitor in as another member."""

from collections.abc import AsyncIterator

import pytest

from tests.support.running_service import RunningService
from tests.support.web_page import (
    HOME,
    MemberBrowser,
    buy_plan,
    check_page,
    open_member_browser,
    request_link,
    wait_for_link,
)

pytestmark = pytest.mark.clause("dashboard")

OTHER = "other@example.com"


@pytest.fixture
async def member(served: RunningService) -> AsyncIterator[MemberBrowser]:
    """A member with the bought key and a second one."""
    await buy_plan(served)
    async with open_member_browser(served) as member:
        await member.create_and_read_key("laptop")
        yield member


async def forms(member: MemberBrowser) -> list[tuple[str, dict[str, str]]]:
    """Return the path and fields of every form that changes data."""
    key = await member.find_key_path("laptop")
    return [
        (await member.find_keys_path(), {"label": "forged"}),
        (f"{key}/label", {"label": "forged"}),
        (f"{key}/revoke", {}),
        ("/sign-out", {}),
    ]


async def is_unchanged(member: MemberBrowser) -> bool:
    text = (await member.get_home()).text
    return "2 of 5 keys in use" in text and "laptop" in text and "forged" not in text


@pytest.mark.parametrize("token", [None, "", "0" * 64, "\xe9", "\ud800"])
async def test_a_form_without_the_token_of_its_session_does_nothing(
    member: MemberBrowser, token: str | None
) -> None:
    for path, fields in await forms(member):
        given = fields if token is None else {**fields, "form_token": token}
        content = "&".join(f"{name}={quoted(value)}" for name, value in given.items())
        answer = await member.client.post(path, content=content)
        assert "session" in check_page(answer, 403, "Something went wrong").text
    assert await is_unchanged(member)


def quoted(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass"))


async def test_the_form_token_of_another_session_is_refused(
    served: RunningService, member: MemberBrowser
) -> None:
    await buy_plan(served, OTHER)
    async with open_member_browser(served, OTHER) as other:
        token = (await other.get_home()).fields["form_token"]
    for path, fields in await forms(member):
        answer = await member.client.post(path, data={**fields, "form_token": token})
        check_page(answer, 403, "Something went wrong")
    assert await is_unchanged(member)


async def test_a_form_of_another_site_does_nothing_even_with_the_token(
    member: MemberBrowser,
) -> None:
    token = (await member.get_home()).fields["form_token"]
    for path, fields in await forms(member):
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            sent = {**fields, "form_token": token}
            assert (await member.client.post(path, data=sent, headers=headers)).status_code == 403
    assert await is_unchanged(member)


async def test_opening_the_address_of_a_form_changes_nothing(member: MemberBrowser) -> None:
    token = (await member.get_home()).fields["form_token"]
    for path, fields in await forms(member):
        for method in ("GET", "HEAD"):
            sent = {**fields, "form_token": token}
            answer = await member.client.request(method, path, params=sent)
            is_asked = path.endswith("/revoke")
            assert answer.status_code == (200 if is_asked else 303)
            assert is_asked or answer.headers["location"].endswith(HOME)
    assert await is_unchanged(member)


async def test_another_site_cannot_sign_a_visitor_in_with_its_own_link(
    served: RunningService,
) -> None:
    await buy_plan(served)
    await request_link(served)
    link = await wait_for_link(served)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    ):
        answer = await served.client.post(link, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    own = {"Origin": served.base_url, "Sec-Fetch-Site": "same-origin"}
    assert (await served.client.post(link, headers=own)).status_code == 303


async def test_a_form_that_the_user_resends_is_accepted(member: MemberBrowser) -> None:
    again = {"Sec-Fetch-Site": "none"}
    token = (await member.get_home()).fields["form_token"]
    answer = await member.client.post("/sign-out", data={"form_token": token}, headers=again)
    assert answer.status_code == 303


async def test_another_site_cannot_request_a_link(served: RunningService) -> None:
    sent = {"contact_email": OTHER}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await served.client.post("/sign-in", data=sent, headers=headers)).status_code == 403


async def test_member_pages_cannot_be_framed_or_cached(member: MemberBrowser) -> None:
    for path in (HOME, f"{await member.find_key_path('laptop')}/revoke"):
        answer = await member.client.get(path)
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]

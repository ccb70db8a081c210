"""Signing in and out over real sockets; responses do not reveal who is a member.

Other sites can neither act for a member nor sign a visitor in as another member.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from access.billing.provider import NoBilling
from access.mail import Outbox
from access.sign_in import MAIL_LIMIT, SESSION_MS, create_owner_link
from access.throttle import Limit
from tests.doubles.smtp.server import Mailbox
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, fetch, run_service
from tests.support.web_page import (
    EMAIL,
    HOME,
    LINK,
    MemberBrowser,
    Page,
    add_request,
    build_path,
    buy_plan,
    check_page,
    open_member_browser,
    open_new_member,
    open_owner_browser,
    owner as owner,
    read_redirect,
    request_link,
    run_second_service,
    wait_for_link,
)

STRANGER, OTHER = "stranger@example.com", "other@example.com"
# The headers of other sites.
FOREIGN: list[dict[str, str]] = [
    *({"Origin": origin} for origin in ("https://evil.example", "null")),
    *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
]
# Headers that differ between any two responses.
OWN = {"date": "", "x-request-id": ""}


@pytest.fixture
async def link(served: RunningService) -> str:
    await buy_plan(served)
    await request_link(served)
    return await wait_for_link(served)


async def is_signed_out(client: httpx.AsyncClient) -> bool:
    """Return whether the page and its forms redirect to sign-in, as if no session existed."""
    answers = [await client.get(HOME), await client.get(f"{HOME}/requests")]
    answers.append(await client.post(f"{HOME}/1/keys", data={"label": "x"}))
    led = [(answer.status_code, answer.headers.get("location")) for answer in answers]
    return led == [(303, f"{'../' * depth}sign-in") for depth in (1, 2, 3)]


@pytest.mark.clause("dashboard")
async def test_a_visitor_is_redirected_to_the_sign_in_form_also_with_an_unknown_cookie(
    served: RunningService,
) -> None:
    assert await is_signed_out(served.client)
    for value in ("", "x", "A" * 43, "a=b"):
        await fetch(served.client, "GET", HOME, 303, headers={"Cookie": f"signals_session={value}"})
    answer = await served.client.get("/settings", follow_redirects=True)
    page = check_page(answer, 200, "Sign in")
    assert str(answer.url) == f"{served.base_url}/sign-in"
    assert [(one["name"], one["type"], one["autocomplete"]) for one in page.find_all("input")] == [
        ("contact_email", "email", "email")
    ]


@pytest.mark.clause("dashboard")
async def test_members_and_strangers_get_the_same_response_but_only_members_get_mail(
    served: RunningService,
) -> None:
    await buy_plan(served)
    answers = []
    for email in (STRANGER, EMAIL, EMAIL.upper()):
        answers.append(await request_link(served, email))
        served.clock.now += MAIL_LIMIT.window_s * 1000
    for answer in answers:
        check_page(answer, 200, "Check your inbox")
        assert answer.content == answers[0].content
        assert dict(answer.headers) | OWN == dict(answers[0].headers) | OWN
        assert "set-cookie" not in answer.headers
    assert [(await served.mailbox.wait_for_mail())["To"] for _ in range(2)] == [EMAIL, EMAIL]
    assert served.mailbox.mails.empty()


class SlowMailbox(Mailbox):
    """A Mailer that blocks until the test lets it continue."""

    def __init__(self) -> None:
        super().__init__()
        self.lets_go = asyncio.Event()

    async def send(self, mail: EmailMessage) -> None:
        self.mails.put_nowait(mail)
        await self.lets_go.wait()


@pytest.mark.clause("dashboard")
async def test_a_slow_mail_server_delays_no_response(
    served: RunningService,
) -> None:
    await buy_plan(served)
    mailbox, one = SlowMailbox(), httpx.Limits(max_connections=1)
    async with (
        run_second_service(served, mailer=mailbox) as slow,
        httpx.AsyncClient(base_url=slow.base_url, limits=one, timeout=10) as client,
    ):
        answer = await client.post("/sign-in", data={"contact_email": EMAIL})
        check_page(answer, 200, "Check your inbox")
        await mailbox.wait_for_mail()
        assert (await client.get("/healthz")).status_code == 200
        mailbox.lets_go.set()


@pytest.mark.clause("dashboard", "20.5")
async def test_an_invalid_address_comes_back_with_the_error_at_the_field(
    served: RunningService,
) -> None:
    for body, typed in (
        ("contact_email=ann%22%3E%3Cb%3Eagent", 'ann"><b>agent'),
        ("contact_email=", ""),
        ("", ""),
        ("contact_email=a@b.co&contact_email=c", ""),
    ):
        page = check_page(
            await served.client.post("/sign-in", content=body),
            400,
            "Sign in",
            "This is not an e-mail address.",
            without=["contact_email:"],
        )
        field = page.find_all("input")[0]
        assert (field["name"], field["aria-invalid"]) == ("contact_email", "true")
        assert field["value"] == typed
        assert field["aria-describedby"] in page.ids


@pytest.mark.clause("dashboard", "owner", "13.2")
@pytest.mark.parametrize(("is_owner", "home"), [(False, f"..{HOME}"), (True, "../")])
async def test_opening_a_link_changes_nothing_and_its_button_signs_in_once(
    served: RunningService, link: str, is_owner: bool, home: str
) -> None:
    if is_owner:
        link = await create_owner_link(served.access, served.clock, served.base_url)
    for _ in range(2):
        answer = await served.client.get(link)
        page = check_page(answer, 200, "Sign in to Signals")
        assert page.find_all("form") == [{"method": "post"}]  # To the link's own address.
        assert "set-cookie" not in answer.headers
        assert (await served.client.head(link)).status_code == 200
    assert await is_signed_out(served.client)
    used = await served.client.post(link)
    assert (used.status_code, used.headers["location"]) == (303, home)
    assert used.headers["cache-control"] == "no-store"
    page = check_page(await served.client.get(HOME), 200, "API access")
    assert (EMAIL in page.text) is not is_owner
    assert (await served.client.get("/operations")).status_code == (200 if is_owner else 403)
    again = await served.client.post(link)
    check_page(again, 404, "Not found", "already used")
    assert "set-cookie" not in again.headers


@pytest.mark.clause("dashboard", "owner", "13.2")
@pytest.mark.parametrize("is_owner", [True, False])
async def test_a_link_lasts_15_minutes(served: RunningService, link: str, is_owner: bool) -> None:
    if is_owner:
        link = await create_owner_link(served.access, served.clock, served.base_url)
    served.clock.now += 15 * 60_000
    answer = await served.client.post(link)
    assert (answer.status_code, "set-cookie" in answer.headers) == (404, False)
    served.clock.now -= 1
    assert (await served.client.post(link)).status_code == 303


@pytest.mark.clause("dashboard")
async def test_an_unknown_link_gets_the_same_page_as_a_used_one(
    served: RunningService, link: str
) -> None:
    await served.client.post(link)
    used = await served.client.post(link)
    for other in ("x", "A" * 43, f"{link[9:-1]}%C3%A9", "%00"):
        answer = await served.client.post(f"/sign-in/{other}")
        check_page(answer, 404, "Not found")
        assert answer.content == used.content


@pytest.mark.clause("dashboard")
async def test_the_session_cookie_is_http_only_and_over_tls_secure_and_bound_to_this_host(
    served: RunningService, link: str
) -> None:
    own = {"HttpOnly", "Max-Age=604800", "Path=/", "SameSite=lax"}
    token, *attributes = (await served.client.post(link)).headers["set-cookie"].split("; ")
    assert re.fullmatch(r"signals_session=ss_[A-Za-z0-9_-]{43}", token)
    assert set(attributes) == own
    served.clock.now += MAIL_LIMIT.window_s * 1000
    async with run_second_service(served, base_url="https://signals.example") as public:
        await request_link(public)
        answer = await public.client.post(await wait_for_link(public))
        (cookie,) = answer.headers.get_list("set-cookie")
        token, *attributes = cookie.split("; ")
        assert token.startswith("__Host-signals_session=")
        assert set(attributes) == {*own, "Secure"}
        for sent, status in ((token, 200), (token.removeprefix("__Host-"), 303)):
            await fetch(public.client, "GET", HOME, status, headers={"Cookie": sent})


@pytest.mark.clause("dashboard")
async def test_signing_out_ends_all_sessions_of_the_member(
    served: RunningService,
) -> None:
    await buy_plan(served)
    async with AsyncExitStack() as opened:
        member = await opened.enter_async_context(open_member_browser(served))
        served.clock.now += MAIL_LIMIT.window_s * 1000
        elsewhere = await opened.enter_async_context(open_member_browser(served))
        token = member.client.cookies["signals_session"]
        left = await member.send_form("/sign-out")
        assert (left.status_code, left.headers["location"]) == (303, "./sign-in")
        assert not member.client.cookies
        assert await is_signed_out(member.client)
        assert await is_signed_out(elsewhere.client)
        member.client.cookies["signals_session"] = token
        assert await is_signed_out(member.client)


@pytest.mark.clause("dashboard")
async def test_a_signed_in_viewer_is_redirected_to_api_access_until_the_session_expires(
    served: RunningService, member: MemberBrowser
) -> None:
    served.clock.now += SESSION_MS - 1
    for path in ("/sign-in", "/settings"):
        assert (await fetch(member.client, "GET", path, 303)).headers["location"] == f".{HOME}"
    served.clock.now += 1
    assert await is_signed_out(member.client)


@pytest.mark.clause("dashboard")
async def test_an_address_with_too_many_requests_gets_retry_after(
    tmp_path: Path,
) -> None:
    async with run_service(tmp_path, make_coverage(), attempt_limit=Limit(2, 600)) as served:
        for _ in range(2):
            check_page(await request_link(served), 200, "Check your inbox")
        answer = await request_link(served)
        check_page(answer, 429, "Too many attempts", "Retry after 600 seconds")
        assert answer.headers["retry-after"] == "600"


@pytest.mark.clause("dashboard")
async def test_the_page_says_when_the_next_link_comes_to_members_and_strangers_alike(
    served: RunningService,
) -> None:
    await buy_plan(served)
    for email in (EMAIL, STRANGER):
        first, second = [await request_link(served, email) for _ in range(2)]
        assert "The next one comes" not in first.text
        assert "The next one comes in 60 seconds" in second.text
        assert second.text.count(email) == 0
    await served.mailbox.wait_for_mail()
    assert served.mailbox.mails.empty()


@pytest.mark.clause("dashboard")
async def test_the_page_names_the_outbox_of_a_local_service(
    served: RunningService, tmp_path: Path
) -> None:
    await buy_plan(served)
    folder = tmp_path / "outbox"
    async with run_second_service(
        served, mailer=Outbox(folder, "a@localhost"), outbox=folder
    ) as own:
        check_page(await request_link(own), 200, "Check your inbox", str(folder))
    (mail,) = folder.iterdir()
    assert LINK.search(mail.read_text())
    assert str(folder) not in (await request_link(served)).text


@pytest.mark.clause("owner")
@pytest.mark.clause("13.5")
async def test_the_owner_sees_the_readings_that_members_see(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    async with open_new_member(served) as member:
        for path in ("/?timeframe=1h", "/assets/BTC"):
            theirs, ours = await member.client.get(path), await owner.get(path)
            assert Page(ours).rows == Page(theirs).rows != Page(await served.get_page(path)).rows


@pytest.mark.clause("owner")
@pytest.mark.clause("13.5")
async def test_with_billing_off_the_owner_signs_in_and_sees_the_readings(tmp_path: Path) -> None:
    async with (
        run_service(tmp_path, make_coverage(), provider=NoBilling()) as unbilled,
        open_owner_browser(unbilled) as client,
    ):
        for path in ("/", "/assets/BTC", "/operations", HOME):
            assert (await client.get(path)).status_code == 200


@pytest.mark.clause("owner")
@pytest.mark.clause("13.3")
async def test_no_key_opens_a_page_of_the_owner_or_of_members(served: RunningService) -> None:
    pending = await add_request(served)
    for api_key in (served.api_key, await served.keys.create("a friend"), await buy_plan(served)):
        for form in (
            {"api_key": api_key},
            {"api_key": api_key, "action": "key"},
            {"api_key": api_key, "request": pending.id},
            {"contact_email": api_key},
        ):
            answer = await served.client.post("/sign-in", data=form)
            assert (answer.status_code, api_key in answer.text) == (400, "contact_email" in form)
            assert 'name="api_key"' not in answer.text
            assert "set-cookie" not in answer.headers
        for headers in (
            {"authorization": f"Bearer {api_key}"},
            {"x-api-key": api_key},
            {"cookie": f"signals_session={api_key}"},
        ):
            for path, status in (("/operations", 403), (HOME, 303)):
                await fetch(served.client, "GET", path, status, headers=headers)
            answer = await served.client.post(
                "/oauth/consent", data={"request": pending.id, "action": "allow"}, headers=headers
            )
            assert answer.headers["location"] == f"..{build_path(pending)}"


@pytest.mark.clause("owner")
async def test_signing_out_ends_all_sessions_of_the_owner_and_no_members(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    async with open_owner_browser(served) as other, open_new_member(served) as member:
        token = Page(await owner.get("/operations")).fields["form_token"]
        assert (await owner.post("/sign-out", data={"form_token": token})).status_code == 303
        for client in (owner, other):
            assert (await client.get("/operations")).status_code == 403
        await member.get_home()


@pytest.mark.clause("owner")
async def test_the_page_of_keys_leads_the_owner_to_operations(owner: httpx.AsyncClient) -> None:
    check_page(
        await owner.get(HOME),
        200,
        "API access",
        links=["../operations#keys"],
        without=["There is no plan for"],
    )
    check_page(await owner.get(f"{HOME}/requests"), 200, "Recent requests")


@pytest.mark.clause("owner")
@pytest.mark.clause("13.10")
async def test_a_signed_in_owner_connects_a_program_with_the_token_of_the_session(
    served: RunningService,
) -> None:
    # On a service that others reach, where only the session shows who is the owner.
    async with run_second_service(served, base_url="https://signals.example") as public:
        pending = await add_request(public)
        own = {"host": "signals.example"}
        link = await create_owner_link(public.access, public.clock, "")
        signed_in = await public.client.post(link, headers=own)
        own["cookie"] = signed_in.headers["set-cookie"].partition(";")[0]
        shown = Page(await public.client.get(build_path(pending), headers=own))
        assert "signed in as the owner" in shown.text
        fields = {"request": pending.id, "action": "allow_as_owner"}
        for token in ("", "0" * 64):
            await fetch(
                public.client,
                "POST",
                "/oauth/consent",
                403,
                data={**fields, "form_token": token},
                headers=own,
            )
        token = shown.fields["form_token"]
        answer = await public.client.post(
            "/oauth/consent", data={**fields, "form_token": token}, headers=own
        )
        assert read_redirect(answer)["code"].startswith("ac_")


@pytest.fixture
async def member(served: RunningService) -> AsyncIterator[MemberBrowser]:
    """A member with the bought key and a second one."""
    async with open_new_member(served) as member:
        await member.create_and_read_key("laptop")
        yield member


async def list_forms(member: MemberBrowser) -> list[tuple[str, dict[str, str]]]:
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


@pytest.mark.clause("dashboard")
@pytest.mark.parametrize(
    ("token", "headers"),
    [
        *((token, {}) for token in (None, "", "0" * 64, "\xe9", "\ud800", "another's")),
        *(("its own", headers) for headers in FOREIGN),
    ],
)
async def test_a_form_without_the_token_of_its_session_or_of_another_site_does_nothing(
    served: RunningService, member: MemberBrowser, token: str | None, headers: dict[str, str]
) -> None:
    if token == "another's":
        async with open_new_member(served, OTHER) as other:
            token = (await other.get_home()).fields["form_token"]
    if token == "its own":
        token = (await member.get_home()).fields["form_token"]
    for path, fields in await list_forms(member):
        given = fields if token is None else {**fields, "form_token": token}
        content = urlencode(given, encoding="utf-8", errors="surrogatepass")
        answer = await fetch(member.client, "POST", path, 403, content=content, headers=headers)
        assert headers or "session" in check_page(answer, 403, "Something went wrong").text
    assert await is_unchanged(member)


@pytest.mark.clause("dashboard")
async def test_opening_the_address_of_a_form_changes_nothing(member: MemberBrowser) -> None:
    token = (await member.get_home()).fields["form_token"]
    for path, fields in await list_forms(member):
        for method in ("GET", "HEAD"):
            answer = await member.client.request(
                method, path, params={**fields, "form_token": token}
            )
            is_asked = path.endswith("/revoke")
            assert answer.status_code == (200 if is_asked else 303)
            assert is_asked or answer.headers["location"].endswith(HOME)
    assert await is_unchanged(member)


@pytest.mark.clause("dashboard")
async def test_another_site_can_neither_request_a_link_nor_sign_a_visitor_in_with_its_own(
    served: RunningService, link: str
) -> None:
    for headers in (*FOREIGN, {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}):
        for path, sent in ((link, {}), ("/sign-in", {"contact_email": OTHER})):
            answer = await fetch(served.client, "POST", path, 403, data=sent, headers=headers)
            assert "set-cookie" not in answer.headers
    own = {"Origin": served.base_url, "Sec-Fetch-Site": "same-origin"}
    assert (await served.client.post(link, headers=own)).status_code == 303


@pytest.mark.clause("dashboard")
async def test_a_form_that_the_user_resends_is_accepted(member: MemberBrowser) -> None:
    again = {"Sec-Fetch-Site": "none"}
    token = (await member.get_home()).fields["form_token"]
    await fetch(member.client, "POST", "/sign-out", 303, data={"form_token": token}, headers=again)


@pytest.mark.clause("dashboard")
async def test_member_pages_cannot_be_framed_or_cached(member: MemberBrowser) -> None:
    for path in (HOME, f"{await member.find_key_path('laptop')}/revoke"):
        answer = await member.client.get(path)
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]

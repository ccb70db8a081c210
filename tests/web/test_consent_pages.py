"""Connecting a program in a browser without scripts: sign in, buy, allow, and each refusal."""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from access.billing.provider import BillingError, NoBilling, SandboxBilling
from access.members import MAX_LIVE_KEYS, MAX_NEW_KEYS_PER_DAY
from access.sign_in import MAIL_LIMIT
from rest_shim.endpoints import CALL_NAMES
from schemas.vocabulary import HOUR_MS
from service.config.settings import Settings
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.resources import Resources
from store.access_rows import PendingAuthorization
from tests.support.running_service import (
    ManualClock,
    RunningService,
    fetch,
    open_loopback_socket,
    run_app,
    run_service,
    skip_sleep,
)
from tests.support.sandbox_shop import BUYER, HeldProvider, StripeShop, shop as shop
from tests.support.web_page import (
    EMAIL,
    HOME,
    REDIRECT_URI,
    MemberBrowser,
    Page,
    add_request,
    begin_request,
    build_path,
    buy_plan,
    check_page,
    exchange_code,
    member as member,
    read_redirect,
    request_link,
    run_second_service,
    wait_for_link,
)

pytestmark = pytest.mark.clause("consent")

CONSENT = "Connect a program"
POLICY = "'self' https: https:"
OWN_UID = os.getuid()


@pytest.fixture
async def pending(served: RunningService) -> PendingAuthorization:
    return await add_request(served)


async def show(
    client: httpx.AsyncClient,
    pending: PendingAuthorization,
    title: str = CONSENT,
    *texts: str,
    form_action: str = POLICY,
    links: Iterable[str] = (),
    without: Iterable[str] = (),
) -> Page:
    answer = await client.get(build_path(pending))
    return check_page(
        answer, 200, title, *texts, form_action=form_action, links=links, without=without
    )


async def decide(
    client: httpx.AsyncClient, pending: PendingAuthorization, action: str = "allow"
) -> httpx.Response:
    page = Page(await client.get(build_path(pending)))
    fields = {str(name): value for name, value in page.fields.items() if name != "contact_email"}
    return await client.post("/oauth/consent", data={**fields, "action": action})


async def is_pending(served: RunningService, pending: PendingAuthorization) -> bool:
    answer = await served.client.get(build_path(pending))
    assert answer.status_code in {200, 404}
    return answer.status_code == 200


def check_code(answer: httpx.Response, served: RunningService) -> None:
    sent = read_redirect(answer)
    assert sent.pop("code").startswith("ac_")
    assert sent == {"state": "st&te", "iss": served.base_url}


# The way of a member.


@pytest.mark.clause("12.3")
async def test_a_visitor_signs_in_by_mail_and_is_led_back_to_the_request(
    served: RunningService, pending: PendingAuthorization
) -> None:
    await buy_plan(served)
    page = await show(served.client, pending, "Sign in", "Desk Assistant")
    assert page.fields["request"] == pending.id
    answer = await served.client.post("/sign-in", data={**page.fields, "contact_email": EMAIL})
    assert f".{build_path(pending)}" in check_page(answer, 200, "Check your inbox").links
    link = await wait_for_link(served)
    check_page(await served.client.get(link), 200, "Sign in to Signals")
    assert (await served.client.post(link)).headers["location"] == f"..{build_path(pending)}"
    page = await show(
        served.client,
        pending,
        CONSENT,
        "Desk Assistant",
        "host.example",
        EMAIL,
        "10,000 calls",
        "2026-09-30 12:06",
        without=["another browser"],
    )
    assert page.actions == [None, "allow", "deny"]
    check_code(await decide(served.client, pending), served)
    assert "signals_request" not in served.client.cookies
    assert not await is_pending(served, pending)


@pytest.mark.clause("12.3")
async def test_the_mail_names_the_purpose_but_no_text_of_the_client(
    served: RunningService, pending: PendingAuthorization
) -> None:
    await buy_plan(served)
    for sent, purpose in (({"request": pending.id}, " to connect a program"), ({}, "")):
        await request_link(served, **sent)
        text = (await served.mailbox.wait_for_mail()).get_content()
        assert text.startswith(f"You asked to sign in to Signals{purpose}. Open this link")
        assert "Desk" not in text
        assert ("?" in text) is bool(sent)
        served.clock.now += MAIL_LIMIT.window_s * 1000


@pytest.mark.clause("12.1", "12.4")
async def test_a_link_opened_in_another_browser_warns_and_approves_nothing_by_itself(
    served: RunningService, pending: PendingAuthorization
) -> None:
    await buy_plan(served)
    await served.client.get(build_path(pending))
    await request_link(served, request=pending.id)
    link = await wait_for_link(served)
    async with httpx.AsyncClient(base_url=served.base_url, verify=False) as elsewhere:
        await elsewhere.get(link)
        assert (await elsewhere.post(link)).headers["location"] == (
            f"..{build_path(pending)}&elsewhere=1"
        )
        check_page(
            await elsewhere.get(f"{build_path(pending)}&elsewhere=1"),
            200,
            CONSENT,
            "This connection was started in another browser",
            form_action=POLICY,
        )
        # The browser that began is not signed in by that.
        await show(served.client, pending, "Sign in")
        check_code(await decide(elsewhere, pending), served)


@pytest.mark.clause("12.1")
async def test_opening_the_page_and_heads_approve_nothing(
    served: RunningService, member: MemberBrowser, pending: PendingAuthorization
) -> None:
    token = (await member.get_home()).fields["form_token"]
    sent = {"request": pending.id, "action": "allow", "form_token": token}
    for method in ("GET", "HEAD"):
        await fetch(member.client, method, "/oauth/consent", 200, params=sent)
    assert await is_pending(served, pending)


@pytest.mark.clause("12.8")
async def test_anyone_with_the_page_can_cancel_signed_in_or_not(
    served: RunningService, member: MemberBrowser
) -> None:
    for client in (served.client, member.client):
        pending = await add_request(served)
        sent = read_redirect(await decide(client, pending, "deny"))
        assert sent["error"] == "access_denied"
        assert (sent["state"], sent["iss"]) == ("st&te", served.base_url)
        assert not await is_pending(served, pending)


@pytest.mark.clause("12.11")
@pytest.mark.prove
async def test_a_connected_program_is_listed_among_the_keys_until_it_is_revoked(
    served: RunningService, member: MemberBrowser
) -> None:
    client_id, path = await begin_request(served, member.client)
    page = check_page(await member.client.get(path), 200, CONSENT, form_action=POLICY)
    fields = {str(name): value for name, value in page.fields.items()}
    allowed = await member.client.post("/oauth/consent", data={**fields, "action": "allow"})
    token = await exchange_code(served, client_id, read_redirect(allowed)["code"])
    assert await call_endpoint(served, token) == 200
    home = await member.get_home(f"2 of {MAX_LIVE_KEYS} keys in use")
    (row,) = [row for row in home.rows if row and "Desk Assistant" in row[0]]
    assert "Connected program (OAuth)" in row[0]
    assert "Rotate" not in row[-1]
    key_path = await member.find_key_path("Desk Assistant")
    refused = await member.send_form(f"{key_path}/rotate", overlap="0")
    assert "connected program" in check_page(refused, 409, "API access").text
    check_page(
        await member.client.get(f"{key_path}/revoke"),
        200,
        "Revoke this key?",
        "loses its access immediately",
    )
    await member.send_form(f"{key_path}/revoke")
    assert await call_endpoint(served, token) == 401
    assert "revoked on" in (await member.get_home()).text


async def call_endpoint(served: RunningService, token: str) -> int:
    """Return the status of a request to the protected endpoint with an access token."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Authorization": f"Bearer {token}"}
    return (await served.client.post("/mcp", json=body, headers=headers)).status_code


# What the page says about the client.


@pytest.mark.clause("12.2")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("Desk\u202etnatsissA\u2066\u200b", "Desk tnatsissA"),
        ("two\nlines\x00\x1b[31m", "two lines [31m"),
        ("x" * 500, "x" * 80),
        ("\u200b\ufeff ", "Unnamed program"),
    ],
)
async def test_the_name_of_a_client_is_shown_as_short_plain_text(
    served: RunningService, member: MemberBrowser, name: str, shown: str
) -> None:
    _, path = await begin_request(served, member.client, name)
    page = check_page(
        await member.client.get(path),
        200,
        CONSENT,
        f"\n{shown} asks for access to your plan",
        form_action=POLICY,
    )
    assert page.find_all("bdi")


@pytest.mark.clause("12.2", "12.10")
@pytest.mark.parametrize(
    ("uri", "destination", "scheme"),
    [
        ("https://claude.ai/api/mcp/auth_callback", "claude.ai", "https"),
        ("http://127.0.0.1:33418/", "a program on this computer", "http"),
        ("http://localhost:8787/callback", "a program on this computer", "http"),
        ("http://[::1]:1/", "a program on this computer", "http"),
        ("cursor://anysphere.cursor-mcp/oauth/callback", "that opens cursor: links", "cursor"),
    ],
)
async def test_the_page_names_where_the_browser_goes_and_its_policy_allows_it(
    served: RunningService, member: MemberBrowser, uri: str, destination: str, scheme: str
) -> None:
    pending = await add_request(served, redirect_uri=uri)
    await show(member.client, pending, CONSENT, destination, form_action=f"'self' https: {scheme}:")
    assert "code" in read_redirect(await decide(member.client, pending), uri)


@pytest.mark.clause("12.2")
async def test_a_client_that_a_document_describes_is_shown_with_the_documents_host(
    served: RunningService, member: MemberBrowser
) -> None:
    client_id = "https://claude.ai/oauth/claude-code-client-metadata"
    for changed, is_described in (({"client_id": client_id}, True), ({}, False)):
        page = await show(member.client, await add_request(served, **changed))
        assert ("Described at" in page.text) is is_described


# Refusals.


@pytest.mark.clause("12.1")
@pytest.mark.parametrize(
    ("changed", "headers", "title"),
    [
        *(({"form_token": token}, {}, "another session") for token in (None, "", "0" * 64)),
        *(
            ({"action": action}, {name: value}, title)
            for name, value, title in (
                ("Origin", "https://evil.example", "Origin"),
                ("Origin", "null", "Origin"),
                ("Sec-Fetch-Site", "cross-site", "Another site sent this form."),
                ("Sec-Fetch-Site", "same-site", "Another site sent this form."),
            )
            for action in ("allow", "deny", "allow_as_owner")
        ),
        *(({"action": action}, {}, "accepted: allow, deny") for action in ("", "approve")),
    ],
)
async def test_a_form_of_another_session_or_site_or_without_an_action_does_nothing(
    served: RunningService,
    member: MemberBrowser,
    pending: PendingAuthorization,
    changed: dict[str, str | None],
    headers: dict[str, str],
    title: str,
) -> None:
    token = (await member.get_home()).fields["form_token"]
    fields = {"request": pending.id, "action": "allow", "form_token": token} | changed
    answer = await fetch(
        member.client,
        "POST",
        "/oauth/consent",
        400 if title.startswith("accepted") else 403,
        data={name: value for name, value in fields.items() if value is not None},
        headers=headers,
    )
    assert title in answer.text
    assert await is_pending(served, pending)


async def test_allowing_without_a_session_leads_to_the_sign_in_form(
    served: RunningService, pending: PendingAuthorization
) -> None:
    answer = await served.client.post(
        "/oauth/consent", data={"request": pending.id, "action": "allow", "form_token": "0" * 64}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"..{build_path(pending)}")
    assert await is_pending(served, pending)


@pytest.mark.clause("12.9")
@pytest.mark.prove
async def test_an_unknown_answered_or_expired_request_says_to_start_again(
    served: RunningService, member: MemberBrowser, pending: PendingAuthorization
) -> None:
    answered = await add_request(served)
    await decide(member.client, answered)
    for request_id in (answered.id, "", "x", "https://evil.example/", "\x00"):
        for path in ("/oauth/consent", "/oauth/buy"):
            shown = await member.client.get(path, params={"request": request_id})
            sent = {"request": request_id, "action": "allow", "billing": "monthly"}
            for answer in (shown, await member.client.post(path, data=sent)):
                assert "start the connection again" in check_page(answer, 404, "Not found").text
        if request_id:
            check_page(await request_link(served, request=request_id), 404, "Not found")
    assert served.mailbox.mails.empty()
    served.clock.now += HOUR_MS - 1
    assert await is_pending(served, pending)
    served.clock.now += 1
    assert not await is_pending(served, pending)


@pytest.mark.clause("12.3")
async def test_a_sign_in_link_leads_to_no_other_place(served: RunningService) -> None:
    await buy_plan(served)
    for target in ("https://evil.example/", "//evil.example", "../x", "", "\x00"):
        await request_link(served)
        answer = await served.client.post(await wait_for_link(served), params={"request": target})
        assert (answer.status_code, answer.headers["location"]) == (303, "../oauth/consent")
        served.clock.now += MAIL_LIMIT.window_s * 1000
    check_page(
        await served.client.get("/oauth/consent"), 404, "Not found", "start the connection again"
    )


@pytest.mark.clause("12.7")
@pytest.mark.prove
async def test_a_plan_without_room_for_a_key_is_said_to_be_full(
    served: RunningService, member: MemberBrowser, pending: PendingAuthorization
) -> None:
    for number in range(MAX_LIVE_KEYS - 1):
        await member.create_and_read_key(f"key {number}")
    await show(
        member.client,
        pending,
        "No room for another key",
        f"All {MAX_LIVE_KEYS} keys of your plan are in use",
        links=[f"..{HOME}", f"..{build_path(pending)}"],
    )
    token = (await member.get_home()).fields["form_token"]
    refused = await member.client.post(
        "/oauth/consent", data={"request": pending.id, "action": "allow", "form_token": token}
    )
    check_page(refused, 409, "No room for another key", form_action=POLICY)
    await member.send_form(f"{await member.find_key_path('key 0')}/revoke")
    check_code(await decide(member.client, pending), served)
    # The connection has no key yet, so the plan has room for those that are left of the day.
    for number in range(MAX_NEW_KEYS_PER_DAY - MAX_LIVE_KEYS):
        await member.create_and_read_key(f"short-lived {number}")
        await member.send_form(f"{await member.find_key_path(f'short-lived {number}')}/revoke")
    await show(
        member.client, await add_request(served), "No room for another key", "Try again tomorrow"
    )


# Buying a plan on the way.


async def buy_on_the_way(
    client: httpx.AsyncClient, pending: PendingAuthorization, email: str
) -> str:
    path = f"/oauth/buy?request={pending.id}"
    await show(client, pending, "Sign in", links=[f"..{path}"])
    page = check_page(await client.get(path), 200, "Buy the plan", "USD 1,199", form_action=POLICY)
    answer = await client.post(
        "/oauth/buy", data={**page.fields, "contact_email": email, "billing": "monthly"}
    )
    url = answer.headers["refresh"].removeprefix("0; url=")
    check_page(answer, 200, "Checkout", form_action=POLICY, links=[url, f"..{build_path(pending)}"])
    return url


async def sign_in(served: RunningService, pending: PendingAuthorization, email: str) -> None:
    await request_link(served, email, request=pending.id)
    answer = await served.client.post(await wait_for_link(served))
    assert answer.headers["location"] == f"..{build_path(pending)}"


@pytest.mark.clause("12.5", "12.6")
async def test_someone_without_a_plan_buys_one_in_the_sandbox_and_comes_back(
    served: RunningService, pending: PendingAuthorization
) -> None:
    url = await buy_on_the_way(served.client, pending, EMAIL)
    assert url.startswith(f"{served.base_url}/sandbox/checkout/")
    check_page(
        await served.client.post(url, data={"action": "pay"}),
        200,
        "Paid in the sandbox",
        links=[f"../..{build_path(pending)}"],
        without=["agent"],
    )
    await sign_in(served, pending, EMAIL)
    await show(
        served.client, pending, CONSENT, "Your payment of 2026-09-30 12:06 UTC starts the plan"
    )
    check_code(await decide(served.client, pending), served)
    text = check_page(await served.client.get(HOME), 200, "API access").text
    assert ("Premium, billed monthly" in text, "Payment without a key" in text) == (True, False)


@pytest.mark.clause("12.5")
@pytest.mark.prove
async def test_someone_without_a_plan_buys_one_by_stripe_and_comes_back(shop: StripeShop) -> None:
    served = shop.served
    pending = await add_request(served)
    assert await buy_on_the_way(served.client, pending, BUYER) == shop.stripe.sessions()[0]["url"]
    way_back = [f"..{build_path(pending)}"]
    cancelled = await served.client.get("/checkout/cancelled")
    check_page(cancelled, 200, "Nothing was paid", links=way_back)
    shop.stripe.pay(shop.stripe.sessions()[0]["id"])
    check_page(await served.client.get("/checkout/paid"), 200, "Thank you", links=way_back)
    await sign_in(served, pending, BUYER)
    check_code(await decide(served.client, pending), served)


@pytest.mark.clause("12.5")
async def test_a_member_whose_plan_ended_is_led_to_buying(
    served: RunningService, member: MemberBrowser, pending: PendingAuthorization
) -> None:
    (row,) = await served.access.list_open_memberships("sandbox")
    await served.access.end_membership(row, served.clock(), "the test ended it")
    offer = f"/oauth/buy?request={pending.id}"
    await show(member.client, pending, "You have no plan yet", links=[f"..{offer}"])
    page = check_page(await member.client.get(offer), 200, "Buy the plan", form_action=POLICY)
    assert page.fields["contact_email"] == EMAIL
    assert (await decide(member.client, pending)).headers["location"] == f"..{build_path(pending)}"
    assert await is_pending(served, pending)


@pytest.mark.clause("12.6")
async def test_only_the_payment_that_the_page_showed_is_used(
    served: RunningService, pending: PendingAuthorization
) -> None:
    url = await buy_on_the_way(served.client, pending, EMAIL)
    await served.client.post(url, data={"action": "pay"})
    await sign_in(served, pending, EMAIL)
    fields = (await show(served.client, pending)).fields
    for payment in ("", "0" * 32):
        sent = {**fields, "payment": payment, "action": "allow"}
        check_page(await served.client.post("/oauth/consent", data=sent), 404, "Not found")
    assert await is_pending(served, pending)


@pytest.mark.clause("20.5")
@pytest.mark.parametrize(
    ("email", "billing"),
    [
        ("nobody", "yearly"),
        (f"{'x' * 300}@example.com", "yearly"),
        ("", "yearly"),
        (EMAIL, "daily"),
        (EMAIL, ""),
    ],
)
async def test_a_bad_order_comes_back_with_the_error_at_the_field(
    served: RunningService, pending: PendingAuthorization, email: str, billing: str
) -> None:
    answer = await served.client.post(
        "/oauth/buy", data={"request": pending.id, "contact_email": email, "billing": billing}
    )
    page = check_page(answer, 400, "Buy the plan", form_action=POLICY)
    assert ("Choose monthly or yearly." in page.text) is (email == EMAIL)
    (field,) = [one for one in page.find_all("input") if one["name"] == "contact_email"]
    assert field["value"] == (email if len(email) <= 254 else f"{email[:254]}…")
    if email != EMAIL:
        assert (field["aria-invalid"], field["aria-describedby"] in page.ids) == ("true", True)
    chosen = [one["value"] for one in page.find_all("input") if "checked" in one]
    assert chosen == {"yearly": ["yearly"], "daily": [], "": ["monthly"]}[billing]
    assert page.fields["request"] == pending.id


async def test_without_the_payment_processor_nobody_is_asked_to_pay_twice(tmp_path: Path) -> None:
    clock = ManualClock()
    billing = HeldProvider(clock)
    async with run_service(tmp_path, provider=billing, clock=clock) as served:
        pending = await add_request(served)
        session = (await buy_on_the_way(served.client, pending, "a@example.com")).rpartition("/")[2]
        billing.set_paid(session)
        await sign_in(served, pending, "a@example.com")
        billing.payments[session] = BillingError("down")
        await show(
            served.client,
            pending,
            "You have no plan yet",
            "The payment processor is not responding",
        )


async def test_a_service_that_sells_no_keys_offers_none_on_the_way(
    served: RunningService, pending: PendingAuthorization
) -> None:
    async with run_second_service(served, provider=NoBilling()) as closed:
        page = await show(closed.client, pending, "Sign in", "This server sells no keys")
        assert not [link for link in page.links if "buy" in link]
        check_page(await closed.client.get(f"/oauth/buy?request={pending.id}"), 404, "Not found")


# The owner on their own machine.


@pytest.mark.clause("12.12")
@pytest.mark.parametrize("has_plan", [False, True])
async def test_the_owner_allows_without_a_plan_or_signing_in_or_with_a_plan(
    served: RunningService, pending: PendingAuthorization, has_plan: bool
) -> None:
    async with run_second_service(served, owner_uid=OWN_UID) as own:
        page = await show(
            own.client, pending, CONSENT, "you are on the computer that runs this service"
        )
        assert page.actions == ["allow_as_owner", "deny", None]
        if has_plan:
            await buy_plan(own)
            await sign_in(own, pending, EMAIL)
            assert (await show(own.client, pending)).actions == [None, "allow", "deny"]
        check_code(
            await decide(own.client, pending, "allow" if has_plan else "allow_as_owner"), own
        )
        assert not await is_pending(own, pending)


@pytest.mark.clause("12.12", "12.13")
async def test_nobody_else_can_allow_as_owner(
    served: RunningService, member: MemberBrowser, pending: PendingAuthorization
) -> None:
    sent = {"request": pending.id, "action": "allow_as_owner"}
    for client in (served.client, member.client):
        answer = await client.post("/oauth/consent", data=sent)
        check_page(answer, 403, "Something went wrong", "Only the owner")
    async with run_second_service(served, owner_uid=OWN_UID) as own:
        for headers in ({"X-Forwarded-For": "127.0.0.1"}, {"Via": "1.1 proxy"}):
            answer = await own.client.post("/oauth/consent", data=sent, headers=headers)
            check_page(answer, 403, "Something went wrong")
            shown = await own.client.get(build_path(pending), headers=headers)
            check_page(shown, 200, "Sign in", form_action=POLICY)
    async with run_second_service(served, owner_uid=OWN_UID + 1) as others:
        await show(others.client, pending, "Sign in")
        answer = await others.client.post("/oauth/consent", data=sent)
        check_page(answer, 403, "Something went wrong")
    assert await is_pending(served, pending)


@pytest.mark.clause("12.14")
@pytest.mark.prove
async def test_only_a_service_on_loopback_has_an_owner(
    served: RunningService, pending: PendingAuthorization
) -> None:
    resources = Resources(
        served.market,
        served.access,
        SandboxBilling(served.access, served.clock, served.base_url),
        served.mailbox,
        served.clock,
        skip_sleep,
    )
    for environment, title in (
        ({}, CONSENT),
        ({"SIGNALS_HOST": "0.0.0.0"}, "Sign in"),
        ({"SIGNALS_BASE_URL": "https://signals.example"}, "Sign in"),
    ):
        app = build_app(Settings.read(environment), resources, Metrics(CALL_NAMES), served.call_log)
        with open_loopback_socket() as bound:
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            async with run_app(app, bound), httpx.AsyncClient(base_url=address) as client:
                await show(client, pending, title)


# The cookie.


async def test_a_cookie_of_an_unknown_request_changes_no_page(served: RunningService) -> None:
    opened = await served.client.post("/api/v1/access/checkout", json={"contact_email": EMAIL})
    url = urlsplit(opened.json()["checkout_url"]).path
    plain = await served.client.get(url)
    for value in ("x", REDIRECT_URI):
        answer = await served.client.get(url, headers={"Cookie": f"signals_request={value}"})
        assert answer.content == plain.content

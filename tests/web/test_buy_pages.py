"""Buying access in a browser without scripts, in the sandbox and by Stripe.

The sandbox's pay page and Stripe's return pages over real sockets, without a browser.

Prices as pages show them.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import markupsafe
import pytest

from access.billing.provider import SESSION_LIFETIME_MS, NoBilling
from access.throttle import Limit
from schemas.operator import Operator
from tests.support.running_service import RunningService, fetch, run_service
from tests.support.sandbox_shop import StripeShop, shop as shop
from tests.support.web_page import (
    API_KEY,
    EMAIL,
    Page,
    add_request,
    build_path,
    buy_plan,
    check_page,
    get_usage_status,
    open_new_member,
    run_second_service,
)
from web.value_texts import format_price

BUYER = "buyer@company.example.com"
COOKIE = "signals_purchase"
SANDBOX = "/sandbox/checkout/sb_1"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site"}
MONTHLY = {"contact_email": BUYER, "billing": "monthly"}


@pytest.fixture
async def buyer(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of a visitor; it does not follow redirects."""
    async with httpx.AsyncClient(base_url=served.base_url, verify=False, timeout=60) as client:
        yield client


async def order(buyer: httpx.AsyncClient, **changed: str) -> str:
    """Choose a plan; return the path of the sandbox's pay page."""
    check_page(await buyer.get("/buy"), 200, "Choose a plan")
    answer = await buyer.post("/buy", data=MONTHLY | changed)
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"].removeprefix(".")
    assert path.startswith("/sandbox/checkout/sb_")
    return str(path)


async def pay(buyer: httpx.AsyncClient, path: str) -> None:
    answer = await buyer.post(path, data={"action": "pay"})
    assert (answer.status_code, answer.headers["location"]) == (303, "../../buy/key")


def read_key(page: Page) -> str:
    """Return the key of a page, which shows it alone and in the line for the shell."""
    found = API_KEY.findall(page.text)
    assert len(found) == 2
    assert found[0] == found[1]
    return str(found[0])


@pytest.mark.clause("sales")
@pytest.mark.clause("18.1")
async def test_a_visitor_buys_in_the_sandbox_and_is_shown_a_key_that_works(
    served: RunningService, buyer: httpx.AsyncClient
) -> None:
    page = check_page(await buyer.get("/buy"), 200, "Choose a plan")
    for text in ("USD 129 per month", "USD 1,199 per year", "Saves USD 349 a year", "10,000 calls"):
        assert text in re.sub(r"\s+", " ", page.text)
    path = await order(buyer, billing="yearly")
    check_page(
        await buyer.get(path),
        200,
        "Pay for the premium plan",
        "Premium, billed yearly",
        "USD 1,199 per year",
        BUYER,
        "you get your key",
    )
    await pay(buyer, path)
    page = check_page(
        await buyer.get("/buy/key"),
        200,
        "Your key",
        "claude mcp add",
        ".cursor/mcp.json",
        "[mcp_servers.signals]",
        served.base_url,
    )
    assert await get_usage_status(served, read_key(page)) == 200


@pytest.mark.clause("sales")
@pytest.mark.clause("18.2")
async def test_neither_a_reload_nor_a_lost_answer_buys_again_or_ends_in_an_error(
    served: RunningService, buyer: httpx.AsyncClient
) -> None:
    path = await order(buyer)
    # The form sent again, as by a double click or after going back, leads to the same checkout.
    assert (await buyer.post("/buy", data=MONTHLY)).headers["location"] == f".{path}"
    await pay(buyer, path)
    await pay(buyer, path)
    assert "../../buy/key" in check_page(await buyer.get(path), 200, "Paid in the sandbox").links
    # After the payment it leads to the key.
    assert (await buyer.post("/buy", data=MONTHLY)).headers["location"] == "./buy/key"
    cookies = dict(buyer.cookies)
    api_key = read_key(check_page(await buyer.get("/buy/key"), 200, "Your key"))
    assert COOKIE not in buyer.cookies
    for is_answer_lost in (False, True):
        if is_answer_lost:
            # The browser did not receive that answer, so it still has its cookie.
            buyer.cookies.update(cookies)
            assert (await buyer.post("/buy", data=MONTHLY)).headers["location"] == "./buy/key"
        page = check_page(
            await buyer.get("/buy/key"), 200, "No new key to show", links=["../sign-in"]
        )
        assert not API_KEY.search(page.text)
    (member,) = await served.access.list_memberships_by_email(BUYER)
    (held,) = await served.access.list_member_keys(member.id, 0)
    assert held.label == "Bought in a browser"
    assert await get_usage_status(served, api_key) == 200


@pytest.mark.clause("sales")
@pytest.mark.clause("18.3")
async def test_only_the_browser_that_bought_gets_the_key(
    served: RunningService, buyer: httpx.AsyncClient
) -> None:
    path = await order(buyer)
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as other:
        check_page(await other.get(path), 200, "Pay for the premium plan", "your agent gets a key")
        paid = await other.post(path, data={"action": "pay"})
        check_page(paid, 200, "Paid in the sandbox", "Go back to your agent")
        page = check_page(await other.get("/buy/key"), 200, "No new key to show")
        assert not API_KEY.search(page.text)
    read_key(check_page(await buyer.get("/buy/key"), 200, "Your key"))


@pytest.mark.clause("sales", "consent", "18.3")
@pytest.mark.parametrize(("name", "seconds"), [(COOKIE, 86_400), ("signals_request", 3600)])
async def test_the_cookie_of_a_purchase_or_a_request_is_kept_from_scripts_and_other_sites(
    served: RunningService, name: str, seconds: int
) -> None:
    pending = await add_request(served)
    path, value = ("/buy", r"ct_[\w-]{43}") if name == COOKIE else (build_path(pending), pending.id)
    value_sent, *attributes = (await served.client.get(path)).headers["set-cookie"].split("; ")
    assert re.fullmatch(f"{name}={value}", value_sent)
    assert set(attributes) == {"HttpOnly", f"Max-Age={seconds}", "Path=/", "SameSite=lax"}
    async with run_second_service(served, base_url="https://signals.example") as secure:
        answer = await secure.client.get(path, headers={"Host": "signals.example"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{name}=")
        assert "Secure" in cookie.split("; ")


@pytest.mark.clause("sales")
@pytest.mark.clause("18.4")
@pytest.mark.parametrize(
    ("changed", "field", "error"),
    [
        ({"contact_email": "ann<b>@"}, "contact_email", "This is not an e-mail address"),
        ({"contact_email": ""}, "contact_email", "This is not an e-mail address"),
        ({"billing": "weekly"}, "billing", "Choose monthly or yearly"),
    ],
)
async def test_an_error_stands_at_its_field_and_what_was_typed_stays(
    served: RunningService,
    buyer: httpx.AsyncClient,
    changed: dict[str, str],
    field: str,
    error: str,
) -> None:
    form = {"contact_email": BUYER, "billing": "yearly"} | changed
    page = check_page(await buyer.post("/buy", data=form), 400, "Choose a plan", error)
    described = [one for _, one in page.elements if one.get("aria-describedby")]
    assert [one["aria-describedby"] for one in described] == [f"{field}-error"]
    assert page.fields["contact_email"] == form["contact_email"]
    chosen = [one["value"] for one in page.find_all("input") if "checked" in one]
    assert chosen == (["yearly"] if form["billing"] == "yearly" else [])


@pytest.mark.clause("sales")
@pytest.mark.clause("18.1")
async def test_a_purchase_is_limited_and_counted_like_that_of_an_agent(tmp_path: Path) -> None:
    async with run_service(tmp_path, attempt_limit=Limit(1, 3600)) as served:
        await served.client.post("/api/v1/access/checkout", json={"contact_email": EMAIL})
        answer = await served.client.post("/buy", data=MONTHLY)
        assert "Too many" in check_page(answer, 429, "Choose a plan").text
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.clause("sales")
async def test_a_cancelled_checkout_leads_back_to_the_plans(buyer: httpx.AsyncClient) -> None:
    path = await order(buyer)
    check_page(
        await buyer.get("/buy"), 200, "Choose a plan", f"You started to buy access for {BUYER}"
    )
    pending = check_page(await buyer.get("/buy/key"), 200, "Pay to get your key")
    assert any(link.endswith(path) for link in pending.links)
    cancelled = await buyer.post(path, data={"action": "cancel"})
    check_page(cancelled, 200, "Checkout cancelled", links=["../../buy"])
    check_page(await buyer.get("/buy/key"), 200, "Nothing was paid", links=["../buy"])
    assert await order(buyer) != path


@pytest.mark.clause("sales")
@pytest.mark.clause("18.5")
@pytest.mark.prove
async def test_an_address_with_a_plan_gets_a_link_and_no_answer_says_that_it_has_one(
    served: RunningService, buyer: httpx.AsyncClient
) -> None:
    await buy_plan(served, BUYER)
    texts = []
    for email in ("new@example.com", BUYER):
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as client:
            shown = (await client.get(await order(client, contact_email=email))).text
            texts.append(re.sub(r"sb_\w+", "", shown.replace(email, "")))
    assert texts[0] == texts[1]
    mail = await served.mailbox.wait_for_mail()
    assert mail["To"] == BUYER
    text = mail.get_content()
    assert "has bought one before" in " ".join(text.split())
    (link,) = re.findall(r"http\S+/sign-in/\S+", text)
    assert (await buyer.post(urlsplit(link).path)).headers["location"] == "../settings/api-access"
    assert served.mailbox.mails.empty()


@pytest.mark.clause("sales")
async def test_a_member_is_led_to_the_keys_of_the_plan(served: RunningService) -> None:
    async with open_new_member(served) as member:
        page = check_page(
            await member.client.get("/buy"), 200, "Choose a plan", "You have an active plan"
        )
        assert page.fields["contact_email"] == EMAIL
        await order(member.client, contact_email=EMAIL)
    assert served.mailbox.mails.empty()


@pytest.mark.clause("sales")
async def test_if_nothing_is_sold_the_page_names_the_operator(served: RunningService) -> None:
    async with run_second_service(served, provider=NoBilling()) as closed:
        check_page(
            await closed.client.get("/buy"), 200, "Get access", "POST /api/v1/access-request"
        )
        assert check_page(await closed.client.post("/buy", data=MONTHLY), 200, "Get access")
        closed.app.state.site = replace(
            closed.app.state.site, operator=Operator("Ann & Co", "ann@example.com")
        )
        page = check_page(
            await closed.client.get("/buy"),
            200,
            "Get access",
            "Ann & Co gives them out",
            links=["mailto:ann@example.com"],
        )
        assert page.find_all("form") == []


@pytest.mark.clause("sales")
@pytest.mark.clause("18.1")
async def test_a_visitor_buys_by_stripe_and_is_led_straight_to_the_key(shop: StripeShop) -> None:
    client = shop.served.client
    await client.get("/buy")
    answer = await client.post("/buy", data=MONTHLY)
    session = shop.stripe.sessions()[0]
    check_page(answer, 200, "Checkout", links=[session["url"]])
    assert answer.headers["refresh"] == f"0; url={session['url']}"
    assert session["metadata"]["agent_name"] == "Bought in a browser"
    assert (await client.post("/buy", data=MONTHLY)).headers["refresh"] == answer.headers["refresh"]
    check_page(await client.get("/checkout/cancelled"), 200, "Nothing was paid", links=["../buy"])
    paid = f"/checkout/paid?session_id={session['id']}"
    # The payment is still being confirmed.
    answer = await client.get(paid)
    assert answer.headers["location"] == "../buy/key?checked=0"
    waiting = await client.get("/buy/key?checked=0")
    check_page(waiting, 200, "Waiting for your payment")
    assert waiting.headers["refresh"] == "5; url=key?checked=1"
    shop.stripe.pay(session["id"])
    shop.clock.now += shop.billing.pending_ttl_ms
    api_key = read_key(check_page(await client.get("/buy/key?checked=1"), 200, "Your key"))
    assert await shop.status(api_key) == 200
    check_page(await client.get(paid), 200, "Thank you")


@pytest.mark.clause("sales")
@pytest.mark.parametrize("is_held", [True, False])
async def test_a_payment_that_gives_no_key_says_why_and_sells_no_second_plan(
    shop: StripeShop, is_held: bool
) -> None:
    client = shop.served.client
    await client.post("/buy", data=MONTHLY)
    session = shop.stripe.sessions()[0]
    shop.stripe.pay(session["id"])
    subscription = shop.stripe.subscription_of(session["id"])
    if is_held:
        shop.stripe.set_status(subscription, "past_due")
    else:
        # Such as a tax that the operator has set up at Stripe.
        shop.stripe.objects[session["id"]]["amount_total"] += 900
    why = "the subscription is past due" if is_held else "does not match the order"
    check_page(
        await client.get("/buy/key"),
        200,
        "No key for this payment",
        *(why, "o not pay again"),
        without=["Choose a plan"],
    )
    # Neither loading it again nor the same order leads to another checkout.
    check_page(await client.get("/buy/key"), 200, "No key for this payment", why)
    again = await client.post("/buy", data=MONTHLY)
    assert (again.headers["location"], len(shop.stripe.sessions())) == ("./buy/key", 1)
    if is_held:
        shop.stripe.set_status(subscription, "active")
        shop.clock.now += shop.billing.pending_ttl_ms
        check_page(await client.get("/buy/key"), 200, "Your key")


@pytest.mark.clause("pages")
async def test_a_nul_names_no_checkout(served: RunningService) -> None:
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as buyer:
        path = await order(buyer)
        for end in ("", "x"):
            await fetch(buyer, "GET", f"{path}%00{end}", 404)


@pytest.mark.clause("sales")
async def test_checking_for_a_payment_ends_after_five_minutes(shop: StripeShop) -> None:
    client = shop.served.client
    await client.post("/buy", data=MONTHLY)
    for checked in ("60", "1" * 9, "x", "-1", "²"):
        answer = await client.get("/buy/key", params={"checked": checked})
        check_page(answer, 200, "Pay to get your key")
        assert "refresh" not in answer.headers


@pytest.mark.clause("sales")
@pytest.mark.clause("18.6")
async def test_who_pays_the_link_of_an_agent_is_told_to_go_back_to_it(shop: StripeShop) -> None:
    client = shop.served.client
    await client.get("/buy")
    opened = await shop.open_checkout()
    check_page(
        await client.get(f"/checkout/paid?session_id={opened.session}"),
        200,
        "Thank you",
        "Go back to your agent, if one sent you here: it fetches its key",
        "No key? Sign in with your e-mail address",
        links=["../sign-in"],
    )
    check_page(
        await client.get("/checkout/cancelled"),
        200,
        "Nothing was paid",
        "Ask your agent for a new link",
    )
    # Only the sandbox has a pay page of its own.
    for answer in (await client.get(SANDBOX), await client.post(SANDBOX, data={"action": "pay"})):
        assert (answer.status_code, "no such checkout" in answer.text) == (404, False)


@pytest.fixture
async def checkout_url(served: RunningService) -> str:
    return await begun(served)


async def begun(served: RunningService, **body: str) -> str:
    given = {"contact_email": "agent@example.com", **body}
    response = await fetch(served.client, "POST", "/api/v1/access/checkout", 201, json=given)
    return str(response.json()["checkout_url"])


async def sent(served: RunningService, url: str, content: str | bytes) -> httpx.Response:
    return await served.client.post(url, content=content)


@pytest.mark.clause("sales")
@pytest.mark.clause("5.10")
@pytest.mark.parametrize(
    ("billing", "price", "email"),
    [
        ("monthly", "USD 129 per month", "agent@example.com"),
        ("yearly", "USD 1,199 per year", "a&b'$x@example.com"),
    ],
)
async def test_the_page_shows_plan_price_address_and_that_no_money_moves(
    served: RunningService, billing: str, price: str, email: str
) -> None:
    answer = await served.client.get(await begun(served, billing=billing, contact_email=email))
    assert markupsafe.escape(email) in answer.text
    page = check_page(
        answer,
        200,
        "Pay for the premium plan",
        f"Premium, billed {billing}",
        price,
        email,
        "Sandbox",
        "no money moves",
        "This checkout expires on 2026-10-01 12:06 UTC",
    )
    # The form is sent to the page's own address.
    assert (page.actions, page.find_all("form")) == (["pay", "cancel"], [{"method": "post"}])


@pytest.mark.clause("sales")
async def test_the_files_of_a_page_are_served(served: RunningService, checkout_url: str) -> None:
    page = Page(await served.client.get(checkout_url))
    for name, media_type in (
        ("page.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ):
        (href,) = [link["href"] for link in page.find_all("link") if name in str(link["href"])]
        assert href is not None
        below_a_path = urljoin("https://x.example/below/sandbox/checkout/sb_1", href)
        assert below_a_path.startswith(f"https://x.example/below/web/{name}?")
        answer = await served.client.get(urljoin(checkout_url, href))
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "public, max-age=31536000"
        other = await served.client.get(f"/web/{name}?older")
        assert other.headers["cache-control"] == "public, max-age=3600"


@pytest.mark.clause("sales")
async def test_a_settled_checkout_cannot_be_changed_and_repeating_an_action_shows_its_state(
    served: RunningService,
) -> None:
    paid, cancelled, expired = [await begun(served) for _ in range(3)]
    for url, action, title in (
        *[(paid, "pay", "Paid in the sandbox")] * 2,
        *[(cancelled, "cancel", "Checkout cancelled")] * 2,
    ):
        assert check_page(await sent(served, url, f"action={action}"), 200, title).actions == []
        check_page(await served.client.get(url), 200, title)
    served.clock.now += SESSION_LIFETIME_MS
    for url, action, title in (
        (cancelled, "pay", "Checkout cancelled"),
        (paid, "cancel", "Paid in the sandbox"),
        (expired, "pay", "Checkout expired"),
        (expired, "cancel", "Checkout expired"),
    ):
        check_page(
            await sent(served, url, f"action={action}"),
            409,
            title,
            "This checkout can no longer be changed.",
        )
        check_page(await served.client.get(url), 200, title)
    check_page(await sent(served, paid, "action=pay"), 200, "Paid in the sandbox")


@pytest.mark.clause("sales")
async def test_only_pay_and_cancel_are_actions(served: RunningService, checkout_url: str) -> None:
    for content in (
        *(b"", b"action=", b"action=refund", b"action=pay&action=cancel", b"action=pay&action=pay"),
        *(b'{"action": "pay"}', b"action=p\xe4y", b"a=1&" * 20, b"Action=pay"),
    ):
        answer = await sent(served, checkout_url, content)
        assert answer.status_code == 400, content
        body = answer.json()
        assert (set(body), body["error"]) == ({"error", "message", "docs"}, "invalid_parameter")
        assert "accepted: pay, cancel" in body["message"]
    assert (await sent(served, checkout_url, b"a" * ((64 << 10) + 1))).status_code == 413
    assert Page(await served.client.get(checkout_url)).actions == ["pay", "cancel"]


@pytest.mark.clause("sales")
async def test_an_unknown_checkout_is_404_and_a_wrong_method_405(
    served: RunningService, checkout_url: str
) -> None:
    unknown = f"{checkout_url}x"
    for answer in (await served.client.get(unknown), await sent(served, unknown, "action=pay")):
        assert (answer.status_code, answer.json()["error"]) == (404, "invalid_parameter")
    refused = await served.client.put(checkout_url)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await served.client.head(checkout_url)).status_code == 200
    # Only Stripe sends buyers back.
    assert (await served.client.get("/checkout/paid")).status_code == 404


@pytest.mark.clause("sales")
async def test_another_site_can_neither_press_the_button_nor_open_a_checkout(
    served: RunningService, checkout_url: str
) -> None:
    opened = await served.access.list_unredeemed_claims(BUYER, "sandbox", "test", 9)
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, CROSS_SITE):
        for url, data in ((checkout_url, {"action": "pay"}), ("/buy", MONTHLY)):
            assert (await served.client.post(url, data=data, headers=headers)).status_code == 403
    assert await served.access.list_unredeemed_claims(BUYER, "sandbox", "test", 9) == opened
    own = {"Origin": served.base_url}
    await fetch(served.client, "POST", checkout_url, 200, content="action=pay", headers=own)


@pytest.mark.clause("pages")
@pytest.mark.parametrize(
    ("price", "text"),
    [
        (1_234_567.891, "1,234,567.89"),
        (97_412.5, "97,412.50"),
        (45.666, "45.67"),
        (2.48312, "2.4831"),
        (0.99999, "1.0000"),
        (0.5, "0.5000"),
        (0.0312, "0.03120"),
        (0.000012344, "0.00001234"),
        (0.00000068, "0.0000006800"),
    ],
)
def test_a_price_keeps_four_digits_and_has_thousands_separators(price: float, text: str):
    assert format_price(price) == text

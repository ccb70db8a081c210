"""The sandbox's pay page and Stripe's return pages over real sockets, without a browser."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from access.billing.sandbox import SESSION_LIFETIME_MS
from tests.support.example_market import make_coverage
from tests.support.running_service import ManualClock, RunningService, run_service
from tests.support.sandbox_shop import HeldProvider
from tests.support.web_page import Page, check_page

pytestmark = pytest.mark.clause("sales")

EMAIL = "agent@example.com"


@pytest.fixture
async def checkout_url(served: RunningService) -> str:
    return await begun(served)


async def begun(served: RunningService, **body: str) -> str:
    given = {"contact_email": EMAIL, **body}
    response = await served.client.post("/api/v1/access/checkout", json=given)
    assert response.status_code == 201
    url: str = response.json()["checkout_url"]
    return url


async def sent(served: RunningService, url: str, content: str | bytes) -> httpx.Response:
    return await served.client.post(url, content=content)


@pytest.mark.clause("5.10")
@pytest.mark.parametrize(
    ("billing", "price"),
    [("monthly", "USD 129 per month"), ("yearly", "USD 1,199 per year")],
)
async def test_the_page_shows_plan_price_address_and_that_no_money_moves(
    served: RunningService, billing: str, price: str
) -> None:
    answer = await served.client.get(await begun(served, billing=billing))
    page = check_page(answer, 200, "Pay for the premium plan")
    for expected in (f"Premium, billed {billing}", price, EMAIL, "Sandbox", "no money moves"):
        assert expected in page.text
    assert "This checkout expires on 2026-10-01 12:06 UTC" in page.text
    assert page.actions == ["pay", "cancel"]
    assert page.find_all("form") == [{"method": "post"}]  # To the page's own address.


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


@pytest.mark.parametrize(
    ("action", "title"),
    [("pay", "Paid in the sandbox"), ("cancel", "Checkout cancelled")],
)
async def test_repeating_an_action_shows_the_same_new_state(
    served: RunningService, checkout_url: str, action: str, title: str
) -> None:
    for _ in range(2):
        page = check_page(await sent(served, checkout_url, f"action={action}"), 200, title)
        assert page.actions == []
    check_page(await served.client.get(checkout_url), 200, title)


async def test_a_settled_checkout_cannot_be_changed(served: RunningService) -> None:
    paid, cancelled, expired = [await begun(served) for _ in range(3)]
    await sent(served, paid, "action=pay")
    await sent(served, cancelled, "action=cancel")
    served.clock.now += SESSION_LIFETIME_MS
    for url, action, title in (
        (cancelled, "pay", "Checkout cancelled"),
        (paid, "cancel", "Paid in the sandbox"),
        (expired, "pay", "Checkout expired"),
        (expired, "cancel", "Checkout expired"),
    ):
        page = check_page(await sent(served, url, f"action={action}"), 409, title)
        assert "This checkout can no longer be changed." in page.text
        check_page(await served.client.get(url), 200, title)
    check_page(await sent(served, paid, "action=pay"), 200, "Paid in the sandbox")


async def test_only_pay_and_cancel_are_actions(served: RunningService, checkout_url: str) -> None:
    for content in (
        b"",
        b"action=",
        b"action=refund",
        b"action=pay&action=cancel",
        b"action=pay&action=pay",
        b'{"action": "pay"}',
        b"action=p\xe4y",
        b"a=1&" * 20,
        b"Action=pay",
    ):
        answer = await sent(served, checkout_url, content)
        assert answer.status_code == 400, content
        body = answer.json()
        assert (set(body), body["error"]) == ({"error", "message", "docs"}, "invalid_parameter")
        assert "accepted: pay, cancel" in body["message"]
    assert (await sent(served, checkout_url, b"a" * ((64 << 10) + 1))).status_code == 413
    assert Page(await served.client.get(checkout_url)).actions == ["pay", "cancel"]


async def test_an_unknown_checkout_is_404_and_a_wrong_method_405(
    served: RunningService, checkout_url: str
) -> None:
    unknown = f"{checkout_url}x"
    for answer in (await served.client.get(unknown), await sent(served, unknown, "action=pay")):
        assert (answer.status_code, answer.json()["error"]) == (404, "invalid_parameter")
    refused = await served.client.put(checkout_url)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await served.client.head(checkout_url)).status_code == 200


async def test_another_site_cannot_press_the_button(
    served: RunningService, checkout_url: str
) -> None:
    for origin in ("https://evil.example", "null"):
        answer = await served.client.post(
            checkout_url, content="action=pay", headers={"Origin": origin}
        )
        assert answer.status_code == 403
    own = await served.client.post(
        checkout_url, content="action=pay", headers={"Origin": served.base_url}
    )
    assert own.status_code == 200


async def test_the_buyers_address_is_escaped(served: RunningService) -> None:
    url = await begun(served, contact_email="a&b'$x@example.com")
    answer = await served.client.get(url)
    assert "a&amp;b&#39;$x@example.com" in answer.text
    assert "a&b'$x@example.com" in Page(answer).text


@pytest.fixture
async def stripe_service(tmp_path: Path) -> AsyncIterator[RunningService]:
    billing = HeldProvider(ManualClock(), name="stripe")
    async with run_service(tmp_path, make_coverage(), provider=billing) as served:
        yield served


async def test_stripe_sends_buyers_back_to_pages_that_say_what_to_do(
    stripe_service: RunningService,
) -> None:
    for path, title, expected in (
        ("/checkout/paid", "Thank you", "Go back to your agent"),
        ("/checkout/cancelled", "Nothing was paid", "Ask your agent for a new link"),
    ):
        answer = await stripe_service.client.get(path)
        page = check_page(answer, 200, title)
        assert expected in page.text
        for link in page.find_all("link"):
            linked = urljoin(path, str(link["href"]))
            assert (await stripe_service.client.get(linked)).status_code == 200


async def test_each_provider_has_only_its_own_pages(
    served: RunningService, checkout_url: str, tmp_path: Path
) -> None:
    assert (await served.client.get("/checkout/paid")).status_code == 404
    folder = tmp_path / "other"
    folder.mkdir()
    async with run_service(folder, provider=HeldProvider(ManualClock(), name="stripe")) as other:
        path = httpx.URL(checkout_url).path
        assert (await other.client.get(path)).status_code == 404
        assert (await other.client.post(path, content="action=pay")).status_code == 404

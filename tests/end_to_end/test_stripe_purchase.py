"""A purchase with Stripe's own library through a real `signals serve`, which leaks no secret."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.billing.provider import NoBilling
from mcp_server.registration import CLIENTS
from rest_shim.endpoints import CLAIM_KEY, CREATE_CHECKOUT
from service.commands.cli import wall_clock
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.end_to_end.test_counted_calls import crawl
from tests.service.commands.test_cli import write_bars
from tests.service.config.test_billing import selling
from tests.support.example_market import make_coverage
from tests.support.openapi_document import OpenApiDocument
from tests.support.running_service import RunningService, run_service
from tests.support.signals_command import (
    RunningCommand,
    create_key,
    create_store,
    find_free_port,
    list_rows,
    select_events,
    start_signals,
)

UNKNOWN_KEY = "ek_" + "A" * 43
LIMITS = {"daily_limit": "3", "checkout_limit": "3/600", "trusted_proxies": "127.0.0.1"}
LOG = {"log_level": "debug"}
UNKNOWN_TOKEN = "ct_" + "B" * 43


@dataclass
class Selling:
    """A service in a separate process, its Stripe double, and all of its output."""

    address: str
    process: RunningCommand
    stripe: StripeDouble
    client: httpx.AsyncClient
    refusals: list[str] = field(default_factory=list)

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        response = await self.client.post(f"{self.address}{path}", json=body)
        return self._kept(response), response.json()

    async def get(self, path: str, api_key: str) -> int:
        headers = {"Authorization": f"Bearer {api_key}"}
        return self._kept(await self.client.get(f"{self.address}{path}", headers=headers))

    def _kept(self, response: httpx.Response) -> int:
        if response.status_code >= 400:
            self.refusals.append(f"{response.headers}\n{response.text}")
        return response.status_code

    async def checkout(self, client: str = "192.0.2.1") -> tuple[int, dict[str, Any]]:
        """Begin a checkout from a client address, as reported by a trusted proxy."""
        self.client.headers["X-Forwarded-For"] = client
        return await self.post("/api/v1/access/checkout", contact_email="agent@example.com")

    async def claim(self, token: str) -> tuple[int, dict[str, Any]]:
        return await self.post("/api/v1/access/claim", claim_token=token)

    async def report(self, event: dict[str, Any], *, secret: str | None = None) -> int:
        """Send a webhook, signed with the endpoint's secret or another."""
        body, signature = self.stripe.sign(event, secret=secret)
        sent = {"Stripe-Signature": signature}
        url = f"{self.address}/webhooks/stripe"
        return self._kept(await self.client.post(url, content=body, headers=sent))


@pytest.mark.clause("sales", "2.10.2", "3.4.9")
@pytest.mark.prove
async def test_a_server_that_is_killed_between_commit_and_answer_leaves_a_membership(tmp_path):
    """Kill it while it checks the new membership with Stripe, which is after the commit."""
    create_store(tmp_path)
    async with (
        run_stripe_double(wall_clock) as stripe,
        httpx.AsyncClient(timeout=30) as client,
    ):
        given = selling(stripe) | {"source": f"files:{write_bars(tmp_path / 'bars')}"}
        with start_signals(tmp_path, "serve", port=(port := find_free_port()), **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Register with a client")
            url = f"http://127.0.0.1:{port}/api/v1/access"
            order = {"contact_email": "agent@example.com"}

            async def kill() -> None:
                await asyncio.to_thread(process.kill)

            # First between the answer of Stripe and the commit of the checkout.
            stripe.delay_answer("checkout/sessions", kill)
            with pytest.raises(httpx.TransportError):
                await client.post(f"{url}/checkout", json=order)
        with start_signals(tmp_path, "serve", port=port, **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Register with a client")
            checkout = (await client.post(f"{url}/checkout", json=order)).json()
            session, _ = stripe.sessions()  # The first one is never paid.
            assert checkout["checkout_url"] == session["url"]
            stripe.pay(session["id"])
            token = {"claim_token": checkout["claim_token"]}
            stripe.delay_answer("subscriptions", kill)
            with pytest.raises(httpx.TransportError):
                await client.post(f"{url}/claim", json=token)
        with start_signals(tmp_path, "serve", port=port, **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Register with a client")
            refused = await client.post(f"{url}/claim", json=token)
            assert (refused.status_code, "signs in" in refused.json()["message"]) == (409, True)
    assert len(await asyncio.to_thread(list_rows, tmp_path, "keys", "list")) == 1


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Selling]:
    """Serve a recording and sell it by a Stripe that is unreachable while the service starts."""
    bars, port = write_bars(folder / "bars"), find_free_port()
    async with run_stripe_double(wall_clock) as stripe, httpx.AsyncClient(timeout=30) as client:
        stripe.fail(503)
        given = selling(stripe) | LIMITS | LOG | {"source": f"files:{bars}"}
        with start_signals(folder, "serve", port=port, **given) as process:
            await asyncio.to_thread(process.wait_for_line, "Register with a client")
            yield Selling(f"http://127.0.0.1:{port}", process, stripe, client)
            assert await asyncio.to_thread(process.stop) == 0


def stored(folder: Path) -> bytes:
    files = sorted(folder.glob("signals.db*"))
    assert {"signals.db", "signals.db-access", "signals.db-access-wal"} <= {f.name for f in files}
    return b"".join(file.read_bytes() for file in files)


def assert_nowhere(secrets: Iterable[str], places: Iterable[bytes]) -> None:
    for place in places:
        for secret in secrets:
            assert secret.encode() not in place, place[:2000]


@pytest.mark.clause("sales")
async def test_a_purchase_ends_in_a_key_that_dies_with_its_subscription_and_no_secret_is_left(
    tmp_path,
):
    create_store(tmp_path)
    own_key = await asyncio.to_thread(create_key, tmp_path)
    async with service(tmp_path) as shop:
        assert "Billing: stripe in test mode, no real payments.\n" in shop.process.printed
        assert select_events(shop.process.printed, "billing_unavailable")
        shop.stripe.fail(503)
        assert (await shop.checkout())[0] == 503
        status, begun = await shop.checkout()
        assert (status, begun["mode"]) == (201, "test")
        session = shop.stripe.sessions()[0]["id"]
        assert begun["checkout_url"].startswith(shop.stripe.base_url)
        assert (await shop.claim(begun["claim_token"]))[1]["status"] == "pending"

        # A pending outcome is repeated for two seconds, so another checkout is paid.
        status, paid = await shop.checkout()
        bought = shop.stripe.sessions()[0]["id"]
        shop.stripe.pay(bought)
        status, claim = await shop.claim(paid["claim_token"])
        assert (status, claim["status"], claim["mode"]) == (200, "active", "test")
        api_key = claim["api_key"]
        assert [await shop.get("/api/v1/state", key) for key in (api_key, own_key)] == [200, 200]

        ended = shop.stripe.cancel_subscription(shop.stripe.subscription_of(bought))
        assert await shop.report(ended, secret="whsec_other") == 400
        assert await shop.get("/api/v1/state", api_key) == 200
        assert await shop.report(ended) == 200
        assert [await shop.get("/api/v1/state", key) for key in (api_key, own_key)] == [403, 200]

        assert [await shop.get("/api/v1/state", own_key) for _ in range(2)] == [200, 429]
        assert [(await shop.checkout(of))[0] for of in ("192.0.2.1", "192.0.2.2")] == [429, 201]
        assert await shop.get("/api/v1/state", UNKNOWN_KEY) == 401
        assert await shop.get("/api/v1/state", api_key + "x") == 401
        assert (await shop.claim(paid["claim_token"]))[0] == 409
        assert (await shop.claim(UNKNOWN_TOKEN))[0] == 404
        assert (await shop.claim(f"{begun['claim_token']} "))[0] == 404
        assert (await shop.post("/api/v1/access/claim", claim=paid["claim_token"]))[0] == 400
        assert (await shop.post("/api/v1/access/checkout", contact_email=api_key))[0] == 400
        shop.stripe.expire(session)
        secrets = [
            *(api_key, own_key, UNKNOWN_KEY),
            *(begun["claim_token"], paid["claim_token"], UNKNOWN_TOKEN),
            *(shop.stripe.api_key, shop.stripe.webhook_secret, "whsec_other"),
        ]
        assert_nowhere(secrets, [stored(tmp_path)])
    said = "".join(shop.process.printed).encode()
    assert select_events(shop.process.printed, "maintenance_done")
    assert_nowhere(["agent@example.com"], [said])
    assert_nowhere(secrets, [said, *(text.encode() for text in shop.refusals)])
    assert len(shop.refusals) == 12


OFFER = re.compile(
    r"/access/(checkout|claim)\b|checkout_url|USD \d|\b1,?199\b|how_to_get_access"
    r"|\bbuys? (a|an|the|one|its|access)\b|>get access\b|how to buy",
    re.IGNORECASE,
)
# Articles of the documentation describe every deployment, so they carry this notice instead.
NOTICE = "This deployment sells no keys: its operator creates them."
STARTS = (
    "/",
    "/docs",
    "/sign-in",
    "/settings/api-access",
    "/assets/BTC",
    "/legal",
    "/no/such/path",
)
KEYED = ("/api/v1/state", "/api/v1/signals", "/api/v1/confluence", "/api/v1/flips", "/api/v1/usage")


@pytest.fixture
async def unbilled(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as served:
        yield served


@pytest.mark.clause("5.30")
@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_no_page_offers_a_sale(unbilled: RunningService, is_member: bool) -> None:
    get = partial(unbilled.get_page, is_member=is_member)
    pages = await crawl(get, unbilled.base_url, STARTS)
    assert {"/", "/docs/getting-started", "/docs/rest", "/docs/buy", "/assets/BTC"} <= set(pages)
    for path, response in pages.items():
        if path.startswith("/docs/") and response.status_code == 200:
            assert NOTICE in response.text, path
        if path.startswith("/docs/") and path not in ("/docs/buy", "/docs/connect"):
            continue
        if not path.startswith("/api/"):
            assert OFFER.search(response.text) is None, path


@pytest.mark.clause("5.30")
async def test_no_document_or_tool_offers_a_sale(unbilled: RunningService) -> None:
    manifest = (await unbilled.client.get("/api/v1")).json()
    assert manifest["how_to_buy"] is None
    # The changelog is history, and the schemas are those of every deployment.
    del manifest["changelog"], manifest["how_to_buy"]
    openapi = (await unbilled.client.get("/api/v1/openapi.json")).json()
    del openapi["components"]["schemas"]
    shown: list[Any] = [manifest, openapi]
    shown += [await unbilled.rpc(method) for method in ("initialize", "ping", "tools/list")]
    shown += [client.render_lines(unbilled.base_url) for client in CLIENTS]
    for path in ("catalog", "stats", "signals/sample", "nothing"):
        shown.append((await unbilled.client.get(f"/api/v1/{path}")).json())
    for part in shown:
        assert OFFER.search(json.dumps(part)) is None


@pytest.mark.clause("5.30")
@pytest.mark.prove
async def test_a_refused_key_is_sent_to_the_operator(unbilled: RunningService) -> None:
    document = OpenApiDocument((await unbilled.client.get("/api/v1/openapi.json")).json())
    revoked = await unbilled.keys.create("revoked")
    await unbilled.keys.revoke(max(key.id for key in await unbilled.keys.list()))
    unknown, broken = "ek_" + "a" * 43, "${SIGNALS_API_KEY}"
    for path in KEYED:
        for key in (None, unknown, broken, "x", revoked):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            response = await unbilled.client.get(path, headers=headers)
            assert response.status_code == (403 if key == revoked else 401)
            assert "request one from its operator" in response.json()["message"]
            assert OFFER.search(response.text) is None
            document.check_response("GET", path, response)
    refused = await unbilled.call("signals_get_state", headers={})
    assert refused["_meta"]["signals/error"] == "missing_key"
    assert OFFER.search(json.dumps(refused)) is None


@pytest.mark.clause("5.30")
async def test_the_purchase_routes_refuse_without_an_offer(unbilled: RunningService) -> None:
    buyer, token = {"contact_email": "a@example.org"}, {"claim_token": "ct_" + "A" * 43}
    for path, body, status in ((CREATE_CHECKOUT.path, buyer, 503), (CLAIM_KEY.path, token, 404)):
        response = await unbilled.client.post(path, json=body)
        assert response.status_code == status
        assert "operator" in response.json()["message"]
        assert OFFER.search(response.text) is None


@pytest.mark.clause("5.30")
@pytest.mark.prove
async def test_with_billing_on_the_same_crawl_finds_the_offers(served: RunningService) -> None:
    pages = await crawl(served.get_page, served.base_url, STARTS)
    offering = {path for path, response in pages.items() if OFFER.search(response.text)}
    assert {"/", "/assets/BTC", "/sign-in", "/docs/buy", "/no/such/path"} <= offering
    assert NOTICE not in pages["/docs/getting-started"].text

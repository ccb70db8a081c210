"""With billing off, a crawl of everything that the service serves finds no offer of a sale."""

import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from access.billing.sandbox import NoBilling
from mcp_server.registration import CLIENTS
from rest_shim.endpoints import CLAIM_KEY, CREATE_CHECKOUT
from tests.support.example_market import make_coverage
from tests.support.openapi_document import OpenApiDocument
from tests.support.running_service import RunningService, run_service

pytestmark = pytest.mark.clause("5.30")

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


class Links(HTMLParser):
    """Collects the targets of all links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


@pytest.fixture
async def unbilled(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as served:
        yield served


async def crawl(served: RunningService, *, is_member: bool) -> dict[str, httpx.Response]:
    """Return every response that links lead to, by path."""
    waiting, seen = list(STARTS), {}
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen[path] = await served.get_page(path, is_member=is_member)
            if "text/html" in seen[path].headers.get("content-type", ""):
                urls = [
                    urlsplit(urljoin(str(seen[path].url), link))
                    for link in Links(seen[path].text).found
                ]
                here = urlsplit(served.base_url).netloc
                waiting += [url.path for url in urls if url.netloc == here]
    return seen


def find_offer(text: str) -> str | None:
    found = OFFER.search(text)
    return found and text[max(found.start() - 80, 0) : found.end() + 80]


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.sampled(2)
async def test_no_page_offers_a_sale(unbilled: RunningService, is_member: bool) -> None:
    pages = await crawl(unbilled, is_member=is_member)
    assert {"/", "/docs/faq", "/docs/rest", "/docs/buy", "/assets/BTC"} <= set(pages)
    for path, response in pages.items():
        if path.startswith("/docs/") and response.status_code == 200:
            assert NOTICE in response.text, path
        if path.startswith("/docs/") and path not in ("/docs/buy", "/docs/connect"):
            continue
        if not path.startswith("/api/"):
            assert find_offer(response.text) is None, path


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
        assert find_offer(json.dumps(part)) is None


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
            assert find_offer(response.text) is None
            document.check_response("GET", path, response)
    refused = await unbilled.call("signals_get_state", headers={})
    assert refused["_meta"]["signals/error"] == "missing_key"
    assert find_offer(json.dumps(refused)) is None


async def test_the_purchase_routes_refuse_without_an_offer(unbilled: RunningService) -> None:
    buyer, token = {"contact_email": "a@example.org"}, {"claim_token": "ct_" + "A" * 43}
    for path, body, status in ((CREATE_CHECKOUT.path, buyer, 503), (CLAIM_KEY.path, token, 404)):
        response = await unbilled.client.post(path, json=body)
        assert response.status_code == status
        assert "operator" in response.json()["message"]
        assert find_offer(response.text) is None


@pytest.mark.prove
async def test_with_billing_on_the_same_crawl_finds_the_offers(served: RunningService) -> None:
    pages = await crawl(served, is_member=False)
    offering = {path for path, response in pages.items() if find_offer(response.text)}
    assert {"/", "/assets/BTC", "/sign-in", "/docs/buy", "/no/such/path"} <= offering
    assert NOTICE not in pages["/docs/faq"].text

"""Every route returns the same error body."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from access.billing.provider import NoBilling
from access.keys_and_quota import QuotaGuard
from rest_shim.endpoints import ENDPOINTS
from rest_shim.error_catalog import ERROR_MEANINGS, QUOTA_HEADERS
from rest_shim.routes import build_exception_handlers
from schemas.errors import ErrorBody
from service.config.settings import Settings
from service.http.app import OPEN_READS, create_app
from service.http.resources import Resources
from serving.context import Context
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import ToolRunner
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.access.test_quota_transports import bought
from tests.doubles.smtp.server import Mailbox
from tests.support.bad_inputs import KEYED_PATHS, LEAVES_PATH, PROOF_PATH
from tests.support.openapi_document import (
    document as document,
    fetch_document,
    list_operations,
    to_documented_path,
)
from tests.support.running_service import break_usage_counting, fetch
from tests.support.store_homes import open_and_close, open_market_as

pytestmark = pytest.mark.clause("answers")

ACCESS_CODES = {"missing_key", "invalid_key", "revoked_key", "not_provisioned"}
READS = {f"/api/v1{path}" for path in KEYED_PATHS.values()}
KEYED = READS | {f"/api/v1{LEAVES_PATH}"}
OF_THE_LOG = {f"/api/v1/log/{name}" for name in ("checkpoint", "key", "leaves")}
OF_THE_MARKET = READS | {
    "/api/v1",
    "/api/v1/openapi.json",
    "/api/v1/catalog",
    "/api/v1/stats",
}
QUOTA = {name.lower() for name in QUOTA_HEADERS}
# Each value of `error`: its status, the fault and the next step in its message.
SAID = {
    "missing_key": (401, "needs an API key", "Send it as `Authorization: Bearer <API_KEY>`"),
    "invalid_key": (401, "is malformed", "Check that it was copied whole"),
    "revoked_key": (403, "was revoked", "use another key"),
    "not_provisioned": (403, "bought in live mode", "To get a key: POST /api/v1/access/checkout"),
    "rate_limited": (429, "quota of 1 calls is used up", "retry after 42820 seconds"),
    "invalid_parameter": (400, 'timeframe: "2h" is not accepted', "accepted: 1h, 4h, 1d"),
    "unknown_ticker": (400, 'unknown "BTX"', "as the catalog lists them"),
    "unknown_indicator": (400, '"macd" is not an indicator', "accepted: trend_oracle"),
    "unavailable": (503, "The store is unavailable", "Retry after 60 seconds"),
}


def check_canonical(served, response, status, code, *, has_quota=False, **headers):
    """Check an error against the common shape; `has_quota` if the key of the call was found."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    quota = {name for name in response.headers if name.startswith("x-ratelimit")}
    assert quota == (QUOTA if has_quota else set())
    body = response.json()
    access = {"how_to_get_access"} if code in ACCESS_CODES else set()
    assert (set(body), body["error"], body["docs"]) == (
        {"error", "message", "docs"} | access,
        code,
        f"{served.base_url}/api/v1",
    )
    assert len(body["message"]) > 20
    for name, value in headers.items():
        assert response.headers[name.replace("_", "-")] == value


def create_app_without_billing(served, market=None, **config):
    """Return another app on the same stores, with billing off."""
    access, clock = served.access, served.clock
    return create_app(
        Settings(base_url=served.base_url, **config),
        Resources(market or served.market, access, NoBilling(), Mailbox(), clock),
    )


async def failing(served, app, method, path, body=None):
    """Return the response of an app that does not re-raise unexpected failures in tests."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=served.base_url) as client:
        return await client.request(method, path, headers=served.key_headers, json=body)


@pytest.mark.clause("7.1", "7.32")
@pytest.mark.prove
async def test_a_wrong_method_is_refused_on_every_route_with_the_allowed_ones(served, document):
    routes = list_operations(served)
    assert len(routes) == 21
    for right, path in routes:
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - {right}:
            response = await served.client.request(method, path)
            allowed = "GET, HEAD" if right == "GET" else "POST"
            check_canonical(served, response, 405, "invalid_parameter", allow=allowed)
            document.check_response(right, to_documented_path(path), response)


@pytest.mark.parametrize(
    "path", ["access/checkout", "access/claim", "access-request", "mcp", "mcp/"]
)
async def test_head_is_refused_on_post_routes(served, path):
    response = await served.client.head(f"/api/v1/{path}")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.clause("7.1", "7.32")
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [("host", "evil.example", 421), ("origin", "https://evil.example", 403)],
)
async def test_a_foreign_host_or_origin_is_refused_on_every_route(
    served, document, header, value, status
):
    for method, path in list_operations(served):
        if header == "origin" and path in OPEN_READS:
            continue
        response = await served.client.request(method, path, headers={header: value})
        check_canonical(served, response, status, "invalid_parameter")
        document.check_response(method, to_documented_path(path), response)


@pytest.mark.clause(
    "1.38",
    "1.40",
    "1.41",
    "4.0.3",
    "4.6.8",
    "4.7.30",
    "4.8.12",
    "4.9.20",
    "4.10.3",
    "4.14.20",
    "5.1",
    "5.4",
    "5.6",
    "5.23",
    "5.24",
    "7.1",
    "7.5",
    "7.8",
    "7.17",
    "7.18",
    "8.13",
)
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "missing_key"),
        ({"Authorization": "Bearer ek_short"}, 401, "invalid_key"),
        ({"X-Api-Key": "ek_" + "a" * 43}, 401, "invalid_key"),
        ({"Authorization": "Bearer ${SIGNALS_API_KEY}"}, 401, "invalid_key"),
    ],
)
@pytest.mark.prove
async def test_exactly_the_keyed_routes_require_a_key(served, document, headers, status, code):
    asking = set()
    for method, path in list_operations(served):
        response = await served.client.request(method, path, headers=headers)
        if response.status_code in (401, 403):
            asking.add(path)
            check_canonical(served, response, status, code, www_authenticate="Bearer")
            document.check_response(method, path, response)
    assert asking == KEYED | {f"/api/v1{PROOF_PATH}"}


@pytest.mark.clause(
    "4.0.4",
    "4.6.7",
    "4.6.9",
    "4.7.27",
    "4.7.31",
    "4.8.11",
    "4.9.19",
    "4.9.21",
    "5.25",
    "7.1",
    "7.5",
    "7.8",
    "7.10",
    "7.19",
    "8.11",
)
@pytest.mark.parametrize(
    ("query", "is_revoked", "status", "code"),
    [("", True, 403, "revoked_key"), ("?colour=red", False, 400, "invalid_parameter")],
)
async def test_a_revoked_key_and_a_bad_parameter_are_refused_on_every_keyed_route(
    served, document, query, is_revoked, status, code
):
    if is_revoked:
        (key,) = await served.keys.list()
        await served.keys.revoke(key.id)
    for path in KEYED:
        response = await served.client.get(f"{path}{query}", headers=served.key_headers)
        check_canonical(served, response, status, code, has_quota=True)
        document.check_response("GET", path, response)


@pytest.mark.clause("7.2", "7.3", "7.4", "7.32", "7.35")
async def test_status_and_error_together_identify_the_cause(served, tmp_path, monkeypatch):
    """Send every refusal once: no two have the same pair, and the table lists each pair."""
    client, own = served.client, served.key_headers
    scarce = create_app_without_billing(served, daily_limit=1)
    checkout = await client.post("/api/v1/access/checkout", json={"contact_email": "a@example.org"})
    await client.post(checkout.json()["checkout_url"], data={"action": "pay"})
    claim, token = "/api/v1/access/claim", {"claim_token": checkout.json()["claim_token"]}
    api_key = (await client.post(claim, json=token)).json()["api_key"]
    assert (await served.get_api("/usage", x_api_key=api_key)).status_code == 200
    market = await open_market_as(UnreadableStore, tmp_path / "market.db")
    unreadable = create_app_without_billing(served, market=market)
    answers = [
        await served.get_api("/state?timeframe=2h"),
        await served.get_api("/signals?ticker=BTX"),
        await served.get_api("/signals?indicator=macd"),
        await client.get("/api/v1/state"),
        await served.get_api("/state", x_api_key="nonsense"),
        await served.get_api("/state", origin="https://evil.example"),
        await served.get_api("/state", **await bought(served, "live")),
        await client.get("/no/such/path"),
        await client.put("/api/v1/state"),
        await client.post("/api/v1/mcp", content=b"{}", headers={"accept": "text/html"}),
        await client.post(claim, json=token),
        await client.post("/api/v1/mcp", content=b" " * ((64 << 10) + 1)),
        await client.get("/" + "x" * 1024),
        await client.post("/api/v1/mcp", content=b"{}", headers={"content-type": "text/plain"}),
        await client.get("/api/v1/state", headers={"host": "evil.example"}),
        await client.get("/api/v1/state", headers={"accept": "x" * 4097}),
        [await failing(served, scarce, "GET", "/api/v1/state") for _ in range(2)][1],
        await failing(served, unreadable, "GET", "/api/v1/state"),
    ]
    await market.close()
    with monkeypatch.context() as patched:
        patched.setattr(served.market, "version", lambda: {}["version"])
        answers.append(await served.get_api("/state"))
    await served.keys.revoke((await served.keys.list())[0].id)
    answers.append(await client.get("/api/v1/state", headers=own))
    pairs = {(answer.status_code, answer.json()["error"]): answer.json() for answer in answers}
    assert len(pairs) == len(answers)
    assert sorted(pairs) == sorted({(one.status, one.error) for one in ERROR_MEANINGS})
    for code, (status, *parts) in SAID.items():
        message = pairs[status, code]["message"]
        assert not [part for part in parts if part not in message], message
    error = (await fetch_document(served)).find("#/components/schemas/ErrorBody/properties/error")
    assert set(error["enum"]) == set(SAID)


@pytest.mark.clause("7.35")
def test_every_documented_error_is_a_pair_of_the_table():
    pairs = {(one.status, one.error) for one in ERROR_MEANINGS}
    assert len(pairs) == len(ERROR_MEANINGS)
    for endpoint in ENDPOINTS:
        statuses = [refusal.status for refusal in endpoint.refusals]
        assert len(statuses) == len(set(statuses)), endpoint.path
        for refusal in endpoint.refusals:
            if refusal.body is ErrorBody:
                assert {(refusal.status, error) for error in refusal.errors} <= pairs


@pytest.mark.clause("4.0.4", "4.6.11", "7.1", "7.28", "8.11")
@pytest.mark.prove
async def test_before_the_first_compute_readings_are_unavailable(served_empty):
    document = await fetch_document(served_empty)
    waiting = set()
    for method, path in list_operations(served_empty):
        response = await served_empty.client.request(method, path, headers=served_empty.key_headers)
        if response.status_code == 503:
            waiting.add(path)
            check_canonical(served_empty, response, 503, "unavailable", has_quota=path in KEYED)
        document.check_response(method, to_documented_path(path), response)
    always = {"/api/v1", "/api/v1/openapi.json", "/api/v1/usage"}
    assert waiting == OF_THE_MARKET - always | OF_THE_LOG


@pytest.mark.clause(
    "4.0.4",
    "4.6.10",
    "4.7.32",
    "4.8.13",
    "4.9.22",
    "4.10.1",
    "4.10.2",
    "5.26",
    "7.1",
    "7.8",
    "7.23",
    "7.24",
    "8.11",
    "8.14",
    "8.15",
)
async def test_an_exhausted_quota_is_refused_on_every_keyed_route_except_usage(
    served, document, tmp_path
):
    app = create_app_without_billing(served, daily_limit=1)
    assert (await failing(served, app, "GET", "/api/v1/state")).status_code == 200
    for path in KEYED:
        response = await failing(served, app, "GET", path)
        document.check_response("GET", path, response)
        if path == "/api/v1/usage":
            assert response.status_code == 200
            assert set(response.headers) >= QUOTA
            continue
        check_canonical(
            served,
            response,
            429,
            "rate_limited",
            has_quota=True,
            x_ratelimit_remaining="0",
            retry_after="42820",  # 12:06:20 to midnight
        )


@pytest.mark.clause("1.37", "4.11.10", "7.30", "7.31", "7.33")
async def test_with_billing_off_nothing_is_sold_and_open_claims_wait(served, document):
    buyer = {"contact_email": "a@example.org"}
    begun = await fetch(served.client, "POST", "/api/v1/access/checkout", 201, json=buyer)
    app = create_app_without_billing(served)
    claims = [{"claim_token": begun.json()["claim_token"]}, {"claim_token": "ct_" + "A" * 43}]
    requested = [("checkout", buyer, 503), ("claim", claims[0], 503), ("claim", claims[1], 404)]
    for name, body, status in requested:
        path = f"/api/v1/access/{name}"
        response = await failing(served, app, "POST", path, body)
        code = "unavailable" if status == 503 else "invalid_parameter"
        check_canonical(served, response, status, code)
        assert ("retry-after" in response.headers) is (status == 503)
        document.check_response("POST", path, response)


@pytest.mark.clause("7.1")
async def test_a_call_that_cannot_be_counted_is_unavailable_and_the_next_is_answered(
    served, document
):
    for path in KEYED:
        with break_usage_counting(served.access):
            response = await served.client.get(path, headers=served.key_headers)
        check_canonical(served, response, 503, "unavailable", retry_after="60")
        document.check_response("GET", path, response)
        await fetch(served.client, "GET", path, 200, headers=served.key_headers)


class UnreadableStore(MarketStore):
    """A store that fails to read."""

    def version(self):
        raise StoreError("disk I/O error in /secret/place")


async def test_a_store_that_cannot_be_read_is_unavailable_on_every_route_that_reads_it(
    served, document, tmp_path
):
    async with open_and_close(open_market_as(UnreadableStore, tmp_path / "market.db")) as market:
        app = create_app_without_billing(served, market=market)
        for path in OF_THE_MARKET:
            response = await failing(served, app, "GET", path)
            check_canonical(
                served, response, 503, "unavailable", has_quota=path in KEYED, retry_after="60"
            )
            assert "secret" not in response.text
            document.check_response("GET", path, response)


@pytest.mark.clause("4.0.4", "7.1", "7.32", "7.33", "8.11")
@pytest.mark.prove
async def test_an_unexpected_failure_is_one_500_on_every_route(
    served, document, capsys, monkeypatch
):
    monkeypatch.setattr(served.market, "version", lambda: {}["version"])
    failed = set()
    for method, path in list_operations(served):
        response = await served.client.request(method, path, headers=served.key_headers)
        if response.status_code == 500:
            failed.add(to_documented_path(path))
            check_canonical(
                served, response, 500, "unavailable", has_quota=path in KEYED, retry_after="60"
            )
        document.check_response(method, to_documented_path(path), response)
    # The source of a store never changes, so usage does not have to read it again.
    assert failed == OF_THE_MARKET - {"/api/v1/usage"}
    assert served.api_key not in capsys.readouterr().out


async def test_a_failure_outside_of_every_route_has_the_error_body_too(served):
    async def boom(request):
        raise RuntimeError("secret")

    docs = f"{served.base_url}/api/v1"
    context = Context(SnapshotCache(served.market), served.base_url, docs, served.clock, None, 1)
    calls = ToolRunner(QuotaGuard(served.access, served.clock, mode=None, daily_limit=1), context)
    app = Starlette(
        routes=[Route("/boom", boom)],
        exception_handlers=build_exception_handlers(calls),
    )
    response = await failing(served, app, "GET", "/boom")
    check_canonical(served, response, 500, "unavailable")
    assert "secret" not in response.text


@pytest.mark.clause("4.14.11", "7.32")
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"accept": "text/html"}, b"{}", 406),
        ({"content-type": "text/plain"}, b"{}", 415),
        ({}, b" " * ((64 << 10) + 1), 413),
    ],
)
async def test_an_http_error_of_the_mcp_endpoint_has_the_error_body(
    served, document, headers, body, status
):
    response = await served.client.post("/api/v1/mcp", content=body, headers=headers)
    check_canonical(served, response, status, "invalid_parameter")
    document.check_response("POST", "/api/v1/mcp", response)


@pytest.mark.clause("4.14.2", "4.14.11", "4.14.12", "7.34")
async def test_a_protocol_error_is_documented_as_json_rpc(served, document):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    version = await served.post_mcp(ping, mcp_protocol_version="1999-01-01")
    assert version.headers["cache-control"] == "no-store"
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    bodies = (notification, {**ping, "method": "nothing"}, ping)
    responses = [version, *[await served.post_mcp(body) for body in bodies]]
    assert [response.status_code for response in responses] == [400, 202, 200, 200]
    assert "error" in responses[2].json()
    for response in responses:
        document.check_response("POST", "/api/v1/mcp", response)


@pytest.mark.clause("4.14.20", "7.32")
@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/asset", None),
        ("/api/v1/state/", "/api/v1/state"),
        ("/api/v1/signal", "/api/v1/signals"),
        ("/api/v2/state", "/api/v1/state"),
        ("/.well-known/oauth-protected-resource/api/v1/mcp", None),
        ("/.well-known/openid-configuration", None),
        ("/%e2%80%ae" + "x" * 500, None),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_path_is_refused_with_the_existing_ones(served, method, path, meant):
    response = await served.client.request(method, path)
    check_canonical(served, response, 404, "invalid_parameter")
    assert "www-authenticate" not in response.headers
    message = response.json()["message"]
    for right, known in list_operations(served):
        assert f"{right} {to_documented_path(known)}" in message
    assert meant is None or f"did you mean {meant}?" in message
    assert len(message) < 800

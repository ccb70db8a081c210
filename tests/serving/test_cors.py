"""Pages of allowed origins call both transports and read every response; other pages cannot."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service.http.app import OPEN_READS
from serving.host_origin import HostOriginMiddleware, parse_origin
from tests.security.wire import LAST, exchange_bytes, parse_statuses
from tests.support.bad_inputs import build_call
from tests.support.example_market import make_coverage
from tests.support.openapi_document import list_operations
from tests.support.running_service import RunningService, break_usage_counting, fetch, run_service

pytestmark = pytest.mark.clause("4.0.7")

ORIGIN = "https://app.example"
EVIL = "https://evil.example"
PAGES = ["/docs", "/sign-in", "/web/page.css", "/settings/api-access", "/healthz", "/"]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version",
}
REQUEST_HEADERS = {
    "authorization",
    "x-api-key",
    "content-type",
    "accept",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "mcp-session-id",
    "last-event-id",
    "if-none-match",
}
READABLE_HEADERS = {
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "retry-after",
    "etag",
    "www-authenticate",
    "mcp-protocol-version",
    "mcp-session-id",
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[RunningService]:
    """A service with one allowed origin, written as people paste it."""
    async with run_service(
        tmp_path, make_coverage(), allowed_origins=("HTTPS://App.Example:443/",), daily_limit=3
    ) as running:
        yield running


def split_list(header: str) -> set[str]:
    return {part.strip().lower() for part in header.split(",")}


def list_cors_headers(response: httpx.Response) -> list[str]:
    return [name for name in response.headers if name.startswith("access-control")]


def check_readable(response: httpx.Response, origin: str = ORIGIN) -> None:
    """Assert that a browser gives the response to a page of the origin, without credentials."""
    assert response.headers.get_list("access-control-allow-origin") == [origin]
    assert "origin" in split_list(response.headers["vary"])
    assert split_list(response.headers["access-control-expose-headers"]) >= READABLE_HEADERS
    assert "access-control-allow-credentials" not in response.headers


async def test_a_preflight_of_an_allowed_origin_is_answered_on_every_operation(
    served: RunningService,
) -> None:
    operations = list_operations(served)
    assert ("POST", "/api/v1/mcp") in operations
    for method, path in [*operations, ("GET", "/api/v1/nothing")]:
        sent = PREFLIGHT | {"Access-Control-Request-Method": method}
        answer = await served.client.options(path, headers=sent)
        if not path.startswith(("/api/v1", "/legal")):
            assert list_cors_headers(answer) == []
            continue
        if path in OPEN_READS:
            assert answer.headers["access-control-allow-origin"] == "*"
            continue
        check_readable(answer)
        assert (answer.status_code, answer.content) == (204, b"")
        assert split_list(answer.headers["access-control-allow-methods"]) >= {"get", "post"}
        assert split_list(answer.headers["access-control-allow-headers"]) >= REQUEST_HEADERS
        assert int(answer.headers["access-control-max-age"]) > 0


async def test_a_preflight_needs_no_key_and_leaves_the_connection_open(
    served: RunningService,
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in PREFLIGHT.items())
    head = f"OPTIONS /api/v1/mcp HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
    received = await exchange_bytes(served.base_url, head + LAST)
    assert parse_statuses(received) == [204, 200]
    # HTTP forbids a length on a 204.
    assert b"content-length" not in received.partition(b"\r\n\r\n")[0].lower()


@pytest.mark.clause("4.14.1", "7.32")
async def test_options_of_no_page_names_the_allowed_methods(served: RunningService) -> None:
    for path, allowed in (("/api/v1/mcp", "POST"), ("/api/v1/state", "GET, HEAD")):
        answer = await served.client.options(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert list_cors_headers(answer) == []


async def test_a_page_reads_results_quota_and_errors_of_both_transports(
    served: RunningService,
) -> None:
    message = build_call("signals_get_state", {"ticker": "BTC"})
    for key, is_good in ((served.key_headers, True), ({"X-Api-Key": "ek_short"}, False)):
        sent = {**key, "Origin": ORIGIN}
        over_rest = await served.client.get("/api/v1/state?ticker=BTC", headers=sent)
        over_mcp = await served.client.post("/api/v1/mcp", json=message, headers=sent)
        for response in (over_rest, over_mcp):
            check_readable(response)
            assert ("x-ratelimit-remaining" in response.headers) is is_good
        assert over_rest.status_code == (200 if is_good else 401)
        assert over_mcp.json()["result"]["isError"] is not is_good


async def test_every_kind_of_error_can_be_read(served: RunningService) -> None:
    sent = {**served.key_headers, "Origin": ORIGIN}
    client, json_type = served.client, {"Content-Type": "application/json"}
    revoked = await served.keys.create("revoked")
    await served.keys.revoke((await served.keys.list())[-1].id)
    assert (await client.get("/api/v1/state?ticker=BTC", headers=sent)).status_code == 200
    answers = [
        await client.get("/api/v1/state?ticker=NOPE", headers=sent),
        await client.get("/api/v1/state", headers={"Origin": ORIGIN}),
        await client.get("/api/v1/state", headers={"Origin": ORIGIN, "X-Api-Key": revoked}),
        await client.get("/api/v1/nothing", headers=sent),
        await client.put("/api/v1/state", headers=sent),
        await client.delete("/api/v1/mcp", headers=sent),
        await client.get("/api/v1/mcp", headers=sent),
        await client.post("/api/v1/mcp", json=PING, headers={**sent, "Accept": "text/html"}),
        await client.post("/api/v1/mcp", content=b" " * 65537, headers={**sent, **json_type}),
        await client.post("/api/v1/mcp", content=b"x", headers={"Origin": ORIGIN}),
        await client.post(
            "/api/v1/mcp", content=b"x", headers={"Origin": ORIGIN, "Content-Type": "text/plain"}
        ),
        await client.get("/api/v1/state", headers={"Origin": ORIGIN, "Host": "evil.example"}),
        await client.post(
            "/api/v1/access/claim", json={"claim_token": ""}, headers={"Origin": ORIGIN}
        ),
    ]
    with break_usage_counting(served.access):
        answers.append(await client.get("/api/v1/state?ticker=BTC", headers=sent))
    for _ in range(2):
        answers.append(await client.get("/api/v1/state?ticker=BTC", headers=sent))
    expected = [400, 401, 403, 404, 405, 405, 405, 406, 413, 200, 415, 421, 400, 503, 200, 429]
    assert [answer.status_code for answer in answers] == expected
    for answer in answers:
        check_readable(answer)
    assert "retry-after" in answers[-1].headers


@pytest.mark.parametrize("path", ["/api/v1/state?ticker=BTC"])
async def test_a_cached_response_is_revalidated_for_a_page(
    served: RunningService, path: str
) -> None:
    sent = {**served.key_headers, "Origin": ORIGIN}
    first = await served.client.get(path, headers=sent)
    again = await served.client.get(path, headers={**sent, "If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    for response in (first, again):
        check_readable(response)
        assert split_list(response.headers["vary"]) == {"accept-encoding", "origin"}


@pytest.mark.prove
async def test_any_origin_may_read_what_needs_no_key(served: RunningService) -> None:
    paths = ("/api/v1", "/api/v1/catalog", "/api/v1/stats", "/api/v1/openapi.json")
    for path in (*paths, "/api/v1/signals/sample", "/legal"):
        # A cache may give each of them the response to another.
        for origin in ({}, {"Origin": served.base_url}, {"Origin": EVIL}, {"Origin": "null"}):
            answer = await fetch(served.client, "GET", path, 200, headers=origin)
            assert answer.headers["access-control-allow-origin"] == "*"
            assert split_list(answer.headers["vary"]) == {"accept-encoding"}
        assert (await served.client.post(path, headers={"Origin": EVIL})).status_code == 403


@pytest.mark.clause("endpoint")
async def test_clients_without_an_origin_see_no_difference(served: RunningService) -> None:
    response = await served.client.post("/api/v1/mcp", json=PING, headers={"X-Request-Id": "a"})
    assert [header for header in response.headers.raw if header[0] != b"date"] == [
        (b"x-request-id", b"a"),
        (b"content-type", b"application/json"),
        (b"content-length", b"36"),
    ]
    assert response.content == b'{"jsonrpc":"2.0","id":1,"result":{}}'


@pytest.mark.clause("7.35", "endpoint")
@pytest.mark.prove
async def test_other_origins_are_refused_and_cannot_read_why(served: RunningService) -> None:
    for origin in (EVIL, "null", "http://app.example", f"{ORIGIN}:8443", f"{ORIGIN}.evil.example"):
        keyed = [each for each in list_operations(served) if each[1] not in OPEN_READS]
        for method, path in [*keyed, *(("GET", page) for page in PAGES)]:
            for asked in (method, "OPTIONS"):
                sent = PREFLIGHT | {"Origin": origin}
                assert (
                    list_cors_headers(await fetch(served.client, asked, path, 403, headers=sent))
                    == []
                )


async def test_two_origins_in_one_request_read_nothing(served: RunningService) -> None:
    for other, status in ((ORIGIN, 200), (EVIL, 403)):
        both = [("Origin", ORIGIN), ("Origin", other), *served.key_headers.items()]
        assert (
            list_cors_headers(
                await fetch(served.client, "GET", "/api/v1/usage", status, headers=both)
            )
            == []
        )


@pytest.mark.clause("pages")
@pytest.mark.parametrize("path", PAGES)
async def test_no_page_for_people_can_be_read_by_an_allowed_origin(
    served: RunningService, path: str
) -> None:
    for method in ("GET", "OPTIONS"):
        answer = await served.client.request(method, path, headers=PREFLIGHT)
        assert list_cors_headers(answer) == []
        assert answer.status_code != 204


@pytest.mark.clause("4.14.20", "4.0.8")
async def test_any_page_can_look_for_metadata(served: RunningService) -> None:
    path = "/.well-known/oauth-protected-resource/api/v1/mcp"
    for headers in ({}, {"Origin": EVIL}, {"Origin": "null"}, {"Origin": ORIGIN}):
        answer = await fetch(served.client, "GET", path, 404, headers=headers)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "vary" not in answer.headers
    preflight = await served.client.options(path, headers=PREFLIGHT | {"Origin": EVIL})
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.clause("4.0.8", "endpoint")
@pytest.mark.parametrize(
    ("base_url", "path", "allows_any"),
    [
        ("https://signals.example", "/public/file", True),
        ("https://signals.example", "/mcp", True),
        ("https://signals.example", "/api/v1/mcp", False),
        ("https://signals.example", "/consent", False),
        ("http://127.0.0.1:8000", "/public/file", True),
        ("http://127.0.0.1:8000", "/mcp", False),
        ("https://localhost", "/mcp", False),
        ("https://[::1]:8443", "/mcp", False),
        ("https://localhost.", "/mcp", False),
        ("https://signals.localhost", "/mcp", False),
        ("https://signals.local", "/mcp", False),
        ("https://signals.internal:8443", "/mcp", False),
        ("https://10.0.0.7", "/mcp", False),
        ("https://[fd00::7]", "/mcp", False),
        ("https://100.64.0.7", "/mcp", False),
        ("https://8.8.8.8", "/mcp", True),
        ("http://signals.example:8000", "/mcp", False),
    ],
)
async def test_any_origin_may_send_a_token_only_to_a_public_service(
    base_url: str, path: str, allows_any: bool
) -> None:
    gate = HostOriginMiddleware(
        PlainTextResponse("passed"),
        base_url=base_url,
        docs=f"{base_url}/api/v1",
        allowed_origins=[ORIGIN],
        api_paths=("/api",),
        token_paths=("/mcp",),
        public_paths=("/public/",),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=base_url) as client:
        foreign = await client.get(path, headers={"Origin": EVIL})
        preflight = await client.options(path, headers=PREFLIGHT | {"Origin": EVIL})
        listed = await client.get(path, headers={"Origin": ORIGIN})
    assert listed.status_code == 200
    if allows_any:
        assert (foreign.status_code, foreign.text, preflight.status_code) == (200, "passed", 204)
        assert foreign.headers["access-control-allow-origin"] == "*"
        assert preflight.headers["access-control-allow-origin"] == "*"
    else:
        assert (foreign.status_code, preflight.status_code) == (403, 403)
        assert list_cors_headers(foreign) == list_cors_headers(preflight) == []
        assert bool(list_cors_headers(listed)) is (path != "/consent")


async def test_headers_of_the_app_itself_are_kept() -> None:
    async def app(scope, receive, send):
        headers = {"Vary": "Accept-Encoding", "X-Path": Request(scope).url.path}
        await Response("passed", 201, headers)(scope, receive, send)

    gate = HostOriginMiddleware(
        app,
        base_url="https://signals.example",
        docs="",
        allowed_origins=[ORIGIN],
        api_paths=("/api",),
    )
    transport = httpx.ASGITransport(gate)
    async with httpx.AsyncClient(transport=transport, base_url="https://signals.example") as client:
        answer = await client.post("/api", headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.headers["x-path"]) == (201, "/api")
    check_readable(answer)
    assert split_list(answer.headers["vary"]) == {"accept-encoding", "origin"}


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example", "https://app.example"),
        ("HTTPS://App.Example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("https://app.example:08443", "https://app.example:8443"),
        ("http://localhost:5173", "http://localhost:5173"),
        ("http://[0:0:0:0:0:0:0:1]:5173", "http://[::1]:5173"),
        ("http://192.0.2.7:8000", "http://192.0.2.7:8000"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("", None),
        ("null", None),
        ("*", None),
        ("app.example", None),
        ("//app.example", None),
        ("https:app.example", None),
        ("https://", None),
        ("https://*.app.example", None),
        ("https://app.example/", None),
        ("https://app.example/path", None),
        ("https://app.example?x", None),
        ("https://app.example#x", None),
        ("https://user@app.example", None),
        ("https://app.example:", None),
        ("https://app.example:0", None),
        ("https://app.example:65536", None),
        ("https://app..example", None),
        ("https://[::g]", None),
        ("https://[1::2::3]", None),
        ("https://bücher.example", None),
        ("https://app.example https://b.example", None),
        ("https://app.example\n", None),
        ("file://app.example", None),
        ("FILE:///home", None),
    ],
)
def test_an_origin_has_one_form(text: str, origin: str | None) -> None:
    assert parse_origin(text) == origin

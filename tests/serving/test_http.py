import json

import httpx
import pytest
from starlette.responses import Response

from serving.host_origin import HostOriginMiddleware
from serving.http import accepts_json
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("endpoint")

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_known_protocol_versions_are_served(served, version):
    assert (await served.post_mcp(PING, mcp_protocol_version=version)).status_code == 200


@pytest.mark.clause("4.14.11", "7.34")
async def test_an_unknown_protocol_version_is_refused_with_those_supported(served):
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for message in (PING, notification):
        response = await served.post_mcp(message, mcp_protocol_version="1999-01-01")
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/json"
        answer = response.json()
        assert set(answer) == {"jsonrpc", "id", "error"}
        assert (answer["id"], answer["error"]["code"]) == (message.get("id"), -32602)
        assert answer["error"]["data"] == {
            "supported": ["2025-03-26", "2025-06-18", "2025-11-25"],
            "requested": "1999-01-01",
        }


async def test_both_spellings_of_the_path_are_served_without_a_redirect(served):
    for path in ("/api/v1/mcp", "/api/v1/mcp/"):
        assert (await served.client.post(path, json=PING)).status_code == 200


@pytest.mark.clause("4.14.1", "4.14.2", "6.1", "6.12")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_every_method_except_post_is_refused(served, method):
    response = await served.client.request(method, "/api/v1/mcp")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.clause("4.14.4")
@pytest.mark.parametrize(
    ("accept", "passes"),
    [
        ("application/json, text/event-stream", True),
        ("*/*", True),
        ("application/*;q=0.1", True),
        ("text/event-stream", False),
        ("text/html, application/json;q=0", False),
        ("*/*, application/json;q=0", False),
        ("application/json;q=x", True),
    ],
)
async def test_accept_is_refused_only_if_it_excludes_json(served, accept, passes):
    assert accepts_json(accept.encode()) is passes
    response = await served.post_mcp(PING, accept=accept)
    assert response.status_code == (200 if passes else 406)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_content_type_that_is_not_json_is_refused(served, content_type, status):
    response = await served.post_mcp(PING, content_type=content_type)
    assert response.status_code == status


async def test_a_body_over_64_kib_is_refused_also_in_chunks(served):
    async def split(body):
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]

    fitting = json.dumps(PING).encode().ljust(64 << 10)
    for body, status in ((fitting, 200), (fitting + b" ", 413), (b" " * (2 << 20), 413)):
        for content in (body, split(body)):
            answer = await served.client.post(
                "/api/v1/mcp", content=content, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == status
            if status == 413:
                assert "64 KiB" in answer.json()["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("[::1]:8000", 200),
        ("host.docker.internal:8000", 200),
        ("host.containers.internal", 200),
        ("host.docker.internal.evil.example", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example@localhost", 421),
    ],
)
async def test_only_our_hosts_are_served(served, host, status):
    assert (await served.post_mcp(PING, host=host)).status_code == status
    assert (await served.get_api("/state", host=host)).status_code == (
        401 if status == 200 else 421
    )


async def test_a_refused_host_and_origin_are_named_with_the_settings_that_allow_them(served):
    for header, name, value in (
        ("host", "SIGNALS_ALLOWED_HOSTS", "192.0.2.7:8000"),
        ("host", "SIGNALS_BASE_URL", "192.0.2.7:8000"),
        ("origin", "SIGNALS_ALLOWED_ORIGINS", "https://evil.example"),
    ):
        for answer in (
            await served.post_mcp(PING, **{header: value}),
            await served.get_api("/state", **{header: value}),
        ):
            message = answer.json()["message"]
            assert json.dumps(value) in message
            assert name in message
            assert "for example" in message


async def test_a_long_or_strange_host_is_quoted_in_one_short_line(served):
    for host in ("x" * 3000, '<script>"', "caf\xe9\x85"):
        headers = [(b"Host", host.encode("latin-1"))]
        answer = await served.client.get("/api/v1", headers=headers)
        message = answer.json()["message"]
        assert answer.status_code == 421
        assert message.isprintable()
        assert len(message) < 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("file://localhost", 403),
        ("localhost", 403),
    ],
)
async def test_a_foreign_origin_is_refused(served, origin, status):
    assert (await served.post_mcp(PING, origin=origin)).status_code == status


@pytest.mark.clause("4.14.20")
async def test_oauth_discovery_is_a_plain_404(served):
    response = await served.client.get("/.well-known/oauth-protected-resource/api/v1/mcp")
    assert response.status_code == 404
    assert set(response.json()) == {"error", "message", "docs"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "signals.example"}, 200),
        ({"host": "signals.example:8443"}, 200),
        ({"host": "inner.example"}, 200),
        ({"host": "signals.example."}, 200),
        ({"host": "inner.example.:8443"}, 200),
        ({"host": "other.example"}, 421),
        ({"host": "other.example."}, 421),
        ({"host": "inner.example", "origin": "https://signals.example."}, 200),
        ({"host": "inner.example", "origin": "https://app.example"}, 200),
        ({"host": "inner.example", "origin": "http://app.example"}, 403),
        ({"host": "inner.example", "origin": "https://signals.example"}, 200),
    ],
)
async def test_the_host_of_the_base_url_and_configured_ones_are_allowed(headers, status):
    gate = HostOriginMiddleware(
        Response("passed"),
        base_url="https://signals.example/",
        docs="https://signals.example/api/v1",
        allowed_hosts=["inner.example:9000"],
        allowed_origins=["https://app.example"],
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as client:
        response = await client.get("http://unused.example/", headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "signals:8000"}, 200),
        ({"host": "10.0.0.7"}, 200),
        ({"host": "signals:8000", "origin": "http://signals:8000"}, 200),
        ({"host": "signals:8000", "origin": "https://signals.example"}, 200),
        ({"host": "signals:8000", "origin": "http://evil.example"}, 403),
    ],
)
async def test_a_service_that_others_reach_answers_any_host_but_only_origins_on_it(headers, status):
    gate = HostOriginMiddleware(
        Response("passed"), base_url="https://signals.example", docs="", checks_host=False
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as client:
        response = await client.post("http://unused.example/api/v1/mcp", headers=headers)
    assert response.status_code == status

"""The client's address comes from X-Forwarded-For of trusted proxies, read right to left."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from access.billing.provider import SandboxBilling
from service.config.settings import Settings
from service.http.app import create_app
from service.http.resources import Resources
from serving.forwarded_for import MAX_HOPS, ForwardedForMiddleware, parse_proxies
from serving.host_origin import HostOriginMiddleware
from store.access_rows import Notice
from store.sql.access_store import AccessStore
from store.store_errors import StoreError
from tests.doubles.smtp.server import Mailbox
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock, RunningService, fetch, served as served
from tests.support.sandbox_shop import open_counting_store
from tests.support.store_homes import open_access_as, open_and_close

pytestmark = pytest.mark.clause("endpoint", "access")

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.clause("4.14.11", "7.34")
async def test_an_unknown_protocol_version_is_refused_with_those_supported(served):
    for message in (PING, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
        response = await served.post_mcp(message, mcp_protocol_version="1999-01-01")
        assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
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
    assert (await fetch(served.client, method, "/api/v1/mcp", 405)).headers["allow"] == "POST"


@pytest.mark.clause("4.14.4")
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("accept", "application/json, text/event-stream", 200),
        ("accept", "*/*", 200),
        ("accept", "application/*;q=0.1", 200),
        ("accept", "text/event-stream", 406),
        ("accept", "text/html, application/json;q=0", 406),
        ("accept", "*/*, application/json;q=0", 406),
        ("accept", "application/json;q=x", 200),
        ("content_type", "application/json", 200),
        ("content_type", "Application/JSON; charset=utf-8", 200),
        ("content_type", "", 200),
        ("content_type", "text/plain", 415),
        ("content_type", "application/x-www-form-urlencoded", 415),
    ],
)
async def test_json_is_sent_and_accepted_unless_a_header_excludes_it(served, header, value, status):
    assert (await served.post_mcp(PING, **{header: value})).status_code == status


async def test_a_body_over_64_kib_is_refused_also_in_chunks(served):
    async def split(body):
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]

    fitting = json.dumps(PING).encode().ljust(64 << 10)
    for body, status in ((fitting, 200), (fitting + b" ", 413), (b" " * (2 << 20), 413)):
        for content in (body, split(body)):
            answer = await fetch(
                served.client,
                "POST",
                "/api/v1/mcp",
                status,
                content=content,
                headers={"Content-Type": "application/json"},
            )
            assert ("64 KiB" in answer.text) is (status == 413)


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
        answer = await served.client.get("/api/v1", headers=[(b"Host", host.encode("latin-1"))])
        message = answer.json()["message"]
        assert answer.status_code == 421
        assert message.isprintable()
        assert len(message) < 400


CONFIGURED = {"allowed_hosts": ["inner.example:9000"], "allowed_origins": ["https://app.example"]}
# A service that others reach answers any host, but only origins on it.
REACHED = {"checks_host": False}


@pytest.mark.parametrize(
    ("options", "headers", "status"),
    [
        (CONFIGURED, {"host": "signals.example"}, 200),
        (CONFIGURED, {"host": "signals.example:8443"}, 200),
        (CONFIGURED, {"host": "inner.example"}, 200),
        (CONFIGURED, {"host": "signals.example."}, 200),
        (CONFIGURED, {"host": "inner.example.:8443"}, 200),
        (CONFIGURED, {"host": "other.example"}, 421),
        (CONFIGURED, {"host": "other.example."}, 421),
        (CONFIGURED, {"host": "inner.example", "origin": "https://signals.example."}, 200),
        (CONFIGURED, {"host": "inner.example", "origin": "https://app.example"}, 200),
        (CONFIGURED, {"host": "inner.example", "origin": "http://app.example"}, 403),
        (CONFIGURED, {"host": "inner.example", "origin": "https://signals.example"}, 200),
        (REACHED, {"host": "signals:8000"}, 200),
        (REACHED, {"host": "10.0.0.7"}, 200),
        (REACHED, {"host": "signals:8000", "origin": "http://signals:8000"}, 200),
        (REACHED, {"host": "signals:8000", "origin": "https://signals.example"}, 200),
        (REACHED, {"host": "signals:8000", "origin": "http://evil.example"}, 403),
    ],
)
async def test_the_host_of_the_base_url_and_configured_ones_are_allowed(options, headers, status):
    gate = HostOriginMiddleware(
        Response("passed"), base_url="https://signals.example/", docs="", **options
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as client:
        response = await client.get("http://unused.example/", headers=headers)
    assert response.status_code == status


PROXIES = ("10.0.0.0/8", "192.0.2.1", "fd00::/8", "::ffff:172.16.0.0/108")
HOUR_MS = 3_600_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AccessStore]:
    async with open_counting_store(tmp_path / "access.db") as store:
        yield store


async def says_who(scope: Scope, receive: Receive, send: Send) -> None:
    client = scope.get("client")
    await PlainTextResponse(client[0] if client else "nobody")(scope, receive, send)


async def who(app: Any, peer: str, *forwarded: str) -> str:
    """Return the client that an app sees when a peer sends these X-Forwarded-For headers."""
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        headers = [(b"X-Forwarded-For", value.encode()) for value in forwarded]
        return (await client.get("/", headers=headers)).text


def behind_proxies(store: AccessStore, clock: ManualClock) -> ForwardedForMiddleware:
    return ForwardedForMiddleware(
        says_who, trusted=parse_proxies(PROXIES), store=store, clock=clock
    )


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7, 10.9.9.9"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.7", "10.9.9.9"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7, 10.1.1.1", "10.9.9.9,192.0.2.1"], "198.51.100.7"),
        ("10.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("10.0.0.1", ["198.51.100.7, nonsense, 10.9.9.9"], "10.9.9.9"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7,"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7:54321"], "198.51.100.7"),
        ("10.0.0.1", ["[2a00::7]:443"], "2a00::7"),
        ("10.0.0.1", ["[2a00::7]"], "2a00::7"),
        ("10.0.0.1", ["2A00:0::7, fd00::9"], "2a00::7"),
        ("10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7, ::ffff:10.9.9.9"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("fd00::1", ["198.51.100.7"], "198.51.100.7"),
        ("172.16.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7" + ", 10.1.1.1" * (MAX_HOPS - 1)], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7" + ", 10.1.1.1" * MAX_HOPS], "10.1.1.1"),
        ("10.0.0.1", ["1.2.3.4.5"], "10.0.0.1"),
        ("10.0.0.1", ["010.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", ["\u0661.2.3.4"], "10.0.0.1"),
        ("203.0.113.5", ["198.51.100.7"], "203.0.113.5"),
        ("203.0.113.5", ["10.0.0.1"], "203.0.113.5"),
        ("192.0.2.2", ["198.51.100.7"], "192.0.2.2"),
    ],
)
async def test_the_client_is_the_nearest_hop_that_is_not_a_trusted_proxy(
    store: AccessStore, peer: str, forwarded: list[str], client: str
) -> None:
    assert await who(behind_proxies(store, ManualClock()), peer, *forwarded) == client


async def test_without_trusted_proxies_no_header_is_believed(store: AccessStore) -> None:
    app = ForwardedForMiddleware(says_who, trusted=(), store=store, clock=ManualClock())
    assert await who(app, "127.0.0.1", "198.51.100.7") == "127.0.0.1"


async def test_a_header_of_an_untrusted_peer_is_noticed_at_most_once_an_hour(
    store: AccessStore,
) -> None:
    clock = ManualClock(NOON)
    app = behind_proxies(store, clock)
    await who(app, "203.0.113.5")
    await who(app, "10.0.0.1", "198.51.100.7")
    assert await store.list_notices() == []
    await who(app, "203.0.113.5", "198.51.100.7, ek_secret")
    noticed = [Notice("untrusted_forwarded_for", "203.0.113.5", NOON)]
    assert await store.list_notices() == noticed
    clock.now += HOUR_MS - 1
    await who(app, "203.0.113.6", "198.51.100.7")
    assert await store.list_notices() == noticed
    clock.now += 1
    await who(app, "203.0.113.6", "198.51.100.7")
    again = Notice("untrusted_forwarded_for", "203.0.113.6", NOON + HOUR_MS)
    assert await store.list_notices() == [again]


class FullStore(AccessStore):
    """A store with a full disk."""

    async def put_notice(self, notice: Notice) -> None:
        raise StoreError("database or disk is full")


async def test_a_failure_to_store_a_notice_fails_no_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_and_close(open_access_as(FullStore, tmp_path / "full.db")) as store:
        app = behind_proxies(store, ManualClock())
        assert await who(app, "203.0.113.5", "1.1.1.1") == "203.0.113.5"
    assert "notice_not_kept" in capsys.readouterr().out


INVALID = ("10.0.0.1/8", "proxy.example.com", "10.0.0", "", "*", "::/129")
PUBLIC = (
    *("0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/7", "203.0.113.0/31", "172.0.0.0/8"),
    *("::/0", "::ffff:0:0/96", "::ffff:203.0.113.0/127", "2a00::/127"),
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "is not a valid proxy") for text in INVALID),
        *((text, "it has public addresses") for text in PUBLIC),
    ],
)
def test_a_proxy_is_a_private_network_or_an_address_and_any_other_is_named(
    text: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse_proxies(["10.0.0.0/8", text])
    assert repr(text) in str(refused.value)
    parse_proxies(["203.0.113.7", "203.0.113.7/32", "2a00::7", "::ffff:203.0.113.7"])


def behind(served: RunningService, proxy: str) -> Any:
    """Return another app on the same store, behind a proxy."""
    return create_app(
        Settings(base_url=served.base_url, trusted_proxies=proxy),
        Resources(
            served.market,
            served.access,
            SandboxBilling(served.access, served.clock, served.base_url),
            Mailbox(),
            served.clock,
        ),
    )


@pytest.mark.clause("4.11.9", "7.27", "8.50")
@pytest.mark.prove
async def test_clients_behind_a_trusted_proxy_are_throttled_apart(served: RunningService) -> None:
    with pytest.raises(ValueError, match="'proxy' is not a valid proxy"):
        behind(served, "proxy")
    transport = httpx.ASGITransport(behind(served, "10.0.0.0/8"), client=("10.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url=served.base_url) as client:

        async def statuses(*addresses: str) -> list[int]:
            answers = [
                await client.post(
                    "/api/v1/access/checkout",
                    json={"contact_email": "agent@example.com"},
                    headers={"X-Forwarded-For": address},
                )
                for address in addresses
            ]
            return [answer.status_code for answer in answers]

        assert await statuses(*["2a00::1", "2a00::2"] * 15) == [201] * 30
        assert await statuses("2a00::3", "2a00:0:0:1::3", "198.51.100.7") == [429, 201, 201]
        assert await statuses("::ffff:198.51.100.7", "1.1.1.1, 2a00::9") == [201, 429]

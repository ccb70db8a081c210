"""The client's address comes from X-Forwarded-For of trusted proxies, read right to left."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from access.billing.sandbox import SandboxBilling
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from serving.forwarded_for import MAX_HOPS, ForwardedForMiddleware, parse_proxies
from store.access_rows import Notice
from store.errors import StoreError
from store.sql.access_store import AccessStore
from tests.doubles.smtp.server import Mailbox
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock, RunningService
from tests.support.sandbox_shop import open_counting_store
from tests.support.store_homes import open_access_as

pytestmark = pytest.mark.clause("access")

PROXIES = ("10.0.0.0/8", "192.0.2.1", "fd00::/8", "::ffff:172.16.0.0/108")
HOUR_MS = 3_600_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AccessStore]:
    async with open_counting_store(tmp_path / "access.db") as store:
        yield store


async def says_who(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that returns its client's address."""
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
    store = await open_access_as(FullStore, tmp_path / "full.db")
    try:
        assert (
            await who(behind_proxies(store, ManualClock()), "203.0.113.5", "1.1.1.1")
            == "203.0.113.5"
        )
    finally:
        await store.close()
    assert "notice_not_kept" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example.com", "10.0.0", "", "*", "::/129"])
def test_an_invalid_proxy_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid proxy") as refused:
        parse_proxies(["10.0.0.0/8", text])
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/7", "203.0.113.0/31", "172.0.0.0/8"),
        *("::/0", "::ffff:0:0/96", "::ffff:203.0.113.0/127", "2a00::/127"),
    ],
)
def test_a_network_of_public_addresses_is_no_proxy_but_each_address_may_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="it has public addresses"):
        parse_proxies([text])
    parse_proxies(["203.0.113.7", "203.0.113.7/32", "2a00::7", "::ffff:203.0.113.7"])


def behind(served: RunningService, proxy: str) -> Any:
    """Return another app on the same store, behind a proxy."""
    return create_app(
        AppConfig(served.base_url, trusted_proxies=(proxy,)),
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
    app = behind(served, "10.0.0.0/8")
    transport = httpx.ASGITransport(app, client=("10.0.0.1", 4711))
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

"""Client ID Metadata Documents: from the public internet, bounded, and refused if they lie."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given, strategies as st
from structlog.testing import capture_logs

from access.oauth.clients import (
    FAILURE_TTL_S,
    MAX_CACHED,
    MAX_CLIENT_ID_CHARS,
    MAX_DOCUMENT_BYTES,
    MAX_FETCHES,
    TTL_S,
    ClientDocuments,
    is_public,
    resolve_host,
)
from access.oauth.parameters import OAuthClientError
from schemas.errors import ApiError
from tests.doubles.document_host import (
    HOST,
    PUBLIC_ADDRESSES,
    DocumentHost,
    build_response,
    open_document_host,
)
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("11.4")

CLIENT_ID = f"https://{HOST}/client.json"
DOCUMENT = {
    "client_id": CLIENT_ID,
    "client_name": "A client",
    "redirect_uris": ["http://localhost/callback", "https://client.example/callback"],
    "token_endpoint_auth_method": "none",
}
# As published by ChatGPT, whose preferred method this service does not have.
CHATGPT_METHODS = {
    "token_endpoint_auth_method": "private_key_jwt",
    "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"],
    "token_endpoint_auth_signing_alg": "RS256",
    "jwks_uri": "https://client.example/jwks.json",
    "grant_types": ["authorization_code", "refresh_token"],
    "response_types": ["code"],
}


@pytest.fixture
async def host() -> AsyncIterator[DocumentHost]:
    async with open_document_host() as opened:
        opened.responses["/client.json"] = build_response(DOCUMENT)
        yield opened


@pytest.fixture
async def documents(host: DocumentHost, clock: ManualClock) -> AsyncIterator[ClientDocuments]:
    opened = ClientDocuments(clock, host.transport, host.resolve, timeout_s=30)
    yield opened
    await opened.close()


async def fetch_refusal(documents: ClientDocuments, client_id: str = CLIENT_ID) -> str:
    with pytest.raises(OAuthClientError) as refused:
        await documents.get(client_id)
    assert refused.value.error.startswith("invalid_")
    assert not set(refused.value.message) & set('"\\\n')
    return refused.value.message


@pytest.mark.clause("11.3")
async def test_a_document_describes_its_client(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    metadata = await documents.get(CLIENT_ID)
    assert (metadata.name, metadata.redirect_uris) == ("A client", tuple(DOCUMENT["redirect_uris"]))
    (head,) = host.requests
    assert head.startswith("GET /client.json HTTP/1.1\r\n")
    assert f"\r\nHost: {HOST}\r\n" in head
    # Nothing of the visitor or the service goes out.
    assert "Cookie" not in head
    assert "Referer" not in head


async def test_port_and_query_are_part_of_the_address(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    client_id = f"https://{HOST}:8443/client.json?v=2"
    host.responses["/client.json?v=2"] = build_response(DOCUMENT | {"client_id": client_id})
    assert (await documents.get(client_id)).name == "A client"
    assert host.connections == [(PUBLIC_ADDRESSES[0], 8443)]
    assert f"\r\nHost: {HOST}:8443\r\n" in host.requests[0]


@pytest.mark.clause("11.8")
@pytest.mark.parametrize(
    ("fields", "content_type"),
    [
        *(
            (fields, "application/json")
            for fields in (
                CHATGPT_METHODS,
                {"token_endpoint_auth_method": None},
                {"client_name": None, "logo_uri": 5, "jwks": [], "scope": {}, "contacts": "me"},
                {"grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:x"]},
            )
        ),
        *(({}, kind) for kind in ("application/json; charset=utf-8", "application/cimd+json")),
    ],
)
async def test_a_document_of_a_public_client_is_accepted(
    documents: ClientDocuments, host: DocumentHost, fields: Mapping[str, object], content_type: str
) -> None:
    headers = {"Content-Type": content_type}
    host.responses["/client.json"] = build_response(DOCUMENT | fields, headers=headers)
    assert (await documents.get(CLIENT_ID)).redirect_uris == tuple(DOCUMENT["redirect_uris"])


@pytest.mark.clause("11.3")
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"client_id": "https://client.example/other.json"}, "client_id"),
        ({"client_id": CLIENT_ID + "?"}, "client_id"),
        ({"client_id": None}, "client_id"),
        ({"client_id": [CLIENT_ID]}, "client_id"),
        ({"redirect_uris": None}, "redirect_uris"),
        ({"redirect_uris": []}, "redirect_uris"),
        ({"redirect_uris": "https://client.example/callback"}, "redirect_uris"),
        ({"redirect_uris": ["https://client.example/callback"] * 11}, "redirect_uris"),
        ({"redirect_uris": ["https://client.example/", "javascript:alert(1)"]}, "Entry 2"),
        ({"redirect_uris": [5]}, "redirect_uris"),
        ({"token_endpoint_auth_method": "client_secret_post"}, "token_endpoint_auth_method"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "token_endpoint_auth_method"),
        ({"token_endpoint_auth_method": 5}, "token_endpoint_auth_method"),
        ({"grant_types": ["client_credentials"]}, "grant_types"),
        ({"response_types": ["token"]}, "response_types"),
        ({"client_name": {"en": "A client"}}, "client_name"),
    ],
)
async def test_a_document_that_does_not_fit_is_refused(
    documents: ClientDocuments, host: DocumentHost, fields: Mapping[str, object], problem: str
) -> None:
    host.responses["/client.json"] = build_response(DOCUMENT | fields)
    assert problem in await fetch_refusal(documents)


@pytest.mark.clause("11.5", "11.7")
@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (build_response(DOCUMENT, headers={"Content-Type": "text/html"}), "for browsers"),
        (build_response(DOCUMENT, headers={"Content-Type": "text/json"}), "content type"),
        (build_response(DOCUMENT, status=201), "status 201"),
        (build_response(DOCUMENT, status=500), "status 500"),
        (build_response(DOCUMENT, status=301, headers={"Location": "/other.json"}), "redirects"),
        (
            build_response(DOCUMENT, status=302, headers={"Location": "https://169.254.169.254/"}),
            "redirects",
        ),
        (build_response(b"not JSON"), "not JSON"),
        (build_response(b""), "not JSON"),
        (build_response(b"\xff\xfe"), "not JSON"),
        (build_response(b"[" * MAX_DOCUMENT_BYTES), "not JSON"),
        (build_response(b"9" * 5000), "not JSON"),
        (build_response([DOCUMENT]), "JSON object"),
        (build_response(5), "JSON object"),
        (build_response(DOCUMENT | {"filler": "x" * MAX_DOCUMENT_BYTES}), "bytes"),
        (
            build_response(gzip.compress(b" " * 10_000_000), headers={"Content-Encoding": "gzip"}),
            "compressed",
        ),
        (build_response(DOCUMENT, headers={"Content-Length": "9999"}), "connection failed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "connection failed"),
        (b"", "connection failed"),
    ],
)
async def test_a_response_that_is_no_document_is_refused(
    documents: ClientDocuments, host: DocumentHost, response: bytes, problem: str
) -> None:
    host.responses["/client.json"] = response
    assert problem in await fetch_refusal(documents)
    assert len(host.requests) == 1


@pytest.mark.clause("11.5")
async def test_no_more_than_the_limit_is_read_of_an_endless_document(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    sent = 0

    async def send_forever(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(b" " * 65_536)
            await writer.drain()
            sent += 65_536

    host.responses["/client.json"] = send_forever
    assert f"more than {MAX_DOCUMENT_BYTES} bytes" in await fetch_refusal(documents)
    # What the buffers of both ends hold.
    assert sent < 20_000_000


@pytest.mark.clause("11.5", "11.7")
@pytest.mark.parametrize("hangs", ["lookup", "connection", "body", "drip"])
async def test_a_host_that_hangs_or_drips_is_given_up(
    host: DocumentHost, clock: ManualClock, hangs: str
) -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        if hangs != "connection":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{")
        while hangs == "drip":
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)
        await writer.drain()
        await asyncio.Event().wait()

    async def resolve(name: str) -> Sequence[str]:
        if hangs == "lookup":
            await asyncio.Event().wait()
        return await host.resolve(name)

    host.responses["/client.json"] = hang
    documents = ClientDocuments(clock, host.transport, resolve, timeout_s=0.3)
    assert "0.3 seconds" in await fetch_refusal(documents)


@pytest.mark.parametrize(
    "client_id",
    [
        "https://client.example",
        "https://client.example/",
        "https://client.example?a=1",
        "https://client.example/?a=1",
        "https://client.example/client.json#",
        "https://client.example/client.json#part",
        "https://user@client.example/client.json",
        "https://user:secret@client.example/client.json",
        "https://@client.example/client.json",
        "https://client.example/./client.json",
        "https://client.example/a/../client.json",
        "https://client.example/a/..",
        "https://client.example/%2e%2E/client.json",
        "https://client.example/.%2e/client.json",
        "https://client.example/..?a=1",
        "https://CLIENT.example/client.json",
        "https://münchen.example/client.json",
        "https://client.example/client json",
        "https://client.example/client.json\n",
        "https://client.example\\@127.0.0.1/client.json",
        "https://client.example:0/client.json",
        "https://client.example:65536/client.json",
        "https://client.example:/client.json",
        "https:///client.json",
        "https:client.example/client.json",
        "https://localhost/client.json",
        "https://127.0.0.1/client.json",
        "https://127.1/client.json",
        "https://0x7f.0.0.1/client.json",
        "https://2130706433/client.json",
        "https://[::1]/client.json",
        "https://169.254.169.254/latest/meta-data",
        "https://8.8.8.8/client.json",
        "https://client.example/" + "a" * MAX_CLIENT_ID_CHARS,
    ],
)
async def test_other_addresses_are_refused_without_a_lookup(
    documents: ClientDocuments, host: DocumentHost, client_id: str
) -> None:
    assert "Accepted is an https address" in await fetch_refusal(documents, client_id)
    assert (host.lookups, host.connections) == ([], [])


INTERNAL_ADDRESSES = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "198.18.0.1",
    "192.88.99.1",
    "::",
    "::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "100::1",
    "not an address",
]


@pytest.mark.parametrize("address", [*INTERNAL_ADDRESSES, None])
async def test_a_name_of_an_internal_address_or_of_none_is_refused(
    documents: ClientDocuments, host: DocumentHost, address: str | None
) -> None:
    host.addresses[HOST] = [] if address is None else [*PUBLIC_ADDRESSES, address]
    assert "not on the public internet" in await fetch_refusal(documents)
    assert host.connections == []


async def test_the_address_that_was_checked_is_connected_to(
    documents: ClientDocuments, host: DocumentHost, clock: ManualClock
) -> None:
    await documents.get(CLIENT_ID)
    # A name that changes between check and connection would be looked up a second time.
    assert (host.lookups, host.connections) == ([HOST], [(PUBLIC_ADDRESSES[0], None)])
    host.addresses[HOST] = ["127.0.0.1"]
    clock.now += TTL_S * 1000
    await fetch_refusal(documents)
    assert len(host.connections) == 1


async def test_the_next_address_is_tried_if_one_does_not_answer(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    host.unreachable.add(PUBLIC_ADDRESSES[0])
    assert (await documents.get(CLIENT_ID)).name == "A client"
    assert [address for address, _ in host.connections] == list(PUBLIC_ADDRESSES)


@pytest.mark.clause("11.7")
async def test_a_service_without_outbound_access_says_what_to_do(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    host.addresses[HOST] = [f"93.184.215.{number}" for number in range(20)]
    host.unreachable.update(host.addresses[HOST])
    with capture_logs() as lines:
        message = await fetch_refusal(documents)
    assert "cannot be reached" in message
    assert "outbound access" in message
    assert len(host.connections) == 3
    assert [(line["event"], line["host"]) for line in lines] == [
        ("client_document_unreachable", HOST)
    ]
    assert all(f"93.184.215.{number}: All" in lines[0]["facts"] for number in range(3))
    assert "cannot be resolved" in await fetch_refusal(documents, "https://other.example/a")


async def test_a_proxy_of_the_environment_is_not_used(
    host: DocumentHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    documents = ClientDocuments(clock, host.transport, host.resolve)
    assert (await documents.get(CLIENT_ID)).name == "A client"


@pytest.mark.clause("11.5")
async def test_the_certificate_has_to_name_the_host(
    documents: ClientDocuments, host: DocumentHost
) -> None:
    host.addresses["other.example"] = PUBLIC_ADDRESSES
    client_id = "https://other.example/client.json"
    host.responses["/client.json"] = build_response(DOCUMENT | {"client_id": client_id})
    assert "cannot be reached" in await fetch_refusal(documents, client_id)
    assert host.requests == []


async def test_an_unknown_authority_is_refused(host: DocumentHost, clock: ManualClock) -> None:
    async with open_document_host(["impostor.example"]) as impostor:
        impostor.port = host.port
        documents = ClientDocuments(clock, impostor.transport, host.resolve)
        assert "cannot be reached" in await fetch_refusal(documents)
    assert host.requests == []


@pytest.mark.clause("11.6")
async def test_a_document_is_cached_for_an_hour_and_a_failure_for_a_minute(
    documents: ClientDocuments, host: DocumentHost, clock: ManualClock
) -> None:
    host.responses["/client.json"] = build_response({}, status=500)
    await fetch_refusal(documents)
    host.responses["/client.json"] = build_response(DOCUMENT)
    clock.now += FAILURE_TTL_S * 1000 - 1
    await fetch_refusal(documents)
    clock.now += 1
    assert (await documents.get(CLIENT_ID)).name == "A client"
    host.responses["/client.json"] = build_response(DOCUMENT | {"client_name": "Renamed"})
    clock.now += TTL_S * 1000 - 1
    assert (await documents.get(CLIENT_ID)).name == "A client"
    clock.now += 1
    assert (await documents.get(CLIENT_ID)).name == "Renamed"


async def test_the_number_of_fetches_at_once_is_bounded(
    host: DocumentHost, clock: ManualClock
) -> None:
    released = asyncio.Event()

    async def resolve_later(_: str) -> Sequence[str]:
        await released.wait()
        return []

    documents = ClientDocuments(clock, host.transport, resolve_later)
    ids = [f"https://client.example/{number}" for number in range(MAX_FETCHES + 1)]
    waiting = [asyncio.create_task(documents.get(client_id)) for client_id in ids[:-1]]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await documents.get(ids[-1])
    assert (refused.value.code, refused.value.status) == ("unavailable", 503)
    assert refused.value.retry_after_s == 5
    released.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    # The refusal for lack of room is not cached.
    assert "public internet" in await fetch_refusal(documents, ids[-1])


async def test_the_cache_drops_the_oldest_document(host: DocumentHost, clock: ManualClock) -> None:
    async def find_nothing(host_name: str) -> Sequence[str]:
        host.lookups.append(host_name)
        return []

    documents = ClientDocuments(clock, host.transport, find_nothing)
    ids = [f"https://client{number}.example/c" for number in range(MAX_CACHED + 1)]
    for client_id in ids:
        await fetch_refusal(documents, client_id)
    await fetch_refusal(documents, ids[-1])
    await fetch_refusal(documents, ids[1])
    assert len(host.lookups) == MAX_CACHED + 1
    await fetch_refusal(documents, ids[0])
    assert len(host.lookups) == MAX_CACHED + 2


async def test_hosts_are_resolved_by_the_system() -> None:
    assert await resolve_host("127.0.0.1") == ["127.0.0.1"]
    assert not any(map(is_public, await resolve_host("localhost")))
    with pytest.raises((OSError, UnicodeError)):
        await resolve_host("a" * 64 + ".invalid")


@given(st.ip_addresses())
@example(ip_address("2606:2800:21f::1"))
@example(ip_address("8.8.8.8"))
def test_only_global_addresses_are_public(address: IPv4Address | IPv6Address) -> None:
    if is_public(str(address)):
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=4))
def test_no_address_that_embeds_an_ipv4_address_is_public(address: IPv4Address) -> None:
    number = int(address)
    embedding = (
        0xFFFF << 32 | number,
        number,
        0x64FF9B << 96 | number,
        0x2002 << 112 | number << 80,
        0x20010000 << 96 | number,
    )
    assert [each for each in map(IPv6Address, embedding) if is_public(str(each))] == []

"""OAuth clients: programs that ask a member for access.

A client is known by a metadata document at its client id, or because it registered itself (RFC
7591). All are public clients, without a secret: PKCE protects their codes.
"""

import asyncio
import json
import re
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import httpx2
import structlog

from access.oauth.parameters import (
    ClientMetadata,
    OAuthClientError,
    UnreachableDocumentError,
    parse_client_metadata,
)
from access.single_flight_cache import SingleFlightCache
from access.throttle import Limit, Throttle
from schemas.errors import forget_frames, unavailable_error
from schemas.version import VERSION
from schemas.vocabulary import HOUR_MS, Clock
from store.access_rows import OAuthClient
from store.failure_log import FailureLog
from store.sql.access_store import AccessStore

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host, best first; raises OSError or UnicodeError if it has none."""

# IANA's registries of special-purpose addresses, and 168.63.129.16, where Azure serves metadata.
# The metadata services of the other clouds have link-local, private or shared addresses. The
# `is_global` of the standard library differs between the releases of Python. The last line has
# Teredo and other protocols, documentation, 6to4 (which leads to any IPv4 address), AS112.
_SPECIAL_NETWORKS = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12
192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16
192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20
"""
_NOT_PUBLIC = [ip_network(each) for each in _SPECIAL_NETWORKS.split()]
# IPv4-mapped addresses, NAT64, and local, link-local and multicast ones are outside of it.
_GLOBAL_UNICAST = ip_network("2000::/3")
_LOOKUP_THREADS = ThreadPoolExecutor(8, "resolve-host")


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if ip.version == 6 and ip not in _GLOBAL_UNICAST:
        return False
    return not any(ip in network for network in _NOT_PUBLIC)


async def resolve_host(host: str) -> list[str]:
    """Return the IP addresses of a host, best first; raise OSError if it has none."""
    # In threads of its own, so that lookups that hang delay nothing else.
    lookup = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUP_THREADS, lookup)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


MAX_CLIENT_ID_CHARS = 512
MAX_DOCUMENT_BYTES = 16 * 1024
TIMEOUT_S = 5.0
# One address that does not answer leaves time for the next one, such as IPv4 after IPv6.
CONNECT_TIMEOUT_S = 2.0
MAX_ADDRESSES = 3
MAX_FETCHES = 32
BUSY_RETRY_S = 5
MAX_CACHED = 500
TTL_S, FAILURE_TTL_S = 3600, 60
_CLIENT_ID_PATTERN = re.compile(
    r"https://(?:[a-z0-9-]+\.)+[a-z][a-z0-9-]*(?::[1-9][0-9]{0,4})?"
    r"/(?!\?)[!$%&'()*+,\-./0-9:;=?@A-Z_a-z~]+"
)
# Parsers of addresses also resolve segments with encoded dots.
_DOT_SEGMENT_PATTERN = re.compile(r"/(?:\.|%2e){1,2}(?:[/?]|\Z)", re.I)

log = structlog.get_logger("oauth")


# What a document says, or why it is refused.
_Fetched = ClientMetadata | OAuthClientError


class ClientDocuments:
    """Fetches documents and caches them for an hour, failures for a minute.

    `transport` sends each request to the IP address in its URL. The host name is in its `Host`
    header and in the extension `sni_hostname`, for which the certificate is checked.
    """

    def __init__(
        self,
        clock: Clock,
        transport: httpx2.AsyncBaseTransport | None = None,
        resolve: Resolver = resolve_host,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._cache = SingleFlightCache[_Fetched](
            clock,
            lambda one: 1000 * (TTL_S if isinstance(one, ClientMetadata) else FAILURE_TTL_S),
            MAX_CACHED,
        )
        self._fetches = asyncio.Semaphore(MAX_FETCHES)
        self._failures = FailureLog()

    async def get(self, client_id: str) -> ClientMetadata:
        """Return the metadata that a document says of the client at this address.

        Raise OAuthClientError if it cannot be fetched or is refused, ApiError 503 if too many
        documents are being fetched.
        """
        url = parse_client_id(client_id)
        result = await self._cache.get(client_id, lambda: self._fetch(client_id, url))
        # A copy, because each raise adds its frames to the exception.
        if isinstance(result, OAuthClientError):
            raise type(result)(result.error, result.message)
        return result

    async def close(self) -> None:
        """Close every connection; idempotent."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _fetch(self, client_id: str, url: httpx2.URL) -> _Fetched:
        if self._fetches.locked():
            raise unavailable_error(
                f"Too many clients are being looked up. Try again after {BUSY_RETRY_S} seconds.",
                BUSY_RETRY_S,
            )
        try:
            async with self._fetches, asyncio.timeout(self._timeout_s):
                return await self._fetch_from_host(client_id, url)
        except OAuthClientError as error:
            forget_frames(error)
            return error
        except TimeoutError:
            reason = f"it did not arrive within {self._timeout_s:g} seconds"
            return self._unreachable_error(url.host, reason)

    async def _fetch_from_host(self, client_id: str, url: httpx2.URL) -> ClientMetadata:
        try:
            addresses = await self._resolve(url.host)
        except (OSError, UnicodeError) as error:
            reason = "its host name cannot be resolved"
            raise self._unreachable_error(url.host, reason, str(error)) from None
        # One internal address among public ones is an attack or a mistake, so none is used.
        if not addresses or not all(map(is_public, addresses)):
            raise _refused_error("its host is not on the public internet")
        failures = []
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return _parse_document(client_id, await self._request(url, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failures.append(f"{address}: {error or type(error).__name__}")
            except httpx2.HTTPError as error:
                reason = "the connection failed"
                raise self._unreachable_error(url.host, reason, type(error).__name__) from None
        raise self._unreachable_error(url.host, "its server cannot be reached", "; ".join(failures))

    async def _request(self, url: httpx2.URL, address: str) -> bytes:
        """Return the body of a document, requested from an address that was checked."""
        request = httpx2.Request(
            "GET",
            url.copy_with(host=address),
            headers={
                "Host": url.netloc.decode("ascii"),
                # The next document at this address may belong to another host, for which the
                # certificate of this connection was not checked.
                "Connection": "close",
                "Accept": "application/json",
                # A few compressed bytes can expand to any length, so compression is declined.
                "Accept-Encoding": "identity",
                "User-Agent": f"signals/{VERSION}",
            },
            extensions={
                "sni_hostname": url.host,
                "timeout": httpx2.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S).as_dict(),
            },
        )
        # Created for the first fetch, because reading the trusted certificates takes 0.1 s.
        if self._transport is None:
            self._transport = create_transport(ssl.create_default_context())
        # Without an httpx2 client, which would follow redirects and keep cookies.
        response = await self._transport.handle_async_request(request)
        try:
            status, headers = response.status_code, response.headers
            if 300 <= status < 400:
                raise _refused_error("its server redirects to another address")
            if status in (404, 410):
                raise _refused_error(f"its server answers with status {status}")
            content_type = headers.get("content-type", "").partition(";")[0].strip()
            is_json = re.fullmatch(r"application/(?:[a-z0-9.-]+\+)?json", content_type, re.I)
            # A page that only browsers pass, which large hosts show to many data centres.
            if "cf-mitigated" in headers or (not is_json and content_type == "text/html"):
                reason = f"its server answers with status {status} and a page for browsers"
                names = ("server", "cf-mitigated", "content-type")
                facts = ((name, headers.get(name, "")[:40]) for name in names)
                seen = ", ".join(f"{name}: {value!a}" for name, value in facts if value)
                raise self._unreachable_error(url.host, reason, f"challenge page ({seen})")
            if status != 200:
                raise self._unreachable_error(url.host, f"its server answers with status {status}")
            if not is_json:
                raise _refused_error("its content type is not application/json")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise _refused_error("it is compressed, which the request declined")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_DOCUMENT_BYTES:
                    raise _refused_error(f"it has more than {MAX_DOCUMENT_BYTES} bytes")
            return bytes(body)
        finally:
            await response.aclose()

    def _unreachable_error(
        self, host: str, problem: str, facts: str = ""
    ) -> UnreachableDocumentError:
        # For the operator: the service may lack outbound access.
        self._failures.write(
            log.warning, "client_document_unreachable", {"host": host, "why": problem}, facts=facts
        )
        return UnreachableDocumentError(
            "invalid_client",
            f"The client's metadata document could not be fetched, because {problem}. Try again "
            f"after {FAILURE_TTL_S} seconds. If that fails too, this service may have no outbound "
            "access: ask its operator, or use a client that registers itself.",
        )


def create_transport(ssl_context: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    """Return a transport that neither uses proxies nor keeps connections."""
    # A proxy would resolve names itself, and could reach the internal network.
    return httpx2.AsyncHTTPTransport(
        verify=ssl_context,
        trust_env=False,
        limits=httpx2.Limits(max_connections=MAX_FETCHES, max_keepalive_connections=0),
    )


def parse_client_id(client_id: str) -> httpx2.URL:
    """Return the address of a document; raise OAuthClientError if it is not acceptable."""
    if (
        len(client_id) <= MAX_CLIENT_ID_CHARS
        and _CLIENT_ID_PATTERN.fullmatch(client_id)
        and not _DOT_SEGMENT_PATTERN.search(client_id.partition("?")[0])
    ):
        url = httpx2.URL(client_id)
        if (url.port or 0) <= 65_535:
            return url
    raise OAuthClientError(
        "invalid_client",
        "The client id is not acceptable. Accepted is an https address with a domain name in lower "
        "case and a path, without user name, fragment and dot segments, of at most "
        f"{MAX_CLIENT_ID_CHARS} ASCII characters.",
    )


def _parse_document(client_id: str, body: bytes) -> ClientMetadata:
    try:
        document: Any = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _refused_error("it is not JSON") from None
    metadata = parse_client_metadata(document)
    if document.get("client_id") != client_id:
        raise _refused_error("its client_id is not the address that it was fetched from")
    # A document is public, so it can't hold a secret, and the service checks no signatures of
    # clients. ChatGPT's names `private_key_jwt` as its method, and `none` among those it supports.
    if metadata.auth_methods and "none" not in metadata.auth_methods:
        raise _refused_error("its token_endpoint_auth_method is not none")
    return metadata


def _refused_error(problem: str) -> OAuthClientError:
    return OAuthClientError(
        "invalid_client",
        f"The client's metadata document is refused, because {problem}. The developer of the "
        "client has to fix the document.",
    )


_LOCAL_CALLBACKS = ("http://127.0.0.1/callback", "http://localhost/callback")
# The documents of large hosts as of 2026-09-24, for services whose network the hosts refuse.
KNOWN_CLIENTS = {
    client_id: OAuthClient(client_id, name, redirect_uris)
    for client_id, name, redirect_uris in (
        (
            "https://claude.ai/oauth/mcp-oauth-client-metadata",
            "Claude",
            ("https://claude.ai/api/mcp/auth_callback",),
        ),
        (
            "https://claude.ai/oauth/claude-code-client-metadata",
            "Claude Code",
            _LOCAL_CALLBACKS,
        ),
        (
            "https://chatgpt.com/oauth/client.json",
            "ChatGPT",
            ("https://chatgpt.com/connector_platform_oauth_redirect",),
        ),
        ("https://chatgpt.com/oauth/codex/client.json", "Codex", _LOCAL_CALLBACKS),
        (
            "https://vscode.dev/oauth/client-metadata.json",
            "Visual Studio Code",
            ("http://127.0.0.1:33418/", "https://vscode.dev/redirect"),
        ),
        ("https://zed.dev/oauth/client-metadata.json", "Zed", _LOCAL_CALLBACKS[:1]),
        ("https://opencode.ai/oauth/opencode/client.json", "OpenCode", _LOCAL_CALLBACKS),
    )
}


# All clients together register at most 9,000 times an hour (see Throttle), so even they leave room,
# because those that nobody used for an hour are deleted when the store is full. Documents are kept
# only while the store is not half full, so ever new ones keep no client from registering.
REGISTRATION_LIMIT = Limit(30, 600)
MAX_CLIENTS = 10_000
MAX_DOCUMENTS = MAX_CLIENTS // 2
UNUSED_MS = HOUR_MS
FULL_RETRY_S = 600
# A registration that asks for a shared secret gets `none` instead, which RFC 7591 (section 3.2.1)
# allows. The program then works as a public client.
_REPLACED_METHODS = frozenset({"client_secret_basic", "client_secret_post", "none"})
_REGISTERED_ID_PATTERN = re.compile(r"oc_[A-Za-z0-9_-]{32}")


class ClientRegistry:
    """Finds and registers clients; `clock` returns epoch ms.

    Without `documents`, only clients that registered themselves are found.
    """

    def __init__(self, store: AccessStore, documents: ClientDocuments | None, clock: Clock) -> None:
        self._store = store
        self.documents = documents
        self._throttle = Throttle(store, clock, "client-registration", REGISTRATION_LIMIT)
        self._clock = clock

    async def find(self, client_id: str) -> OAuthClient | None:
        """Return a client, None if its id is neither registered nor an https address.

        An address is fetched, unless its document is cached. If that fails, the last good document
        is used, or the one that ships with the service. Raise OAuthClientError if there is none or
        the document is refused, ApiError 503 if too many documents are being fetched. The token
        endpoint need not call this for codes and tokens, which are bound to the client id.
        """
        if client_id.startswith("https://"):
            if self.documents is None:
                raise OAuthClientError(
                    "invalid_client",
                    "This server accepts no metadata documents of clients, as its metadata says: "
                    "the client has to register itself.",
                )
            try:
                metadata = await self.documents.get(client_id)
            except UnreachableDocumentError:
                kept = await self._store.oauth.find_client(client_id)
                if (known := kept or KNOWN_CLIENTS.get(client_id)) is None:
                    raise
                return known
            now = self._clock()
            client = OAuthClient(client_id, metadata.name, metadata.redirect_uris, now)
            kept = await self._store.oauth.find_client(client_id)
            if kept is None or replace(kept, created_at=now) != client:
                await self._store.oauth.add_client(client, MAX_DOCUMENTS, now - UNUSED_MS)
            return client
        # PostgreSQL fails on some texts, such as NUL, that are no id of ours.
        is_ours = _REGISTERED_ID_PATTERN.fullmatch(client_id)
        return await self._store.oauth.find_client(client_id) if is_ours else None

    async def register(self, metadata: object, address: str) -> OAuthClient:
        """Register a client from a decoded JSON body; `address` is the sender's IP address.

        Raise OAuthClientError if the metadata is refused, ApiError 429 if the address registered
        too many clients, 503 if the store is full.
        """
        accepted = parse_client_metadata(metadata)
        if accepted.auth_methods and not accepted.auth_methods & _REPLACED_METHODS:
            raise OAuthClientError(
                "invalid_client_metadata",
                "token_endpoint_auth_method must be none: this server has public clients only, "
                "whose codes PKCE protects.",
            )
        # Only valid metadata counts: a client that is refused can be fixed and sent again.
        await self._throttle.take_attempt(address)
        now = self._clock()
        client = OAuthClient(
            f"oc_{secrets.token_urlsafe(24)}", accepted.name, accepted.redirect_uris, now
        )
        if not await self._store.oauth.add_client(client, MAX_CLIENTS, now - UNUSED_MS):
            raise unavailable_error(
                "The client was not registered, because too many clients are registered. "
                f"Retry after {FULL_RETRY_S} seconds.",
                FULL_RETRY_S,
            )
        return client


def describe_registration(client: OAuthClient) -> dict[str, object]:
    """Return the response body of a registration (RFC 7591, section 3.2.1).

    Absent fields are left out, because some clients refuse null. There is no secret, and so no
    `client_secret_expires_at`.
    """
    assert client.created_at is not None, "a known document is not a registration"
    return {
        "client_id": client.client_id,
        "client_id_issued_at": client.created_at // 1000,
        "client_name": client.name,
        "redirect_uris": list(client.redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }

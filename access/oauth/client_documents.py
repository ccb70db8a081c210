"""Fetches Client ID Metadata Documents, by which clients describe themselves at an https address.

Anyone can name an address here, before signing in. So a fetch reaches only public addresses, and
its time, its size and the number of fetches at once are bounded.
"""

import asyncio
import json
import re
import ssl
from dataclasses import dataclass
from typing import Any

import httpx2
import structlog

from access.oauth.client_metadata import ClientMetadata, parse_client_metadata
from access.oauth.errors import OAuthClientError
from access.oauth.public_addresses import HostResolver, Resolver, is_public
from access.single_flight_cache import SingleFlightCache
from schemas.clock import Clock
from schemas.errors import unavailable_error
from schemas.version import VERSION

MAX_CLIENT_ID_CHARS = 512
MAX_PORT = 65_535
MAX_DOCUMENT_BYTES = 16 * 1024
TIMEOUT_S = 5.0
# One address that does not answer leaves time for the next one, such as IPv4 after IPv6.
CONNECT_TIMEOUT_S = 2.0
MAX_ADDRESSES = 3
MAX_FETCHES = 32
BUSY_RETRY_S = 5
MAX_CACHED = 500
MIN_TTL_S, DEFAULT_TTL_S, MAX_TTL_S = 300, 3600, 86_400
FAILURE_TTL_S = 60
ACCEPTED_CLIENT_IDS = (
    "an https address with a domain name in lower case and a path, without user name, fragment and "
    f"dot segments, of at most {MAX_CLIENT_ID_CHARS} ASCII characters"
)
_CLIENT_ID_PATTERN = re.compile(
    r"https://(?:[a-z0-9-]+\.)+[a-z][a-z0-9-]*(?::[1-9][0-9]{0,4})?/[!$%&'()*+,\-./0-9:;=?@A-Z_a-z~]+"
)
# Parsers of addresses also resolve segments with encoded dots.
_DOT_SEGMENT_PATTERN = re.compile(r"/(?:\.|%2e){1,2}(?:[/?]|\Z)", re.I)
_JSON_TYPE_PATTERN = re.compile(r"application/(?:[a-z0-9.-]+\+)?json", re.I)
_MAX_AGE_PATTERN = re.compile(r"(?:^|[,\s])max-age=\"?([0-9]{1,9})", re.I)

log = structlog.get_logger("oauth")


@dataclass(frozen=True, slots=True)
class _Fetched:
    result: ClientMetadata | OAuthClientError
    ttl_s: int


class ClientDocuments:
    """Fetches documents and caches them, for as long as their server says within bounds.

    `transport` sends each request to the IP address in its URL. The host name is in its `Host`
    header and in the extension `sni_hostname`, for which the certificate is checked.
    """

    def __init__(
        self,
        clock: Clock,
        transport: httpx2.AsyncBaseTransport | None = None,
        resolve: Resolver | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._transport = transport
        self._resolve = resolve or HostResolver()
        self._timeout_s = timeout_s
        self._cache = SingleFlightCache[_Fetched](
            clock, lambda fetched: fetched.ttl_s * 1000, MAX_CACHED
        )
        self._fetching = 0

    async def get(self, client_id: str) -> ClientMetadata:
        """Return the metadata that a document says of the client at this address.

        Raise OAuthClientError if it cannot be fetched or is refused, ApiError 503 if too many
        documents are being fetched.
        """
        url = parse_client_id(client_id)
        fetched = await self._cache.get(client_id, lambda: self._fetch(client_id, url))
        if isinstance(fetched.result, OAuthClientError):
            raise OAuthClientError(fetched.result.error, fetched.result.message)
        return fetched.result

    async def close(self) -> None:
        """Close every connection; idempotent."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _fetch(self, client_id: str, url: httpx2.URL) -> _Fetched:
        if self._fetching >= MAX_FETCHES:
            raise unavailable_error(
                f"Too many clients are being looked up. Try again after {BUSY_RETRY_S} seconds.",
                BUSY_RETRY_S,
            )
        self._fetching += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch_from_host(client_id, url)
        except OAuthClientError as error:
            return _Fetched(error, FAILURE_TTL_S)
        except TimeoutError:
            reason = f"it did not arrive within {self._timeout_s:g} seconds"
            return _Fetched(_unreachable_error(reason), FAILURE_TTL_S)
        finally:
            self._fetching -= 1

    async def _fetch_from_host(self, client_id: str, url: httpx2.URL) -> _Fetched:
        for address in await self._find_addresses(url.host):
            try:
                response, body = await self._request(url, address)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                # For the operator: the service may lack outbound access.
                log.warning("client_document_unreachable", host=url.host, why=str(error))
                continue
            except httpx2.HTTPError:
                raise _unreachable_error("the connection failed") from None
            return _Fetched(_parse_document(client_id, body), _find_ttl_s(response))
        raise _unreachable_error("its server cannot be reached")

    async def _find_addresses(self, host: str) -> list[str]:
        """Return the first addresses of a host; raise OAuthClientError unless all are public."""
        try:
            found = await self._resolve(host)
        except (OSError, UnicodeError) as error:
            log.warning("client_document_unreachable", host=host, why=str(error))
            raise _unreachable_error("its host name cannot be resolved") from None
        # One internal address among public ones is an attack or a mistake, so none is used.
        if not found or not all(map(is_public, found)):
            raise _refused_error("its host is not on the public internet")
        return list(found[:MAX_ADDRESSES])

    async def _request(self, url: httpx2.URL, address: str) -> tuple[httpx2.Response, bytes]:
        """Request a document from an address that was checked, and return head and body."""
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
        # The transport alone: a client would follow redirects and keep cookies.
        # Created for the first fetch, because reading the trusted certificates takes 0.1 s.
        if self._transport is None:
            self._transport = create_transport(ssl.create_default_context())
        response = await self._transport.handle_async_request(request)
        try:
            _check_head(response)
            return response, await _read_body(response)
        finally:
            await response.aclose()


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
        if (url.port or 0) <= MAX_PORT:
            return url
    raise OAuthClientError(
        "invalid_client", f"The client id is not acceptable. Accepted is {ACCEPTED_CLIENT_IDS}."
    )


def _check_head(response: httpx2.Response) -> None:
    if 300 <= response.status_code < 400:
        raise _refused_error("its server redirects to another address")
    if response.status_code != 200:
        raise _refused_error(f"its server answers with status {response.status_code}")
    content_type = response.headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON_TYPE_PATTERN.fullmatch(content_type):
        raise _refused_error("its content type is not application/json")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _refused_error("it is compressed, which the request declined")


async def _read_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_DOCUMENT_BYTES:
            raise _refused_error(f"it has more than {MAX_DOCUMENT_BYTES} bytes")
    return bytes(body)


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


def _find_ttl_s(response: httpx2.Response) -> int:
    cache_control = response.headers.get("cache-control", "").lower()
    if "no-store" in cache_control or "no-cache" in cache_control:
        return MIN_TTL_S
    max_age = _MAX_AGE_PATTERN.search(cache_control)
    ttl_s = DEFAULT_TTL_S if max_age is None else int(max_age[1])
    return min(max(ttl_s, MIN_TTL_S), MAX_TTL_S)


def _refused_error(problem: str) -> OAuthClientError:
    return OAuthClientError(
        "invalid_client",
        f"The client's metadata document is refused, because {problem}. The developer of the "
        "client has to fix the document.",
    )


def _unreachable_error(problem: str) -> OAuthClientError:
    return OAuthClientError(
        "invalid_client",
        f"The client's metadata document could not be fetched, because {problem}. Try again after "
        f"{FAILURE_TTL_S} seconds. If that fails too, this service may have no outbound access: "
        "ask its operator, or use a client that registers itself.",
    )

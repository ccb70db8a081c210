"""OAuth clients: programs that ask a member for access.

A client is known by a metadata document at its client id, or because it registered itself (RFC
7591). All are public clients, without a secret: PKCE protects their codes.
"""

import secrets
from dataclasses import dataclass

from access.oauth.client_documents import ClientDocuments
from access.oauth.client_metadata import parse_client_metadata
from access.oauth.errors import OAuthClientError
from access.oauth.redirects import matches_redirect_uri
from access.throttle import Limit, Throttle
from schemas.clock import Clock
from schemas.errors import unavailable_error
from schemas.vocabulary import HOUR_MS
from store.oauth_rows import OAuthClientRow
from store.sql.access_store import AccessStore

# All clients together register at most 9,000 times an hour (see Throttle), so even they leave room,
# because those that nobody used for an hour are deleted when the store is full.
REGISTRATION_LIMIT = Limit(30, 600)
MAX_CLIENTS = 10_000
UNUSED_MS = HOUR_MS
FULL_RETRY_S = 600
GRANT_TYPES = ("authorization_code", "refresh_token")
# A registration that asks for a shared secret gets `none` instead, which RFC 7591 (section 3.2.1)
# allows. The program then works as a public client.
_REPLACED_METHODS = frozenset({"client_secret_basic", "client_secret_post", "none"})


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client and what it says of itself: `name` is cleaned, but unverified text.

    `created_at` (epoch ms) is None for a client that a document describes.
    """

    client_id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int | None = None

    def allows_redirect(self, uri: str) -> bool:
        """Return whether a request may name this redirect URI; any port fits a loopback one."""
        return any(matches_redirect_uri(each, uri) for each in self.redirect_uris)


class ClientRegistry:
    """Finds and registers clients; `clock` returns epoch ms."""

    def __init__(self, store: AccessStore, documents: ClientDocuments, clock: Clock) -> None:
        self._store = store
        self._documents = documents
        self._throttle = Throttle(store, clock, "client-registration", REGISTRATION_LIMIT)
        self._clock = clock

    async def find(self, client_id: str) -> OAuthClient | None:
        """Return a client, None if its id is neither registered nor an https address.

        An address is fetched, unless its document is cached. Raise OAuthClientError if that fails
        or the document is refused, ApiError 503 if too many documents are being fetched. The token
        endpoint need not call this for codes and tokens, which are bound to the client id.
        """
        if client_id.startswith("https://"):
            metadata = await self._documents.get(client_id)
            return OAuthClient(client_id, metadata.name, metadata.redirect_uris)
        row = await self._store.oauth.find_client(client_id)
        return row and OAuthClient(row.client_id, row.name, row.redirect_uris, row.created_at)

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
        row = OAuthClientRow(
            f"oc_{secrets.token_urlsafe(24)}", accepted.name, accepted.redirect_uris, now
        )
        if not await self._store.oauth.add_client(row, MAX_CLIENTS, now - UNUSED_MS):
            raise unavailable_error(
                "The client was not registered, because too many clients are registered. "
                f"Retry after {FULL_RETRY_S} seconds.",
                FULL_RETRY_S,
            )
        return OAuthClient(row.client_id, row.name, row.redirect_uris, now)


def describe_registration(client: OAuthClient) -> dict[str, object]:
    """Return the response body of a registration (RFC 7591, section 3.2.1).

    Absent fields are left out, because some clients refuse null. There is no secret, and so no
    `client_secret_expires_at`.
    """
    assert client.created_at is not None, "a document is not a registration"
    return {
        "client_id": client.client_id,
        "client_id_issued_at": client.created_at // 1000,
        "client_name": client.name,
        "redirect_uris": list(client.redirect_uris),
        "grant_types": list(GRANT_TYPES),
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }

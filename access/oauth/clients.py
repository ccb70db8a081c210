"""OAuth clients: programs that ask a member for access, known by a document or by registration."""

from dataclasses import dataclass
from typing import Literal

from access.oauth.redirects import matches_redirect_uri

ClientErrorCode = Literal["invalid_client", "invalid_client_metadata", "invalid_redirect_uri"]


class OAuthClientError(Exception):
    """A client that cannot be used, or a registration that is refused.

    `error` is the code of RFC 6749 or RFC 7591, the message says what to do next. The message may
    be shown to the user. It contains no text of the client other than its redirect URI or id.
    """

    def __init__(self, error: ClientErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client and what it says of itself: `name` is unverified text, cleaned and at most 80 chars.

    `created_at` (epoch ms) is None for a client that a document at `client_id` describes; nothing
    of that client is stored. All clients are public: none has a secret.
    """

    client_id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int | None = None

    def allows_redirect(self, uri: str) -> bool:
        """Return whether a request may name this redirect URI; any port fits a loopback one."""
        return any(matches_redirect_uri(each, uri) for each in self.redirect_uris)


class ClientRegistry:
    """Finds and registers OAuth clients."""

    async def find(self, client_id: str) -> OAuthClient | None:
        """Return a client, None if it is unknown: neither registered nor an https address.

        Fetch the document of a client whose id is an https address, unless it is cached. Raise
        OAuthClientError `invalid_client` if the document cannot be fetched or is refused, ApiError
        503 if too many documents are being fetched.

        The token endpoint need not call this for tokens and codes: they are bound to the client id.
        """
        raise NotImplementedError

    async def register(self, metadata: object, address: str) -> OAuthClient:
        """Register a client from a decoded JSON body (RFC 7591); `address` is the IP address.

        Raise OAuthClientError if the metadata is refused, ApiError 429 if the client made too many
        registrations, 503 if the store holds too many clients.
        """
        raise NotImplementedError


def describe_registration(client: OAuthClient) -> dict[str, object]:
    """Return the response body of a registration (RFC 7591, section 3.2.1), without nulls."""
    raise NotImplementedError

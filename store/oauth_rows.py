"""Rows of OAuth in the access store: clients, requests, connections and tokens, in epoch ms."""

from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

RedeemOutcome = Literal["connected", "spent", "full"]
RenewOutcome = Literal["renewed", "replayed", "busy", "ended"]


@dataclass(frozen=True, slots=True)
class OAuthClientRow:
    """A client that registered itself; `name` is unverified text."""

    client_id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int


@dataclass(frozen=True, slots=True)
class PendingAuthorization:
    """A valid request of a client for access, which waits for a person's consent.

    `id` cannot be guessed; only its SHA-256 is stored. `client_name` is unverified text.
    `redirect_uri` is one that the client may use. `state` is the client's own value, which it gets
    back unchanged.
    """

    id: str
    client_id: str
    client_name: str
    redirect_uri: str
    state: str | None
    resource: str
    code_challenge: str
    created_at: int

    @property
    def redirect_host(self) -> str:
        """The host that the browser is sent to, or the private scheme with a colon, `cursor:`."""
        parts = urlsplit(self.redirect_uri)
        return (parts.hostname or "") if parts.scheme in {"http", "https"} else f"{parts.scheme}:"


class ApprovedAuthorization(NamedTuple):
    """An approved request whose code has not been exchanged.

    `membership_id` is None if the owner of the service approved it.
    """

    client_id: str
    client_name: str
    redirect_uri: str
    resource: str
    code_challenge: str
    approved_at: int
    membership_id: int | None


class NewTokens(NamedTuple):
    """The tokens that an exchange returns, as hashes, and when they expire (epoch ms)."""

    refresh_hash: bytes
    refresh_expires_at: int
    access_hash: bytes
    access_expires_at: int


class ConnectionRow(NamedTuple):
    """A connection of a client, whose key says whether it is live."""

    key_id: int
    client_id: str
    resource: str


class AccessTokenRow(NamedTuple):
    """An access token: the key that counts its calls, and the client that holds it."""

    key_id: int
    key_hash: bytes
    client_id: str
    resource: str
    expires_at: int

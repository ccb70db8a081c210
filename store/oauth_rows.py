"""Rows of OAuth in the access store: clients, authorization requests and codes; times are epoch ms."""

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class OAuthClientRow:
    """A dynamically registered client; `name` is what it called itself, which nobody verified."""

    client_id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int


@dataclass(frozen=True, slots=True)
class PendingAuthorization:
    """A valid request of a client for access, which waits for a person's consent.

    `id` cannot be guessed; only its SHA-256 is stored. `redirect_uri` is one that the client may
    use. `state` is the client's own value, returned to it unchanged.
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
        """The host that the browser is sent to, or the private scheme (`cursor:`)."""
        parts = urlsplit(self.redirect_uri)
        return parts.hostname or "" if parts.scheme in {"http", "https"} else f"{parts.scheme}:"

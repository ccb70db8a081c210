"""What a client says of itself, in a registration (RFC 7591) or a Client ID Metadata Document."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from access.oauth.errors import OAuthClientError
from access.oauth.redirects import ACCEPTED_REDIRECTS, is_redirect_uri

MAX_REDIRECT_URIS = 10
MAX_NAME_CHARS = 80
UNNAMED = "Unnamed program"


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The metadata that the service uses; all other fields are ignored, whatever they hold.

    `name` is cleaned, but unverified. `auth_methods` are those that the client offers to use at the
    token endpoint; it is empty if the client does not say.
    """

    name: str
    redirect_uris: tuple[str, ...]
    auth_methods: frozenset[str]


def parse_client_metadata(data: object) -> ClientMetadata:
    """Return the metadata in a decoded JSON document; raise OAuthClientError if it is refused."""
    # The model of the MCP SDK is not used, because it rewrites the redirect URIs that it parses.
    if not isinstance(data, dict):
        raise _metadata_error("the client metadata must be a JSON object")
    _check_offers(data, "grant_types", "authorization_code")
    _check_offers(data, "response_types", "code")
    methods = _read_texts(data, "token_endpoint_auth_methods_supported") or ()
    method = _read_text(data, "token_endpoint_auth_method")
    return ClientMetadata(
        name=clean_name(_read_text(data, "client_name") or ""),
        redirect_uris=_read_redirect_uris(data),
        auth_methods=frozenset(methods if method is None else (*methods, method)),
    )


def clean_name(text: str) -> str:
    """Return a client's name on one line, without characters that hide or reorder others."""
    # Cut first: the work must not grow with the length. The categories that isprintable rejects
    # include control characters, line ends, and the marks that reverse the direction of text.
    characters = unicodedata.normalize("NFC", text[: MAX_NAME_CHARS * 4])
    words = "".join(each if each.isprintable() else " " for each in characters).split()
    return " ".join(words)[:MAX_NAME_CHARS].rstrip() or UNNAMED


def _read_redirect_uris(data: Mapping[str, Any]) -> tuple[str, ...]:
    uris = _read_texts(data, "redirect_uris") or ()
    if not 1 <= len(uris) <= MAX_REDIRECT_URIS:
        raise OAuthClientError(
            "invalid_redirect_uri",
            f"redirect_uris must list 1 to {MAX_REDIRECT_URIS} addresses. Accepted is "
            f"{ACCEPTED_REDIRECTS}.",
        )
    for number, uri in enumerate(uris, 1):
        if not is_redirect_uri(uri):
            raise OAuthClientError(
                "invalid_redirect_uri",
                f"Entry {number} of redirect_uris is not accepted. Accepted is "
                f"{ACCEPTED_REDIRECTS}.",
            )
    return tuple(dict.fromkeys(uris))


def _check_offers(data: Mapping[str, Any], field: str, needed: str) -> None:
    values = _read_texts(data, field)
    if values and needed not in values:
        raise _metadata_error(f"{field} must include {needed}, the only one that is supported")


def _read_text(data: Mapping[str, Any], field: str) -> str | None:
    # Clients also send null or an empty text for a field that they leave out.
    value = data.get(field) or None
    if value is None or isinstance(value, str):
        return value
    raise _metadata_error(f"{field} must be a text")


def _read_texts(data: Mapping[str, Any], field: str) -> tuple[str, ...] | None:
    value = data.get(field)
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise _metadata_error(f"{field} must be a list of texts")


def _metadata_error(problem: str) -> OAuthClientError:
    return OAuthClientError("invalid_client_metadata", f"Send other client metadata: {problem}.")

"""Authorization requests of clients, stored as the authorization endpoint stores them."""

import secrets
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import httpx

from access.keys import hash_key
from store.oauth_rows import PendingAuthorization
from tests.support.running_service import RunningService

HOST = "host.example"
REDIRECT_URI = f"https://{HOST}/callback"
# RFC 7636, appendix B.
CHALLENGE = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


async def add_request(served: RunningService, **changed: str | None) -> PendingAuthorization:
    """Store a request of a client of `host.example`, with some of its values changed."""
    usual = PendingAuthorization(
        id=secrets.token_urlsafe(32),
        client_id="client-1",
        client_name="Desk Assistant",
        redirect_uri=REDIRECT_URI,
        state="st&te",
        resource=f"{served.base_url}/mcp",
        code_challenge=CHALLENGE,
        created_at=served.clock(),
    )
    request = replace(usual, **changed)
    await served.access.oauth.add_request(request, hash_key(request.id), 0)
    return request


def build_path(request: PendingAuthorization) -> str:
    """Return the path of a request's consent page."""
    return f"/oauth/consent?request={request.id}"


def read_redirect(answer: httpx.Response, redirect_uri: str = REDIRECT_URI) -> dict[str, str]:
    """Return the parameters that a response sends the browser to the client with."""
    assert answer.status_code == 303, answer.text
    url = answer.headers["location"]
    assert url.startswith(f"{redirect_uri}?")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    return dict(parse_qsl(urlsplit(url).query))

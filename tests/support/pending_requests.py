"""Programs that ask for access: a request that is stored, or a client that sends it over HTTP."""

import secrets
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import httpx

from access.keys import hash_key
from store.access_rows import PendingAuthorization
from tests.support.running_service import RunningService

HOST = "host.example"
REDIRECT_URI = f"https://{HOST}/callback"
# RFC 7636, appendix B.
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
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


async def begin_request(
    served: RunningService, browser: httpx.AsyncClient, name: str = "Desk Assistant"
) -> tuple[str, str]:
    """Register a client and open its request in a browser; return its id and the consent path."""
    metadata = {"client_name": name, "redirect_uris": [REDIRECT_URI]}
    registered = await served.client.post("/oauth/register", json=metadata)
    assert registered.status_code == 201, registered.text
    client_id = registered.json()["client_id"]
    sent = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": REDIRECT_URI,
        "state": "st&te",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        "resource": f"{served.base_url}/mcp",
    }
    answer = await browser.get("/oauth/authorize", params=sent)
    assert answer.status_code == 303, answer.text
    return client_id, answer.headers["location"].removeprefix(served.base_url)


async def exchange_code(served: RunningService, client_id: str, code: str) -> str:
    """Exchange a code for an access token, as the client that began the request."""
    sent = {
        "grant_type": "authorization_code",
        "client_id": client_id,
        "code": code,
        "redirect_uri": REDIRECT_URI,
        "code_verifier": VERIFIER,
        "resource": f"{served.base_url}/mcp",
    }
    answer = await served.client.post("/oauth/token", data=sent)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


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

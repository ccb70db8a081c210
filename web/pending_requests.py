"""The authorization request that a browser is about to answer, remembered in a cookie.

The cookie and all our links hold only the request's id, which nobody can guess. The address that
the browser is sent to at the end is the one that the request stores, so no URL can change it.
"""

from urllib.parse import urlsplit

from starlette.responses import Response

from access.oauth.authorizations import Authorizations
from access.oauth.parameters import is_loopback_redirect
from schemas.errors import ApiError
from store.access_rows import PendingAuthorization
from web.forms import Cookie
from web.pages import SECURITY_HEADERS

CONSENT_PATH = "oauth/consent"
# The cookie outlives the request, which the store deletes after an hour.
COOKIE_MAX_AGE_S = 3600


class PendingRequests:
    """Finds the authorization requests that pages name; the cookie needs TLS if `base_url` does.

    `cookie` has the id of a request, so that the browser returns to it after signing in and paying.
    Without `authorizations`, the service has no OAuth and there are no requests.
    """

    def __init__(self, authorizations: Authorizations | None, base_url: str) -> None:
        self._authorizations = authorizations
        self.cookie = Cookie("signals_request", base_url, COOKIE_MAX_AGE_S)

    async def find(self, request_id: str) -> PendingAuthorization | None:
        """Return a request, None if it is unknown, answered or has expired."""
        if self._authorizations is None or not request_id:
            return None
        return await self._authorizations.find_pending(request_id)

    async def get(self, request_id: str) -> PendingAuthorization:
        """Return a request; raise ApiError 404 if there is none, see `find`."""
        pending = await self.find(request_id)
        if pending is None:
            raise ApiError(
                "invalid_parameter",
                "This request to connect a program is unknown, has expired or was already "
                "answered. Go back to the program and start the connection again.",
                404,
            )
        return pending


def build_consent_path(pending: PendingAuthorization) -> str:
    """Return the path of a request's consent page, relative to the service's root."""
    return f"{CONSENT_PATH}?request={pending.id}"


def allow_redirect(response: Response, pending: PendingAuthorization) -> None:
    """Let the forms of a page lead to the client of a request."""
    # Browsers apply `form-action` to the redirect after the form, and to those of the client's page
    # that follow it. So the policy allows the scheme: a host could not be told beforehand.
    scheme = urlsplit(pending.redirect_uri).scheme
    response.headers["Content-Security-Policy"] = SECURITY_HEADERS[
        "Content-Security-Policy"
    ].replace("form-action 'self'", f"form-action 'self' https: {scheme}:")


def describe_client(pending: PendingAuthorization) -> dict[str, str | None]:
    """Describe the client of a request as a page shows it.

    `name` is the client's own text, unverified but cleaned by `ClientRegistry`: pages escape and
    isolate it. The hosts, `destination` and `described_at`, are facts.
    """
    if is_loopback_redirect(pending.redirect_uri):
        destination = "a program on this computer"
    elif pending.redirect_host.endswith(":"):
        destination = f"the program on this computer that opens {pending.redirect_host} links"
    else:
        destination = pending.redirect_host
    # The id of a client that a document describes is the document's address.
    is_document = pending.client_id.startswith("https://")
    described_at = urlsplit(pending.client_id).hostname if is_document else None
    return {
        "name": pending.client_name,
        "destination": destination,
        "described_at": described_at,
    }

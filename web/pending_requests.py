"""The authorization request that a browser is about to answer, remembered in a cookie.

The cookie and all our links hold only the request's id, which nobody can guess. The address that
the browser is sent to at the end is the one that the request stores, so no URL can change it.
"""

from starlette.requests import Request
from starlette.responses import Response

from access.oauth.authorizations import Authorizations
from schemas.errors import ApiError
from store.oauth_rows import PendingAuthorization

CONSENT_PATH = "oauth/consent"
# The cookie outlives the request, which the store deletes after an hour.
COOKIE_MAX_AGE_S = 3600


class PendingRequests:
    """Finds the authorization requests that pages name; the cookie needs TLS if `base_url` does.

    Without `authorizations`, the service has no OAuth and there are no requests.
    """

    def __init__(self, authorizations: Authorizations | None, base_url: str) -> None:
        self._authorizations = authorizations
        self._is_secure = base_url.startswith("https://")
        self._cookie_name = "__Host-signals_request" if self._is_secure else "signals_request"

    async def find(self, request_id: str) -> PendingAuthorization | None:
        """Return a request, None if it is unknown, answered or has expired."""
        if self._authorizations is None:
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

    async def find_of_browser(self, request: Request) -> PendingAuthorization | None:
        """Return the request that this browser began and has not answered yet, or None."""
        request_id = request.cookies.get(self._cookie_name)
        return await self.find(request_id) if request_id else None

    def is_of_browser(self, request: Request, pending: PendingAuthorization) -> bool:
        """Return whether this browser began a request."""
        return request.cookies.get(self._cookie_name) == pending.id

    def remember(self, response: Response, pending: PendingAuthorization) -> None:
        """Let the browser return to a request after signing in and paying."""
        # `lax`: the cookie is needed when the payment processor's page or a mail leads back here.
        response.set_cookie(
            self._cookie_name,
            pending.id,
            max_age=COOKIE_MAX_AGE_S,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    def forget(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(
            self._cookie_name, secure=self._is_secure, httponly=True, samesite="lax"
        )


def build_consent_path(pending: PendingAuthorization) -> str:
    """Return the path of a request's consent page, relative to the service's root."""
    return f"{CONSENT_PATH}?request={pending.id}"

"""`/oauth/authorize`: checks a client's request and sends the browser to the consent page."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from access.oauth.authorizations import Authorizations
from rest_shim.oauth import AUTHORIZE_PATH
from serving.http import CACHE_NO_STORE
from serving.tool_runner import ToolRunner
from web.pages import SECURITY_HEADERS, build_page_route


def build_authorize_route(authorizations: Authorizations, runner: ToolRunner) -> Route:
    """Return the route. If the client or its redirect URI is bad, it shows an error page."""

    async def respond(request: Request) -> Response:
        # Parameters without a value count as omitted (RFC 6749, section 3.1).
        parameters = [pair for pair in request.query_params.multi_items() if pair[1]]
        address = request.client.host if request.client else "unknown"
        target = await authorizations.begin(parameters, address)
        headers = {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
        # The request's parameters are for this server only.
        headers["Referrer-Policy"] = "no-referrer"
        return RedirectResponse(target, 303, headers)

    return build_page_route(AUTHORIZE_PATH, runner, respond)

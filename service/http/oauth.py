"""The OAuth server of the service: its routes, and the MCP endpoint that it protects."""

from dataclasses import dataclass

from starlette.routing import Route

from access.oauth.authorizations import Authorizations
from access.oauth.clients import ClientDocuments, ClientRegistry
from access.oauth.tokens import AccessTokens, TokenIssuer
from access.throttle import Limit, Throttle
from mcp_server.endpoint import McpEndpoint
from mcp_server.protected_endpoint import PATHS, ProtectedMcpEndpoint
from rest_shim.oauth import OAuthEndpoints, build_oauth_routes
from service.http.resources import Resources
from serving.tool_runner import ToolRunner
from web.consent_pages import build_authorize_route


@dataclass(frozen=True, slots=True)
class OAuthServer:
    """The routes of OAuth; `authorizations` is what the consent page approves."""

    authorizations: Authorizations
    routes: list[Route]


def build_oauth_server(
    resources: Resources, runner: ToolRunner, endpoint: McpEndpoint, limit: Limit
) -> OAuthServer:
    """Return the OAuth server; `limit` bounds the requests of a client address."""
    access, clock, issuer = resources.access, resources.clock, runner.context.base_url
    documents = resources.client_documents or ClientDocuments(clock)
    clients = ClientRegistry(access, documents, clock)
    authorizations = Authorizations(
        access, clients, Throttle(access, clock, "authorization", limit), clock, issuer=issuer
    )
    endpoints = OAuthEndpoints(
        clients,
        TokenIssuer(access, clients, clock, issuer=issuer),
        Throttle(access, clock, "token", limit),
    )
    protected = ProtectedMcpEndpoint(endpoint, AccessTokens(access, clock, issuer=issuer), runner)
    routes = [
        *(Route(path, protected) for path in PATHS),
        *build_oauth_routes(endpoints, runner),
        build_authorize_route(authorizations, runner),
    ]
    return OAuthServer(authorizations, routes)

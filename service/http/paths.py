"""The groups of paths that requests of other origins, and errors, are treated by."""

from rest_shim.endpoints import ENDPOINTS
from web.discovery import DISCOVERY_PATHS

# Prefixes of the paths that pages of other origins may call, as `HostOriginMiddleware` says. The
# pages for people are not among them, because their forms contain tokens.
API_PATHS = ("/api/v1", "/legal")
TOKEN_PATHS = ("/mcp",)
# Clients that run in a browser exchange codes and tokens there, which no page has by itself.
OAUTH_PATHS = ("/oauth/register", "/oauth/token", "/oauth/revoke")
PUBLIC_PATHS = ("/.well-known/", *OAUTH_PATHS, *DISCOVERY_PATHS)
# The reads without a key, whole paths. Whoever can open them anywhere may read them from a page.
OPEN_READS = frozenset(
    path
    for endpoint in ENDPOINTS
    if endpoint.method == "GET" and endpoint.auth == "none"
    for path in endpoint.paths
)
# Errors of these paths, and of all below them, are never pages.
PROGRAM_PATHS = ("/api", "/legal", *TOKEN_PATHS, *PUBLIC_PATHS)

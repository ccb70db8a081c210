"""Renders pages from templates, with all values escaped and strict security headers.

Scripts and styles are files of this package. No page has inline ones or loads from other hosts.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from schemas.errors import ApiError
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_COUNT_TEXT, format_instant
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_NO_STORE, accepts_gzip, read_headers
from serving.tool_runner import ToolRunner

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Not `no-referrer`: with it, browsers send `Origin: null` with forms, which HostOriginMiddleware
# refuses. With either value the URL of a checkout reaches no other host.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
DEFAULT_VALUES = {
    "badge": "",
    "here": None,
    "is_wide": False,
    "is_public": False,
    "viewer": None,
    "pending": None,
    "continue_path": None,
    "operator": UNNAMED_OPERATOR,
    "base_url": "",
    "path": None,
    "sells_keys": False,
    "description": None,
    "form": {},
    "errors": {},
}


@dataclass(frozen=True, slots=True)
class Site:
    """What every page shows of the deployment: its address, its operator, if it sells keys."""

    base_url: str
    operator: Operator
    sells_keys: bool


ERROR_TITLES = {404: "Not found", 429: "Too many attempts", 503: "Temporarily unavailable"}


def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a rendered page that no cache may store.

    Every template requires `title`. Optional: `badge` (a label next to the logo), `here` (the
    page's path in the navigation), `is_wide`, `is_public` (search engines may list it),
    `description` (one sentence, for search engines and previews of links), `viewer`, `pending`
    (the authorization request that the page is part of), `continue_path` (its page), and for a
    form `form` (the text of its fields) and `errors`, see `web.forms`.
    """
    site = get_site(request)
    shared = {
        "base_url": site.base_url,
        "operator": site.operator,
        "sells_keys": site.sells_keys,
        "path": request.url.path.removeprefix("/"),
    }
    text = render_template(template, get_relative_root(request), **shared | values)
    return make_page_response(text, status)


def make_page_response(
    text: str, status: int = 200, cache_control: str = CACHE_NO_STORE
) -> Response:
    """Return a response of rendered HTML."""
    return HTMLResponse(text, status, {**SECURITY_HEADERS, "Cache-Control": cache_control})


def compress_page(request: Request, response: Response) -> Response:
    """Compress a page with gzip if the browser accepts it.

    Only for pages that contain no text from the URL.
    """
    # If text from a link and a secret such as the form token were compressed together, the size of
    # the response would leak the secret (the BREACH attack).
    response.headers["Vary"] = "Accept-Encoding"
    if accepts_gzip(read_headers(request.scope).get(b"accept-encoding", b"")):
        response.body = gzip.compress(response.body, compresslevel=1, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    return response


def redirect_to(request: Request, path: str) -> Response:
    """Return a redirect to one of our pages; `path` is relative to the service's root."""
    return RedirectResponse(
        get_relative_root(request) + path,
        303,
        {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE},
    )


def get_site(request: Request) -> Site:
    """Return the deployment that a request reached."""
    site: Site = request.app.state.site
    return site


def get_operator(request: Request) -> Operator:
    """Return the operator of the service that a request reached."""
    return get_site(request).operator


def render_template(template: str, root: str, **values: Any) -> str:
    """Render a template; `root` is the prefix of its links."""
    variables: dict[str, Any] = {
        **DEFAULT_VALUES,
        **values,
        "root": root,
        "asset": _create_asset_url_builder(root),
    }
    return _create_environment().get_template(template).render(variables)


def format_minute(epoch_ms: int) -> str:
    """Return a time (epoch ms) as pages show it, in UTC."""
    return f"{format_instant(epoch_ms)[:16].replace('T', ' ')} UTC"


def get_relative_root(request: Request) -> str:
    """Return the relative path from a request's URL to the service's root."""
    # Links are relative because a proxy may serve the service below a path of its own.
    return "../" * (request.url.path.count("/") - 1) or "./"


def build_page_route(path: str, runner: ToolRunner, respond: Responder, *methods: str) -> Route:
    """Return the route of a page, for GET unless `methods` are given; errors become pages."""
    guarded_respond = guard_route(path, runner, respond, on_error=render_error_page)
    return Route(path, guarded_respond, methods=methods or ["GET"])


def render_error_page(request: Request, error: ApiError) -> Response:
    """Return the page that shows an error."""
    title = ERROR_TITLES.get(error.status, "Something went wrong")
    response = render_page(
        request,
        "message.html",
        status=error.status,
        title=title,
        text=error.describe(get_operator(request)),
    )
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def build_static_routes() -> list[Route]:
    """Return the routes of the scripts, styles and icon."""
    return [
        Route(f"/web/{name}", _create_static_responder(name), methods=["GET"])
        for name in _list_static_names()
    ]


def _create_static_responder(name: str) -> Responder:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def respond(request: Request) -> Response:
        # The query string is the file's hash, so a URL with the current one never goes stale.
        age = 31_536_000 if request.url.query == _hash_file(name) else 3600
        headers = {
            "Cache-Control": f"public, max-age={age}",
            "Content-Security-Policy": "default-src 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(_read_file(name), headers=headers, media_type=media_type)

    return respond


def _create_asset_url_builder(root: str) -> Callable[[str], str]:
    return lambda name: f"{root}web/{name}?{_hash_file(name)}"


@cache
def _hash_file(name: str) -> str:
    return blake2b(_read_file(name), digest_size=6).hexdigest()


@cache
def _read_file(name: str) -> bytes:
    return files("web").joinpath("static", name).read_bytes()


@cache
def _list_static_names() -> tuple[str, ...]:
    names = (file.name for file in files("web").joinpath("static").iterdir())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in MEDIA_TYPES))


@cache
def _create_environment() -> Environment:
    templates = Environment(
        loader=PackageLoader("web"),
        autoescape=True,
        # A misspelled name in a template raises an error; the default would render nothing.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.globals["indicator_count"] = INDICATOR_COUNT_TEXT
    templates.globals["version"] = VERSION
    templates.filters["minute"] = format_minute
    templates.filters["instant"] = format_instant
    return templates

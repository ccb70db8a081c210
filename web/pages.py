"""Renders pages from templates, with all values escaped and strict security headers.

Scripts and styles are files of this package. No page has inline ones or loads from other hosts.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from schemas.errors import ApiError, NotBuiltError
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_COUNT_TEXT, format_instant
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_NO_STORE, accepts_gzip, prefers_html, read_headers
from serving.tool_runner import ToolRunner
from web.next_steps import DEFAULT_TITLE, NOT_BUILT_TITLE, ROUTING_TEXTS, TITLES, list_steps
from web.prices import format_price
from web.sparkline import format_percent
from web.static_files import hash_file

# Not `no-referrer`: with it, browsers send `Origin: null` with forms, which HostOriginMiddleware
# refuses. With either value the URL of a checkout reaches no other host.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
NOT_BUILT_RELOAD_S = 5
DEFAULT_VALUES: dict[str, Any] = {
    "badge": "",
    "here": None,
    "is_wide": False,
    "is_public": False,
    "viewer": None,
    "has_session": False,
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
    return _get_relative_root(request.url.path)


def _get_relative_root(path: str) -> str:
    # Links are relative because a proxy may serve the service below a path of its own.
    return "../" * (path.count("/") - 1) or "./"


def build_page_route(path: str, runner: ToolRunner, respond: Responder, *methods: str) -> Route:
    """Return the route of a page, for GET unless `methods` are given; errors become pages."""
    guarded_respond = guard_route(path, runner, respond, on_error=render_error_page)
    return Route(path, guarded_respond, methods=methods or ["GET"])


def render_error_page(request: Request, error: ApiError) -> Response:
    """Return the page that shows an error and where to go next."""
    site, scope = get_site(request), request.scope
    if not isinstance(error, NotBuiltError):
        return _render_error(site, scope, error)
    text = f"{error.reason} This page reloads by itself."
    response = _render_error(site, scope, error, NOT_BUILT_TITLE, text, error.percent)
    response.headers["Refresh"] = str(NOT_BUILT_RELOAD_S)
    return response


def render_error_for_browser(request: Request, error: ApiError) -> Response | None:
    """Return the page of an error, None if the client is a program that wants the error body."""
    wants_page = prefers_html(read_headers(request.scope).get(b"accept", b""))
    return render_error_page(request, error) if wants_page else None


def build_refusal_renderer(
    site: Site, program_paths: tuple[str, ...]
) -> Callable[[Scope, ApiError], Response | None]:
    """Return a renderer of the errors that no page raised, such as an unknown path.

    It returns None for clients that are no browsers, and for `program_paths` and all below them.
    """
    prefixes = tuple(f"{path.rstrip('/')}/" for path in program_paths)

    def render(scope: Scope, error: ApiError) -> Response | None:
        is_for_programs = f"{scope['path']}/".startswith(prefixes)
        if is_for_programs or not prefers_html(read_headers(scope).get(b"accept", b"")):
            return None
        return _render_error(site, scope, error, *ROUTING_TEXTS.get(error.status, ()))

    return render


def _render_error(
    site: Site,
    scope: Scope,
    error: ApiError,
    title: str = "",
    text: str = "",
    percent: int | None = None,
) -> Response:
    # As it was sent, so that a link to it keeps characters such as %3F.
    path, status = scope["raw_path"].decode("latin-1"), error.status
    # The wrong host serves no styles, and no relative link leads away from it.
    template = "wrong_address.html" if status == 421 else "error.html"
    page = render_template(
        template,
        _get_relative_root(path),
        address=site.base_url + path,
        title=title or TITLES.get(status, DEFAULT_TITLE),
        text=text or error.describe(site.operator),
        percent=percent,
        steps=list_steps(path, status, scope["method"], sells_keys=site.sells_keys),
        operator=site.operator,
        sells_keys=site.sells_keys,
        # Who has a session need not sign in; whose it is was not looked up.
        has_session=b"signals_session=" in read_headers(scope).get(b"cookie", b""),
    )
    response = make_page_response(page, status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _create_asset_url_builder(root: str) -> Callable[[str], str]:
    return lambda name: f"{root}web/{name}?{hash_file(name)}"


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
    templates.filters["percent"] = format_percent
    templates.filters["price"] = format_price
    return templates

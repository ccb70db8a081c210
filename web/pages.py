"""Renders pages from templates, with all values escaped and strict security headers.

Scripts and styles are files of this package. No page has inline ones or loads from other hosts.
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from schemas.errors import ApiError, NotBuiltError
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_COUNT_TEXT, format_instant
from serving.arguments import find_nearest
from serving.context import Context
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_NO_STORE, accepts_gzip, prefers_html, read_headers
from serving.tool_runner import ToolRunner
from web.value_texts import format_percent, format_price

MEDIA_TYPES = {
    "css": "text/css",
    "ico": "image/x-icon",
    "js": "text/javascript",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


def build_static_routes() -> list[Route]:
    """Return the routes of the files; browsers ask for the icon at the root without a link."""
    names = [file.name for file in files("web").joinpath("static").iterdir()]
    paths = {"/favicon.ico": "favicon.ico"}
    paths |= {f"/web/{name}": name for name in names if name.rpartition(".")[2] in MEDIA_TYPES}

    async def respond(request: Request) -> Response:
        name = paths[request.scope["route"].path]
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        hash_, content, packed = _read_file(name)
        # The query string is the file's hash, so a URL with the current one never goes stale.
        age = 31_536_000 if request.url.query == hash_ else 3600
        headers = {
            "Cache-Control": f"public, max-age={age}",
            "Content-Security-Policy": "default-src 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        if not media_type.startswith("image/png"):
            headers["Vary"] = "Accept-Encoding"
            if accepts_gzip(read_headers(request.scope).get(b"accept-encoding", b"")):
                content, headers["Content-Encoding"] = packed, "gzip"
        return Response(content, headers=headers, media_type=media_type)

    return [Route(path, respond, methods=["GET"]) for path in paths]


@cache
def _read_file(name: str) -> tuple[str, bytes, bytes]:
    """Return the hash of a file, which is the query string of its URL, and its bytes and gzip."""
    content = files("web").joinpath("static", name).read_bytes()
    return blake2b(content, digest_size=6).hexdigest(), content, gzip.compress(content, mtime=0)


TITLES = {404: "Not found", 429: "Too many attempts", 503: "Temporarily unavailable"}
# No page repeats a longer text of its URL.
MAX_ECHOED_CHARS = 100
# The title and text in place of the message for programs, if the error is not one of a page.
ROUTING_TEXTS = {
    403: (
        "Not sent from here",
        "Another site sent this request, so nothing was changed. Open the page here instead:",
    ),
    404: (
        "Page not found",
        "There is no page at this address. Check the spelling, or continue here:",
    ),
    405: (
        "Not available this way",
        "This address does not accept such a request. Open the page instead:",
    ),
    421: (
        "Wrong address",
        "The service does not answer under this name. Open it at its own address:",
    ),
}


# The text of a link that leads on, and its path, relative to the service's root.
Step = tuple[str, str]
BOARD = ("Board", "")
BUY = ("Buy access", "buy")
SIGN_IN = ("Sign in", "sign-in")
# By the first part of the path. The shell of the page links to everything else.
STEPS: dict[str, tuple[Step, ...]] = {
    "assets": (("All assets", "assets"),),
    "buy": (BUY,),
    "checkout": (BUY,),
    "docs": (("All docs", "docs"),),
    "oauth": (("How to connect a program", "docs/connect"),),
    "operations": (("Operations", "operations"), SIGN_IN),
    "sandbox": (BUY,),
    "settings": (("API access", "settings/api-access"), SIGN_IN),
    "sign-in": (("Request a new link", "sign-in"),),
    "sign-out": (SIGN_IN,),
}
# The pages of every header and of the site map: path and title.
PUBLIC_PAGES = [
    ("", "Board"),
    ("feed", "Feed"),
    ("flips", "Flips"),
    ("confluence", "Confluence"),
    ("assets", "Assets"),
    ("docs", "Docs"),
]
# The pages that a misspelled path may mean.
PAGES: dict[str, Step] = {
    **{path: (title, path) for path, title in PUBLIC_PAGES if path},
    "buy": BUY,
    "sign-in": SIGN_IN,
    "settings": ("API access", "settings/api-access"),
    "operations": ("Operations", "operations"),
}


def list_steps(path: str, status: int, method: str, *, sells_keys: bool) -> list[Step]:
    """Return the links for an error at a path, the best one first."""
    first = path.strip("/").partition("/")[0]
    steps = [*STEPS.get(first, ())]
    if status == 404 and not steps:
        nearest = find_nearest(first, {name: name for name in PAGES})
        steps = [PAGES[nearest]] if nearest else []
    is_repeatable = status == 400 or status in (405, 429, 503)
    if (
        is_repeatable
        and len(path) <= MAX_ECHOED_CHARS
        and (method in ("GET", "HEAD") or status == 405)
    ):
        text = "Open this page without its filters" if status == 400 else "Open this page again"
        steps = [(text, path.removeprefix("/")), *steps]
    offered = [step for step in steps if sells_keys or step != BUY]
    return offered if "" in (path for _, path in offered) else [*offered, BOARD]


# Not `no-referrer`: with it, browsers send `Origin: null` with forms, which HostOriginMiddleware
# refuses. With either value the URL of a checkout reaches no other host.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
# Of what no cache may store.
PRIVATE_HEADERS = {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
# All pages of a deployment with 251 assets have 4 MB when compressed.
MAX_VISITOR_BYTES = 12_000_000
DEFAULT_VALUES: dict[str, Any] = {
    "badge": "",
    "here": None,
    "public_pages": PUBLIC_PAGES,
    "is_wide": False,
    "is_public": False,
    "viewer": None,
    "has_session": False,
    "pending": None,
    "operator": UNNAMED_OPERATOR,
    "base_url": "",
    "path": None,
    "sells_keys": False,
    "description": None,
    "form": {},
    "errors": {},
}


class VisitorPages:
    """Keeps the pages of visitors as bytes: each is rendered once for a version of the data.

    `rendered` counts the renderings. Beyond `max_bytes` of compressed pages, the one that was
    rendered first is dropped.
    """

    def __init__(self, max_bytes: int = MAX_VISITOR_BYTES) -> None:
        self.rendered = 0
        self._max_bytes = max_bytes
        self._version: object = None
        self._pages: dict[str, tuple[dict[str, str], bytes]] = {}
        self._lock = asyncio.Lock()

    async def respond(
        self,
        request: Request,
        context: Context,
        key: str,
        render: Callable[[], Awaitable[Response]],
    ) -> Response:
        """Return the page with a key, which `render` returns if it is not kept.

        The page must depend only on its key, the snapshot and the coverage. There must be few
        keys, because anyone can request a page: so they are never taken from the URL unchecked.
        """
        version = await context.snapshots.snapshot() or await context.snapshots.coverage()
        page = self._pages.get(key) if version is self._version else None
        if page is None:
            # The lock lets requests that arrive together wait for one rendering.
            async with self._lock:
                if version is not self._version:
                    self._version, self._pages = version, {}
                if key not in self._pages:
                    response = await render()
                    self.rendered += 1
                    del response.headers["Content-Length"]
                    headers = {**response.headers, "vary": "Accept-Encoding, Cookie"}
                    self._pages[key] = headers, gzip.compress(response.body, mtime=0)
                    size = sum(len(packed) for _, packed in self._pages.values())
                    while len(self._pages) > 1 and size > self._max_bytes:
                        _, dropped = self._pages.pop(next(iter(self._pages)))
                        size -= len(dropped)
                page = self._pages[key]
        headers, packed = page
        if accepts_gzip(read_headers(request.scope).get(b"accept-encoding", b"")):
            return Response(packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(gzip.decompress(packed), headers=headers)


@dataclass(frozen=True, slots=True)
class Site:
    """What every page shows of the deployment: its address, its operator, if it sells keys."""

    base_url: str
    operator: Operator
    sells_keys: bool
    visitor_pages: VisitorPages = field(default_factory=VisitorPages)


def render_page(
    request: Request, template: str, *, status: int = 200, leads_to: str = "", **values: Any
) -> Response:
    """Return a rendered page that no cache may store.

    Every template requires `title`. Optional: `badge` (a label next to the logo), `here` (the
    page's path in the navigation), `is_wide`, `is_public` (search engines may list it),
    `description` (one sentence, for search engines and previews of links), `viewer`, `pending`
    (the authorization request that the page is part of), and for a form `form` (the text of its
    fields) and `errors`, see `web.sessions`. With `leads_to`, the browser goes on to that address
    at once.
    """
    site = get_site(request)
    shared = {
        "base_url": site.base_url,
        "operator": site.operator,
        "sells_keys": site.sells_keys,
        "path": request.url.path.removeprefix("/"),
        "leads_to": leads_to,
    }
    text = render_template(template, get_relative_root(request), **shared | values)
    # Browsers apply the policy's `form-action` to redirects of forms too, and each operator's
    # payment processor chooses its host. So the answer to a form leads there by `Refresh`.
    headers = {"Refresh": f"0; url={leads_to}"} if leads_to else {}
    return HTMLResponse(text, status, PRIVATE_HEADERS | headers)


async def respond_with_page(
    request: Request,
    context: Context,
    viewer: object,
    key: str | None,
    render: Callable[[], Awaitable[Response]],
) -> Response:
    """Return the page that `render` returns: kept for visitors, else compressed.

    `key` names it among the pages of visitors; None if it contains text from the URL.
    """
    if key is None:
        return await render()
    if viewer is None:
        return await get_site(request).visitor_pages.respond(request, context, key, render)
    response = await render()
    # If text from a link and a secret such as the form token were compressed together, the size of
    # the response would leak the secret (the BREACH attack).
    response.headers["Vary"] = "Accept-Encoding, Cookie"
    if accepts_gzip(read_headers(request.scope).get(b"accept-encoding", b"")):
        response.body = gzip.compress(response.body, compresslevel=1, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    return response


def redirect_to(request: Request, path: str) -> Response:
    """Return a redirect to one of our pages; `path` is relative to the service's root."""
    return RedirectResponse(get_relative_root(request) + path, 303, PRIVATE_HEADERS)


def get_site(request: Request) -> Site:
    """Return the deployment that a request reached."""
    site: Site = request.app.state.site
    return site


def render_template(template: str, root: str, **values: Any) -> str:
    """Render a template; `root` is the prefix of its links."""
    variables: dict[str, Any] = {
        **DEFAULT_VALUES,
        **values,
        "root": root,
        "asset": lambda name: f"{root}web/{name}?{_read_file(name)[0]}",
    }
    return _create_environment().get_template(template).render(variables)


def format_minute(epoch_ms: int) -> str:
    """Return a time (epoch ms) as pages show it, in UTC."""
    return f"{format_instant(epoch_ms)[:16].replace('T', ' ')} UTC"


def get_relative_root(request: Request) -> str:
    """Return the relative path from a request's URL to the service's root."""
    return _find_root(get_site(request), request.scope)


def _find_root(site: Site, scope: Scope) -> str:
    # Links are relative because a proxy may serve the service below a path of its own. The path of
    # a page that does not exist may have any depth, so its links start at the base path: a link
    # with thousands of steps up would make a page of megabytes.
    route, depth = scope.get("route"), scope["path"].count("/")
    if route is None or route.path.count("/") != depth:
        return f"{urlsplit(site.base_url).path.rstrip('/')}/"
    return "../" * (depth - 1) or "./"


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
    response = _render_error(site, scope, error, "Not ready yet", text, error.percent)
    response.headers["Refresh"] = "5"
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
        title, text = ROUTING_TEXTS.get(error.status, ("", ""))
        return _render_error(site, scope, error, title, text)

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
        _find_root(site, scope),
        address=site.base_url + (path if len(path) <= MAX_ECHOED_CHARS else "/"),
        title=title or TITLES.get(status, "Something went wrong"),
        text=text or error.describe(site.operator),
        percent=percent,
        steps=list_steps(path, status, scope["method"], sells_keys=site.sells_keys),
        operator=site.operator,
        sells_keys=site.sells_keys,
        # Who has a session need not sign in; whose it is was not looked up.
        has_session=b"signals_session=" in read_headers(scope).get(b"cookie", b""),
    )
    response = HTMLResponse(page, status, PRIVATE_HEADERS)
    response.headers.update(error.retry_headers)
    return response


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
    templates.globals |= {"indicator_count": INDICATOR_COUNT_TEXT, "version": VERSION}
    filters: dict[str, Any] = {
        "minute": format_minute,
        "instant": format_instant,
        "clock": lambda instant: instant[11:16],
        "percent": format_percent,
        "price": format_price,
    }
    templates.filters |= filters
    return templates

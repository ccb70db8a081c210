"""How a page for people is made: a template, every text escaped, strict headers.

Scripts and styles are files of this package; no page has any of its own, and none asks other hosts.
"""

import gzip
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rest_shim.content_negotiation import takes_gzip
from rest_shim.endpoints import NOT_AT_ALL
from rest_shim.routes import Responder, guarded
from schemas.errors import ApiError
from schemas.vocabulary import instant
from serving.http import fields
from serving.tool_runner import Calls

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# `same-origin`, not `no-referrer`: under that one browsers send `Origin: null` with a form, which
# the gate refuses. Either way the address of a checkout reaches no other host.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
FAILURES = {404: "Not found", 429: "Too many attempts", 503: "Not available right now"}


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return the page that a request asked for, in no cache.

    Every template takes `title`, and may take `badge` (a word beside the name), `here` (its path in
    the navigation), `is_wide`, `is_public` (which search engines may show) and `viewer`.
    """
    return page_of(rendered(template, root_of(request), **values), status)


def page_of(text: str, status: int = 200, cache: str = NOT_AT_ALL) -> Response:
    """Return a page that is rendered already; `cache` is its Cache-Control."""
    return HTMLResponse(text, status, {**HEADERS, "Cache-Control": cache})


def compressed(request: Request, response: Response) -> Response:
    """Return a page as gzip where the browser takes that.

    None that shows what a stranger's link may say beside secrets: its size would tell of them.
    """
    response.headers["Vary"] = "Accept-Encoding"
    if takes_gzip(fields(request.scope).get(b"accept-encoding", b"")):
        response.body = gzip.compress(response.body, compresslevel=1, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))
    return response


def see_other(request: Request, path: str) -> Response:
    """Send a browser on to a page of ours, `path` from the service's root."""
    return RedirectResponse(root_of(request) + path, 303, {**HEADERS, "Cache-Control": NOT_AT_ALL})


def rendered(template: str, root: str, **values: Any) -> str:
    """Return a template with its values; its links begin with `root`."""
    defaults = {"badge": "", "here": None, "is_wide": False, "is_public": False, "viewer": None}
    given: dict[str, Any] = {**defaults, **values, "root": root, "asset": _asset_of(root)}
    return _templates().get_template(template).render(given)


def minute(epoch_ms: int) -> str:
    """Return a time as pages show it."""
    return f"{instant(epoch_ms)[:16].replace('T', ' ')} UTC"


def root_of(request: Request) -> str:
    """Return the way from a request's path to the service's root.

    Links are relative, so a proxy may serve all below a path of its own.
    """
    return "../" * (request.url.path.count("/") - 1) or "./"


def page_route(path: str, calls: Calls, respond: Responder, *methods: str) -> Route:
    """Return the route of a page, GET alone where no methods are named; failures are pages too."""
    answer = guarded(path, calls, respond, told=failure_page)
    return Route(path, answer, methods=methods or ["GET"])


def failure_page(request: Request, error: ApiError) -> Response:
    """Return a refusal as a page."""
    title = FAILURES.get(error.status, "That did not work")
    response = page(request, "message.html", status=error.status, title=title, text=error.message)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def static_routes() -> list[Route]:
    """Return the routes of the files that pages rest on; their addresses change as they do."""
    return [Route(f"/web/{name}", _static(name), methods=["GET"]) for name in _static_names()]


def _static(name: str) -> Responder:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        age = 31_536_000 if request.url.query == _digest(name) else 3600
        headers = {
            "Cache-Control": f"public, max-age={age}",
            "Content-Security-Policy": "default-src 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(_bytes(name), headers=headers, media_type=media_type)

    return answer


def _asset_of(root: str) -> Callable[[str], str]:
    return lambda name: f"{root}web/{name}?{_digest(name)}"


@cache
def _digest(name: str) -> str:
    return blake2b(_bytes(name), digest_size=6).hexdigest()


@cache
def _bytes(name: str) -> bytes:
    return files("web").joinpath("static", name).read_bytes()


@cache
def _static_names() -> tuple[str, ...]:
    names = (file.name for file in files("web").joinpath("static").iterdir())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in MEDIA_TYPES))


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters["minute"] = minute
    return templates

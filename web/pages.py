"""How a page for people is made: templates without script, every text escaped, strict headers."""

from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

STYLE_PATH = "/web/page.css"
# `same-origin`, not `no-referrer`: under that one browsers send `Origin: null` with a form, which
# the gate refuses. Either way the address of a checkout reaches no other host.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def page(
    request: Request, title: str, content: str, *, mode: str = "", status: int = 200
) -> Response:
    """Return the page that a request asked for; `content` is HTML, title and mode are text.

    The stylesheet's address is relative, so a proxy may serve all below a path of its own.
    """
    style = "../" * (request.url.path.count("/") - 1) + STYLE_PATH[1:]
    html = filled("page.html", content, title=title, mode=mode, style=style)
    return HTMLResponse(html, status, HEADERS)


def filled(template: str, content: str = "", **texts: str) -> str:
    """Return a template with its texts, escaped, and its content, which is HTML."""
    escaped = {name: escape(text) for name, text in texts.items()}
    return Template(_file(template)).substitute(escaped, content=content)


def style_route() -> Route:
    """Return the route of the one stylesheet."""
    return Route(STYLE_PATH, _style, methods=["GET"])


async def _style(request: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}
    return Response(_file("page.css"), headers=headers, media_type="text/css")


@cache
def _file(name: str) -> str:
    return files("web").joinpath(name).read_text(encoding="utf-8")

"""The files by which search engines find the public pages: robots.txt and the sitemap."""

from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.http import CACHE_ONE_HOUR
from serving.tool_runner import ToolRunner
from web.docs import list_shown_links

# Their pages are forms or a person's own; `noindex` keeps out all else that is not public.
PRIVATE_PATHS = ("/api/", "/oauth/", "/operations", "/sandbox/", "/settings", "/sign-in")
PUBLIC_PATHS = ("", "assets", "feed", "flips", "confluence", "docs")
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


def build_crawler_routes(runner: ToolRunner) -> list[Route]:
    """Return the routes of both files."""
    base_url, sells_keys = runner.context.base_url, runner.context.sells_keys
    links = list_shown_links(sells_keys=sells_keys)
    paths = [
        *PUBLIC_PATHS,
        *(["buy"] if sells_keys else []),
        *(f"docs/{link.name}" for link in links),
    ]
    urls = "".join(f"<url><loc>{escape(f'{base_url}/{path}')}</loc></url>\n" for path in paths)
    rules = "".join(f"Disallow: {path}\n" for path in PRIVATE_PATHS)
    return [
        _build_route(
            "/robots.txt",
            f"User-agent: *\n{rules}\nSitemap: {base_url}/sitemap.xml\n",
            "text/plain",
        ),
        _build_route(
            "/sitemap.xml",
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<urlset xmlns="{NAMESPACE}">\n{urls}</urlset>\n',
            "application/xml",
        ),
    ]


def _build_route(path: str, text: str, media_type: str) -> Route:
    headers = {"Cache-Control": CACHE_ONE_HOUR, "X-Content-Type-Options": "nosniff"}

    async def respond(request: Request) -> Response:
        return Response(text, headers=headers, media_type=media_type)

    return Route(path, respond, methods=["GET"])

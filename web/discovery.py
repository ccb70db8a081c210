"""The files by which programs and search engines find the service."""

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.oauth.parameters import RESOURCE_PATH, can_serve_oauth
from mcp_server.bundle import build_bundle
from mcp_server.dispatcher import INSTRUCTIONS, TITLE
from mcp_server.endpoint import PATHS
from mcp_server.server_card import (
    CARD_SUFFIX,
    CARD_TYPE,
    CATALOG_TYPE,
    EXAMPLE_PROMPTS,
    build_ai_catalog,
    build_server_card,
)
from mcp_server.tools.tool_table import TOOLS
from rest_shim import error_catalog as refusals
from rest_shim.endpoints import (
    CALL_MCP,
    GET_LEGAL,
    GET_MANIFEST,
    GET_OPENAPI,
    Endpoint,
    SuccessResponse,
    respond_with_body,
)
from rest_shim.manifest import DESCRIPTION, DISCLAIMER
from serving.context import Context
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_ONE_HOUR
from serving.json_text import to_json
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner
from web.docs import OPERATORS, PAGES_BY_READER, list_shown_links
from web.pages import PUBLIC_PAGES

SKILL_PATH = "/skills/signals/SKILL.md"
# The format's section "Optional" holds what readers in a hurry can skip.
OPTIONAL_PAGES = frozenset(PAGES_BY_READER[OPERATORS])
# Title, path and meaning of each link.
CONNECT_ROWS = [
    ("MCP server, with an API key", CALL_MCP.path, "for hosts that send a header"),
    ("Registrations", "/docs/connect", "a file, command or install link for each host"),
    ("Skill", SKILL_PATH, "which tool when, how to poll, how to read answers"),
    ("Manifest", GET_MANIFEST.path, "endpoints, authentication, limits and how to get a key"),
    ("OpenAPI", GET_OPENAPI.path, "the REST API, which has the same tools"),
    ("Terms and privacy", GET_LEGAL.path, "terms of use, stored personal data, redistribution"),
]


def render_llms_text(base_url: str, *, sells_keys: bool) -> str:
    """Return the file in Markdown; `base_url` starts every link."""
    links = list_shown_links(sells_keys=sells_keys)
    pages = {link.name: (link.title, f"/docs/{link.name}", link.about) for link in links}
    about = "for hosts that ask for an address only"
    sign_in_row = ("MCP server, sign-in with OAuth", RESOURCE_PATH, about)
    sections = {
        "Connect": [*([sign_in_row] if can_serve_oauth(base_url) else []), *CONNECT_ROWS],
        "Tools": [(tool.name, f"/docs/tools#{tool.name}", tool.title) for tool in TOOLS],
        "Documentation": [row for name, row in pages.items() if name not in OPTIONAL_PAGES],
        "Optional": [row for name, row in pages.items() if name in OPTIONAL_PAGES],
    }
    prompts = "\n".join(f"- {prompt}" for prompt in EXAMPLE_PROMPTS)
    parts = [f"# {TITLE}", f"> {DESCRIPTION}", DISCLAIMER, INSTRUCTIONS, f"Examples:\n\n{prompts}"]
    for heading, rows in sections.items():
        lines = [f"- [{title}]({base_url}{path}): {about}" for title, path, about in rows]
        parts.append("\n".join([f"## {heading}\n", *lines]))
    return "\n\n".join(parts) + "\n"


FileRenderer = Callable[[Context], bytes]


def build_discovery_routes(runner: ToolRunner) -> list[Route]:
    """Return the routes of the files."""

    def build_responder(endpoint: Endpoint, render: FileRenderer) -> Responder:
        # The context of a process never changes, so each file is rendered once.
        get_body = lru_cache(maxsize=1)(lambda: ResponseBody(render(runner.context)))

        async def respond(request: Request) -> Response:
            return respond_with_body(request, get_body(), endpoint)

        return guard_route(endpoint.path, runner, respond)

    return [
        Route(path, build_responder(endpoint, render), methods=["GET"])
        for endpoint, render in FILES
        for path in endpoint.paths
    ]


def _describe_file(name: str, media_type: str, *paths: str) -> Endpoint:
    return Endpoint(
        operation_id=f"signals_get_{name}",
        paths=paths,
        tag="open",
        summary=name,
        description="",
        successes=(SuccessResponse(200, "The file", media_type=media_type),),
        refusals=refusals.OPEN_REFUSALS,
        cache_control=CACHE_ONE_HOUR,
    )


FILES: tuple[tuple[Endpoint, FileRenderer], ...] = (
    (
        _describe_file(
            "server_card", CARD_TYPE, RESOURCE_PATH + CARD_SUFFIX, PATHS[0] + CARD_SUFFIX
        ),
        lambda context: to_json(build_server_card(context.base_url, context.operator)).encode(),
    ),
    (
        _describe_file("ai_catalog", CATALOG_TYPE, "/.well-known/ai-catalog.json"),
        lambda context: to_json(build_ai_catalog(context.base_url, SKILL_PATH)).encode(),
    ),
    (
        _describe_file("llms_text", "text/plain", "/llms.txt"),
        lambda context: render_llms_text(context.base_url, sells_keys=context.sells_keys).encode(),
    ),
    (
        # A symbolic link into `skills`; a wheel contains its target.
        _describe_file("skill", "text/markdown", SKILL_PATH),
        lambda context: files("web").joinpath("skill.md").read_bytes(),
    ),
    (
        # Not application/zip, because some browsers unpack such a download.
        _describe_file("bundle", "application/octet-stream", "/signals.mcpb"),
        lambda context: build_bundle(context.base_url, context.operator),
    ),
)
# Pages of any origin may read these paths.
DISCOVERY_PATHS = tuple(path for endpoint, _ in FILES for path in endpoint.paths)


# Their pages are forms or a person's own; `noindex` keeps out all else that is not public.
PRIVATE_PATHS = ("/api/", "/oauth/", "/operations", "/sandbox/", "/settings", "/sign-in")


def build_crawler_routes(runner: ToolRunner) -> list[Route]:
    """Return the routes of both files."""
    base_url, sells_keys = runner.context.base_url, runner.context.sells_keys
    paths = [
        *(path for path, _ in PUBLIC_PAGES),
        *(["buy"] if sells_keys else []),
        *(f"docs/{link.name}" for link in list_shown_links(sells_keys=sells_keys)),
    ]
    urls = "".join(f"<url><loc>{escape(f'{base_url}/{path}')}</loc></url>\n" for path in paths)
    rules = "".join(f"Disallow: {path}\n" for path in PRIVATE_PATHS)
    crawler_files = {
        "/robots.txt": (
            f"User-agent: *\n{rules}\nSitemap: {base_url}/sitemap.xml\n",
            "text/plain",
        ),
        "/sitemap.xml": (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n',
            "application/xml",
        ),
    }
    headers = {"Cache-Control": CACHE_ONE_HOUR, "X-Content-Type-Options": "nosniff"}

    async def respond(request: Request) -> Response:
        text, media_type = crawler_files[request.url.path]
        return Response(text, headers=headers, media_type=media_type)

    return [Route(path, respond, methods=["GET"]) for path in crawler_files]

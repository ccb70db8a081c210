"""Public files by which programs, directories and hosts find the service and install it.

They describe this deployment, and pages of any origin may read them. They are no part of the API,
so the manifest does not list them.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.oauth.parameters import RESOURCE_PATH
from mcp_server.bundle import build_bundle
from mcp_server.endpoint import PATHS
from mcp_server.server_card import (
    CARD_SUFFIX,
    CARD_TYPE,
    CATALOG_TYPE,
    build_ai_catalog,
    build_server_card,
)
from rest_shim import error_catalog as refusals
from rest_shim.content_negotiation import negotiate_response
from rest_shim.endpoints import Endpoint, SuccessResponse
from serving.context import Context
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_ONE_HOUR, read_headers
from serving.json_text import to_json
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner
from web.llms_text import SKILL_PATH, render_llms_text

FileRenderer = Callable[[Context], bytes]


def build_discovery_routes(runner: ToolRunner) -> list[Route]:
    """Return the routes of the files."""
    return [
        Route(path, _build_responder(endpoint, render, runner), methods=["GET"])
        for endpoint, render in FILES
        for path in endpoint.paths
    ]


def _build_responder(endpoint: Endpoint, render: FileRenderer, runner: ToolRunner) -> Responder:
    # The context of a process never changes, so each file is rendered once.
    get_body = lru_cache(maxsize=1)(lambda: ResponseBody(render(runner.context)))

    async def respond(request: Request) -> Response:
        status, headers, body = negotiate_response(
            get_body(), endpoint, read_headers(request.scope)
        )
        return Response(body, status, {name.decode(): value.decode() for name, value in headers})

    return guard_route(endpoint.path, runner, respond)


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


def _render_server_card(context: Context) -> bytes:
    return to_json(build_server_card(context.base_url, context.operator)).encode()


def _render_ai_catalog(context: Context) -> bytes:
    return to_json(build_ai_catalog(context.base_url, SKILL_PATH)).encode()


def _render_llms_text(context: Context) -> bytes:
    return render_llms_text(context.base_url, sells_keys=context.sells_keys).encode()


def _load_skill(context: Context) -> bytes:
    # A symbolic link into `skills`; a wheel contains its target.
    return files("web").joinpath("skill.md").read_bytes()


def _render_bundle(context: Context) -> bytes:
    return build_bundle(context.base_url, context.operator)


FILES: tuple[tuple[Endpoint, FileRenderer], ...] = (
    (
        _describe_file(
            "server_card", CARD_TYPE, RESOURCE_PATH + CARD_SUFFIX, PATHS[0] + CARD_SUFFIX
        ),
        _render_server_card,
    ),
    (
        _describe_file("ai_catalog", CATALOG_TYPE, "/.well-known/ai-catalog.json"),
        _render_ai_catalog,
    ),
    (_describe_file("llms_text", "text/plain", "/llms.txt"), _render_llms_text),
    (_describe_file("skill", "text/markdown", SKILL_PATH), _load_skill),
    # Not application/zip, because some browsers unpack such a download.
    (_describe_file("bundle", "application/octet-stream", "/signals.mcpb"), _render_bundle),
)
# Pages of any origin may read these paths.
DISCOVERY_PATHS = tuple(path for endpoint, _ in FILES for path in endpoint.paths)

"""The upper limit: a Starlette route `/N` that returns N fixed bytes, or a bare 304 if N is 0.

It runs under uvicorn as `signals serve` configures it (`ours`) or with defaults (`default`).
"""

import sys
from functools import cache

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.config.logs import log_to_standard_error
from service.http.server import build_server_config


@cache
def build_body(size: str) -> bytes:
    return b"1" * int(size)


async def respond(request: Request) -> Response:
    content = build_body(request.path_params["size"])
    return Response(content, 200 if content else 304, media_type="application/json")


def main() -> None:
    port, kind = sys.argv[1:]
    app = Starlette(routes=[Route("/{size}", respond, methods=["GET", "POST"])])
    if kind == "ours":
        # Without it, structlog would print a line for each request.
        log_to_standard_error("info", "json")
        config = build_server_config(app)
        config.port = int(port)
    else:
        config = uvicorn.Config(app, port=int(port), log_level="error", access_log=False)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()

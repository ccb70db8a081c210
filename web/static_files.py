"""Serves the scripts, styles and images of pages; a page names each with its hash."""

from functools import cache
from hashlib import blake2b
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.error_responses import Responder

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
    return [
        Route("/favicon.ico", _create_static_responder("favicon.ico"), methods=["GET"]),
        *(
            Route(f"/web/{name}", _create_static_responder(name), methods=["GET"])
            for name in _list_static_names()
        ),
    ]


@cache
def hash_file(name: str) -> str:
    """Return the hash of a file, which is the query string of its URL."""
    return blake2b(_read_file(name), digest_size=6).hexdigest()


def _create_static_responder(name: str) -> Responder:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def respond(request: Request) -> Response:
        # The query string is the file's hash, so a URL with the current one never goes stale.
        age = 31_536_000 if request.url.query == hash_file(name) else 3600
        headers = {
            "Cache-Control": f"public, max-age={age}",
            "Content-Security-Policy": "default-src 'none'",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(_read_file(name), headers=headers, media_type=media_type)

    return respond


@cache
def _read_file(name: str) -> bytes:
    return files("web").joinpath("static", name).read_bytes()


@cache
def _list_static_names() -> tuple[str, ...]:
    names = (file.name for file in files("web").joinpath("static").iterdir())
    return tuple(sorted(name for name in names if name.rpartition(".")[2] in MEDIA_TYPES))

"""The proof of a row for signed-in members: the link of each listed change leads here."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rest_shim.log import GET_LOG_PROOF
from schemas.errors import ApiError
from serving.http import CACHE_NO_STORE
from serving.tool_runner import ToolRunner
from web.pages import SECURITY_HEADERS, build_page_route
from web.sessions import Sessions, Viewer

PROOF_PATH = "/log/proof"


def build_log_proof_routes(runner: ToolRunner, sessions: Sessions) -> list[Route]:
    """Return the route of a row's proof, which browsers request without a key."""

    async def respond(request: Request, viewer: Viewer) -> Response:
        if not viewer.is_member:
            raise ApiError("missing_key", "Proofs are for members. Buy access to get them.", 403)
        query = await runner.parse(GET_LOG_PROOF, dict(request.query_params))
        proof = await runner.fetch(GET_LOG_PROOF, query, viewer.email)
        headers = {
            **SECURITY_HEADERS,
            "Cache-Control": CACHE_NO_STORE,
            "Content-Disposition": 'inline; filename="row.tlog-proof"',
        }
        return Response(proof.text, 200, headers, "text/plain; charset=utf-8")

    return [build_page_route(PROOF_PATH, runner, sessions.require_viewer(respond))]

"""The pages of the log: its newest checkpoint, the proof of a row, and a check in the browser.

The check is a script, so a reader sees what it does; its parts are leaf, path, root and signature.
"""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.tools.get_signals import GET_SIGNALS
from rest_shim.log import GET_LOG_PROOF, load_log_key, load_signed_note
from schemas.errors import ApiError
from schemas.vocabulary import format_instant
from serving.http import CACHE_NO_STORE
from serving.tool_runner import ToolRunner
from web.pages import SECURITY_HEADERS, build_page_route, render_page
from web.sessions import Sessions, Viewer


def build_log_routes(runner: ToolRunner, sessions: Sessions) -> list[Route]:
    """Return the open page of the log, and those of a row's proof, which members get."""
    log = runner.context.snapshots.store.feed_log

    async def fetch(request: Request, viewer: Viewer) -> tuple[str, str]:
        if not viewer.is_member:
            raise ApiError("missing_key", "Proofs are for members. Buy access to get them.", 403)
        query = await runner.parse(GET_LOG_PROOF, dict(request.query_params))
        proof = await runner.fetch(GET_LOG_PROOF, query, viewer.email)
        return request.query_params["id"], proof.text.decode()

    async def respond(request: Request, viewer: Viewer) -> Response:
        _, proof = await fetch(request, viewer)
        headers = {
            **SECURITY_HEADERS,
            "Cache-Control": CACHE_NO_STORE,
            "Content-Disposition": 'inline; filename="row.tlog-proof"',
        }
        return Response(proof, 200, headers, "text/plain; charset=utf-8")

    async def explain(request: Request, viewer: Viewer) -> Response:
        id_, proof = await fetch(request, viewer)
        leaf = await log.find_leaf(id_)
        since = format_instant((leaf.created_at if leaf else 0) - 1)
        arguments = {"tier": "all", "order": "oldest", "limit": "1", "since": since}
        query = await runner.parse(GET_SIGNALS, arguments)
        page = json.loads((await runner.fetch(GET_SIGNALS, query, viewer.email)).text)
        rows = [json.dumps(row, indent=1) for row in page["signals"] if row["id"] == id_]
        values = {"id": id_, "proof": proof, "row": "".join(rows)}
        return await render(request, viewer, "Proof of a row", **values)

    async def show(request: Request) -> Response:
        return await render(request, await sessions.find_viewer(request), "Log of the feed")

    async def render(
        request: Request, viewer: Viewer | None, title: str, **values: Any
    ) -> Response:
        size, note = await load_signed_note(log)
        values = {"id": None, "row": "", "proof": ""} | values
        values |= {"key": await load_log_key(log), "line": f"{size} {note.split()[2]}"}
        return render_page(request, "log.html", title=title, is_wide=True, viewer=viewer, **values)

    return [
        build_page_route("/log", runner, show),
        build_page_route("/log/proof", runner, sessions.require_viewer(respond)),
        build_page_route("/log/row", runner, sessions.require_viewer(explain)),
    ]

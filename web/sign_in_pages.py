"""Where members sign in and out: ask for a link, use it, end the session.

Opening a link changes nothing, as programs that look through mail open links too; its button does.
"""

from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.sign_in import LINK_MINUTES, SIGN_IN_PATH, SignIn
from serving.tool_runner import ToolRunner
from web.forms import read_form
from web.pages import build_page_route, redirect_to, render_page
from web.sessions import HOME_PATH, Sessions, Viewer


def build_sign_in_routes(
    sign_in: SignIn, sessions: Sessions, runner: ToolRunner, outbox: Path | None
) -> list[Route]:
    """Return the routes of signing in and out; `outbox` is where mail stays, told to its reader."""
    pages = _SignInPages(sign_in, sessions, outbox)
    return [
        build_page_route("/sign-in", runner, pages.request_link, "GET", "POST"),
        build_page_route(f"{SIGN_IN_PATH}{{link_token}}", runner, pages.use_link, "GET", "POST"),
        build_page_route("/sign-out", runner, sessions.require_form(pages.sign_out), "GET", "POST"),
    ]


class _SignInPages:
    def __init__(self, sign_in: SignIn, sessions: Sessions, outbox: Path | None) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._outbox = outbox

    async def request_link(self, request: Request) -> Response:
        """Show the form, or mail a link once the one answer to every address has been sent."""
        if request.method == "POST":
            return await self._submit_request(request)
        if await self._sessions.find_viewer(request) is not None:
            return redirect_to(request, HOME_PATH)
        return render_page(
            request, "sign_in.html", title="Sign in", here=HOME_PATH, minutes=LINK_MINUTES
        )

    async def use_link(self, request: Request) -> Response:
        """Show the button of a link, or use the link up."""
        if request.method != "POST":
            return render_page(request, "sign_in_link.html", title="Sign in to signals")
        await read_form(request)  # which refuses other sites' forms; ours has no field
        session_token = await self._sign_in.redeem_link(request.path_params["link_token"])
        response = redirect_to(request, HOME_PATH)
        self._sessions.set_cookie(response, session_token)
        return response

    async def sign_out(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """End the session."""
        response = redirect_to(request, "sign-in")
        await self._sessions.end_session(request, response)
        return response

    async def _submit_request(self, request: Request) -> Response:
        form = await read_form(request)
        address = request.client.host if request.client else "unknown"
        mailbox = await self._sign_in.request_link(form.get("contact_email", ""), address)
        response = render_page(
            request,
            "sign_in_asked.html",
            title="Look into your mailbox",
            minutes=LINK_MINUTES,
            outbox=self._outbox,
        )
        response.background = BackgroundTask(self._sign_in.mail_link, mailbox)
        return response

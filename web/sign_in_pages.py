"""Where members sign in and out: ask for a link, use it, end the session.

Opening a link changes nothing, as programs that look through mail open links too; its button does.
"""

from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.sign_in import LINK_MINUTES, PATH, SignIn
from serving.tool_runner import Calls
from web.forms import form_fields
from web.pages import page, page_route, see_other
from web.sessions import HOME, Sessions, Viewer


def sign_in_routes(
    sign_in: SignIn, sessions: Sessions, calls: Calls, outbox: Path | None
) -> list[Route]:
    """Return the routes of signing in and out; `outbox` is where mail stays, told to its reader."""
    pages = _SignInPages(sign_in, sessions, outbox)
    return [
        page_route("/sign-in", calls, pages.ask, "GET", "POST"),
        page_route(f"{PATH}{{link_token}}", calls, pages.use_link, "GET", "POST"),
        page_route("/sign-out", calls, sessions.sent(pages.leave), "GET", "POST"),
    ]


class _SignInPages:
    def __init__(self, sign_in: SignIn, sessions: Sessions, outbox: Path | None) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._outbox = outbox

    async def ask(self, request: Request) -> Response:
        """Show the form, or mail a link once the one answer to every address has been sent."""
        if request.method == "POST":
            return await self._asked(request)
        if await self._sessions.viewer(request) is not None:
            return see_other(request, HOME)
        return page(request, "sign_in.html", title="Sign in", here=HOME, minutes=LINK_MINUTES)

    async def use_link(self, request: Request) -> Response:
        """Show the button of a link, or use the link up."""
        if request.method != "POST":
            return page(request, "sign_in_link.html", title="Sign in to signals")
        await form_fields(request)  # which refuses other sites' forms; ours has no field
        session_token = await self._sign_in.begin(request.path_params["link_token"])
        response = see_other(request, HOME)
        self._sessions.begin(response, session_token)
        return response

    async def leave(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """End the session."""
        response = see_other(request, "sign-in")
        await self._sessions.end(request, response)
        return response

    async def _asked(self, request: Request) -> Response:
        form = await form_fields(request)
        address = request.client.host if request.client else "unknown"
        mailbox = await self._sign_in.ask(form.get("contact_email", ""), address)
        response = page(
            request,
            "sign_in_asked.html",
            title="Look into your mailbox",
            minutes=LINK_MINUTES,
            outbox=self._outbox,
        )
        response.background = BackgroundTask(self._sign_in.mail_link, mailbox)
        return response

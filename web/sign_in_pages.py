"""The pages to sign in and out: request a link by e-mail, use it, end the session."""

from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.plan import ASK_OPERATOR_HINT
from access.sign_in import LINK_MINUTES, SIGN_IN_PATH, SignIn
from serving.tool_runner import ToolRunner
from web.forms import read_form
from web.pages import build_page_route, redirect_to, render_page
from web.pending_requests import CONSENT_PATH, PendingRequests, build_consent_path
from web.sessions import HOME_PATH, Sessions, Viewer


def build_sign_in_routes(
    sign_in: SignIn,
    sessions: Sessions,
    pending: PendingRequests,
    runner: ToolRunner,
    outbox: Path | None,
) -> list[Route]:
    """Return the routes of signing in and out; pages name the `outbox` folder if there is one."""
    pages = _SignInPages(sign_in, sessions, pending, outbox, runner.context.sells_keys)
    return [
        build_page_route("/sign-in", runner, pages.request_link, "GET", "POST"),
        build_page_route(f"{SIGN_IN_PATH}{{link_token}}", runner, pages.use_link, "GET", "POST"),
        build_page_route("/sign-out", runner, sessions.require_form(pages.sign_out), "GET", "POST"),
    ]


class _SignInPages:
    def __init__(
        self,
        sign_in: SignIn,
        sessions: Sessions,
        pending: PendingRequests,
        outbox: Path | None,
        sells_keys: bool,
    ) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._pending = pending
        self._outbox = outbox
        self._sells_keys = sells_keys

    async def request_link(self, request: Request) -> Response:
        """Show the form, or accept it and then e-mail a link."""
        if request.method == "POST":
            return await self._submit_request(request)
        if await self._sessions.find_viewer(request) is not None:
            return redirect_to(request, HOME_PATH)
        return render_page(
            request,
            "sign_in.html",
            title="Sign in",
            here=HOME_PATH,
            minutes=LINK_MINUTES,
            sells_keys=self._sells_keys,
            ask_operator=ASK_OPERATOR_HINT,
        )

    async def use_link(self, request: Request) -> Response:
        """Show the sign-in button of a link, or use the link and begin a session."""
        # Mail scanners open every link, so GET must not use it up. Only the button's POST does.
        if request.method != "POST":
            return render_page(request, "sign_in_link.html", title="Sign in to Signals")
        await read_form(request)  # Rejects forms from other sites; ours has no field.
        session_token = await self._sign_in.redeem_link(request.path_params["link_token"])
        response = redirect_to(request, await self._find_next_path(request))
        self._sessions.set_cookie(response, session_token)
        return response

    async def sign_out(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """End the viewer's sessions and return to the sign-in page."""
        response = redirect_to(request, "sign-in")
        await self._sessions.end_session(request, response)
        return response

    async def _find_next_path(self, request: Request) -> str:
        """Return the page after signing in: the connection that the link is for, or API access."""
        request_id = request.query_params.get("request")
        if request_id is None:
            return HOME_PATH
        pending = await self._pending.find(request_id)
        if pending is None:
            # It says that the connection must be started again.
            return CONSENT_PATH
        # The consent page warns if another browser, perhaps someone else's, began the request.
        is_own = self._pending.is_of_browser(request, pending)
        return f"{build_consent_path(pending)}{'' if is_own else '&elsewhere=1'}"

    async def _submit_request(self, request: Request) -> Response:
        form = await read_form(request)
        pending = await self._pending.get(form["request"]) if "request" in form else None
        address = request.client.host if request.client else "unknown"
        mailbox = await self._sign_in.request_link(form.get("contact_email", ""), address)
        response = render_page(
            request,
            "sign_in_sent.html",
            title="Check your inbox",
            minutes=LINK_MINUTES,
            outbox=self._outbox,
            pending=pending,
        )
        # The store is queried after the response. Otherwise its time would reveal who is a member.
        response.background = BackgroundTask(
            self._sign_in.mail_link, mailbox, None if pending is None else pending.id
        )
        return response

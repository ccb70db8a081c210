"""The pages to sign in and out: request a link by e-mail, use it, end the session."""

from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import ASK_OPERATOR_HINT
from access.sign_in import LINK_MINUTES, SIGN_IN_PATH, SignIn
from schemas.errors import ApiError
from serving.tool_runner import ToolRunner
from store.access_rows import PendingAuthorization
from web.forms import (
    EMAIL_ERROR,
    EMAIL_FIELD,
    MAX_EMAIL_CHARS,
    MAX_TOKEN_CHARS,
    read_form,
)
from web.pages import build_page_route, redirect_to, render_page
from web.pending_requests import (
    CONSENT_PATH,
    PendingRequests,
    allow_redirect,
    build_consent_path,
    describe_client,
)
from web.sessions import HOME_PATH, Sessions, Viewer

SIGN_IN_FIELDS = {
    EMAIL_FIELD: MAX_EMAIL_CHARS,
    "request": MAX_TOKEN_CHARS,
}


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
        """Show the form, or accept it and e-mail a link."""
        if request.method == "POST":
            form = await read_form(request, SIGN_IN_FIELDS)
            pending = await self._pending.get(form["request"]) if "request" in form else None
            return await self._submit_request(request, form, pending)
        viewer = await self._sessions.find_viewer(request)
        if viewer is not None:
            return redirect_to(request, _get_home_path(viewer.is_owner))
        return render_page(request, "sign_in.html", **self._build_values(None))

    async def use_link(self, request: Request) -> Response:
        """Show the sign-in button of a link, or use the link and begin a session."""
        # Mail scanners open every link, so GET must not use it up. Only the button's POST does.
        if request.method != "POST":
            title = "Sign in to Signals"
            return render_page(request, "sign_in_link.html", title=title, here="sign-in")
        await read_form(request, {})  # Rejects forms from other sites; ours has no field.
        session_token = await self._sign_in.redeem_link(request.path_params["link_token"])
        session = await self._sign_in.find_session(session_token)
        home_path = _get_home_path(session is not None and session.is_owner)
        response = redirect_to(request, await self._find_next_path(request, home_path))
        self._sessions.set_cookie(response, session_token)
        return response

    async def sign_out(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """End the viewer's sessions and return to the sign-in page."""
        response = redirect_to(request, "sign-in")
        await self._sessions.end_session(request, response)
        return response

    async def _find_next_path(self, request: Request, home_path: str) -> str:
        """Return the page after signing in: the connection that the link is for, or a home page."""
        request_id = request.query_params.get("request")
        if request_id is None:
            return home_path
        pending = await self._pending.find(request_id)
        if pending is None:
            # It says that the connection must be started again.
            return CONSENT_PATH
        # The consent page warns if another browser, perhaps someone else's, began the request.
        is_own = self._pending.is_of_browser(request, pending)
        return f"{build_consent_path(pending)}{'' if is_own else '&elsewhere=1'}"

    def _show_again(
        self,
        request: Request,
        form: dict[str, str],
        errors: dict[str, str],
        pending: PendingAuthorization | None,
    ) -> Response:
        values = self._build_values(pending)
        response = render_page(
            request, "sign_in.html", status=400, form=form, errors=errors, **values
        )
        if pending is not None:
            allow_redirect(response, pending)
        return response

    def _build_values(self, pending: PendingAuthorization | None) -> dict[str, Any]:
        """Return the values of the sign-in page, which leads on to a connection if one is given."""
        return {
            "title": "Sign in",
            "here": "sign-in",
            "description": "Sign in to Signals with a link that we e-mail you; no password needed.",
            "minutes": LINK_MINUTES,
            "sells_keys": self._sells_keys,
            "ask_operator": ASK_OPERATOR_HINT,
            "pending": pending,
            "client": None if pending is None else describe_client(pending),
        }

    async def _submit_request(
        self, request: Request, form: dict[str, str], pending: PendingAuthorization | None
    ) -> Response:
        email = form.get(EMAIL_FIELD, "")
        try:
            mailbox, wait_s = await self._sign_in.request_link(email, _get_address(request))
        except ApiError as error:
            if error.status != 400:
                raise
            return self._show_again(request, form, {EMAIL_FIELD: EMAIL_ERROR}, pending)
        response = render_page(
            request,
            "sign_in_sent.html",
            title="Check your inbox",
            here="sign-in",
            minutes=LINK_MINUTES,
            wait_s=wait_s,
            outbox=self._outbox,
            pending=pending,
        )
        # The store is queried after the response. Otherwise its time would reveal who is a member.
        response.background = BackgroundTask(
            self._sign_in.mail_link, mailbox, wait_s, None if pending is None else pending.id
        )
        return response


def _get_home_path(is_owner: bool) -> str:
    """Return the page to see first: the owner's is the board, and a member's has the keys."""
    return "" if is_owner else HOME_PATH


def _get_address(request: Request) -> str:
    return request.client.host if request.client else "unknown"

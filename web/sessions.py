"""Sessions: the pages to sign in and out, the cookie, the check of a viewer, form tokens."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import compare_digest
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import ASK_OPERATOR_HINT
from access.members import MemberKeys
from access.sign_in import LINK_MINUTES, SESSION_MS, SIGN_IN_PATH, SignIn
from schemas.errors import ApiError, invalid_parameter_error
from serving.error_responses import Responder
from serving.tool_runner import ToolRunner
from store.access_rows import PendingAuthorization
from web.forms import (
    EMAIL_ERROR,
    EMAIL_FIELD,
    MAX_EMAIL_CHARS,
    MAX_TOKEN_CHARS,
    Cookie,
    get_address,
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


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in viewer; each of their forms must contain `form_token`.

    `is_member`: they have an active plan now, and may see data that needs a key. `is_owner`: they
    run the service. An owner sees all that members see, and has no plan and no e-mail address:
    `email` is then OWNER.
    """

    email: str
    form_token: str
    is_member: bool
    is_owner: bool = False


FindViewer = Callable[[Request], Awaitable[Viewer | None]]
ViewerResponder = Callable[[Request, Viewer], Awaitable[Response]]
FormResponder = Callable[[Request, Viewer, dict[str, str]], Awaitable[Response]]
# The field that the form of a session always has.
FORM_TOKEN_FIELD = {"form_token": MAX_TOKEN_CHARS}
# The page after signing in, relative to the service's root.
HOME_PATH = "settings/api-access"


class Sessions:
    """Reads and sets session cookies; they are sent over TLS only if the service uses https."""

    def __init__(self, sign_in: SignIn, members: MemberKeys, base_url: str) -> None:
        self._sign_in = sign_in
        self._members = members
        self.cookie = Cookie("signals_session", base_url, SESSION_MS // 1000)

    async def find_viewer(self, request: Request) -> Viewer | None:
        """Return the signed-in viewer of a request, None if there is none."""
        token = self.cookie.read(request)
        session = await self._sign_in.find_session(token) if token else None
        if session is None:
            return None
        # Other sites cannot read the cookie to compute it.
        form_token, email = sha256(f"form {token}".encode()).hexdigest(), session.contact_email
        if session.is_owner:
            return Viewer(email, form_token, is_member=True, is_owner=True)
        return Viewer(email, form_token, await self._members.is_member(email))

    def require_viewer(self, respond: ViewerResponder) -> Responder:
        """Wrap a responder; redirect to the sign-in page if there is no viewer."""

        async def check_and_respond(request: Request) -> Response:
            viewer = await self.find_viewer(request)
            if viewer is None:
                return redirect_to(request, "sign-in")
            return await respond(request, viewer)

        return check_and_respond

    def require_owner(self, respond: ViewerResponder) -> Responder:
        """Wrap a responder; others than the owner get a page that says how to sign in as owner."""

        async def check_and_respond(request: Request) -> Response:
            viewer = await self.find_viewer(request)
            if viewer is None or not viewer.is_owner:
                title, status = "Only for the owner", 403
                return render_page(
                    request, "owner_only.html", status=status, title=title, viewer=viewer
                )
            return await respond(request, viewer)

        return check_and_respond

    def require_form(
        self, respond: FormResponder, fields: Mapping[str, int] | None = None
    ) -> Responder:
        """Wrap a responder to a form; redirect other methods to the API access page.

        `fields` are those of `read_form` besides the form token. The responder raises ApiError 403
        if the form token is not this viewer's.
        """

        async def check_and_respond(request: Request, viewer: Viewer) -> Response:
            if request.method != "POST":
                return redirect_to(request, HOME_PATH)
            form = await read_form(request, {**FORM_TOKEN_FIELD, **(fields or {})})
            check_form_token(form, viewer)
            return await respond(request, viewer, form)

        return self.require_viewer(check_and_respond)


def refuse_key(request: Request, endpoint: str) -> None:
    """Raise ApiError 400 for a request with an API key for a file of a page; name its endpoint.

    A program would otherwise take the sample, which visitors get, for its data.
    """
    has_bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
    if has_bearer or "x-api-key" in request.headers:
        raise invalid_parameter_error(
            "This file takes no API key: members get it in the browser in which they signed in, "
            f"and others get a sample. With a key, request GET {endpoint} instead."
        )


def check_form_token(form: dict[str, str], viewer: Viewer) -> None:
    """Raise ApiError 403 if the form token is not this viewer's."""
    if not compare_digest(form.get("form_token", "").encode(), viewer.form_token.encode()):
        raise ApiError(
            "invalid_parameter",
            "This form belongs to another session. Open the page again and resubmit the form.",
            403,
        )


SIGN_IN_FIELDS = {
    EMAIL_FIELD: MAX_EMAIL_CHARS,
    "request": MAX_TOKEN_CHARS,
}


@dataclass(frozen=True, slots=True)
class SignInPages:
    """The pages to sign in and out; they name the `outbox` folder if there is one."""

    sign_in: SignIn
    sessions: Sessions
    pending: PendingRequests
    outbox: Path | None
    sells_keys: bool

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        sign_out = self.sessions.require_form(self.sign_out)
        link_path = f"{SIGN_IN_PATH}{{link_token}}"
        return [
            build_page_route("/sign-in", runner, self.request_link, "GET", "POST"),
            build_page_route(link_path, runner, self.use_link, "GET", "POST"),
            build_page_route("/sign-out", runner, sign_out, "GET", "POST"),
        ]

    async def request_link(self, request: Request) -> Response:
        """Show the form, or accept it and e-mail a link."""
        if request.method == "POST":
            form = await read_form(request, SIGN_IN_FIELDS)
            pending = await self.pending.get(form["request"]) if "request" in form else None
            email = form.get(EMAIL_FIELD, "")
            try:
                mailbox, wait_s = await self.sign_in.request_link(email, get_address(request))
            except ApiError as error:
                if error.status != 400:
                    raise
                values = {"errors": {EMAIL_FIELD: EMAIL_ERROR}, **self._build_values(pending)}
                response = render_page(request, "sign_in.html", status=400, form=form, **values)
                if pending is not None:
                    allow_redirect(response, pending)
                return response
            response = render_page(
                request,
                "sign_in_sent.html",
                title="Check your inbox",
                here="sign-in",
                minutes=LINK_MINUTES,
                wait_s=wait_s,
                outbox=self.outbox,
                pending=pending,
            )
            # The store is queried after the response. Otherwise its time would reveal who is a
            # member.
            pending_id = None if pending is None else pending.id
            response.background = BackgroundTask(
                self.sign_in.mail_link, mailbox, wait_s, pending_id
            )
            return response
        viewer = await self.sessions.find_viewer(request)
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
        session_token = await self.sign_in.redeem_link(request.path_params["link_token"])
        session = await self.sign_in.find_session(session_token)
        path = _get_home_path(session is not None and session.is_owner)
        # The page after signing in is the connection that the link is for, if there is one.
        if (request_id := request.query_params.get("request")) is not None:
            pending = await self.pending.find(request_id)
            if pending is None:
                # It says that the connection must be started again.
                path = CONSENT_PATH
            else:
                # The page warns if another browser, perhaps someone else's, began the request.
                is_own = self.pending.cookie.read(request) == pending.id
                path = f"{build_consent_path(pending)}{'' if is_own else '&elsewhere=1'}"
        response = redirect_to(request, path)
        self.sessions.cookie.set(response, session_token)
        return response

    async def sign_out(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """End the viewer's sessions and return to the sign-in page."""
        response = redirect_to(request, "sign-in")
        await self.sign_in.sign_out(self.sessions.cookie.read(request))
        self.sessions.cookie.delete(response)
        return response

    def _build_values(self, pending: PendingAuthorization | None) -> dict[str, Any]:
        """Return the values of the sign-in page, which leads on to a connection if one is given."""
        return {
            "title": "Sign in",
            "here": "sign-in",
            "description": "Sign in to Signals with a link that we e-mail you; no password needed.",
            "minutes": LINK_MINUTES,
            "sells_keys": self.sells_keys,
            "ask_operator": ASK_OPERATOR_HINT,
            "pending": pending,
            "client": None if pending is None else describe_client(pending),
        }


def _get_home_path(is_owner: bool) -> str:
    """Return the page to see first: the owner's is the board, and a member's has the keys."""
    return "" if is_owner else HOME_PATH

"""What browsers send from our own pages: forms, cookies, sessions, and a program's request.

A page with a form shows it with `form` (the text of the fields) and `errors` (by field name). The
macros `field_error` and `field_state` of parts.html put each error at its field.

The cookie of an authorization request and all our links hold only the request's id, which nobody
can guess. The address that the browser is sent to at the end is the one that the request stores, so
no URL can change it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import ASK_OPERATOR_HINT
from access.members import MemberKeys
from access.oauth.authorizations import Authorizations
from access.oauth.parameters import is_loopback_redirect
from access.sign_in import LINK_MINUTES, SESSION_MS, SIGN_IN_PATH, SignIn
from schemas.errors import ApiError, invalid_parameter_error
from serving.error_responses import Responder
from serving.http import MAX_FORM_BYTES, get_address, read_body, read_cookie
from serving.tool_runner import ToolRunner
from store.access_rows import PendingAuthorization
from web.pages import SECURITY_HEADERS, build_page_route, redirect_to, render_page

# It makes a cut text one character too long.
CUT_MARK = "\N{HORIZONTAL ELLIPSIS}"
# The most characters of fields that several forms have. A field that chooses one of a few values
# needs no more than a short text does.
MAX_TOKEN_CHARS, MAX_CHOICE_CHARS, MAX_EMAIL_CHARS = 64, 32, 254
EMAIL_FIELD = "contact_email"
EMAIL_ERROR = "This is not an e-mail address. Enter one such as name@example.com."


async def read_form(request: Request, fields: Mapping[str, int]) -> dict[str, str]:
    """Return the fields of a form, given with the most characters that each may have.

    Raise ApiError 403 if another site's page sent it, 413 if it exceeds 8 KiB. Other fields and
    those sent twice are left out, and a body that is not a form has no fields. The caller rejects
    missing fields. A longer field is cut and ends with CUT_MARK, so the caller rejects it, too.
    """
    # It is same-origin for our own forms and none if the user resends one. Programs send no such
    # header, but they hold no visitor's cookies either. This check prevents login CSRF: the sign-in
    # forms come before a session, so they cannot carry a form token.
    if request.headers.get("sec-fetch-site") not in {"same-origin", "none", None}:
        raise ApiError(
            "invalid_parameter",
            "Another site sent this form. Open the page here and try again.",
            403,
        )
    body = await read_body(request.scope, request.receive, MAX_FORM_BYTES)
    try:
        sent = parse_qs(body.decode("ascii"), max_num_fields=20, errors="strict")
    except ValueError:
        return {}
    return {
        # Checks such as that of an e-mail address take long for long texts. Without the mark, the
        # beginning of a text could be accepted.
        name: text if len(text := sent[name][0]) <= limit else text[:limit] + CUT_MARK
        for name, limit in fields.items()
        if len(sent.get(name, ())) == 1
    }


class Cookie:
    """A cookie that scripts cannot read, sent over TLS only if `base_url` uses https."""

    def __init__(self, name: str, base_url: str, max_age_s: int) -> None:
        self._is_secure = base_url.startswith("https://")
        # Browsers accept a `__Host-` cookie only over TLS and only from this exact host, so another
        # subdomain cannot set one for us.
        self._name = f"__Host-{name}" if self._is_secure else name
        self._max_age_s = max_age_s

    def read(self, request: Request) -> str:
        """Return the value that a browser sent, empty if it sent none."""
        return read_cookie(request.scope, self._name)

    def set(self, response: Response, value: str) -> None:
        """Set the cookie."""
        # `lax`, not `strict`: a strict cookie is not sent when a page is opened from an e-mail or
        # by the payment processor. Lax is not sent with another site's POST.
        response.set_cookie(
            self._name,
            value,
            max_age=self._max_age_s,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    def delete(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(self._name, secure=self._is_secure, httponly=True, samesite="lax")


CONSENT_PATH = "oauth/consent"


class PendingRequests:
    """Finds the authorization requests that pages name; the cookie needs TLS if `base_url` does.

    `cookie` has the id of a request, so that the browser returns to it after signing in and paying.
    Without `authorizations`, the service has no OAuth and there are no requests.
    """

    def __init__(self, authorizations: Authorizations | None, base_url: str) -> None:
        self._authorizations = authorizations
        # The cookie outlives the request, which the store deletes after an hour.
        self.cookie = Cookie("signals_request", base_url, 3600)

    async def find(self, request_id: str) -> PendingAuthorization | None:
        """Return a request, None if it is unknown, answered or has expired."""
        if self._authorizations is None or not request_id:
            return None
        return await self._authorizations.find_pending(request_id)

    async def get(self, request_id: str) -> PendingAuthorization:
        """Return a request; raise ApiError 404 if there is none, see `find`."""
        pending = await self.find(request_id)
        if pending is None:
            raise ApiError(
                "invalid_parameter",
                "This request to connect a program is unknown, has expired or was already "
                "answered. Go back to the program and start the connection again.",
                404,
            )
        return pending


def build_consent_path(pending: PendingAuthorization) -> str:
    """Return the path of a request's consent page, relative to the service's root."""
    return f"{CONSENT_PATH}?request={pending.id}"


def allow_redirect(response: Response, pending: PendingAuthorization) -> None:
    """Let the forms of a page lead to the client of a request."""
    # Browsers apply `form-action` to the redirect after the form, and to those of the client's page
    # that follow it. So the policy allows the scheme: a host could not be told beforehand.
    scheme = urlsplit(pending.redirect_uri).scheme
    response.headers["Content-Security-Policy"] = SECURITY_HEADERS[
        "Content-Security-Policy"
    ].replace("form-action 'self'", f"form-action 'self' https: {scheme}:")


def describe_client(pending: PendingAuthorization) -> dict[str, str | None]:
    """Describe the client of a request as a page shows it.

    `name` is the client's own text, unverified but cleaned by `ClientRegistry`: pages escape and
    isolate it. The hosts, `destination` and `described_at`, are facts.
    """
    if is_loopback_redirect(pending.redirect_uri):
        destination = "a program on this computer"
    elif pending.redirect_host.endswith(":"):
        destination = f"the program on this computer that opens {pending.redirect_host} links"
    else:
        destination = pending.redirect_host
    # The id of a client that a document describes is the document's address.
    is_document = pending.client_id.startswith("https://")
    return {
        "name": pending.client_name,
        "destination": destination,
        "described_at": urlsplit(pending.client_id).hostname if is_document else None,
    }


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
# The text of a form's fields by name.
Form = dict[str, str]
FormResponder = Callable[[Request, Viewer, Form], Awaitable[Response]]
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

    def require_viewer(self, respond: ViewerResponder, *, is_owners: bool = False) -> Responder:
        """Wrap a responder; redirect to the sign-in page if there is no viewer.

        With `is_owners`, others than the owner get a page that says how to sign in as owner.
        """

        async def check_and_respond(request: Request) -> Response:
            viewer = await self.find_viewer(request)
            if is_owners and (viewer is None or not viewer.is_owner):
                title, status = "Only for the owner", 403
                return render_page(
                    request, "owner_only.html", status=status, title=title, viewer=viewer
                )
            if viewer is None:
                return redirect_to(request, "sign-in")
            return await respond(request, viewer)

        return check_and_respond

    def require_form(
        self,
        respond: FormResponder,
        fields: Mapping[str, int] | None = None,
        *,
        is_owners: bool = False,
    ) -> Responder:
        """Wrap a responder to a form; redirect other methods to the API access page.

        `fields` are those of `read_form` besides the form token. The responder raises ApiError 403
        if the form token is not this viewer's. With `is_owners`, only the owner may send the form.
        """

        async def check_and_respond(request: Request, viewer: Viewer) -> Response:
            if request.method != "POST":
                return redirect_to(request, HOME_PATH)
            form = await read_form(request, {**FORM_TOKEN_FIELD, **(fields or {})})
            check_form_token(form, viewer)
            return await respond(request, viewer, form)

        return self.require_viewer(check_and_respond, is_owners=is_owners)


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


def check_form_token(form: Form, viewer: Viewer) -> None:
    """Raise ApiError 403 if the form token is not this viewer's."""
    if not compare_digest(form.get("form_token", "").encode(), viewer.form_token.encode()):
        raise ApiError(
            "invalid_parameter",
            "This form belongs to another session. Open the page again and resubmit the form.",
            403,
        )


@dataclass(frozen=True, slots=True)
class SignInPages:
    """The pages to sign in and out; they name the `outbox` folder if there is one."""

    sign_in: SignIn
    sessions: Sessions
    pending: PendingRequests
    outbox: Path | None

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
        if request.method != "POST":
            viewer = await self.sessions.find_viewer(request)
            if viewer is None:
                return self._show_form(request, None)
            return redirect_to(request, "" if viewer.is_owner else HOME_PATH)
        form = await read_form(request, {EMAIL_FIELD: MAX_EMAIL_CHARS, "request": MAX_TOKEN_CHARS})
        pending = await self.pending.get(form["request"]) if "request" in form else None
        email = form.get(EMAIL_FIELD, "")
        try:
            mailbox, wait_s = await self.sign_in.request_link(email, get_address(request))
        except ApiError as error:
            if error.status != 400:
                raise
            errors = {EMAIL_FIELD: EMAIL_ERROR}
            response = self._show_form(request, pending, status=400, form=form, errors=errors)
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
        # The store is queried after the response. Otherwise its time would reveal who is a member.
        pending_id = None if pending is None else pending.id
        response.background = BackgroundTask(self.sign_in.mail_link, mailbox, wait_s, pending_id)
        return response

    async def use_link(self, request: Request) -> Response:
        """Show the sign-in button of a link, or use the link and begin a session."""
        # Mail scanners open every link, so GET must not use it up. Only the button's POST does.
        if request.method != "POST":
            title = "Sign in to Signals"
            return render_page(request, "sign_in_link.html", title=title, here="sign-in")
        await read_form(request, {})  # Rejects forms from other sites; ours has no field.
        session_token, is_owner = await self.sign_in.redeem_link(request.path_params["link_token"])
        # The page to see first: the owner's is the board, and a member's has the keys.
        path = "" if is_owner else HOME_PATH
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

    async def sign_out(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """End the viewer's sessions and return to the sign-in page."""
        response = redirect_to(request, "sign-in")
        await self.sign_in.sign_out(self.sessions.cookie.read(request))
        self.sessions.cookie.delete(response)
        return response

    def _show_form(
        self, request: Request, pending: PendingAuthorization | None, **values: Any
    ) -> Response:
        return render_page(
            request,
            "sign_in.html",
            title="Sign in",
            here="sign-in",
            description="Sign in to Signals with a link that we e-mail you; no password needed.",
            minutes=LINK_MINUTES,
            ask_operator=ASK_OPERATOR_HINT,
            pending=pending,
            client=None if pending is None else describe_client(pending),
            **values,
        )

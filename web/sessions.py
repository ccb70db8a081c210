"""Sessions of signed-in viewers: the cookie, the check that one is signed in, form tokens."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest

from starlette.requests import Request
from starlette.responses import Response

from access.members import MemberKeys
from access.sign_in import SESSION_MS, SignIn
from schemas.errors import ApiError
from serving.error_responses import Responder
from serving.http import read_cookie
from web.forms import MAX_TOKEN_CHARS, read_form
from web.pages import redirect_to, render_page


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
        self._is_secure = base_url.startswith("https://")
        # Browsers accept a `__Host-` cookie only over TLS and only from this exact host, so another
        # subdomain cannot set one for us.
        self._cookie_name = "__Host-signals_session" if self._is_secure else "signals_session"

    async def find_viewer(self, request: Request) -> Viewer | None:
        """Return the signed-in viewer of a request, None if there is none."""
        token = self._read_token(request)
        session = await self._sign_in.find_session(token) if token else None
        if session is None:
            return None
        form_token, email = _derive_form_token(token), session.contact_email
        if session.is_owner:
            return Viewer(email, form_token, is_member=True, is_owner=True)
        return Viewer(email, form_token, await self._members.is_member(email))

    def require_viewer(self, respond: ViewerResponder) -> Responder:
        """Wrap a responder; redirect to the sign-in page if there is no viewer."""

        async def find_and_respond(request: Request) -> Response:
            viewer = await self.find_viewer(request)
            if viewer is None:
                return redirect_to(request, "sign-in")
            return await respond(request, viewer)

        return find_and_respond

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

    def set_cookie(self, response: Response, token: str) -> None:
        """Set the cookie of a new session."""
        # `lax`, not `strict`: a strict cookie is not sent when a page is opened from an e-mail, so
        # a member would seem to be signed out. Lax is not sent with another site's POST.
        response.set_cookie(
            self._cookie_name,
            token,
            max_age=SESSION_MS // 1000,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    async def end_session(self, request: Request, response: Response) -> None:
        """End all sessions of the viewer, and delete the cookie."""
        await self._sign_in.sign_out(self._read_token(request))
        response.delete_cookie(
            self._cookie_name, secure=self._is_secure, httponly=True, samesite="lax"
        )

    def _read_token(self, request: Request) -> str:
        return read_cookie(request.scope, self._cookie_name)


def check_form_token(form: dict[str, str], viewer: Viewer) -> None:
    """Raise ApiError 403 if the form token is not this viewer's."""
    if not compare_digest(form.get("form_token", "").encode(), viewer.form_token.encode()):
        raise ApiError(
            "invalid_parameter",
            "This form belongs to another session. Open the page again and resubmit the form.",
            403,
        )


def _derive_form_token(session_token: str) -> str:
    """Return the form token of a session; other sites cannot read the cookie to compute it."""
    return sha256(f"form {session_token}".encode()).hexdigest()

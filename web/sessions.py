"""Who looks at a page: nobody known, or somebody who has signed in.

A session is a cookie that no script reads and no other site's form sends.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest

from starlette.requests import Request
from starlette.responses import Response

from access.member_keys import MemberKeys
from access.sign_in import SESSION_MS, SignIn
from schemas.errors import ApiError
from serving.error_responses import Responder
from web.forms import read_form
from web.pages import redirect_to


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who has signed in; `form_token` is what each of their forms must carry.

    `is_member` where they hold the plan at this moment, so may see what needs a key.
    """

    email: str
    form_token: str
    is_member: bool


FindViewer = Callable[[Request], Awaitable[Viewer | None]]
ViewerResponder = Callable[[Request, Viewer], Awaitable[Response]]
FormResponder = Callable[[Request, Viewer, dict[str, str]], Awaitable[Response]]
# Where who has signed in is led to, from the service's root.
HOME_PATH = "settings/api-access"


class Sessions:
    """The sessions of browsers, by cookies that go over TLS alone where the service has it."""

    def __init__(self, sign_in: SignIn, members: MemberKeys, base_url: str) -> None:
        self._sign_in = sign_in
        self._members = members
        self._is_secure = base_url.startswith("https://")
        self._cookie_name = "__Host-signals_session" if self._is_secure else "signals_session"

    async def find_viewer(self, request: Request) -> Viewer | None:
        """Return who sent a request, None for whoever has not signed in."""
        token = self._read_token(request)
        email = await self._sign_in.find_session_email(token) if token else None
        if email is None:
            return None
        return Viewer(email, _derive_form_token(token), await self._members.is_member(email))

    def require_viewer(self, respond: ViewerResponder) -> Responder:
        """Return a responder that has whoever has not signed in do so."""

        async def find_and_respond(request: Request) -> Response:
            viewer = await self.find_viewer(request)
            if viewer is None:
                return redirect_to(request, "sign-in")
            return await respond(request, viewer)

        return find_and_respond

    def require_form(self, respond: FormResponder) -> Responder:
        """Return a responder to forms of our pages; whoever comes without one is led home.

        ApiError 403 for a form that no page held which this viewer was shown.
        """

        async def check_and_respond(request: Request, viewer: Viewer) -> Response:
            if request.method != "POST":
                return redirect_to(request, HOME_PATH)
            form = await read_form(request)
            _check_token(form, viewer)
            return await respond(request, viewer, form)

        return self.require_viewer(check_and_respond)

    def set_cookie(self, response: Response, token: str) -> None:
        """Give the browser the cookie of a session that has begun."""
        response.set_cookie(
            self._cookie_name,
            token,
            max_age=SESSION_MS // 1000,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    async def end_session(self, request: Request, response: Response) -> None:
        """End the sessions of who sent a request, here and in their browser."""
        await self._sign_in.sign_out(self._read_token(request))
        response.delete_cookie(
            self._cookie_name, secure=self._is_secure, httponly=True, samesite="lax"
        )

    def _read_token(self, request: Request) -> str:
        return request.cookies.get(self._cookie_name, "")


def _check_token(form: dict[str, str], viewer: Viewer) -> None:
    if not compare_digest(form.get("form_token", "").encode(), viewer.form_token.encode()):
        raise ApiError(
            "invalid_parameter",
            "This form is not of your present session. Open its page again and send it from there.",
            403,
        )


def _derive_form_token(session_token: str) -> str:
    """Return what another site, which cannot read the cookie, cannot know."""
    return sha256(f"form {session_token}".encode()).hexdigest()

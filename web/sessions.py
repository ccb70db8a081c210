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
from rest_shim.routes import Responder
from schemas.errors import ApiError
from web.forms import form_fields
from web.pages import see_other


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who has signed in; `form_token` is what each of their forms must carry.

    `is_member` where they hold the plan at this moment, so may see what needs a key.
    """

    email: str
    form_token: str
    is_member: bool


ViewerOf = Callable[[Request], Awaitable[Viewer | None]]
ViewerResponder = Callable[[Request, Viewer], Awaitable[Response]]
FormResponder = Callable[[Request, Viewer, dict[str, str]], Awaitable[Response]]
# Where who has signed in is led to, from the service's root.
HOME = "settings/api-access"


class Sessions:
    """The sessions of browsers, by cookies that go over TLS alone where the service has it."""

    def __init__(self, sign_in: SignIn, members: MemberKeys, base_url: str) -> None:
        self._sign_in = sign_in
        self._members = members
        self._is_secure = base_url.startswith("https://")
        self._name = "__Host-signals_session" if self._is_secure else "signals_session"

    async def viewer(self, request: Request) -> Viewer | None:
        """Return who sent a request, None for whoever has not signed in."""
        token = self._token(request)
        email = await self._sign_in.signed_in(token) if token else None
        if email is None:
            return None
        return Viewer(email, _form_token(token), await self._members.is_member(email))

    def signed_in(self, respond: ViewerResponder) -> Responder:
        """Return a responder that has whoever has not signed in do so."""

        async def answer(request: Request) -> Response:
            viewer = await self.viewer(request)
            if viewer is None:
                return see_other(request, "sign-in")
            return await respond(request, viewer)

        return answer

    def sent(self, respond: FormResponder) -> Responder:
        """Return a responder to forms of our pages; whoever comes without one is led home.

        ApiError 403 for a form that no page held which this viewer was shown.
        """

        async def answer(request: Request, viewer: Viewer) -> Response:
            if request.method != "POST":
                return see_other(request, HOME)
            form = await form_fields(request)
            _check_token(form, viewer)
            return await respond(request, viewer, form)

        return self.signed_in(answer)

    def begin(self, response: Response, token: str) -> None:
        """Give the browser the cookie of a session that has begun."""
        response.set_cookie(
            self._name,
            token,
            max_age=SESSION_MS // 1000,
            secure=self._is_secure,
            httponly=True,
            samesite="lax",
        )

    async def end(self, request: Request, response: Response) -> None:
        """End the sessions of who sent a request, here and in their browser."""
        await self._sign_in.end(self._token(request))
        response.delete_cookie(self._name, secure=self._is_secure, httponly=True, samesite="lax")

    def _token(self, request: Request) -> str:
        return request.cookies.get(self._name, "")


def _check_token(form: dict[str, str], viewer: Viewer) -> None:
    if not compare_digest(form.get("form_token", "").encode(), viewer.form_token.encode()):
        raise ApiError(
            "invalid_parameter",
            "This form is not of your present session. Open its page again and send it from there.",
            403,
        )


def _form_token(session_token: str) -> str:
    """Return what another site, which cannot read the cookie, cannot know."""
    return sha256(f"form {session_token}".encode()).hexdigest()

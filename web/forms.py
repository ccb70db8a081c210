"""What browsers send from our own pages: their forms, with what is wrong with a field, and cookies.

A page with a form shows it with `form` (the text of the fields) and `errors` (by field name). The
macros `field_error` and `field_state` of parts.html put each error at its field.
"""

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from schemas.errors import ApiError
from serving.http import MAX_FORM_BYTES, read_body, read_cookie

MAX_FIELDS = 20
# It makes a cut text one character too long.
CUT_MARK = "\N{HORIZONTAL ELLIPSIS}"
# The most characters of fields that several forms have. A field that chooses one of a few values
# needs no more than a short text does.
MAX_TOKEN_CHARS, MAX_CHOICE_CHARS, MAX_EMAIL_CHARS = 64, 32, 254
EMAIL_FIELD = "contact_email"
EMAIL_ERROR = "This is not an e-mail address. Enter one such as name@example.com."
# `Sec-Fetch-Site` is same-origin for our own forms and none if the user resends one. Programs send
# no such header, but they hold no visitor's cookies either. This check prevents login CSRF: the
# sign-in forms come before a session, so they cannot carry a form token.
ALLOWED_FETCH_SITES = {"same-origin", "none", None}


async def read_form(request: Request, fields: Mapping[str, int]) -> dict[str, str]:
    """Return the fields of a form, given with the most characters that each may have.

    Raise ApiError 403 if another site's page sent it, 413 if it exceeds 8 KiB. Other fields and
    those sent twice are left out, and a body that is not a form has no fields. The caller rejects
    missing fields. A longer field is cut and ends with CUT_MARK, so the caller rejects it, too.
    """
    if request.headers.get("sec-fetch-site") not in ALLOWED_FETCH_SITES:
        raise ApiError(
            "invalid_parameter",
            "Another site sent this form. Open the page here and try again.",
            403,
        )
    body = await read_body(request.scope, request.receive, MAX_FORM_BYTES)
    try:
        sent = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        return {}
    return {
        # Checks such as that of an e-mail address take long for long texts. Without the mark, the
        # beginning of a text could be accepted.
        name: text if len(text := sent[name][0]) <= limit else text[:limit] + CUT_MARK
        for name, limit in fields.items()
        if len(sent.get(name, ())) == 1
    }


def get_address(request: Request) -> str:
    """Return the address of a client, by which attempts are throttled."""
    return request.client.host if request.client else "unknown"


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

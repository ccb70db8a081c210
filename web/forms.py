"""Forms as browsers send them from our own pages: a few named fields, each once."""

from urllib.parse import parse_qs

from starlette.requests import Request

from schemas.errors import ApiError
from serving.http import read_body

MAX_FIELDS = 10
# What `Sec-Fetch-Site` is of a form of ours, of one that the user sends again, and of programs.
ALLOWED_FETCH_SITES = {"same-origin", "none", None}


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of the form that was sent; ApiError 403 where another site's page did.

    A field that comes twice is not there, nor any of a body that is no form: whoever needs one says
    what is accepted.
    """
    if request.headers.get("sec-fetch-site") not in ALLOWED_FETCH_SITES:
        raise ApiError("invalid_parameter", "Another site sent this form: open the page here.", 403)
    body = await read_body(request.scope, request.receive)
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items() if len(values) == 1}

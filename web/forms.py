"""Forms as browsers send them: a few named fields, each once."""

from urllib.parse import parse_qs

from starlette.requests import Request

from mcp_server.transport import read_body

MOST_FIELDS = 10


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of the form that was sent.

    A field that comes twice is not there, nor any of a body that is no form: whoever needs one says
    what is accepted.
    """
    body = await read_body(request.scope, request.receive)
    try:
        given = parse_qs(body.decode("ascii"), max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        return {}
    return {name: values[0] for name, values in given.items() if len(values) == 1}

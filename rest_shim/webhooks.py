"""The address to which the payment processor reports; it stands in no public document."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from access.webhooks import Webhooks
from rest_shim.routes import guarded
from serving.http import read_body
from serving.tool_runner import Calls

PATH = "/webhooks/stripe"


def webhook_route(webhooks: Webhooks, calls: Calls) -> Route:
    """Return the route that takes signed messages; their bytes are verified as they arrived."""

    async def respond(request: Request) -> Response:
        payload = await read_body(request.scope, request.receive)
        await webhooks.receive(payload, request.headers.get("stripe-signature"))
        return JSONResponse({"received": True})

    return Route(PATH, guarded(PATH, calls, respond), methods=["POST"])

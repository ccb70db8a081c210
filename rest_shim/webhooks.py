"""The webhook route of the payment processor, which no public document lists."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from access.webhooks import WebhookHandler
from serving.error_responses import guard_route
from serving.http import MAX_WEBHOOK_BYTES, read_body
from serving.tool_runner import ToolRunner

WEBHOOK_PATH = "/webhooks/stripe"


def build_webhook_route(handler: WebhookHandler, runner: ToolRunner) -> Route:
    """Return the route that receives signed webhook messages."""

    async def respond(request: Request) -> Response:
        # The signature is over the exact bytes, so the body is passed on unparsed.
        payload = await read_body(request.scope, request.receive, MAX_WEBHOOK_BYTES)
        await handler.handle_message(payload, request.headers.get("stripe-signature"))
        return JSONResponse({"received": True})

    return Route(WEBHOOK_PATH, guard_route(WEBHOOK_PATH, runner, respond), methods=["POST"])

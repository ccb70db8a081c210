"""An endpoint of a model that gives scripted replies, in the format of OpenAI or Anthropic.

A reply is a text, or a list of calls: pairs of a tool and its arguments.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Calls = list[tuple[str, Any]]


@dataclass
class ChatEndpoint:
    """The app, its scripted replies, and the requests that it received.

    `failures` are statuses with which it answers first.
    """

    replies: list[str | Calls]
    failures: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/messages", self._send_message, methods=["POST"]),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        reply = await self._record(request)
        return reply if isinstance(reply, Response) else JSONResponse(to_openai(reply))

    async def _send_message(self, request: Request) -> Response:
        reply = await self._record(request)
        return reply if isinstance(reply, Response) else JSONResponse(to_anthropic(reply))

    async def _record(self, request: Request) -> str | Calls | Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        if self.failures:
            return Response("busy", self.failures.pop(0), {"retry-after": "7"})
        return self.replies.pop(0)


def to_openai(reply: str | Calls) -> dict[str, Any]:
    if isinstance(reply, str):
        return {"choices": [{"message": {"role": "assistant", "content": reply}}]}
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": text}}
        for number, (tool, arguments) in enumerate(reply)
        for text in [arguments if isinstance(arguments, str) else json.dumps(arguments)]
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"choices": [{"message": message}]}


def to_anthropic(reply: str | Calls) -> dict[str, Any]:
    if isinstance(reply, str):
        return {"content": [{"type": "text", "text": reply}]}
    return {
        "content": [
            {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": arguments}
            for number, (tool, arguments) in enumerate(reply)
        ]
    }

"""Conversations with a model, in the format of OpenAI's or Anthropic's endpoint."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from evals.session import JsonObject

MAX_TOKENS = 4096

# Sends the body of a request to a model and returns that of its response.
Send = Callable[[JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True)
class ToolRequest:
    """A call that the model wants; `arguments` is a string if the model wrote invalid JSON."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True)
class ToolResult:
    """The result of a requested call."""

    request: ToolRequest
    text: str
    is_error: bool


@dataclass(frozen=True)
class Reply:
    """A reply of the model: text, or calls, or both."""

    text: str
    requests: Sequence[ToolRequest]


class Chat(Protocol):
    """One conversation, which starts with a question."""

    async def send(self, results: Sequence[ToolResult]) -> Reply:
        """Send the results of the last reply's calls, none at first; return the next reply."""


# Takes the system prompt, the listed tools and the question.
OpenChat = Callable[[str, Sequence[JsonObject], str], Chat]


class OpenAiChat:
    """A conversation in the format of OpenAI's chat completions."""

    def __init__(
        self, send: Send, model: str, system: str, tools: Sequence[JsonObject], question: str
    ) -> None:
        self._send = send
        self._body: JsonObject = {
            "model": model,
            "tools": [_to_openai_tool(tool) for tool in tools],
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
        }

    async def send(self, results: Sequence[ToolResult]) -> Reply:
        """Send the results, each as a message of its own."""
        messages = self._body["messages"]
        messages += [
            {"role": "tool", "tool_call_id": result.request.id, "content": result.text}
            for result in results
        ]
        message = (await self._send(self._body))["choices"][0]["message"]
        messages.append(message)
        requests = [_parse_openai_call(call) for call in message.get("tool_calls") or ()]
        return Reply(message.get("content") or "", requests)


class AnthropicChat:
    """A conversation in the format of Anthropic's messages."""

    def __init__(
        self, send: Send, model: str, system: str, tools: Sequence[JsonObject], question: str
    ) -> None:
        self._send = send
        self._body: JsonObject = {
            "model": model,
            "max_tokens": MAX_TOKENS,
            "system": system,
            "tools": [_to_anthropic_tool(tool) for tool in tools],
            "messages": [{"role": "user", "content": question}],
        }

    async def send(self, results: Sequence[ToolResult]) -> Reply:
        """Send all results in one message."""
        messages = self._body["messages"]
        if results:
            content = [_to_anthropic_result(result) for result in results]
            messages.append({"role": "user", "content": content})
        blocks = (await self._send(self._body))["content"]
        messages.append({"role": "assistant", "content": blocks})
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return Reply(
            text,
            [
                ToolRequest(block["id"], block["name"], block["input"])
                for block in blocks
                if block["type"] == "tool_use"
            ],
        )


def _to_openai_tool(tool: JsonObject) -> JsonObject:
    function = {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["inputSchema"],
    }
    return {"type": "function", "function": function}


def _parse_openai_call(call: JsonObject) -> ToolRequest:
    function = call["function"]
    arguments = function["arguments"] or "{}"
    with suppress(ValueError):
        arguments = json.loads(arguments)
    return ToolRequest(call["id"], function["name"], arguments)


def _to_anthropic_tool(tool: JsonObject) -> JsonObject:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "input_schema": tool["inputSchema"],
    }


def _to_anthropic_result(result: ToolResult) -> JsonObject:
    return {
        "type": "tool_result",
        "tool_use_id": result.request.id,
        "content": result.text,
        "is_error": result.is_error,
    }

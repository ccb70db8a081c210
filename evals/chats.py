"""Conversations with a model, in the format of OpenAI's or Anthropic's endpoint."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx

JsonObject = dict[str, Any]
# A call that the model wants: its id, the tool, and the arguments, a string if they are no JSON.
ToolRequest = tuple[str, str, Any]
# The result of a requested call: the id of the request, the text, and whether it is an error.
ToolResult = tuple[str, str, bool]

MAX_TOKENS = 4096
MAX_ATTEMPTS = 5
TIMEOUT_S = 300


class ModelError(Exception):
    """A model that cannot be used; the text says what to correct."""


class OpenAiChat:
    """A conversation in the format of OpenAI's chat completions."""

    def __init__(self, model: str, system: str, tools: Sequence[JsonObject], question: str) -> None:
        functions = [
            {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["inputSchema"],
            }
            for tool in tools
        ]
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        self.body: JsonObject = {
            "model": model,
            "tools": [{"type": "function", "function": function} for function in functions],
            "messages": messages,
        }

    def add_reply(self, response: JsonObject) -> tuple[str, list[ToolRequest]]:
        """Add the reply of the model; return its text and the calls that it wants."""
        message = response["choices"][0]["message"]
        self.body["messages"].append(message)
        requests = []
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"] or "{}"
            with suppress(ValueError):
                arguments = json.loads(arguments)
            requests.append((call["id"], call["function"]["name"], arguments))
        return message.get("content") or "", requests

    def add_results(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls, each as a message of its own."""
        self.body["messages"] += [
            {"role": "tool", "tool_call_id": id_, "content": text} for id_, text, _ in results
        ]


class AnthropicChat:
    """A conversation in the format of Anthropic's messages."""

    def __init__(self, model: str, system: str, tools: Sequence[JsonObject], question: str) -> None:
        self.body: JsonObject = {
            "model": model,
            "max_tokens": MAX_TOKENS,
            "system": system,
            "tools": [
                {
                    "name": tool["name"],
                    "description": tool["description"],
                    "input_schema": tool["inputSchema"],
                }
                for tool in tools
            ],
            "messages": [{"role": "user", "content": question}],
        }

    def add_reply(self, response: JsonObject) -> tuple[str, list[ToolRequest]]:
        """Add the reply of the model; return its text and the calls that it wants."""
        blocks = response["content"]
        self.body["messages"].append({"role": "assistant", "content": blocks})
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [block for block in blocks if block["type"] == "tool_use"]
        return text, [(block["id"], block["name"], block["input"]) for block in calls]

    def add_results(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in one message."""
        content = [
            {"type": "tool_result", "tool_use_id": id_, "content": text, "is_error": is_error}
            for id_, text, is_error in results
        ]
        self.body["messages"].append({"role": "user", "content": content})


async def post(
    client: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    body: JsonObject,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> JsonObject:
    """Return the response of a model, which is asked again if it is busy; else ModelError."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            response = await client.post(url, json=body, headers=headers, timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            raise ModelError(f"{url} cannot be reached: {error!r}; check the address") from None
        if response.status_code != 429 and response.status_code < 500:
            break
        await sleep(float(response.headers.get("retry-after", 2**attempt)))
    try:
        answer: JsonObject = response.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError):
        said = f"{url} answered {response.status_code}: {response.text[:300]}"
        raise ModelError(f"{said}; check the address, the key and the model") from None
    return answer

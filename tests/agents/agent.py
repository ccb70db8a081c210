"""An agent that knows the service only from tools/list, results and the URLs in them.

It sends only arguments that the listed schemas accept, validates every result against its listed
schema, and records how much each call adds to its context.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from schemas.vocabulary import Clock, format_instant

CHARACTERS_A_TOKEN = 3.5
ADDRESS = "http://127.0.0.1:8000"  # Fixed, so that sizes do not depend on the port.

JsonObject = dict[str, Any]
Wait = Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class Call:
    """One call: a tool and its arguments, or a request and its body."""

    name: str
    arguments: JsonObject
    characters: int
    is_error: bool


class RefusedError(Exception):
    """An error result of the service; `error` is the Error object in its text."""

    def __init__(self, error: JsonObject) -> None:
        super().__init__(error["message"])
        self.error = error
        self.message: str = error["message"]


class Agent:
    """One conversation with the service. `wait` advances the time to a given epoch ms."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: str,
        clock: Clock,
        wait: Wait,
        api_key: str | None,
    ) -> None:
        self.calls: list[Call] = []
        self._client = client
        self._base_url = base_url
        self._clock = clock
        self._wait = wait
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._tools: dict[str, JsonObject] = {}
        self._read: list[str] = []

    @property
    def characters(self) -> int:
        """The total size of all results in the context."""
        return sum(call.characters for call in self.calls)

    @property
    def tokens(self) -> float:
        return self.characters / CHARACTERS_A_TOKEN

    @property
    def errors(self) -> int:
        return sum(call.is_error for call in self.calls)

    def instant_ago(self, **span: int) -> str:
        """Return the instant before now by the arguments of `timedelta`."""
        return format_instant(self._clock() - timedelta(**span) // timedelta(milliseconds=1))

    async def start_session(self) -> None:
        """Start a session and list the tools."""
        await self._rpc(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "agent", "version": "1"},
            },
        )
        listed = (await self._rpc("tools/list", {}))["tools"]
        self._tools = {tool["name"]: tool for tool in listed}

    async def call(self, name: str, **arguments: Any) -> JsonObject:
        """Call a tool and return its result; RefusedError if it is an error."""
        tool = self._tools[name]
        Draft202012Validator(tool["inputSchema"]).validate(arguments)
        result = await self._rpc("tools/call", {"name": name, "arguments": arguments})
        ((kind, text),) = ((part["type"], part["text"]) for part in result["content"])
        assert kind == "text"
        self._record(name, arguments, text, result["isError"])
        if result["isError"]:
            raise RefusedError(json.loads(text))
        answer: JsonObject = result["structuredContent"]
        assert json.loads(text) == answer
        Draft202012Validator(tool["outputSchema"]).validate(answer)
        return answer

    async def send_request(self, method: str, url: str, body: JsonObject) -> JsonObject:
        """Send JSON to a URL from a previous result."""
        assert any(url in text for text in self._read)
        response = await self._client.request(method, url, json=body)
        self._record(f"{method} {url}", body, response.text, response.is_error)
        answer: JsonObject = response.json()
        if response.is_error:
            raise RefusedError(answer)
        return answer

    async def pay(self, url: str) -> None:
        """Pay at a pay page as the user, which adds nothing to the context."""
        assert any(url in text for text in self._read)
        (await self._client.post(url, data={"action": "pay"})).raise_for_status()

    def set_header(self, header: str) -> None:
        """Send a header, in the form `Name: value`, with every later call."""
        name, value = header.split(": ")
        self._headers = {name: value}

    async def wait(self, seconds: int) -> None:
        """Wait for some seconds."""
        await self._wait(self._clock() + seconds * 1000)

    async def wait_until(self, time: str) -> None:
        """Wait until an instant from a previous result."""
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        until = datetime.fromisoformat(time) - epoch
        await self._wait(until // timedelta(milliseconds=1))

    async def _rpc(self, method: str, params: JsonObject) -> JsonObject:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = await self._client.post(
            f"{self._base_url}/api/v1/mcp", json=body, headers=self._headers
        )
        result: JsonObject = response.raise_for_status().json()["result"]
        return result

    def _record(self, name: str, arguments: JsonObject, text: str, is_error: bool) -> None:
        self._read.append(text)
        counted = len(text.replace(self._base_url, ADDRESS))
        self.calls.append(Call(name, arguments, counted, is_error))

"""A session with the MCP server that records the size of each result, and mistakes."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tools.example_service import ExampleService

Problem = Literal["wrong_tool", "bad_arguments"]
JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One call: its tool, the characters of its result, and the mistake in it."""

    tool: str
    characters: int
    problem: Problem | None


class ToolCallError(Exception):
    """A refused call; the text is that of the result."""


class Session:
    """Calls the tools of a service. `useful` are the tools that help with the question."""

    def __init__(self, service: ExampleService, useful: frozenset[str]) -> None:
        self.calls: list[Call] = []
        self._service = service
        self._useful = useful

    async def fetch_instructions(self) -> str:
        """Initialize and return the instructions of the server."""
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "evals", "version": "1"},
        }
        response = await self._service.send("initialize", params)
        instructions: str = response["result"]["instructions"]
        return instructions

    async def list_tools(self) -> list[JsonObject]:
        """Return the listed tools."""
        tools: list[JsonObject] = (await self._service.send("tools/list", {}))["result"]["tools"]
        return tools

    async def call(self, tool: str, arguments: JsonObject) -> JsonObject:
        """Return the answer of a tool; ToolCallError if the call is refused."""
        answer: JsonObject = json.loads(await self.call_text(tool, arguments))
        return answer

    async def call_text(self, tool: str, arguments: Any) -> str:
        """Return the text of a result; ToolCallError has the text of a refusal.

        `arguments` are sent as they are, so that the service refuses what is no object.
        """
        params = {"name": tool, "arguments": arguments}
        response = await self._service.send("tools/call", params)
        result = response.get("result")
        # An unknown tool and arguments that are no object are protocol errors.
        text: str = result["content"][0]["text"] if result else response["error"]["message"]
        is_error = result is None or result["isError"]
        self.calls.append(Call(tool, len(text), self._find_problem(tool, is_error)))
        if is_error:
            raise ToolCallError(text)
        return text

    def _find_problem(self, tool: str, is_error: bool) -> Problem | None:
        if tool not in self._useful:
            return "wrong_tool"
        return "bad_arguments" if is_error else None

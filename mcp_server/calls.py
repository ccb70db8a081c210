"""One call of one tool as both faces make it: key, then arguments, then the answer as JSON text."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from access.keys import Keys, how_to_get_access
from mcp_server.arguments import validated
from mcp_server.context import Context
from mcp_server.tools.tool import Tool
from schemas.errors import ApiError, ErrorBody

AnyTool = Tool[Any, Any]
ACCESS_CODES = frozenset({"missing_key", "invalid_key", "revoked_key", "not_provisioned"})


@dataclass(frozen=True, slots=True)
class Calls:
    """Runs tools on a context for whoever holds a key."""

    keys: Keys
    context: Context

    async def authorise(self, tool: AnyTool, headers: Mapping[str, str]) -> None:
        """Let a call pass; ApiError where the tool needs a key and the headers carry no live one.

        `headers` are looked up by lower-case name.
        """
        if tool.keyed:
            await self.keys.authenticate(headers.get("authorization"), headers.get("x-api-key"))

    async def answer(self, tool: AnyTool, raw: Mapping[str, Any]) -> str:
        """Return the whole answer as minified JSON; ApiError is what the caller should read."""
        result = await tool.handler(validated(tool.query, raw), self.context)
        text: str = result.model_dump_json(by_alias=True)
        return text

    def refusal(self, error: ApiError) -> str:
        """Return the Error object of a refusal as minified JSON."""
        access = how_to_get_access(self.context.base_url) if error.code in ACCESS_CODES else None
        return error_text(error, self.context.docs, access)


def failure_facts(error: Exception) -> dict[str, str]:
    """Return what the log may know of an unexpected failure: where, never with which values.

    Messages and locals (which structlog's console shows where rich is installed) can hold keys
    and arguments.
    """
    where = "".join(traceback.format_tb(error.__traceback__))
    return {"failure": type(error).__name__, "where": where}


def error_text(error: ApiError, docs: str, access: dict[str, Any] | None = None) -> str:
    """Return the one error body of SPEC.md as minified JSON."""
    body = ErrorBody(error=error.code, message=error.message, how_to_get_access=access, docs=docs)
    return body.model_dump_json(exclude_none=True)

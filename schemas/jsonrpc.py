"""JSON-RPC 2.0 messages of the MCP endpoint, as the OpenAPI document describes them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.json_schema import SkipJsonSchema

RpcId = str | int | None


# Used for the OpenAPI document only. mcp_server/jsonrpc.py parses requests by hand, because the
# error of each fault has to carry the right JSON-RPC code and request id.
class RpcRequest(BaseModel):
    """A request. If `id` is absent, it is a notification: answered with 202, not executed."""

    jsonrpc: Literal["2.0"]
    id: RpcId = Field(
        default=None, description="Repeated in the response; omit it in a notification."
    )
    method: str = Field(
        description="initialize, ping, tools/list, tools/call or notifications/initialized."
    )
    params: dict[str, Any] | None = Field(
        default=None, description="For tools/call: name (of the tool) and arguments (an object)."
    )


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    id: RpcId


class RpcResult(_Response):
    """A result. tools/call returns structuredContent and the same JSON as text in content."""

    result: dict[str, Any]


class RpcErrorObject(BaseModel):
    """A protocol error: code -32700, -32600, -32601, -32602 or -32603."""

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: dict[str, Any] | SkipJsonSchema[None] = None


class RpcFailure(_Response):
    """A protocol error. Errors of a tool are results with isError true."""

    error: RpcErrorObject


class RpcAnswer(RootModel[RpcResult | RpcFailure]):
    """A result or an error, both with HTTP status 200."""

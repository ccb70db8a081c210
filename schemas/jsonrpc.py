"""The JSON-RPC 2.0 envelopes of the MCP endpoint, as its document describes them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.json_schema import SkipJsonSchema

RpcId = str | int | None


class RpcRequest(BaseModel):
    """A request; without `id` it is a notification, answered by 202 and not executed."""

    jsonrpc: Literal["2.0"]
    id: RpcId = Field(default=None, description="Echoed; leave it out of a notification.")
    method: str = Field(
        description="initialize, ping, tools/list, tools/call or notifications/initialized."
    )
    params: dict[str, Any] | None = Field(
        default=None, description="Of tools/call: name (tool) and arguments (object)."
    )


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    id: RpcId


class RpcResult(_Response):
    """A result; tools/call puts the answer into structuredContent and, as text, into content."""

    result: dict[str, Any]


class RpcErrorObject(BaseModel):
    """What the protocol refused: -32700, -32600, -32601, -32602 or -32603."""

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: dict[str, Any] | SkipJsonSchema[None] = None


class RpcFailure(_Response):
    """A failure of the protocol; refusals by a tool are results with isError true."""

    error: RpcErrorObject


class RpcAnswer(RootModel[RpcResult | RpcFailure]):
    """A result or an error, both with HTTP status 200."""

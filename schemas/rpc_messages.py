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
        description="server/discover, initialize, ping, tools/list, tools/call or a notification."
    )
    params: dict[str, Any] | None = Field(
        default=None,
        description="For tools/call: name (of the tool) and arguments (an object). Requests of "
        "revision 2026-07-28 name it in _meta, as server/discover always does.",
    )


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]


class RpcResult(_Response):
    """A result. tools/call returns structuredContent and the same JSON as text in content."""

    id: RpcId
    result: dict[str, Any]


class RpcErrorObject(BaseModel):
    """A protocol error: code -32700, -32600 to -32603, and in 2026-07-28 also -32020 or -32022."""

    model_config = ConfigDict(extra="forbid")

    code: int
    message: str
    data: dict[str, Any] | SkipJsonSchema[None] = None


class RpcFailure(_Response):
    """A protocol error. Errors of a tool are results with isError true."""

    id: RpcId = Field(
        default=None,
        description="Null if the request has no readable id; absent then in revision 2026-07-28.",
    )
    error: RpcErrorObject


class RpcAnswer(RootModel[RpcResult | RpcFailure]):
    """A result or an error. Errors have HTTP status 200 before revision 2026-07-28."""

"""The definition of a tool: everything that both transports need to list it and to run it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import mcp_types
from pydantic import BaseModel

from schemas.coverage import Coverage
from serving.context import Context
from serving.json_schema import build_input_schema, build_listed_schema
from serving.response_cache import ResponseBody
from serving.snapshot import Snapshot

QueryT = TypeVar("QueryT", bound=BaseModel)
ResultT = TypeVar("ResultT", bound=BaseModel)

READ_ONLY = mcp_types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, open_world_hint=False
)


@dataclass(frozen=True, slots=True)
class Tool(Generic[QueryT, ResultT]):
    """A read-only tool. Its handler returns a result, or a response that it rendered itself.

    `check` raises the ArgumentError that the handler would raise for these arguments, without the
    work of the handler. The runner calls it for the rest of a query that has bad arguments. None:
    no data are needed to check them.
    `requires_key`: an API key is needed. `allow_over_quota`: usable with an exhausted quota.
    `depends_on_snapshot`: the response depends only on the snapshot, so all callers share it.
    `is_light`: the work is less than that of waiting for a turn.
    `render_at_once` returns the response, cached by itself, if that takes a fraction of a
    millisecond, else None.
    """

    name: str
    title: str
    description: str
    query: type[QueryT]
    result: type[ResultT]
    handler: Callable[[QueryT, Context], Awaitable[ResultT | ResponseBody]]
    check: Callable[[QueryT, Context], Awaitable[object]] | None = None
    render_at_once: Callable[[QueryT, Context, Snapshot], ResponseBody | None] | None = None
    requires_key: bool = True
    allow_over_quota: bool = False
    depends_on_snapshot: bool = True
    is_light: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


def to_mcp_tool(tool: Tool[Any, Any], coverage: Coverage | None) -> mcp_types.Tool:
    """Return a tool as listed by tools/list; enums are limited to covered values."""
    return mcp_types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=build_input_schema(tool.query, coverage),
        output_schema=build_listed_schema(tool.result),
        annotations=READ_ONLY,
        _meta=dict(tool.meta) or None,
    )

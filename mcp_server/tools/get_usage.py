"""Whose key this is, and what its calls count for."""

from mcp_server.context import Context
from mcp_server.tools.tool import Tool
from schemas.meta import UsageMeta
from schemas.queries import NoArguments
from schemas.results import UsageKey, UsageResponse
from schemas.vocabulary import DAILY_LIMIT

COUNTED = (
    "What a quota counts: every key-protected call, over REST and MCP tools/call together, "
    f"{DAILY_LIMIT:,} a UTC day, reset at 00:00 UTC."
)
NOT_COUNTED_YET = "This release counts no calls yet, so quota is null and no limit applies."

DESCRIPTION = (
    "Returns the label of the API key that was sent, the billing mode of the server and what is "
    "left of the key's daily quota. "
    "Use it to check that a key works or before a long run of calls; it holds no market data. "
    "It is about 330 characters and takes no arguments. "
    "A null quota means that calls are not counted, a null mode that nothing is billed."
)


async def get_usage(query: NoArguments, context: Context) -> UsageResponse:
    """Return what is known of the caller's key."""
    coverage = await context.boards.coverage()
    source = None if coverage is None else coverage.source
    return UsageResponse(
        key=UsageKey(label=None if context.key is None else context.key.label),
        mode=None,
        quota=None,
        meta=UsageMeta(
            source=source,
            simulated=source == "simulated",
            counted=COUNTED,
            note=NOT_COUNTED_YET,
        ),
    )


GET_USAGE = Tool(
    name="signals_get_usage",
    title="Your key and its quota",
    description=DESCRIPTION,
    query=NoArguments,
    result=UsageResponse,
    handler=get_usage,
    rests_on_board=False,
)

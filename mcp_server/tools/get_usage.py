"""Whose key this is, and what its calls count for."""

from functools import lru_cache

from access.admission import Admitted
from mcp_server.context import Context
from mcp_server.tools.tool import Tool
from schemas.meta import UsageMeta
from schemas.queries import NoArguments
from schemas.results import UsageKey, UsageResponse
from schemas.vocabulary import Instant, SourceKind

DESCRIPTION = (
    "Returns the label of the API key that was sent, the billing mode of the server and what is "
    "left of the key's daily quota. "
    "Use it to check that a key works or before a long run of calls; it holds no market data. "
    "It is about 450 characters and takes no arguments. "
    "It counts as a call, but answers too when the quota is used up; a null mode means that "
    "nothing is billed."
)


def what_is_counted(daily_limit: int) -> str:
    """Say which calls count against a quota."""
    return (
        "Every key-protected call counts, over REST and MCP tools/call together, also when its "
        f"arguments are refused: {daily_limit:,} a UTC day, reset at 00:00 UTC. Refused keys (401, "
        "403), calls beyond the quota (429) and JSON-RPC errors do not count."
    )


async def get_usage(query: NoArguments, context: Context) -> UsageResponse:
    """Return whose key was sent and what is left of its quota."""
    coverage = await context.boards.coverage()
    caller = context.caller
    return UsageResponse(
        key=UsageKey(label=None if caller is None else caller.label),
        mode=context.mode,
        quota=None if caller is None else caller.quota,
        meta=_meta(coverage and coverage.source, _spent_until(caller), context.daily_limit),
    )


@lru_cache(maxsize=16)
def _meta(source: SourceKind | None, spent_until: Instant | None, daily_limit: int) -> UsageMeta:
    return UsageMeta(
        source=source,
        simulated=source == "simulated",
        nothing_new_before=spent_until,
        counted=what_is_counted(daily_limit),
        note=spent_until and _spent_note(spent_until),
    )


def _spent_until(caller: Admitted | None) -> Instant | None:
    """Return when a used up quota begins anew, None where calls are left."""
    if caller is None or caller.quota.remaining_today > 0:
        return None
    return caller.quota.resets_at


def _spent_note(until: Instant) -> str:
    return f"The quota is used up: other keyed calls are refused until {until}."


GET_USAGE = Tool(
    name="signals_get_usage",
    title="Your key and its quota",
    description=DESCRIPTION,
    query=NoArguments,
    result=UsageResponse,
    handler=get_usage,
    rests_on_board=False,
    even_spent=True,
)

"""signals_get_usage: the label of the API key and its daily quota."""

from schemas.query import NoArguments
from schemas.usage import Quota, UsageKey, UsageMeta, UsageResponse
from serving.context import Context
from serving.tool import Tool

DESCRIPTION = (
    "Returns how many API calls the key has left today (quota, rate limit), when they reset, and "
    "its label. Use it to check that a key is valid. About 450 characters; it counts as a call, "
    "and also works if the quota is used up."
)


def describe_counted_calls(daily_limit: int) -> str:
    """Return a sentence on the calls that count against a quota."""
    return (
        "Every call with a live key counts, refused ones too, REST and MCP tools/call together: "
        f"{daily_limit:,} per UTC day, reset at 00:00 UTC. Refused keys (401, 403), calls "
        "beyond the quota or too many in progress (429) and JSON-RPC errors do not count."
    )


async def get_usage(query: NoArguments, context: Context) -> UsageResponse:
    """Return the label and quota of the key that was sent."""
    assert context.caller is not None
    label, quota = context.caller
    source = await context.snapshots.source()
    exhausted_until = quota.resets_at if quota.remaining_today == 0 else None
    note = f"The quota is exhausted: other keyed calls are refused until {exhausted_until}."
    return UsageResponse(
        key=UsageKey(label=label),
        mode=context.mode,
        quota=Quota(**quota._asdict()),
        meta=UsageMeta(
            source=source,
            simulated=source == "simulated",
            nothing_new_before=exhausted_until,
            counted=describe_counted_calls(context.daily_limit),
            note=exhausted_until and note,
        ),
    )


GET_USAGE = Tool(
    name="signals_get_usage",
    title="API key and daily quota",
    description=DESCRIPTION,
    query=NoArguments,
    result=UsageResponse,
    handler=get_usage,
    depends_on_snapshot=False,
    allow_over_quota=True,
)

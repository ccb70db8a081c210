"""signals_get_usage: the label of the API key and its daily quota."""

from functools import lru_cache

from schemas.query import NoArguments
from schemas.usage import UsageKey, UsageMeta, UsageResponse
from schemas.vocabulary import Mode, SourceKind
from serving.context import Context
from serving.response_cache import ResponseBody
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


# All but the quota is the same for every call of a key.
@lru_cache(maxsize=1024)
def _render_around_quota(
    label: str | None,
    mode: Mode | None,
    source: SourceKind | None,
    daily_limit: int,
    exhausted_until: str | None,
) -> tuple[bytes, ...]:
    """Return the JSON of a result up to its quota, and the rest."""
    note = f"The quota is exhausted: other keyed calls are refused until {exhausted_until}."
    result = UsageResponse(
        key=UsageKey(label=label),
        mode=mode,
        quota=None,
        meta=UsageMeta(
            source=source,
            simulated=source == "simulated",
            nothing_new_before=exhausted_until,
            counted=describe_counted_calls(daily_limit),
            note=exhausted_until and note,
        ),
    )
    # Quotes inside a JSON string are escaped, so this can only be the member.
    return tuple(result.model_dump_json(by_alias=True).encode().split(b'"quota":null'))


async def get_usage(query: NoArguments, context: Context) -> ResponseBody:
    """Return the label and quota of the key that was sent."""
    assert context.caller is not None
    label, quota = context.caller
    before, after = _render_around_quota(
        label,
        context.mode,
        await context.snapshots.source(),
        context.daily_limit,
        quota.resets_at if quota.remaining_today == 0 else None,
    )
    return ResponseBody(b'%b"quota":%b%b' % (before, quota.to_json().encode(), after))


GET_USAGE = Tool(
    name="signals_get_usage",
    title="API key and daily quota",
    description=DESCRIPTION,
    query=NoArguments,
    result=UsageResponse,
    handler=get_usage,
    depends_on_snapshot=False,
    is_light=True,
    allow_over_quota=True,
)

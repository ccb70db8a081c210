"""Whose key this is, and what its calls count for."""

from functools import lru_cache

from schemas.query import NoArguments
from schemas.usage import UsageKey, UsageMeta, UsageResponse
from schemas.vocabulary import Instant, Mode, SourceKind
from serving.context import Context
from serving.response_cache import QuotaTemplate, ResponseBody
from serving.tool import Tool

MAX_TEMPLATES = 256

DESCRIPTION = (
    "Returns the label of the API key that was sent, the billing mode of the server and what is "
    "left of the key's daily quota. "
    "Use it to check that a key works or before a long run of calls; it holds no market data. "
    "It is about 450 characters and takes no arguments. "
    "It counts as a call, but answers too when the quota is used up; a null mode means that "
    "nothing is billed."
)


def describe_counted_calls(daily_limit: int) -> str:
    """Say which calls count against a quota."""
    return (
        "Every key-protected call counts, over REST and MCP tools/call together, also when its "
        f"arguments are refused: {daily_limit:,} a UTC day, reset at 00:00 UTC. Refused keys (401, "
        "403), calls beyond the quota (429) and JSON-RPC errors do not count."
    )


async def get_usage(query: NoArguments, context: Context) -> ResponseBody:
    """Return whose key was sent and what is left of its quota."""
    assert context.caller is not None
    label, quota = context.caller
    coverage = await context.snapshots.coverage()
    source = None if coverage is None else coverage.source
    exhausted_until = quota.resets_at if quota.remaining_today == 0 else None
    template = _build_template(label, context.mode, source, exhausted_until, context.daily_limit)
    return template.render(quota.to_json())


@lru_cache(maxsize=MAX_TEMPLATES)
def _build_template(
    label: str | None,
    mode: Mode | None,
    source: SourceKind | None,
    exhausted_until: Instant | None,
    daily_limit: int,
) -> QuotaTemplate:
    """Return all of an answer that only a key's first call of a day has to make."""
    meta = UsageMeta(
        source=source,
        simulated=source == "simulated",
        nothing_new_before=exhausted_until,
        counted=describe_counted_calls(daily_limit),
        note=exhausted_until and _format_exhausted_note(exhausted_until),
    )
    usage = UsageResponse(key=UsageKey(label=label), mode=mode, quota=None, meta=meta)
    return QuotaTemplate(usage.model_dump_json(by_alias=True).encode())


def _format_exhausted_note(until: Instant) -> str:
    return f"The quota is used up: other keyed calls are refused until {until}."


GET_USAGE = Tool(
    name="signals_get_usage",
    title="Your key and its quota",
    description=DESCRIPTION,
    query=NoArguments,
    result=UsageResponse,
    handler=get_usage,
    depends_on_snapshot=False,
    allow_over_quota=True,
)

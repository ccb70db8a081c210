"""Reads every view of one snapshot of a service, and runs all checks on them."""

from collections.abc import Callable, Mapping
from itertools import product

from schemas.vocabulary import DAY_MS, TIMEFRAMES
from service.public_audit.alerts import check_alerts, check_cooldown, check_merged
from service.public_audit.answers import (
    Json,
    QueryResponse,
    Report,
    Responses,
    format_epoch_ms,
    parse_epoch_ms,
)
from service.public_audit.board import (
    check_catalog,
    check_confluence,
    check_one_version,
    check_state,
)
from service.public_audit.feed import (
    PAGE_SIZE,
    RETENTION_DAYS,
    check_order,
    check_pages,
    check_rows,
    check_state_against_feed,
)
from service.public_audit.reader import Reader
from service.public_audit.schemas import check_schemas
from service.public_audit.windows import SIDES, WINDOW_HOURS, check_flips, check_stats

ATTEMPTS = 3
MAX_PAGES = 100_000
MAX_MERGED_PAGES = 5
MIN_AGREES = (1, 3, 6)
CONFLUENCE_QUERIES: list[Json] = [
    {"timeframe": timeframe, "direction": side, "min_agree": min_agree}
    for timeframe, side, min_agree in product(TIMEFRAMES, SIDES, MIN_AGREES)
]
FLIPS_QUERIES: list[Json] = [
    {"timeframe": timeframe, "direction": direction, **hours}
    for timeframe, direction in product(TIMEFRAMES, ("all", *SIDES))
    for hours in ({}, {"hours": WINDOW_HOURS[timeframe][1]})
]
NON_FEED_CALLS = (
    len(CONFLUENCE_QUERIES)
    + len(FLIPS_QUERIES)
    + len(("state", "catalog", "stats", "openapi.json", "state"))
)
Check = Callable[[Responses, Report], None]
CHECKS: dict[str, Check] = {
    "one version": check_one_version,
    "state": check_state,
    "catalog": check_catalog,
    "confluence": check_confluence,
    "pages": check_pages,
    "order": check_order,
    "rows": check_rows,
    "alerts": check_alerts,
    "cooldown": check_cooldown,
    "merged": check_merged,
    "state against the feed": check_state_against_feed,
    "flips": check_flips,
    "stats": check_stats,
    "schemas": check_schemas,
}
# The errors that the checks raise on a response with another structure than the contract's.
SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


async def run_public_audit(reader: Reader, days: int) -> Report:
    """Read all views and `days` of the feed (365 is all of it), and check them."""
    try:
        responses = await read_consistent_responses(reader, days)
    except SHAPE_ERRORS as error:
        raise reader.build_error(
            f"{reader.address} sent a response that does not match the API contract ({error!r})"
        ) from None
    report = check_responses(responses)
    report.findings = [reader.format_line(finding) for finding in report.findings]
    return report


def check_responses(responses: Responses, checks: Mapping[str, Check] = CHECKS) -> Report:
    """Run every check; a response that does not match the contract is a finding too."""
    report = Report()
    for name, check in checks.items():
        try:
            check(responses, report)
        except SHAPE_ERRORS as error:
            report.add_finding(f"{name}: a response does not match the API contract ({error!r})")
    return report


async def read_consistent_responses(reader: Reader, days: int) -> Responses:
    """Read all views, again if a run came in between; PublicAuditError after 3 attempts."""
    for _ in range(ATTEMPTS):
        reader.expected_calls = reader.calls + NON_FEED_CALLS + 3
        responses = await _read_responses(reader, days)
        # A run changes as_of; a batch of late assets changes only readings.
        last = await reader.read_view("state")
        if all(last[key] == responses.state[key] for key in ("as_of", "assets")):
            return responses
    raise reader.build_error(
        f"{reader.address} had a run during each of {ATTEMPTS} attempts, so its views could not be "
        f"compared (as_of is now {last['as_of']}): try again, or use fewer --days"
    )


async def _read_responses(reader: Reader, days: int) -> Responses:
    state = await reader.read_view("state")
    since = None if days >= RETENTION_DAYS else parse_epoch_ms(state["as_of"]) - days * DAY_MS
    return Responses(
        state=state,
        pages=await _read_pages(reader, "universe", since, parse_epoch_ms(state["as_of"])),
        alert_pages=await _read_pages(reader, "alerts", since, parse_epoch_ms(state["as_of"])),
        merged_pages=await _read_pages(
            reader, "all", since, parse_epoch_ms(state["as_of"]), MAX_MERGED_PAGES
        ),
        confluence=[
            await _query_view(reader, "confluence", arguments) for arguments in CONFLUENCE_QUERIES
        ],
        flips=[await _query_view(reader, "flips", arguments) for arguments in FLIPS_QUERIES],
        stats=await reader.read_view("stats"),
        catalog=await reader.read_view("catalog"),
        openapi=await reader.read_view("openapi.json"),
        since=since,
    )


async def _query_view(reader: Reader, view: str, arguments: Json) -> QueryResponse:
    return QueryResponse(view, arguments, await reader.read_view(view, **arguments))


async def _read_pages(
    reader: Reader, tier: str, since: int | None, as_of: int, max_pages: int = MAX_PAGES
) -> list[Json]:
    """Return the pages of a tier after a time, newest first, up to the first empty one."""
    base_arguments: Json = {"tier": tier, "limit": PAGE_SIZE}
    if since is not None:
        base_arguments["since"] = format_epoch_ms(since)
    span = RETENTION_DAYS * DAY_MS if since is None else as_of - since
    other_calls = reader.expected_calls - 1
    pages: list[Json] = []
    while len(pages) < max_pages and (not pages or pages[-1]["signals"]):
        pages.append(
            await reader.read_view("signals", **base_arguments, offset=len(pages) * PAGE_SIZE)
        )
        if rows := pages[-1]["signals"]:
            # For the progress bar: assume that the remaining days have as many rows.
            covered_ms = max(as_of - parse_epoch_ms(rows[-1]["created_at"]), 1)
            expected_pages = max(len(pages), len(pages) * span // covered_ms) + 1
            reader.expected_calls = other_calls + min(expected_pages, max_pages)
    reader.expected_calls = other_calls + len(pages)
    return pages

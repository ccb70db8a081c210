"""Reads every view of one version of a service, and runs every check over what it read."""

from collections.abc import Callable
from itertools import product

from schemas.vocabulary import DAY_MS, TIMEFRAMES
from service.public_audit.alerts import check_alerts, check_cooldown, check_merged
from service.public_audit.answers import Answers, Asked, Json, Report, iso, ms
from service.public_audit.board import (
    check_catalog,
    check_confluence,
    check_one_version,
    check_state,
)
from service.public_audit.feed import (
    PAGE,
    RETENTION_DAYS,
    check_order,
    check_pages,
    check_rows,
    check_state_against_feed,
)
from service.public_audit.reader import Reader
from service.public_audit.windows import HOURS, SIDES, check_flips, check_stats

ATTEMPTS = 3
MAX_PAGES = 100_000
MERGED_PAGES = 5
MIN_AGREES = (1, 3, 6)
CONFLUENCE: list[Json] = [
    {"timeframe": timeframe, "direction": side, "min_agree": least}
    for timeframe, side, least in product(TIMEFRAMES, SIDES, MIN_AGREES)
]
FLIPS: list[Json] = [
    {"timeframe": timeframe, "direction": direction, **hours}
    for timeframe, direction in product(TIMEFRAMES, ("all", *SIDES))
    for hours in ({}, {"hours": HOURS[timeframe][1]})
]
OTHER_CALLS = len(CONFLUENCE) + len(FLIPS) + len(("state", "catalog", "stats", "state"))
CHECKS: dict[str, Callable[[Answers, Report], None]] = {
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
}
BAD_SHAPE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


async def public_audit(reader: Reader, days: int) -> Report:
    """Read all views and this many days of feed (365: all there is), and check them."""
    try:
        answers = await steady_answers(reader, days)
    except BAD_SHAPE as error:
        raise reader.failure(
            f"{reader.address} gave an answer that is not of SPEC.md's shape ({error!r})"
        ) from None
    report = audited(answers)
    report.findings = [reader.line(finding) for finding in report.findings]
    return report


def audited(answers: Answers) -> Report:
    """Run every check; an answer of another shape than SPEC.md's is a finding too."""
    report = Report()
    for name, check in CHECKS.items():
        try:
            check(answers, report)
        except BAD_SHAPE as error:
            report.find(f"{name}: an answer is not of SPEC.md's shape ({error!r})")
    return report


async def steady_answers(reader: Reader, days: int) -> Answers:
    """Read until no compute came in between; PublicAuditError where one always did."""
    for _ in range(ATTEMPTS):
        reader.expected = reader.calls + OTHER_CALLS + 3
        answers = await _answers(reader, days)
        last = await reader.read("state")
        if all(last[key] == answers.state[key] for key in ("as_of", "assets")):
            return answers
    raise reader.failure(
        f"{reader.address} computed anew during each of {ATTEMPTS} readings, so that its views "
        f"could not be compared; now as_of is {last['as_of']}. Try again, or with fewer --days"
    )


async def _answers(reader: Reader, days: int) -> Answers:
    state = await reader.read("state")
    since = None if days >= RETENTION_DAYS else ms(state["as_of"]) - days * DAY_MS
    return Answers(
        state=state,
        pages=await _pages(reader, "universe", since, ms(state["as_of"])),
        alert_pages=await _pages(reader, "alerts", since, ms(state["as_of"])),
        merged_pages=await _pages(reader, "all", since, ms(state["as_of"]), MERGED_PAGES),
        confluence=[await _asked(reader, "confluence", arguments) for arguments in CONFLUENCE],
        flips=[await _asked(reader, "flips", arguments) for arguments in FLIPS],
        stats=await reader.read("stats"),
        catalog=await reader.read("catalog"),
        since=since,
    )


async def _asked(reader: Reader, view: str, arguments: Json) -> Asked:
    return Asked(view, arguments, await reader.read(view, **arguments))


async def _pages(
    reader: Reader, tier: str, since: int | None, as_of: int, most: int = MAX_PAGES
) -> list[Json]:
    """Return the pages of a tier after an instant, newest first, up to the first empty one."""
    fixed: Json = {"tier": tier, "limit": PAGE}
    if since is not None:
        fixed["since"] = iso(since)
    span = RETENTION_DAYS * DAY_MS if since is None else as_of - since
    others = reader.expected - 1
    pages: list[Json] = []
    while len(pages) < most and (not pages or pages[-1]["signals"]):
        pages.append(await reader.read("signals", **fixed, offset=len(pages) * PAGE))
        if rows := pages[-1]["signals"]:
            read = max(as_of - ms(rows[-1]["created_at"]), 1)
            guess = max(len(pages), len(pages) * span // read) + 1
            reader.expected = others + min(guess, most)
    reader.expected = others + len(pages)
    return pages

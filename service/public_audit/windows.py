"""Checks flips and stats against the feed rows inside their windows.

Implements the rules of docs/contract.md and of `meta.rules` independently of the serving code.
"""

from collections import Counter
from collections.abc import Iterable

from schemas.vocabulary import DAY_MS
from service.public_audit.answers import (
    Cell,
    Json,
    QueryResponse,
    Report,
    Responses,
    get_cell,
    parse_epoch_ms,
)

HOUR_MS = 3_600_000
Rows = list[tuple[int, Json]]
WINDOW_HOURS = {"1h": (3, 6), "4h": (12, 24), "1d": (48, 72)}
STATS_DAYS = 30
SIDES = ("bullish", "bearish")


def check_flips(responses: Responses, report: Report) -> None:
    """Check groups, counts and ranking of flips against the feed."""
    for response in responses.flips:
        body, timeframe = response.body, response.arguments["timeframe"]
        default_hours, max_hours = WINDOW_HOURS[timeframe]
        query = {"hours": default_hours, **response.arguments}
        rule = body["meta"]["rules"]["hours"][timeframe]
        report.check_equal(
            f"{response.name}: meta.rules.hours", rule, {"default": default_hours, "max": max_hours}
        )
        report.check_equal(f"{response.name}: query", body["query"], query)
        # The window ends now, not at the last run, so flips can have a later as_of than state.
        end = parse_epoch_ms(body["as_of"])
        report.check_true(f"{response.name}: as_of is before that of state", end >= responses.as_of)
        start = end - query["hours"] * HOUR_MS
        if responses.has_rows_since(start):
            inside = [row for at, row in responses.rows if start < at <= end]
            rows = [row for row in inside if row["timeframe"] == timeframe]
            _check_groups(response, rows, responses, report)
            report.checked["assets ranked by flips"] += len(body["groups"])
        else:
            report.not_checked["flips of windows longer than the feed read"] += 1


def _check_groups(
    response: QueryResponse, rows: list[Json], responses: Responses, report: Report
) -> None:
    """Check a response against the rows of its window, newest first."""
    body, limit = response.body, response.body["meta"]["rules"]["row_limit"]
    report.check_equal(f"{response.name}: capped", body["capped"], len(rows) > limit)
    # The service reads only the newest rows of a window, and sets `capped` if there are more.
    groups = _build_groups(rows[:limit], response.arguments["direction"], responses)
    report.check_ranking(response.name, body["groups"], groups)
    flips = sum(len(group["flips"]) for group in body["groups"])
    counts = {"groups": len(body["groups"]), "flips": flips}
    report.check_equal(f"{response.name}: counts", body["counts"], counts)


def _build_groups(rows: Iterable[Json], direction: str, responses: Responses) -> list[Json]:
    """Return the groups of the rows, best first; `rows` are newest first."""
    newest: dict[Cell, Json] = {}
    for row in rows:
        newest.setdefault(get_cell(row), row)
    # The direction filter comes after the newest change of each cell is chosen.
    by_ticker: dict[str, list[Json]] = {}
    for row in newest.values():
        if direction in ("all", row["transition"]["to"]):
            by_ticker.setdefault(row["ticker"], []).append(row)
    groups = [
        {**responses.assets.get(ticker, {"ticker": ticker}), **_build_group(rows)}
        for ticker, rows in by_ticker.items()
    ]
    return sorted(groups, key=lambda g: (-g["score"], -parse_epoch_ms(g["latest_at"]), g["ticker"]))


def _build_group(rows: list[Json]) -> Json:
    direction_counts = Counter(row["transition"]["to"] for row in rows)
    leading_sides = [
        side for side in SIDES if direction_counts[side] == max(direction_counts[s] for s in SIDES)
    ]
    copied_fields = ("indicator", "indicator_name", "change_type", "price", "created_at")
    return {
        "dominant": leading_sides[0] if len(leading_sides) == 1 else "mixed",
        "bullish": direction_counts["bullish"],
        "bearish": direction_counts["bearish"],
        "score": max(direction_counts[side] for side in SIDES),
        "latest_at": rows[0]["created_at"],
        "flips": [
            {**row["transition"], **{name: row[name] for name in copied_fields}} for row in rows
        ],
    }


def check_stats(responses: Responses, report: Report) -> None:
    """Check that the volumes add up and match the feed inside the window."""
    window = responses.stats["window"]
    since, until = parse_epoch_ms(window["since"]), parse_epoch_ms(window["until"])
    report.check_equal("stats: window.days", window["days"], STATS_DAYS)
    report.check_equal("stats: window.since", since, until - STATS_DAYS * DAY_MS)
    report.check_true("stats: window.until is before as_of", until >= responses.as_of)
    for tier, rows in (("universe_tier", responses.rows), ("alerts_tier", responses.alerts)):
        volumes = responses.stats[tier]
        _check_sums(tier, volumes, report)
        if responses.has_rows_since(since):
            _check_volumes(tier, volumes, [row for at, row in rows if since < at <= until], report)
        else:
            report.not_checked["stats, whose 30 days are longer than the feed read"] += 1
        _check_history(tier, volumes["history_starts_at"], rows, responses.since, report)


def _check_sums(name: str, tier: Json, report: Report) -> None:
    total = tier["total_signals"]
    per_day = None if total is None else total / STATS_DAYS
    report.check_equal(f"stats: {name}.signals_per_day", tier["signals_per_day"], per_day)
    for by in ("indicator", "timeframe", "direction"):
        counts = tier[f"by_{by}"]
        label = f"stats: {name}.by_{by}"
        report.check_equal(
            f"{label} sums to total_signals", sum(c["signals"] for c in counts), total or 0
        )
        report.check_true(
            f"{label} has a repeated value", len({c[by] for c in counts}) == len(counts)
        )


def _check_volumes(name: str, tier: Json, rows: list[Json], report: Report) -> None:
    report.check_equal(f"stats: {name}.total_signals", tier["total_signals"] or 0, len(rows))
    for by in ("indicator", "timeframe", "direction"):
        actual = {count[by]: count["signals"] for count in tier[f"by_{by}"] if count["signals"]}
        report.check_equal(f"stats: {name}.by_{by}", actual, dict(Counter(row[by] for row in rows)))
    report.checked["rows counted by stats"] += len(rows)


def _check_history(
    name: str, history_starts_at: str | None, rows: Rows, since: int | None, report: Report
) -> None:
    """Check `history_starts_at`: the oldest row read, or older if not all rows were read."""
    oldest = min((at for at, _ in rows), default=None)
    if since is None:
        start = None if history_starts_at is None else parse_epoch_ms(history_starts_at)
        report.check_equal(f"stats: {name}.history_starts_at", start, oldest)
    elif oldest is not None:
        is_older = history_starts_at is not None and parse_epoch_ms(history_starts_at) <= oldest
        report.check_true(f"stats: {name}.history_starts_at is after a row", is_older)

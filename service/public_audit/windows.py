"""Whether flips and stats follow from the rows of the feed inside their windows.

Written anew from SPEC.md and from the rules that flips tells, apart from the code that serves.
"""

from collections import Counter
from collections.abc import Iterable

from schemas.vocabulary import DAY_MS
from service.public_audit.answers import Answers, Asked, Cell, Json, Report, cell_of, ms

HOUR_MS = 3_600_000
Rows = list[tuple[int, Json]]
HOURS = {"1h": (3, 6), "4h": (12, 24), "1d": (48, 72)}
STATS_DAYS = 30
SIDES = ("bullish", "bearish")


def check_flips(answers: Answers, report: Report) -> None:
    """Groups, counts and ranking of flips follow from the feed."""
    for asked in answers.flips:
        told, timeframe = asked.answer, asked.arguments["timeframe"]
        default, most = HOURS[timeframe]
        query = {"hours": default, **asked.arguments}
        rule = told["meta"]["rules"]["hours"][timeframe]
        report.same(f"{asked.name}: meta.rules.hours", rule, {"default": default, "max": most})
        report.same(f"{asked.name}: query", told["query"], query)
        end = ms(told["as_of"])
        report.holds(f"{asked.name}: as_of lies before state's", end >= answers.as_of)
        start = end - query["hours"] * HOUR_MS
        if answers.reaches(start):
            inside = [row for at, row in answers.rows if start < at <= end]
            rows = [row for row in inside if row["timeframe"] == timeframe]
            _check_groups(asked, rows, answers, report)
            report.checked["assets ranked by flips"] += len(told["groups"])
        else:
            report.not_checked["flips of windows longer than the feed read"] += 1


def _check_groups(asked: Asked, rows: list[Json], answers: Answers, report: Report) -> None:
    """Hold an answer against the rows of its window, newest first; it reads the newest of them."""
    told, limit = asked.answer, asked.answer["meta"]["rules"]["row_limit"]
    report.same(f"{asked.name}: capped", told["capped"], len(rows) > limit)
    groups = _groups(rows[:limit], asked.arguments["direction"], answers)
    report.ranked(asked.name, told["groups"], groups)
    flips = sum(len(group["flips"]) for group in told["groups"])
    counts = {"groups": len(told["groups"]), "flips": flips}
    report.same(f"{asked.name}: counts", told["counts"], counts)


def _groups(rows: Iterable[Json], direction: str, answers: Answers) -> list[Json]:
    """Return the groups of rows that come newest first, best first."""
    newest: dict[Cell, Json] = {}
    for row in rows:
        if row["ticker"] not in answers.removed:
            newest.setdefault(cell_of(row), row)
    by_ticker: dict[str, list[Json]] = {}
    for row in newest.values():
        if direction in ("all", row["transition"]["to"]):
            by_ticker.setdefault(row["ticker"], []).append(row)
    groups = [
        {**answers.assets.get(ticker, {"ticker": ticker}), **_group(rows)}
        for ticker, rows in by_ticker.items()
    ]
    return sorted(groups, key=lambda g: (-g["score"], -ms(g["latest_at"]), g["ticker"]))


def _group(rows: list[Json]) -> Json:
    turned = Counter(row["transition"]["to"] for row in rows)
    larger = [side for side in SIDES if turned[side] == max(turned[s] for s in SIDES)]
    same = ("indicator", "indicator_name", "change_type", "price", "created_at")
    return {
        "dominant": larger[0] if len(larger) == 1 else "mixed",
        "bullish": turned["bullish"],
        "bearish": turned["bearish"],
        "score": max(turned[side] for side in SIDES),
        "latest_at": rows[0]["created_at"],
        "flips": [{**row["transition"], **{name: row[name] for name in same}} for row in rows],
    }


def check_stats(answers: Answers, report: Report) -> None:
    """The volumes add up, and are those of the feed inside the window."""
    window = answers.stats["window"]
    since, until = ms(window["since"]), ms(window["until"])
    report.same("stats: window.days", window["days"], STATS_DAYS)
    report.same("stats: window.since", since, until - STATS_DAYS * DAY_MS)
    report.holds("stats: window.until lies before as_of", until >= answers.as_of)
    for tier, rows in (("universe_tier", answers.rows), ("alerts_tier", answers.alerts)):
        told = answers.stats[tier]
        _check_sums(tier, told, report)
        if answers.reaches(since):
            _check_volumes(tier, told, [row for at, row in rows if since < at <= until], report)
        else:
            report.not_checked["stats, whose 30 days are longer than the feed read"] += 1
        _check_history(tier, told["history_starts_at"], rows, answers.since, report)


def _check_sums(name: str, tier: Json, report: Report) -> None:
    total = tier["total_signals"]
    per_day = None if total is None else total / STATS_DAYS
    report.same(f"stats: {name}.signals_per_day", tier["signals_per_day"], per_day)
    for by in ("indicator", "timeframe", "direction"):
        counts = tier[f"by_{by}"]
        said = f"stats: {name}.by_{by}"
        report.same(f"{said} sums to total_signals", sum(c["signals"] for c in counts), total or 0)
        report.holds(f"{said} names one twice", len({c[by] for c in counts}) == len(counts))


def _check_volumes(name: str, tier: Json, rows: list[Json], report: Report) -> None:
    report.same(f"stats: {name}.total_signals", tier["total_signals"] or 0, len(rows))
    for by in ("indicator", "timeframe", "direction"):
        told = {count[by]: count["signals"] for count in tier[f"by_{by}"] if count["signals"]}
        report.same(f"stats: {name}.by_{by}", told, dict(Counter(row[by] for row in rows)))
    report.checked["rows counted by stats"] += len(rows)


def _check_history(
    name: str, told: str | None, rows: Rows, since: int | None, report: Report
) -> None:
    """The oldest row kept is the oldest row read, or older where not everything was read."""
    oldest = min((at for at, _ in rows), default=None)
    if since is None:
        start = None if told is None else ms(told)
        report.same(f"stats: {name}.history_starts_at", start, oldest)
    elif oldest is not None:
        is_older = told is not None and ms(told) <= oldest
        report.holds(f"stats: {name}.history_starts_at lies after a row", is_older)

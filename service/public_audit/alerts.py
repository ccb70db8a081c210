"""Whether the alerts are sound, keep their cooldown, and are merged rightly with the changes.

Written anew from SPEC.md, apart from the code that serves.
"""

import re
from itertools import pairwise
from typing import get_args

from schemas.vocabulary import DAY_MS, Action
from service.public_audit.answers import Answers, Json, Report, shown

RETENTION_DAYS = 90
ACTIONS = get_args(Action)
DIRECTIONS = dict(zip(ACTIONS, ("bullish", "bearish", "bullish", "bearish", "exit"), strict=True))
COOLDOWN_S = {"4h": 80 * 3600, "1d": 20 * 86_400}
ID = re.compile(r"alerts\.(.+)\.([0-9]+)\.([A-Z]+)\.[0-9]+")


def check_alerts(answers: Answers, report: Report) -> None:
    """Every alert is sound in itself; they come strictly newest first, and none comes twice."""
    names = {indicator["id"]: indicator["name"] for indicator in answers.catalog["indicators"]}
    oldest = answers.as_of - RETENTION_DAYS * DAY_MS
    start = oldest if answers.since is None else max(oldest, answers.since)
    for at, row in answers.alerts:
        report.holds(f"alerts: {_row(row)} lies outside the days asked for", start < at)
        _check_row(row, at, answers, names, report)
        report.checked["alerts"] += 1
    for (newer_at, newer), (older_at, older) in pairwise(answers.alerts):
        is_older = older_at < newer_at
        report.holds(f"alerts: {_row(older)} is not older than {_row(newer)}", is_older)
    report.once("alerts", (shown(row["id"]) for _, row in answers.alerts))


def _check_row(row: Json, at: int, answers: Answers, names: Json, report: Report) -> None:
    where = f"alerts: {_row(row)}"
    asset = answers.assets.get(row["ticker"])
    for name, value in {
        "tier": "alerts",
        "asset_class": asset["asset_class"] if asset else None,
        "indicator_name": names.get(row["indicator"]),
        "direction": DIRECTIONS.get(row["action"]),
        "transition": None,
        "change_type": None,
    }.items():
        report.same(f"{where}: {name}", row[name], value)
    match = ID.fullmatch(row["id"])
    engine = f"{row['ticker']}.{row['indicator']}.{row['timeframe']}"
    is_derived = match is not None and (match[1], match[3]) == (engine, row["action"])
    is_past = match is not None and int(match[2]) * 1000 <= at
    report.holds(f"{where}: its id does not follow from the row", is_derived)
    report.holds(f"{where}: it is older than its candle", is_past)
    report.holds(f"{where}: no engine is covered", _is_covered(row, answers.catalog))


def _is_covered(row: Json, catalog: Json) -> bool:
    """Tell whether the catalog lists the engine of an alert."""
    followed = {asset["ticker"]: asset["alerts"] for asset in catalog["coverage"]["assets"]}
    is_known = row["indicator"] in catalog["tiers"]["alerts"]["indicators"]
    return is_known and row["timeframe"] in followed.get(row["ticker"], ())


def check_cooldown(answers: Answers, report: Report) -> None:
    """An engine's action is published no sooner than 20 candles after it was before.

    The hour of a publication is not told, and a service that was down writes it late; but it is
    not before its candle's close, nor before the cooldown of the one before had ended.
    """
    ends: dict[tuple[str, ...], int] = {}
    for at, row in reversed(answers.alerts):
        action = (row["ticker"], row["indicator"], row["timeframe"], row["action"])
        end = ends.get(action, 0)
        report.holds(f"alerts: {_row(row)} comes within the cooldown", at >= end * 1000)
        close = int(row["id"].split(".")[-3])
        ends[action] = max(close, end) + COOLDOWN_S[row["timeframe"]]


def check_merged(answers: Answers, report: Report) -> None:
    """The newest rows of tier=all are those of both tiers in one order."""
    both = sorted([*answers.rows, *answers.alerts], key=lambda row: row[0], reverse=True)
    merged = answers.merged
    for place, ((_, told), (_, due)) in enumerate(zip(merged, both, strict=False), 1):
        if told != due:
            report.find(f"tier=all: row {place} is {_row(told)}, merged {_row(due)}")
            break
    is_whole = len(merged) == len(both) or answers.merged_pages[-1]["pagination"]["has_more"]
    report.holds("tier=all: ends before the rows of both tiers do", is_whole)
    report.checked["merged rows"] += len(merged)


def _row(row: Json) -> str:
    return shown(row["id"])

"""Whether the alerts are sound, keep their cooldown, and are merged rightly with the changes.

Written anew from SPEC.md, apart from the code that serves.
"""

import re
from itertools import pairwise
from typing import get_args

from schemas.vocabulary import DAY_MS, Action
from service.public_audit.answers import Json, Report, Responses, format_value

RETENTION_DAYS = 90
ACTIONS = get_args(Action)
DIRECTIONS = dict(zip(ACTIONS, ("bullish", "bearish", "bullish", "bearish", "exit"), strict=True))
COOLDOWN_S = {"4h": 80 * 3600, "1d": 20 * 86_400}
ID_PATTERN = re.compile(r"alerts\.(.+)\.([0-9]+)\.([A-Z]+)\.[0-9]+")


def check_alerts(responses: Responses, report: Report) -> None:
    """Every alert is sound in itself; they come strictly newest first, and none comes twice."""
    names = {indicator["id"]: indicator["name"] for indicator in responses.catalog["indicators"]}
    oldest = responses.as_of - RETENTION_DAYS * DAY_MS
    start = oldest if responses.since is None else max(oldest, responses.since)
    for at, row in responses.alerts:
        report.check_true(
            f"alerts: {_format_row_id(row)} lies outside the days asked for", start < at
        )
        _check_row(row, at, responses, names, report)
        report.checked["alerts"] += 1
    for (newer_at, newer), (older_at, older) in pairwise(responses.alerts):
        is_older = older_at < newer_at
        report.check_true(
            f"alerts: {_format_row_id(older)} is not older than {_format_row_id(newer)}", is_older
        )
    report.check_unique("alerts", (format_value(row["id"]) for _, row in responses.alerts))


def _check_row(row: Json, at: int, responses: Responses, names: Json, report: Report) -> None:
    label = f"alerts: {_format_row_id(row)}"
    asset = responses.assets.get(row["ticker"])
    for name, value in {
        "tier": "alerts",
        "asset_class": asset["asset_class"] if asset else None,
        "indicator_name": names.get(row["indicator"]),
        "direction": DIRECTIONS.get(row["action"]),
        "transition": None,
        "change_type": None,
    }.items():
        report.check_equal(f"{label}: {name}", row[name], value)
    match = ID_PATTERN.fullmatch(row["id"])
    engine_id = f"{row['ticker']}.{row['indicator']}.{row['timeframe']}"
    is_derived = match is not None and (match[1], match[3]) == (engine_id, row["action"])
    is_past = match is not None and int(match[2]) * 1000 <= at
    report.check_true(f"{label}: its id does not follow from the row", is_derived)
    report.check_true(f"{label}: it is older than its candle", is_past)
    report.check_true(f"{label}: no engine is covered", _is_covered(row, responses.catalog))


def _is_covered(row: Json, catalog: Json) -> bool:
    """Tell whether the catalog lists the engine of an alert."""
    timeframes_by_ticker = {
        asset["ticker"]: asset["alerts"] for asset in catalog["coverage"]["assets"]
    }
    is_known = row["indicator"] in catalog["tiers"]["alerts"]["indicators"]
    return is_known and row["timeframe"] in timeframes_by_ticker.get(row["ticker"], ())


def check_cooldown(responses: Responses, report: Report) -> None:
    """An engine's action is published no sooner than 20 candles after it was before.

    The hour of a publication is not told, and a service that was down writes it late; but it is
    not before its candle's close, nor before the cooldown of the one before had ended.
    """
    ends: dict[tuple[str, ...], int] = {}
    for at, row in reversed(responses.alerts):
        action = (row["ticker"], row["indicator"], row["timeframe"], row["action"])
        end = ends.get(action, 0)
        report.check_true(
            f"alerts: {_format_row_id(row)} comes within the cooldown", at >= end * 1000
        )
        close = int(row["id"].split(".")[-3])
        ends[action] = max(close, end) + COOLDOWN_S[row["timeframe"]]


def check_merged(responses: Responses, report: Report) -> None:
    """The newest rows of tier=all are those of both tiers in one order."""
    expected_rows = sorted(
        [*responses.rows, *responses.alerts], key=lambda row: row[0], reverse=True
    )
    merged = responses.merged_rows
    for position, ((_, actual), (_, expected)) in enumerate(
        zip(merged, expected_rows, strict=False), 1
    ):
        if actual != expected:
            report.add_finding(
                f"tier=all: row {position} is {_format_row_id(actual)}, "
                f"merged {_format_row_id(expected)}"
            )
            break
    is_whole = (
        len(merged) == len(expected_rows) or responses.merged_pages[-1]["pagination"]["has_more"]
    )
    report.check_true("tier=all: ends before the rows of both tiers do", is_whole)
    report.checked["merged rows"] += len(merged)


def _format_row_id(row: Json) -> str:
    return format_value(row["id"])

"""Checks alerts: their fields, their cooldown, and their order among the changes in tier=all.

Implements the rules of docs/contract.md independently of the serving code.
"""

import re
from itertools import pairwise
from typing import get_args

from schemas.vocabulary import DAY_MS, Action
from service.public_audit.answers import Json, Report, Responses, format_value

RETENTION_DAYS = 90
ACTIONS = get_args(Action)
DIRECTIONS = dict(zip(ACTIONS, ("bullish", "bearish", "bullish", "bearish", "exit"), strict=True))
# 20 candles of the timeframe.
COOLDOWN_S = {"4h": 80 * 3600, "1d": 20 * 86_400}
ID_PATTERN = re.compile(r"alerts\.(.+)\.([0-9]+)\.([A-Z]+)\.[0-9]+")


def check_alerts(responses: Responses, report: Report) -> None:
    """Check the fields of each alert, and that they are newest first without repeats."""
    names = {indicator["id"]: indicator["name"] for indicator in responses.catalog["indicators"]}
    oldest = responses.as_of - RETENTION_DAYS * DAY_MS
    start = oldest if responses.since is None else max(oldest, responses.since)
    for at, row in responses.alerts:
        report.check_true(
            f"alerts: {_format_row_id(row)} is outside the requested days", start < at
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
    report.check_true(f"{label}: id does not match the other fields", is_derived)
    report.check_true(f"{label}: created_at is before its candle closed", is_past)
    report.check_true(
        f"{label}: the catalog lists no such engine", _is_covered(row, responses.catalog)
    )


def _is_covered(row: Json, catalog: Json) -> bool:
    """Return whether the catalog lists the engine of an alert."""
    timeframes_by_ticker = {
        asset["ticker"]: asset["alerts"] for asset in catalog["coverage"]["assets"]
    }
    is_known = row["indicator"] in catalog["tiers"]["alerts"]["indicators"]
    return is_known and row["timeframe"] in timeframes_by_ticker.get(row["ticker"], ())


def check_cooldown(responses: Responses, report: Report) -> None:
    """Check that an engine repeats an action only after its cooldown of 20 candles."""
    # Alerts of earlier versions may lie close together: a service that was down wrote them when it
    # was back. But no alert is due before its candle closes, or before the cooldown of the previous
    # one ends, so these two times give a lower bound for the alerts of every version.
    ends: dict[tuple[str, ...], int] = {}
    for at, row in reversed(responses.alerts):
        action = (row["ticker"], row["indicator"], row["timeframe"], row["action"])
        end = ends.get(action, 0)
        report.check_true(f"alerts: {_format_row_id(row)} is within the cooldown", at >= end * 1000)
        # An id ends in CLOSE.ACTION.EPOCH; a ticker may contain dots, so count from the end.
        close = int(row["id"].split(".")[-3])
        ends[action] = max(close, end) + COOLDOWN_S[row["timeframe"]]


def check_merged(responses: Responses, report: Report) -> None:
    """Check that the newest rows of tier=all are the rows of both tiers, merged by time."""
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
    report.check_true("tier=all: ends before the last row of both tiers", is_whole)
    report.checked["merged rows"] += len(merged)


def _format_row_id(row: Json) -> str:
    return format_value(row["id"])

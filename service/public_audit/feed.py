"""Checks the pages and rows of the feed, and that state follows from them.

Implements the rules of docs/contract.md independently of the serving code.
"""

import re
from itertools import pairwise
from typing import get_args

from schemas.vocabulary import DAY_MS, LOGGED_IDS, TIMEFRAMES, Reading
from service.public_audit.answers import (
    Cell,
    Json,
    Report,
    Responses,
    format_value,
    get_cell,
    parse_epoch_ms,
)

PAGE_SIZE = 200
RETENTION_DAYS = 365
RETENTION_DAYS_BY_TIER = {"universe": RETENTION_DAYS, "alerts": 90}
READINGS = get_args(Reading)
ID_PATTERN = re.compile(r"(.+)\.([0-9]+)\.[0-9]+")


def check_pages(responses: Responses, report: Report) -> None:
    """Check the pagination of each page, and that its rows are inside the requested days."""
    for name, pages in responses.collect_pages_by_feed().items():
        # Of tier=all only the first pages are read, so its last one may have successors.
        last = {"signals": pages[-1]["pagination"]["has_more"] and name == "tier=all"}
        for number, (page, next_page) in enumerate(pairwise([*pages, last])):
            label = f"{name} page {number + 1}"
            _check_pagination(label, page, number * PAGE_SIZE, bool(next_page["signals"]), report)
            # A page without rows has only the fields that say when to call again.
            retention = page["meta"].get("retention_days", RETENTION_DAYS_BY_TIER)
            report.check_equal(f"{label}: meta.retention_days", retention, RETENTION_DAYS_BY_TIER)
            report.checked["pages"] += 1
    oldest = responses.as_of - RETENTION_DAYS * DAY_MS
    start = oldest if responses.since is None else max(oldest, responses.since)
    end = parse_epoch_ms(responses.stats["window"]["until"])
    for at, row in responses.rows:
        if not start < at <= end:
            report.add_finding(f"signals: {_format_row_id(row)} is outside the requested days")


def _check_pagination(label: str, page: Json, offset: int, has_more: bool, report: Report) -> None:
    rows = page["signals"]
    for name, value in {
        "limit": PAGE_SIZE,
        "offset": offset,
        "returned": len(rows),
        "has_more": has_more,
        "next_cursor": max((row["created_at"] for row in rows), key=parse_epoch_ms, default=None),
    }.items():
        report.check_equal(f"{label}: pagination.{name}", page["pagination"][name], value)
    report.check_true(
        f"{label} is not full, but more rows follow", len(rows) == PAGE_SIZE or not has_more
    )


def check_order(responses: Responses, report: Report) -> None:
    """Check that rows are newest first over all pages, without repeats."""
    for (newer_at, newer), (older_at, older) in pairwise(responses.rows):
        if older_at >= newer_at:
            report.add_finding(
                f"signals: {_format_row_id(older)} is not older than {_format_row_id(newer)}"
            )
    report.check_unique("signals", (format_value(row["id"]) for _, row in responses.rows))


def check_rows(responses: Responses, report: Report) -> None:
    """Check the fields of each row, and that it continues the previous row of its cell."""
    names = {indicator["id"]: indicator["name"] for indicator in responses.catalog["indicators"]}
    newer_rows: dict[Cell, Json] = {}
    for at, row in responses.rows:
        _check_row(row, at, responses, names, report)
        cell = get_cell(row)
        next_row = newer_rows.get(cell)
        if next_row and next_row["transition"]["from"] != row["transition"]["to"]:
            report.add_finding(
                f"signals: {_format_row_id(next_row)} does not continue {_format_row_id(row)}"
            )
        newer_rows[cell] = row
        report.checked["rows"] += 1


def _check_row(
    row: Json, at: int, responses: Responses, names: dict[str, str], report: Report
) -> None:
    label = f"signals: {_format_row_id(row)}"
    before, after = row["transition"]["from"], row["transition"]["to"]
    asset = responses.assets.get(row["ticker"])
    for name, value in {
        "tier": "universe",
        "asset_class": asset["asset_class"] if asset else None,
        "indicator_name": names.get(row["indicator"]),
        "direction": after,
        "change_type": _classify_change(before, after),
        "action": None,
    }.items():
        report.check_equal(f"{label}: {name}", row[name], value)
    match = ID_PATTERN.fullmatch(row["id"])
    expected_id = f"universe.{'.'.join(get_cell(row))}"
    is_derived = match is not None and match[1] == expected_id and int(match[2]) * 1000 <= at
    report.check_true(f"{label}: id does not match the other fields", is_derived)
    for name, is_valid in {
        "ticker": asset is not None,
        "indicator": row["indicator"] in LOGGED_IDS,
        "timeframe": row["timeframe"] in TIMEFRAMES,
        "transition": before in READINGS and after in READINGS and before != after,
    }.items():
        if not is_valid:
            report.add_finding(f"{label}: {name} {format_value(row[name])} is not valid")


def _classify_change(before: str, after: str) -> str:
    if after == "neutral":
        return "deactivation"
    return "activation" if before == "neutral" else "reversal"


def check_state_against_feed(responses: Responses, report: Report) -> None:
    """Check that each reading is the `to` of the newest row of its cell."""
    state = {asset["ticker"]: asset["signals"] for asset in responses.state["assets"]}
    newest: dict[Cell, Json] = {}
    for _, row in responses.rows:
        newest.setdefault(get_cell(row), row)
    for (ticker, indicator, timeframe), row in newest.items():
        reading = state.get(ticker, {}).get(indicator, {}).get(timeframe)
        label = f"state: {ticker} {indicator} {timeframe}"
        report.check_equal(
            f"{label} against {_format_row_id(row)}", reading, row["transition"]["to"]
        )
        report.checked["readings held against the feed"] += 1


def _format_row_id(row: Json) -> str:
    return format_value(row["id"])

"""Whether the pages of the feed are sound, and whether state follows from its rows.

Written anew from SPEC.md, apart from the code that serves.
"""

import re
from itertools import pairwise
from typing import get_args

from schemas.vocabulary import DAY_MS, TIMEFRAMES, LoggedId, Reading
from service.public_audit.answers import Answers, Cell, Json, Report, cell_of, ms, shown

PAGE = 200
RETENTION_DAYS = 365
KEPT_DAYS = {"universe": RETENTION_DAYS, "alerts": 90}
LOGGED = get_args(LoggedId)
READINGS = get_args(Reading)
ID = re.compile(r"(.+)\.([0-9]+)\.[0-9]+")


def check_pages(answers: Answers, report: Report) -> None:
    """Each page says rightly where it lies, and its rows lie inside what was asked for."""
    for name, pages in answers.feeds().items():
        last = {"signals": pages[-1]["pagination"]["has_more"] and name == "tier=all"}
        for number, (page, following) in enumerate(pairwise([*pages, last])):
            where = f"{name} page {number + 1}"
            _check_pagination(where, page, number * PAGE, bool(following["signals"]), report)
            retention = page["meta"]["retention_days"]
            report.same(f"{where}: meta.retention_days", retention, KEPT_DAYS)
            report.checked["pages"] += 1
    oldest = answers.as_of - RETENTION_DAYS * DAY_MS
    start = oldest if answers.since is None else max(oldest, answers.since)
    end = ms(answers.stats["window"]["until"])
    for at, row in answers.rows:
        if not start < at <= end:
            report.find(f"signals: {_row(row)} lies outside the days asked for")


def _check_pagination(where: str, page: Json, offset: int, has_more: bool, report: Report) -> None:
    rows = page["signals"]
    for name, value in {
        "limit": PAGE,
        "offset": offset,
        "returned": len(rows),
        "has_more": has_more,
        "next_cursor": max((row["created_at"] for row in rows), key=ms, default=None),
    }.items():
        report.same(f"{where}: pagination.{name}", page["pagination"][name], value)
    report.holds(f"{where} is short, yet rows follow", len(rows) == PAGE or not has_more)


def check_order(answers: Answers, report: Report) -> None:
    """Rows come strictly newest first over all pages, and none comes twice."""
    for (newer_at, newer), (older_at, older) in pairwise(answers.rows):
        if older_at >= newer_at:
            report.find(f"signals: {_row(older)} is not older than {_row(newer)}")
    report.once("signals", (shown(row["id"]) for _, row in answers.rows))


def check_rows(answers: Answers, report: Report) -> None:
    """Every row is sound in itself and continues the row before it in its cell."""
    names = {indicator["id"]: indicator["name"] for indicator in answers.catalog["indicators"]}
    newer: dict[Cell, Json] = {}
    for at, row in answers.rows:
        _check_row(row, at, answers, names, report)
        cell = cell_of(row)
        next_row = newer.get(cell)
        if next_row and next_row["transition"]["from"] != row["transition"]["to"]:
            report.find(f"signals: {_row(next_row)} does not continue {_row(row)}")
        newer[cell] = row
        report.checked["rows"] += 1


def _check_row(row: Json, at: int, answers: Answers, names: dict[str, str], report: Report) -> None:
    where = f"signals: {_row(row)}"
    before, after = row["transition"]["from"], row["transition"]["to"]
    asset = answers.assets.get(row["ticker"])
    for name, value in {
        "tier": "universe",
        "asset_class": asset["asset_class"] if asset else None,
        "indicator_name": names.get(row["indicator"]),
        "direction": after,
        "change_type": _change_type(before, after),
        "action": None,
    }.items():
        report.same(f"{where}: {name}", row[name], value)
    match = ID.fullmatch(row["id"])
    derived = f"universe.{'.'.join(cell_of(row))}"
    is_derived = match is not None and match[1] == derived and int(match[2]) * 1000 <= at
    report.holds(f"{where}: its id does not follow from the row", is_derived)
    for name, known in {
        "ticker": asset is not None,
        "indicator": row["indicator"] in LOGGED,
        "timeframe": row["timeframe"] in TIMEFRAMES,
        "transition": before in READINGS and after in READINGS and before != after,
    }.items():
        if not known:
            report.find(f"{where}: {name} {shown(row[name])} cannot be")


def _change_type(before: str, after: str) -> str:
    if after == "neutral":
        return "deactivation"
    return "activation" if before == "neutral" else "reversal"


def check_state_against_feed(answers: Answers, report: Report) -> None:
    """Each reading is what the newest row of its cell turned to."""
    state = {asset["ticker"]: asset["signals"] for asset in answers.state["assets"]}
    newest: dict[Cell, Json] = {}
    for _, row in answers.rows:
        newest.setdefault(cell_of(row), row)
    for (ticker, indicator, timeframe), row in newest.items():
        reading = state.get(ticker, {}).get(indicator, {}).get(timeframe)
        where = f"state: {ticker} {indicator} {timeframe}"
        report.same(f"{where} against {_row(row)}", reading, row["transition"]["to"])
        report.checked["readings held against the feed"] += 1


def _row(row: Json) -> str:
    return shown(row["id"])

"""Answers of a real service, changed in one place, and what an audit then finds."""

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from service.public_audit.answers import QueryResponse, Responses
from service.public_audit.audit import check_responses

ALERT = r'alerts: "alerts\.\S+"'
MERGED = "tier=all: row"
STATS = "stats: alerts_tier.by_"
ROW = r'signals: "universe\.\S+"'


def audit_tampered(answers: Responses, tamper: Callable[[Responses], None]) -> list[str]:
    """Return what an audit finds in a tampered copy of the answers."""
    tampered = pickle.loads(pickle.dumps(replace(answers)))
    tamper(tampered)
    return check_responses(tampered).findings


def assert_only_expected(findings: list[str], expected: list[str]) -> None:
    """Assert that each finding is expected, and that each expected one is there.

    A row that is altered in one tier may also differ from what tier=all shows.
    """
    assert findings
    for finding in findings:
        assert any(re.match(pattern, finding) for pattern in [*expected, MERGED]), finding
    for pattern in expected:
        assert any(re.match(pattern, finding) for finding in findings), pattern


def find_richest(asked: list[QueryResponse]) -> QueryResponse:
    """Return the answer that ranks the most assets."""
    return max(asked, key=lambda a: len(a.body.get("results", a.body.get("groups"))))


def find_place(answers: Responses, path: str) -> tuple[Any, Any]:
    """Return what a dotted path leads to, and its last step there."""
    view, *steps, last = path.split(".")
    here = getattr(answers, view)
    if view in ("confluence", "flips"):
        here = find_richest(here).body
        steps = [here["query"]["timeframe"] if s == "queried_timeframe" else s for s in steps]
    for step in steps:
        here = here[find_step(here, step)]
    return here, find_step(here, last)


def find_step(here: Any, step: str) -> Any:
    """Return a step of a path as a name, or as an index: a number, or where a ticker stands."""
    if isinstance(here, dict):
        return step
    numbers = {asset["ticker"]: at for at, asset in enumerate(here) if "ticker" in asset}
    return numbers[step] if step.isalpha() else int(step)


def pick_other_reading(reading: str) -> str:
    return "bearish" if reading == "bullish" else "bullish"

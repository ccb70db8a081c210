"""Changes a response of a real service in one place and audits the result."""

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from service.public_audit.answers import QueryResponse, Responses
from service.public_audit.audit import CHECKS, Check, check_responses

# The schemas are left out by default: checking every response takes a second.
CONTENT_CHECKS = {name: check for name, check in CHECKS.items() if name != "schemas"}
ALERT = r'alerts: "alerts\.\S+"'
MERGED = "tier=all: row"
STATS = "stats: alerts_tier.by_"
ROW = r'signals: "universe\.\S+"'


def audit_tampered(
    answers: Responses,
    tamper: Callable[[Responses], None],
    checks: Mapping[str, Check] = CONTENT_CHECKS,
) -> list[str]:
    """Return the findings of some checks for a tampered copy of the responses."""
    tampered = pickle.loads(pickle.dumps(replace(answers)))
    tamper(tampered)
    return check_responses(tampered, checks).findings


def assert_only_expected(findings: list[str], expected: list[str]) -> None:
    """Assert that the findings are exactly the expected ones.

    If a row is altered in one tier, it may also be reported as different from tier=all.
    """
    assert findings
    for finding in findings:
        assert any(re.match(pattern, finding) for pattern in [*expected, MERGED]), finding
    for pattern in expected:
        assert any(re.match(pattern, finding) for finding in findings), pattern


def find_richest(responses: list[QueryResponse]) -> QueryResponse:
    """Return the response with the most assets."""
    return max(responses, key=lambda a: len(a.body.get("results", a.body.get("groups"))))


def find_place(answers: Responses, path: str) -> tuple[Any, Any]:
    """Return the container at a dotted path and the last step of the path."""
    view, *steps, last = path.split(".")
    here = getattr(answers, view)
    if view in ("confluence", "flips"):
        here = find_richest(here).body
        steps = [here["query"]["timeframe"] if s == "queried_timeframe" else s for s in steps]
    for step in steps:
        here = here[find_step(here, step)]
    return here, find_step(here, last)


def find_step(here: Any, step: str) -> Any:
    """Return a step of a path as a key, or as an index: a number, or the index of a ticker."""
    if isinstance(here, dict):
        return step
    numbers = {asset["ticker"]: at for at, asset in enumerate(here) if "ticker" in asset}
    return numbers[step] if step.isalpha() else int(step)


def pick_other_reading(reading: str) -> str:
    return "bearish" if reading == "bullish" else "bullish"

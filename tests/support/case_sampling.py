"""Which cases of parametrized tests belong to every run; the others are left to proofs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mark_cases_for_proofs(items: Iterable[pytest.Item]) -> None:
    """Mark as `prove` what a parametrized test only repeats.

    Of several parameters, each value stays in at least one combination, except in the tests of the
    stores, which implement every rule once for each database. `sampled(step)` then leaves every
    step-th case.
    """
    tests = defaultdict[str, list[Any]](list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("prove") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        kept = cases if name.startswith("tests/store/") else _select_combinations(cases)
        if sampled := cases[0].get_closest_marker("sampled"):
            kept = kept[:: sampled.args[0]]
        for item in cases:
            if item not in kept:
                item.add_marker(pytest.mark.prove)


def _select_combinations(cases: Sequence[Any]) -> list[Any]:
    """Return few cases that have every value of every parameter, in their order."""
    seen = set[tuple[int, str]]()
    kept = []
    # First those of which every value is new, then those with any new value.
    for is_needed in (all, any):
        for item in cases:
            # The id of each parameter's value. The public `indices` number the whole cases.
            values = list(enumerate(item.callspec._idlist))
            if is_needed(value not in seen for value in values):
                seen.update(values)
                kept.append(item)
    return [item for item in cases if item in kept]

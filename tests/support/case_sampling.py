"""Samples of large parametrized tests: some cases in every run, all of them in a proof."""

from collections.abc import Iterable
from typing import Any

import pytest


def sample_cases(step: int, cases: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return named cases as parameters; all but every n-th are marked for proofs only."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name,
            marks=pytest.mark.prove if place % step else (),
        )
        for place, (name, case) in enumerate(cases)
    ]

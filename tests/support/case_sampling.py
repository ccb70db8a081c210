"""Many cases of one body: some of them in every run, all of them in a proof."""

from collections.abc import Iterable
from typing import Any

import pytest


def sample_cases(step: int, cases: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return named cases as parameters, of which each so-manieth is not for a proof alone."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name,
            marks=pytest.mark.prove if place % step else (),
        )
        for place, (name, case) in enumerate(cases)
    ]

"""The bars on which oracles check the indicators."""

import pytest

from tests.support.bar_sets import BarSet, list_bar_sets, open_bar_set


@pytest.fixture(scope="session", params=list_bar_sets())
def bar_set(request: pytest.FixtureRequest) -> BarSet:
    """Generated bars, and recorded ones if they are present: the newest rows, or all of them."""
    return open_bar_set(request.param)

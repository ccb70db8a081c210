"""The indicators in pictures: every picture and every text is there."""

import re

import pytest

from compute.indicators.registry import INDICATORS
from schemas.vocabulary import INDICATOR_IDS
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page
from web.indicator_guide import GUIDES, load_changes, load_picture

pytestmark = pytest.mark.clause("19.9")


@pytest.mark.parametrize("id_", INDICATOR_IDS)
def test_a_picture_shows_all_three_readings(id_) -> None:
    shown = set(re.findall(r'class="run (\w+)"', load_picture(id_)))
    assert shown == {"bullish", "neutral", "bearish"}


async def test_the_page_explains_every_indicator_with_a_picture(served: RunningService) -> None:
    page = Page(await served.client.get("/docs/indicator-guide"))
    labels = [str(picture["aria-label"]) for picture in page.find_all("svg")]
    assert [label.partition(":")[0] for label in labels] == [one.name for one in INDICATORS]
    for one in INDICATORS:
        guide = GUIDES[one.id]
        assert guide.name == one.name
        assert all(text in page.text for text in guide)
        assert f"../docs/indicators#{one.id.replace('_', '-')}" in page.links
    assert {"trend-oracle", "bayesian-trend", "perpkit"} <= set(page.ids)


def test_the_changes_a_month_are_those_of_the_measured_table() -> None:
    changes = load_changes()
    assert set(changes) == set(INDICATOR_IDS)
    # docs/behavior.md, by hand: Trend Oracle changes once a day on 1h for crypto.
    assert changes["trend_oracle"][:3] == [1.00, 0.26, 0.05]


async def test_the_changes_are_shown_per_month(served: RunningService) -> None:
    page = Page(await served.client.get("/docs/indicator-guide"))
    # 1.00, 0.26 and 0.05 a day, and 0.21, 0.08 and 0.03 a day, times 30.
    assert "crypto: 30 on 1h, 8 on 4h, 1.5 on 1d; stocks: 6 on 1h, 2 on 4h, 0.9 on 1d." in page.text

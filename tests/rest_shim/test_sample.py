import json
import re
from datetime import datetime

import pytest

from compute.indicators.registry import INDICATORS
from compute.universe import load_universe
from rest_shim.sample import render_sample
from schemas.signals import SignalsMeta, SignalsResponse

pytestmark = pytest.mark.clause("documents")

SAMPLE = SignalsResponse.model_validate_json(render_sample())
ROWS = SAMPLE.signals


@pytest.mark.clause("4.5.1")
async def test_it_is_served_before_the_first_compute(served_empty):
    answers = [await served_empty.client.get("/api/v1/signals/sample") for _ in range(2)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, render_sample())] * 2


@pytest.mark.clause("4.5.1", "4.5.3")
async def test_it_does_not_depend_on_live_rows_or_the_time(served):
    served.clock.now += 10**9
    assert (await served.client.get("/api/v1/signals/sample")).text == render_sample()


@pytest.mark.clause("2.3.1", "4.5.2")
async def test_its_shape_is_that_of_a_live_answer(served):
    live = (await served.get_api("/signals?tier=all")).json()
    fixed = json.loads(render_sample())
    assert list(fixed) == list(live)
    assert list(fixed["pagination"]) == list(live["pagination"])
    assert fixed["meta"].keys() <= SignalsMeta.model_fields.keys()
    for row in fixed["signals"]:
        assert list(row) == list(live["signals"][0])


@pytest.mark.clause("4.5.2")
async def test_its_ids_are_built_as_the_live_ones(served):
    row = (await served.get_api("/signals?limit=1")).json()["signals"][0]
    live = re.sub("[0-9]{10}", "EPOCH", row["id"].replace(row["ticker"], "T"))
    assert live == f"universe.T.{row['indicator']}.{row['timeframe']}.EPOCH.1"
    for row in ROWS:
        tier, ticker, indicator, timeframe, close, *action, epoch = row.id.split(".")
        assert (tier, ticker, indicator, timeframe, epoch) == (
            row.tier,
            row.ticker,
            row.indicator,
            row.timeframe,
            "0",
        )
        assert action == ([row.action] if row.action else [])
        assert 180 <= (datetime.fromisoformat(row.created_at).timestamp() - int(close)) < 300
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.clause("4.5.1")
def test_it_shows_every_kind_of_row():
    universe = [row for row in ROWS if row.tier == "universe"]
    alerts = [row for row in ROWS if row.tier == "alerts"]
    assert {row.change_type for row in universe} == {"reversal", "activation", "deactivation"}
    assert {row.direction for row in universe} == {"bullish", "bearish", "neutral"}
    assert {row.action for row in universe} == {None}
    assert {(row.action, row.direction, row.transition, row.change_type) for row in alerts} == {
        ("LONG", "bullish", None, None),
        ("SHORT", "bearish", None, None),
        ("CLOSE", "exit", None, None),
    }
    assert "perpkit" in {row.indicator for row in alerts}
    assert "perpkit" not in {row.indicator for row in universe}


def test_its_rows_are_newest_first_and_its_page_is_whole():
    times = [row.created_at for row in ROWS]
    assert times == sorted(set(times), reverse=True)
    assert SAMPLE.pagination.model_dump() == {
        "limit": 50,
        "offset": 0,
        "returned": len(ROWS),
        "has_more": False,
        "next_cursor": times[0],
    }


@pytest.mark.clause("4.5.3")
def test_its_meta_says_that_it_is_not_live():
    meta = SAMPLE.meta
    assert (meta.source, meta.simulated, meta.stale) == ("sample", False, False)
    assert meta.note == "Fixed documentation rows, not live data."
    assert meta.next_update == {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_its_assets_and_indicators_are_those_of_the_universe(row):
    asset = next(a for a in load_universe(None).assets if a.ticker == row.ticker)
    assert row.asset_class == asset.asset_class
    assert row.indicator_name == {i.id: i.name for i in INDICATORS}[row.indicator]
    assert row.tier == "universe" or asset.alerts

"""Calls and pages while the first start builds the history: 503 with the share that is built."""

import json
from dataclasses import replace

import httpx
import pytest

from schemas.vocabulary import SourceKind, format_instant
from serving.snapshot_cache import calculate_percent
from store.market_rows import WatermarkRow
from tests.support.bad_inputs import STATE
from tests.support.example_market import NOON, make_batch, make_change, make_coverage
from tests.support.running_service import RunningService, Transport
from tests.support.web_page import check_page

DAY_MS = 86_400_000
BEGAN_AT = NOON - 330 * DAY_MS


async def build_until(served: RunningService, source: SourceKind, days: int) -> None:
    """Commit the first part of a history of 330 days, and another one that ends `days` later."""
    published = make_coverage(source).model_copy(update={"served_from": NOON})
    await served.market.publish_coverage(published)
    await served.market.commit(make_batch(BEGAN_AT, []))
    await served.market.commit(make_batch(BEGAN_AT + days * DAY_MS, []))


@pytest.mark.clause("7.28", "7.37", "fresh")
@pytest.mark.parametrize("transport", ["mcp", "rest"])
@pytest.mark.parametrize("source", ["simulated", "recorded"])
async def test_a_call_is_refused_with_the_share_that_is_built(
    served_empty: RunningService, transport: Transport, source: SourceKind
):
    await build_until(served_empty, source, 132)  # 132 of 330 days are 40 %.
    status, refusal = await served_empty.fetch_refusal(transport, STATE)
    assert (status, refusal["error"]) == (503, "unavailable")
    until = format_instant(BEGAN_AT + 132 * DAY_MS)
    assert "40 % done" in refusal["message"]
    assert f"built up to {until}, needed up to {format_instant(NOON)}" in refusal["message"]
    assert "Retry after 5 seconds." in refusal["message"]
    answer = await served_empty.get_api("/state")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.clause("7.37", "fresh")
async def test_live_markets_are_served_with_their_first_asset(served_empty: RunningService):
    published = make_coverage("live").model_copy(update={"served_from": NOON})
    await served_empty.market.publish_coverage(published)
    rows = [WatermarkRow(ticker, -1, history="building") for ticker in ("BTC", "ETH")]
    begun = dict.fromkeys(("BTC", "ETH"), NOON)
    batch = make_batch(NOON, [])
    await served_empty.market.commit(replace(batch, watermarks=rows, publish_from=begun))
    answer = await served_empty.get_api("/state")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "No asset has its history yet." in answer.json()["message"]
    first = make_batch(NOON, [make_change(NOON + 1, "BTC", "reversals", "1h", 1)])
    await served_empty.market.commit(replace(first, watermarks=rows[1:]))
    state = (await served_empty.get_api("/state")).json()
    assert [asset["ticker"] for asset in state["assets"]] == ["BTC"]
    assert state["meta"]["building_assets"] == ["ETH"]


@pytest.mark.clause("7.37", "fresh")
async def test_the_first_whole_history_is_served_at_once(served_empty: RunningService):
    await build_until(served_empty, "simulated", 329)
    assert (await served_empty.get_api("/state")).status_code == 503
    await served_empty.market.commit(make_batch(NOON, []))
    assert (await served_empty.get_api("/state")).json()["meta"]["as_of"] == format_instant(NOON)


@pytest.mark.clause("7.37", "pages")
async def test_a_page_shows_the_share_that_is_built_and_reloads_itself(
    served_empty: RunningService,
):
    await build_until(served_empty, "simulated", 132)
    answer = await served_empty.get_page("/", is_member=True)
    page = check_page(answer, 503, "Not ready yet")
    assert "40 % done" in page.text
    (bar,) = page.find_all("progress")
    assert (bar["value"], bar["max"]) == ("40", "100")
    assert (answer.headers["refresh"], answer.headers["retry-after"]) == ("5", "5")


@pytest.mark.clause("operation")
@pytest.mark.prove
async def test_everything_else_works_while_the_history_is_built(served_empty: RunningService):
    await build_until(served_empty, "simulated", 132)
    client, key = served_empty.client, served_empty.key_headers
    for path in ("", "/catalog", "/openapi.json", "/usage", "/signals/sample"):
        assert (await client.get(f"/api/v1{path}", headers=key)).status_code == 200, path
    for path in ("/", "/docs", "/sign-in", "/healthz"):
        assert (await client.get(path)).status_code == 200, path
    assert (await served_empty.get_page("/settings/api-access", is_member=True)).status_code == 200
    ready: httpx.Response = await client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["state"]) == (503, "not computed yet")
    refused = await served_empty.call(STATE)
    assert json.loads(refused["content"][0]["text"])["error"] == "unavailable"


@pytest.mark.clause("operation")
@pytest.mark.parametrize(
    ("first", "last", "percent"),
    [(None, None, 0), (100, 100, 0), (100, 149, 49), (100, 200, 100), (200, 200, 0)],
)
def test_the_share_is_that_between_the_first_commit_and_the_end(
    first: int | None, last: int | None, percent: int
):
    assert calculate_percent(first, last, 200) == percent

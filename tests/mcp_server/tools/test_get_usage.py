import json

import pytest

from access.billing.provider import NoBilling
from mcp_server.tools.get_usage import DESCRIPTION
from tests.support.bad_inputs import USAGE
from tests.support.response_schemas import parse_size
from tests.support.running_service import run_service
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("answers")


@pytest.mark.clause("2.11.1")
async def test_a_caller_receives_the_label_of_its_key(served, transport):
    assert (await served.fetch_answer(transport, USAGE))["key"] == {"label": "tests"}


@pytest.mark.clause("2.11.1")
async def test_every_key_has_its_own_label(served_alone):
    other = {"Authorization": f"Bearer {await served_alone.keys.create('the other one')}"}
    result = await served_alone.call(USAGE, headers=other)
    assert result["structuredContent"]["key"] == {"label": "the other one"}
    response = await served_alone.get_api("/usage", **other)
    assert response.json()["key"] == {"label": "the other one"}


@pytest.mark.clause("2.11.2", "2.11.3", "2.11.5", "4.10.1", "5.18", "8.1")
async def test_mode_and_quota_are_returned_and_the_call_itself_counts(served, transport):
    answer = await served.fetch_answer(transport, USAGE)
    assert set(answer) == {"key", "mode", "quota", "meta"}
    assert answer["mode"] == "test"
    assert answer["quota"] == {
        "daily_limit": 10_000,
        "used_today": 1,
        "remaining_today": 9_999,
        "resets_at": "2026-10-01T00:00:00.000Z",
    }
    assert answer["meta"].get("note") is None


@pytest.mark.clause("2.11.2", "2.11.5", "5.18", "8.1")
async def test_without_billing_the_mode_is_null_and_calls_are_counted_all_the_same(
    tmp_path, transport
):
    async with run_service(tmp_path, provider=NoBilling(), daily_limit=5) as served_alone:
        answer = await served_alone.fetch_answer(transport, USAGE)
    assert answer["mode"] is None
    assert answer["quota"]["remaining_today"] == 4
    assert "5 per UTC day" in answer["meta"]["counted"]


@pytest.mark.clause("2.11.4", "2.13.11")
async def test_the_result_explains_which_calls_count(served, transport):
    counted = (await served.fetch_answer(transport, USAGE))["meta"]["counted"]
    named = ("REST", "tools/call", "10,000 per UTC day", "00:00 UTC")
    assert not [part for part in named if part not in counted], counted


async def test_it_works_before_the_first_compute(served_empty, transport):
    assert (await served_empty.fetch_answer(transport, USAGE))["key"] == {"label": "tests"}


async def test_the_description_has_the_size(served):
    text = json.dumps(await served.fetch_answer("mcp", USAGE), separators=(",", ":"))
    assert len(text) == pytest.approx(parse_size(DESCRIPTION), rel=0.1)


@pytest.mark.clause("2.11.4", "2.13.11")
async def test_it_marks_simulated_data_like_every_other_result(served, transport):
    meta = (await served.fetch_answer(transport, USAGE))["meta"]
    assert (meta["source"], meta.get("simulated", False)) == ("simulated", True)


@pytest.mark.clause("2.13.11")
async def test_before_coverage_is_published_it_names_no_source(served_empty, transport):
    meta = (await served_empty.fetch_answer(transport, USAGE))["meta"]
    assert (meta["source"], meta.get("simulated", False)) == (None, False)

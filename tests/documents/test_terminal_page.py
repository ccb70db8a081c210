"""docs/terminal.md shows requests as the command sends them."""

import json
import re

import pytest

from service.terminal.deliveries import build_event
from tests.support.running_service import RunningService
from tests.support.running_service import served as served
from tools.clauses import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "terminal.md").read_text()


async def test_the_example_of_a_request_has_the_fields_of_a_row(served: RunningService):
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    example = json.loads(block)
    answer = await served.fetch_answer("rest", "signals_get_signals", ticker="ETH", limit=1)
    event = build_event(answer["signals"][0], answer["meta"])
    assert example["type"] == f"signal.{event['tier']}"
    assert example["timestamp"] == example["data"]["created_at"]
    assert list(example["data"]) == list(event)
    assert example["data"]["meta"] == event["meta"]

"""`signals audit --public` on real services without errors, also while they compute."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.public_audit.audit import (
    ATTEMPTS,
    NON_FEED_CALLS,
    check_responses,
    read_consistent_responses,
)
from service.public_audit.reader import PublicAuditError, Reader
from tests.mcp_server.tools.test_get_signals_alerts import publish_alerts
from tests.service.conftest import serve_bars
from tests.support.bar_sets import generate_folder
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_change, make_flips
from tests.support.signals_command import run_signals

pytestmark = [pytest.mark.clause("audit"), pytest.mark.usefixtures("use_single_ca")]

KEY = "ek_" + "k" * 43
CHECKED = [
    "answers",
    "readings",
    "assets",
    "assets ranked by confluence",
    "pages",
    "rows",
    "alerts",
    "merged rows",
    "readings held against the feed",
    "assets ranked by flips",
    "rows counted by stats",
    "answers held against their schema",
]
LOG_CHECKED = ["signed checkpoint", "rows in the log"]

Json = dict[str, Any]


def no_progress(done: int, expected: int) -> None:
    assert 0 < done <= expected


class McpReader:
    """Reads the same views over MCP, as plain JSON-RPC."""

    def __init__(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self._client, self._headers = client, headers
        self.calls = self.expected_calls = 0

    async def read_view(self, view: str, **arguments: Any) -> Json:
        if view == "openapi.json":
            return (await self._client.get("/api/v1/openapi.json")).json()
        params = {"name": f"signals_get_{view}", "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await self._client.post("/api/v1/mcp", json=body, headers=self._headers)
        result = answer.json()["result"]
        assert result["isError"] is False, result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]


def run_audit(folder: Path, url: str, api_key: str | None, *arguments: str):
    settings = {} if api_key is None else {"api_key": api_key}
    return run_signals(folder, "audit", "--public", url, *arguments, **settings)


def counts(printed: str) -> dict[str, int]:
    line = printed.splitlines()[0].removeprefix("checked: ")
    return {what: int(n) for n, what in (part.split(" ", 1) for part in line.split(", "))}


# A sound service


def assert_clean(done, pages: int) -> None:
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "clean"), done.stdout
    checked = counts(done.stdout)
    assert list(checked) == [*CHECKED, *LOG_CHECKED]
    assert min(checked.values()) > 0
    call_count = NON_FEED_CALLS + checked["pages"]
    calls = f"{call_count} calls, {call_count - 3} of them"
    assert calls in done.stdout
    assert checked["pages"] >= pages
    assert "not checked" not in done.stdout


@pytest.mark.prove
def test_hard_bars_are_served_in_views_that_agree(bars_service, tmp_path):
    address, api_key = bars_service
    done = run_audit(tmp_path, address + "/api/v1/", api_key)
    assert_clean(done, pages=4)
    assert api_key not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.prove
@pytest.mark.parametrize("days", ["30", "365"])
def test_a_year_of_hard_bars_is_served_in_views_that_agree(tmp_path, days):
    with serve_bars(tmp_path, generate_folder(7800)) as (address, api_key):
        done = run_audit(tmp_path, address, api_key, "--days", days)
    print(done.stdout)
    assert_clean(done, pages=2 if days == "30" else 30)


def test_an_audit_of_few_days_reports_what_it_did_not_check(bars_service, tmp_path):
    done = run_audit(tmp_path, *bars_service, "--days", "1")
    assert done.stdout.splitlines()[-1] == "clean"
    assert "not checked: flips of windows longer than the feed read (6)" in done.stdout
    assert "not checked: stats, whose 30 days are longer than the feed read (2)" in done.stdout


@pytest.mark.prove
async def test_both_transports_return_the_same_views(bars_service, bars_answers):
    address, api_key = bars_service
    async with httpx.AsyncClient(base_url=address) as client:
        reader = McpReader(client, {"Authorization": f"Bearer {api_key}"})
        over_mcp = await read_consistent_responses(reader, 365)
    assert over_mcp == bars_answers
    assert check_responses(over_mcp).findings == []


async def test_a_store_with_removed_and_renamed_assets_is_served_in_views_that_agree(
    served, transport
):
    await publish_alerts(served)
    if transport == "mcp":
        read = await read_consistent_responses(McpReader(served.client, served.key_headers), 365)
    else:
        async with Reader(served.base_url, served.api_key, no_progress) as reader:
            read = await read_consistent_responses(reader, 365)
    report = check_responses(read)
    assert report.findings == []
    assert list(report.checked) == CHECKED
    assert min(report.checked.values()) > 0
    assert read.removed_tickers == {"MATIC"}


@pytest.mark.prove
async def test_a_capped_window_and_a_removed_asset_in_it_are_compared_too(served):
    start = NOON + HOUR_MS
    removed = make_change(start + 5000, "MATIC", "enzo", "1h", -1, 1)
    await served.market.commit(make_batch(start, [*make_flips(start, 2104)[2:], removed]))
    async with Reader(served.base_url, served.api_key, no_progress) as reader:
        read = await read_consistent_responses(reader, 30)
    assert check_responses(read).findings == []
    assert {asked.arguments["timeframe"] for asked in read.flips if asked.body["capped"]} == {"1h"}
    assert "MATIC" in {row["ticker"] for _, row in read.rows}


@pytest.mark.parametrize("suffix", ["", "/", "/api/v1", "/api/v1/", " "])
@pytest.mark.parametrize("base", ["http://127.0.0.1:8000", "https://example.com/signals"])
async def test_the_url_can_include_the_api_path(base, suffix):
    async with Reader(base + suffix, KEY, no_progress) as reader:
        assert reader.address == base


# A service that computes during the audit


class ComputingReader(Reader):
    """Reads a service that commits another hour after each of the first responses of one view."""

    def __init__(self, served, hours: int) -> None:
        super().__init__(served.base_url, served.api_key, no_progress)
        self._served, self._hours, self._computed = served, hours, 0

    async def read_view(self, view: str, **arguments: Any) -> Json:
        answer = await super().read_view(view, **arguments)
        if view == "stats" and self._computed < self._hours:
            self._computed += 1
            at = NOON + self._computed * HOUR_MS
            sign = 1 if self._computed % 2 else -1
            row = make_change(at, "NVDA", "enzo", "1h", sign, -sign)
            await self._served.market.commit(make_batch(at, [row]))
        return answer


@pytest.mark.parametrize("hours", range(1, ATTEMPTS))
@pytest.mark.sampled(2)
async def test_an_audit_overtaken_by_a_run_starts_over(served, hours):
    async with ComputingReader(served, hours) as reader:
        answers = await read_consistent_responses(reader, 30)
    assert check_responses(answers).findings == []
    assert len(answers.rows) == 8 + hours
    assert reader.calls == (NON_FEED_CALLS + 5) * (hours + 1)


async def test_a_service_that_always_computes_fails_in_one_line(served):
    async with ComputingReader(served, ATTEMPTS) as reader:
        with pytest.raises(PublicAuditError, match="had a run during each of 3 attempts"):
            await read_consistent_responses(reader, 30)

"""The calls to be timed, over MCP and REST, and sampling of a call with an ordinary client."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import httpx

from bench.load import NUMBER, SINCE, Call
from bench.served import Service

MCP_PATH, REST_PATH = "/api/v1/mcp", "/api/v1"
MCP_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}
DAY_MS = 86_400_000
# Of the 30 days of feed that a first start publishes. Pages that begin on the last day may not be
# full.
SINCE_DAYS = 30, 1


@dataclass(frozen=True, slots=True)
class Case:
    """A call that both transports support.

    `limit_ratio` is the target: the rate of the call divided by that of fixed bytes of its size.
    `SINCE` lies between `since_days` before the start, or is the newest cursor if that is None.
    """

    name: str
    tool: str
    path: str
    limit_ratio: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    since_days: tuple[float, float] | None = SINCE_DAYS

    def build_mcp_call(self, ours: Service) -> Call:
        params = {"name": self.tool, "arguments": dict(self.arguments)}
        request = {"jsonrpc": "2.0", "id": NUMBER, "method": "tools/call", "params": params}
        # The placeholder becomes a number, so the quotes around it have to go.
        body = json.dumps(request).replace(f'"{NUMBER}"', NUMBER)
        return Call(MCP_PATH, body, MCP_HEADERS | build_bearer_header(ours), *self.find_since(ours))

    def build_rest_call(self, ours: Service, **headers: str) -> Call:
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = build_bearer_header(ours) | http_headers
        return Call(REST_PATH + self.path, "", sent, *self.find_since(ours))

    def find_since(self, ours: Service) -> tuple[int, int]:
        """Return the first `SINCE` (epoch ms) and the length of their range in milliseconds."""
        if self.since_days is None:
            return fetch_newest_ms(ours), 1
        first, last = self.since_days
        return ours.served_at_ms - round(first * DAY_MS), round((first - last) * DAY_MS)


USAGE = Case("usage", "signals_get_usage", "/usage", 0.8)
STATE_OF_ONE = Case(
    "state of one", "signals_get_state", "/state?ticker=BTC", 0.8, {"ticker": "BTC"}
)
SIGNALS = Case("signals", "signals_get_signals", "/signals?limit=50", 0.5, {"limit": 50})
VARIED = Case(
    "signals, since varies",
    "signals_get_signals",
    f"/signals?limit=50&since={SINCE}",
    0.4,
    {"limit": 50, "since": SINCE},
)
FILTERS = {
    "tier": "all",
    "ticker": "BTC",
    "indicator": "enzo",
    "timeframe": "1h",
    "direction": "bullish",
    "limit": 5,
}
FILTERED = Case(
    "signals, since varies, all filters",
    "signals_get_signals",
    f"/signals?since={SINCE}&{urlencode(FILTERS)}",
    0.2,
    {**FILTERS, "since": SINCE},
    (30, 20),
)
EMPTY_POLL = Case(
    "signals, nothing new",
    "signals_get_signals",
    f"/signals?since={SINCE}",
    0.6,
    {"since": SINCE},
    None,
)
STATE = Case("state", "signals_get_state", "/state", 0.85)
# Needs no key and is not counted: the difference to `usage` is the price of key and quota.
STATS = Case("stats", "signals_get_stats", "/stats", 0.0)
CASES = (USAGE, STATE_OF_ONE, SIGNALS, VARIED, FILTERED, EMPTY_POLL, STATE)


def build_bearer_header(ours: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {ours.api_key}"}


def fetch_newest_ms(ours: Service) -> int:
    """Return the cursor of the newest row of the feed (epoch ms)."""
    headers = build_bearer_header(ours)
    response = httpx.get(f"{ours.url}{REST_PATH}/signals?limit=1", headers=headers, timeout=60)
    cursor = response.raise_for_status().json()["pagination"]["next_cursor"]
    return round(datetime.fromisoformat(cursor).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Sample:
    """A successful response, and its size in bytes without and with its head."""

    call: Call
    content: bytes
    body_bytes: int
    wire_bytes: int
    headers: Mapping[str, str]

    @property
    def answer(self) -> dict[str, Any]:
        """The result as JSON, taken out of the MCP envelope if there is one."""
        answer = json.loads(self.content)
        answer = answer["result"]["structuredContent"] if self.call.body else answer
        return dict(answer)


def sample_call(url: str, call: Call) -> Sample:
    """Send a call once with httpx; SystemExit if the response is an error."""
    numbered = call.with_number(1)
    # httpx accepts gzip by default, while wrk does not.
    headers = {"Accept-Encoding": "identity"} | dict(numbered.headers)
    response = httpx.request(
        numbered.method, url + numbered.path, content=numbered.body, headers=headers, timeout=60
    )
    if response.is_error or b'"isError":true' in response.content[:100_000]:
        raise SystemExit(f"{url}{call.path}: {response.status_code} {response.text[:300]}")
    head = sum(len(name) + len(value) + 4 for name, value in response.headers.raw)
    body = response.num_bytes_downloaded
    wire_bytes = (
        body + head + len(f"HTTP/1.1 {response.status_code} {response.reason_phrase}\r\n\r\n")
    )
    return Sample(call, response.content, body, wire_bytes, response.headers)


def require_equal(what: str, one: Sample, other: Sample) -> None:
    """Raise SystemExit if two results differ in more than the quota."""
    mine, theirs = (
        {name: part for name, part in sample.answer.items() if name != "quota"}
        for sample in (one, other)
    )
    if mine != theirs:
        raise SystemExit(f"{what}: the results differ, so their times cannot be compared")

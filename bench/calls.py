"""The calls to be timed, over MCP and REST, and sampling of a call with an ordinary client."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.load import NUMBER, SINCE, Call
from bench.served import Service

MCP_PATH, REST_PATH = "/api/v1/mcp", "/api/v1"
MCP_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}
# Early in the 30 days of feed that a first start publishes, so that the page is full.
SINCE_DAYS = 25


@dataclass(frozen=True, slots=True)
class Case:
    """A call that both transports support.

    `limit_ratio` is the target: the rate of the call divided by that of fixed bytes of its size.
    """

    name: str
    tool: str
    path: str
    limit_ratio: float
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def build_mcp_call(self, ours: Service) -> Call:
        params = {"name": self.tool, "arguments": dict(self.arguments)}
        request = {"jsonrpc": "2.0", "id": NUMBER, "method": "tools/call", "params": params}
        # The placeholder becomes a number, so the quotes around it have to go.
        body = json.dumps(request).replace(f'"{NUMBER}"', NUMBER)
        return Call(MCP_PATH, body, MCP_HEADERS | build_bearer_header(ours), find_since_ms(ours))

    def build_rest_call(self, ours: Service, **headers: str) -> Call:
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return Call(
            REST_PATH + self.path, "", build_bearer_header(ours) | http_headers, find_since_ms(ours)
        )


USAGE = Case("usage", "signals_get_usage", "/usage", 0.8)
STATE_OF_ONE = Case(
    "state of one", "signals_get_state", "/state?ticker=BTC", 0.8, {"ticker": "BTC"}
)
SIGNALS = Case("signals", "signals_get_signals", "/signals?limit=50", 0.5, {"limit": 50})
VARIED = Case(
    "signals, since varies",
    "signals_get_signals",
    f"/signals?limit=50&since={SINCE}",
    0.5,
    {"limit": 50, "since": SINCE},
)
STATE = Case("state", "signals_get_state", "/state", 0.9)
# Needs no key and is not counted: the difference to `usage` is the price of key and quota.
STATS = Case("stats", "signals_get_stats", "/stats", 0.0)
CASES = (USAGE, STATE_OF_ONE, SIGNALS, VARIED, STATE)


def build_bearer_header(ours: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {ours.api_key}"}


def find_since_ms(ours: Service) -> int:
    return ours.served_at_ms - SINCE_DAYS * 86_400_000


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

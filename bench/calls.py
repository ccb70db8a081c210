"""The calls to be timed, over MCP and REST, and one response of each."""

import json
import random
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx

from bench.load import TIMEOUT_S, Call
from schemas.vocabulary import format_instant

MCP_PATH, REST_PATH = "/api/v1/mcp", "/api/v1"
MCP_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
}
# About as many as are answered in a round, so that hardly any request comes twice.
CALLS = 20_000
NUMBERS = count(1)


class Case(NamedTuple):
    """A call that both transports support; `limit_ratio` is the target of its rate to fixed bytes.

    If there is a range of `since` (epoch ms), each call has another instant within it.
    """

    name: str
    tool: str
    path: str
    limit_ratio: float
    arguments: Mapping[str, Any] = {}
    since: tuple[int, int] | None = None

    def list_calls(
        self, transport: str, key: Mapping[str, str], path: str = "", number: int = CALLS
    ) -> list[Call]:
        """Return calls with a key, to a path of another server if one is given."""
        return [self._build_call(transport, key, path) for _ in range(number)]

    def _build_call(self, transport: str, key: Mapping[str, str], path: str) -> Call:
        number, arguments = next(NUMBERS), dict(self.arguments)
        if self.since is not None:
            # The service ignores the last six digits, which make each text another one.
            at = format_instant(random.randint(*self.since))
            arguments["since"] = f"{at[:-1]}{number % 1_000_000:06d}Z"
        if transport == "REST":
            query = f"?{urlencode(arguments)}" if arguments else ""
            return Call(path or f"{REST_PATH}{self.path}{query}", "", key)
        params = {"name": self.tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return Call(path or MCP_PATH, json.dumps(body), MCP_HEADERS | key)


STATE_OF_ONE = Case("state of one", "signals_get_state", "/state", 0.8, {"ticker": "BTC"})
STATE = Case("state", "signals_get_state", "/state", 0.85)
SIGNALS = Case("signals", "signals_get_signals", "/signals", 0.4, {"limit": 50})


def fetch(url: str, call: Call) -> bytes:
    """Return the body of a response; SystemExit if it is an error."""
    # httpx accepts gzip by default, while wrk does not.
    headers = {"Accept-Encoding": "identity"} | dict(call.headers)
    response = httpx.request(
        call.method, url + call.path, content=call.body, headers=headers, timeout=TIMEOUT_S
    )
    if response.is_error or b'"isError":true' in response.content[:100_000]:
        raise SystemExit(f"{url}{call.path}: {response.status_code} {response.text[:300]}")
    return response.content


def read_result(body: bytes) -> dict[str, Any]:
    """Return the result in an MCP response, without the quota, which each call changes."""
    result = json.loads(body)["result"]["structuredContent"]
    return {name: part for name, part in result.items() if name != "quota"}

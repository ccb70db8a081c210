"""Clients of several serving processes; if one fails, they use another."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import httpx

from schemas.vocabulary import DAY_MS, Clock
from tests.support.running_service import Transport

PACE_S = 0.2
PAGE = 40
PARALLEL_CALLS = 8
UNREACHABLE_ERRORS = httpx.TransportError, httpx.TimeoutException


class Row(NamedTuple):
    created_at: int
    id: str


def parse_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


class Reply(NamedTuple):
    """The response to a call; `resets_at` (epoch ms) is the end of its quota's day.

    `resets_at` is 0 if the response has no quota.
    """

    status: int
    body: Any
    resets_at: int


@dataclass
class CallTotals:
    """Responses and failures of all clients."""

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


class Caller:
    """Calls with the key of this label, and counts the responses in `totals`."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        addresses: Sequence[str],
        label: str,
        api_key: str,
        totals: CallTotals,
        rng: random.Random,
    ) -> None:
        self.label = label
        self._client = client
        self._addresses = addresses
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self._totals = totals
        self._rng = rng

    async def call(self, transport: Transport, arguments: dict[str, Any]) -> Reply:
        """Call processes until one replies with another status than 503; return the reply."""
        ask = self._call_mcp if transport == "mcp" else self._call_rest
        while True:
            try:
                reply = await ask(self._rng.choice(self._addresses), arguments)
            except UNREACHABLE_ERRORS as error:
                self._totals.failures[type(error).__name__] += 1
            else:
                if reply.status != 503:
                    return self._count_reply(reply)
                self._totals.failures["503"] += 1
            await asyncio.sleep(PACE_S)

    def _count_reply(self, reply: Reply) -> Reply:
        noted = {200: self._totals.answered, 429: self._totals.refused}[reply.status]
        noted[self.label, reply.resets_at // DAY_MS - 1] += 1
        return reply

    async def _call_rest(self, address: str, arguments: dict[str, Any]) -> Reply:
        url = f"{address}/api/v1/signals"
        response = await self._client.get(url, params=arguments, headers=self._headers)
        return Reply(response.status_code, response.json(), parse_reset(response))

    async def _call_mcp(self, address: str, arguments: dict[str, Any]) -> Reply:
        params = {"name": "signals_get_signals", "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        url = f"{address}/api/v1/mcp"
        response = await self._client.post(url, json=body, headers=self._headers)
        result = response.json()["result"]
        status = result["_meta"]["signals/status"] if result["isError"] else 200
        return Reply(status, result.get("structuredContent"), parse_reset(response))


def parse_reset(response: httpx.Response) -> int:
    reset = response.headers.get("X-RateLimit-Reset")
    return 0 if reset is None else parse_ms(reset)


class FeedReader:
    """Pages both tiers of the feed by `since`; `rows` are all rows received, in order."""

    def __init__(self, caller: Caller, transport: Transport, since: str) -> None:
        self.rows: list[Row] = []
        self._caller = caller
        self._face = transport
        self._since = since

    async def read(self) -> None:
        """Read all rows and then new ones, until cancelled."""
        while True:
            page = await self._page()
            self.rows += [Row(parse_ms(r["created_at"]), r["id"]) for r in page["signals"]]
            self._since = page["pagination"]["next_cursor"] or self._since
            if not page["pagination"]["has_more"]:
                await asyncio.sleep(PACE_S)

    def has_read(self, created_at: int) -> bool:
        return bool(self.rows) and self.rows[-1].created_at == created_at

    async def _page(self) -> dict[str, Any]:
        asked = {"tier": "all", "order": "oldest", "limit": PAGE, "since": self._since}
        reply = await self._caller.call(self._face, asked)
        assert reply.status == 200, reply
        page: dict[str, Any] = reply.body
        return page


class QuotaSpender:
    """Uses up a key's quota each day, with several calls at a time."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock

    async def spend(self) -> None:
        """Call until refused, wait for the next day, and repeat until cancelled."""
        while True:
            calls = [self._caller.call("rest", {"limit": 1}) for _ in range(PARALLEL_CALLS)]
            replies = await asyncio.gather(*calls)
            if all(reply.status == 429 for reply in replies):
                await self._wait_for_next_day(replies[0].resets_at)

    async def _wait_for_next_day(self, resets_at: int) -> None:
        await wait_until(lambda: self._clock() >= resets_at, within_s=None)


async def wait_until(
    is_so: Callable[[], bool | Awaitable[bool]], within_s: float | None, every_s: float = 0.02
) -> None:
    """Poll until a condition is true; TimeoutError if it is not true in time."""
    async with asyncio.timeout(within_s):
        while True:
            found = is_so()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(every_s)

"""Clients of several serving processes: they ask any of them, and another one where it fails."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import httpx

from schemas.clock import Clock
from schemas.vocabulary import DAY_MS
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
    """What a call came to over either transport; `resets_at` (epoch ms) ends its day.

    It is 0 where the answer says nothing of a quota.
    """

    status: int
    body: Any
    resets_at: int


@dataclass
class CallTotals:
    """What clients were told, over all of them."""

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


class Caller:
    """Calls with one key; `label` is the key's, `told` gathers what every caller was told."""

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
        """Return the first reply that any process has; who can't answer at the moment is 503."""
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
    told = response.headers.get("X-RateLimit-Reset")
    return 0 if told is None else parse_ms(told)


class FeedReader:
    """Pages the feed of both tiers by `since`; `rows` are all that it was shown, in their order."""

    def __init__(self, caller: Caller, transport: Transport, since: str) -> None:
        self.rows: list[Row] = []
        self._caller = caller
        self._face = transport
        self._since = since

    async def read(self) -> None:
        """Read what is there and what comes, until cancelled."""
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
    """Spends a key's whole quota each day, by calls of which several are made at a time."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock

    async def spend(self) -> None:
        """Call until refused, go on with the next day, until cancelled."""
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
    """Wait for something that no process tells by itself; TimeoutError where it does not come."""
    async with asyncio.timeout(within_s):
        while True:
            found = is_so()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(every_s)

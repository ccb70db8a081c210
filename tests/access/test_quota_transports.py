"""Which calls of a key count, over both transports."""

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from access.billing.provider import NoBilling
from access.keys_and_quota import generate_key, hash_key
from schemas.vocabulary import DAY_MS, Mode, format_instant
from tests.store.sql.test_purchase_store import CLAIM, MEMBER
from tests.support.bad_inputs import (
    CATALOG,
    CONFLUENCE,
    FLIPS,
    KEYED_PATHS,
    SIGNALS,
    STATE,
    STATS,
    USAGE,
    build_call,
    build_path,
)
from tests.support.example_market import make_coverage, seed_market
from tests.support.row_builders import run_sql
from tests.support.running_service import (
    RunningService,
    Transport,
    break_usage_counting,
    run_service,
)

pytestmark = pytest.mark.clause("access")

LIMIT = 3
MIDNIGHT = 1_790_812_800_000  # 2026-10-01T00:00:00Z
BTC = {"ticker": "BTC"}
# The arguments of the first three are refused by their schema, those of the others by the tool.
BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    (STATE, {"colour": "red"}),
    (CONFLUENCE, {"timeframe": "2h"}),
    (USAGE, {"colour": "red"}),
    (STATE, {"ticker": "BTX"}),
    (SIGNALS, {"ticker": "BTX"}),
    (SIGNALS, {"since": "someday"}),
    (CONFLUENCE, {"as_of": "2020-01-01"}),
    (FLIPS, {"timeframe": "1h", "hours": 7}),
]
# Every tool that needs a key, and each page of a feed.
GOOD_CALLS: list[tuple[str, dict[str, Any]]] = [
    *((tool, {}) for tool in KEYED_PATHS if tool != USAGE),
    *((SIGNALS, {"limit": 3, "offset": offset}) for offset in (0, 3, 6)),
]
REQUESTS = st.sampled_from(GOOD_CALLS + BAD_CALLS)
UNKNOWN_KEYS: list[dict[str, str]] = [
    {},
    {"X-Api-Key": "nonsense"},
    {"Authorization": f"Bearer ek_{'a' * 43}"},
]
FACES: st.SearchStrategy[Transport] = st.sampled_from(["mcp", "rest"])
# Statuses over all examples: a run that never reached one of them would prove nothing.
SEEN = Counter[int]()
AGENTS = Path("docs/agents.md").read_text()


@dataclass(frozen=True)
class Called:
    """The result of one call; `quota` is (limit, remaining, reset), None if it is missing."""

    status: int
    code: str | None
    message: str
    retry_after_s: int | None
    quota: tuple[int, int, str] | None


async def call(
    served: RunningService,
    transport: Transport,
    tool: str = STATE,
    headers: Any = None,
    **arguments: Any,
) -> Called:
    """Call a tool over one transport, with the key unless headers are given."""
    sent = served.key_headers if headers is None else headers
    if transport == "rest":
        return await call_rest(served, build_path(tool, arguments), sent)
    return await call_mcp(served, tool, arguments, sent)


async def call_rest(served: RunningService, path: str, sent: dict[str, str]) -> Called:
    response = await served.client.get(f"/api/v1{path}", headers=sent)
    body = response.json()
    retry_after = response.headers.get("retry-after")
    return Called(
        response.status_code,
        body.get("error"),
        body.get("message", ""),
        None if retry_after is None else int(retry_after),
        parse_quota(response.headers),
    )


async def call_mcp(
    served: RunningService, tool: str, arguments: Any, sent: dict[str, str]
) -> Called:
    response = await served.post_mcp(build_call(tool, arguments), **sent)
    result = response.json()["result"]
    meta = result.get("_meta", {})
    error = json.loads(result["content"][0]["text"]) if result["isError"] else {}
    quota = parse_quota(response.headers)
    assert "retry-after" not in response.headers
    assert ("signals/quota" in meta) is (quota is not None)
    if quota is not None:
        usage = meta["signals/quota"]
        assert (usage["daily_limit"], usage["remaining_today"], usage["resets_at"]) == quota
        assert usage["remaining_today"] == max(usage["daily_limit"] - usage["used_today"], 0)
    return Called(
        meta.get("signals/status", 200),
        error.get("error"),
        error.get("message", ""),
        meta.get("signals/retry_after_seconds"),
        quota,
    )


def parse_quota(headers: Any) -> tuple[int, int, str] | None:
    held = {name for name in headers if name.startswith("x-ratelimit")}
    if not held:
        return None
    assert held == {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
    limit, remaining = headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]
    return int(limit), int(remaining), headers["x-ratelimit-reset"]


def count_usage(served: RunningService) -> int:
    (row,) = run_sql(served.access._engine.path, "SELECT coalesce(sum(used), 0) FROM usage")
    return row[0]


async def bought(served: RunningService, mode: Mode) -> dict[str, str]:
    """Return the headers for a key bought in a mode."""
    api_key = generate_key()
    claim = replace(CLAIM, id=mode, token_hash=hash_key(mode), mode=mode)
    await served.access.create_claim(claim)
    member = replace(MEMBER, subscription=mode, mode=mode)
    assert await served.access.redeem_claim(claim, member, hash_key(api_key), served.clock())
    return {"Authorization": f"Bearer {api_key}"}


@pytest.fixture
async def scarce(tmp_path: Path) -> AsyncIterator[RunningService]:
    """The service with a quota of a few calls a day."""
    async with run_service(tmp_path, make_coverage(), daily_limit=LIMIT) as running:
        yield running


class QuotaMachine(RuleBasedStateMachine):
    """Calls of several keys over both transports, across midnights, revocations and faults."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.place = run_service(Path(self.folder.name), make_coverage(), daily_limit=LIMIT)
        self.served = self.run(self.place.__aenter__())
        self.created: list[str] = []
        self.revoked: set[str] = set()
        self.used = Counter[tuple[str, int]]()

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.place.__aexit__(None, None, None))
        self.runner.close()
        self.folder.cleanup()

    @initialize(target=keys)
    def begin(self) -> str:
        self.created.append(self.served.api_key)
        return self.created[0]

    @rule(target=keys)
    def create(self) -> str:
        self.created.append(self.run(self.served.keys.create("another")))
        return self.created[-1]

    @rule(key=keys)
    def revoke(self, key: str) -> None:
        self.run(self.served.keys.revoke(self.created.index(key) + 1))
        self.revoked.add(key)

    def call_as(self, key: str, transport: Transport, tool: str, **arguments: Any) -> Called:
        called: Called = self.run(
            call(self.served, transport, tool, {"X-Api-Key": key}, **arguments)
        )
        SEEN[called.status] += 1
        return called

    def quota_of(self, key: str) -> tuple[int, int, str]:
        day = self.served.clock.now // DAY_MS
        return LIMIT, LIMIT - self.used[key, day], format_instant((day + 1) * DAY_MS)

    def count(self, key: str) -> None:
        day = self.served.clock.now // DAY_MS
        self.used[key, day] = min(self.used[key, day] + 1, LIMIT)

    @rule(key=keys, transport=FACES, requests=st.lists(REQUESTS, min_size=1, max_size=LIMIT + 1))
    def call(
        self, key: str, transport: Transport, requests: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Call a few times; a revoked or exhausted key is refused before its arguments are read."""
        for request in requests:
            called = self.call_as(key, transport, request[0], **request[1])
            _, left, reset = self.quota_of(key)
            if key in self.revoked:
                assert (called.status, called.code) == (403, "revoked_key")
            elif left == 0 and request[0] != USAGE:
                retry_after_s = -((self.served.clock.now % DAY_MS - DAY_MS) // 1000)
                assert (called.status, called.code) == (429, "rate_limited")
                assert called.retry_after_s == retry_after_s
                for words in ("3 calls", reset, f"{retry_after_s} seconds"):
                    assert words in called.message
            else:
                assert called.status == (400 if request in BAD_CALLS else 200)
                self.count(key)
            assert called.quota == self.quota_of(key)

    @rule(key=keys, transport=FACES)
    def read_usage(self, key: str, transport: Transport) -> None:
        """Read the quota, which an exhausted key may."""
        if key in self.revoked:
            assert self.call_as(key, transport, USAGE).status == 403
            return
        self.count(key)
        limit, left, reset = self.quota_of(key)
        self.served.api_key = key
        answer = self.run(self.served.fetch_answer(transport, USAGE))
        assert (answer["quota"]["used_today"], answer["quota"]["remaining_today"]) == (
            limit - left,
            left,
        )
        note = answer["meta"].get("note")
        assert left > 0 if note is None else ("exhausted" in note and reset in note)

    @rule(transport=FACES, headers=st.sampled_from(UNKNOWN_KEYS))
    def call_without_a_known_key(self, transport: Transport, headers: dict[str, str]) -> None:
        called = self.run(call(self.served, transport, headers=headers))
        assert (called.status, called.quota) == (401, None)

    @rule(key=keys, transport=FACES, request=REQUESTS)
    def call_while_nothing_can_be_counted(
        self, key: str, transport: Transport, request: tuple[str, dict[str, Any]]
    ) -> None:
        with break_usage_counting(self.served.access):
            called = self.call_as(key, transport, request[0], **request[1])
        assert (called.status, called.code, called.quota) == (503, "unavailable", None)
        assert called.retry_after_s == 60

    @rule(before_midnight_ms=st.sampled_from([0, 1, 999, 1000, 1001, 3_600_000]))
    def wait(self, before_midnight_ms: int) -> None:
        now = self.served.clock.now
        self.served.clock.now = max(now, ((now // DAY_MS + 1) * DAY_MS) - before_midnight_ms)

    @invariant()
    def every_counted_call_is_stored(self) -> None:
        assert count_usage(self.served) == self.used.total()


@pytest.mark.clause(
    "2.13.11",
    "3.5.3",
    "3.5.4",
    "4.0.4",
    "4.6.10",
    "4.10.1",
    "4.10.2",
    "4.14.15",
    "5.2",
    "5.25",
    "5.26",
    "7.19",
    "7.23",
    "7.24",
    "8.1",
    "8.2",
    "8.3",
    "8.4",
    "8.5",
    "8.6",
    "8.7",
    "8.8",
    "8.9",
    "8.10",
    "8.11",
    "8.13",
    "8.14",
    "8.15",
    "8.52",
)
@pytest.mark.parametrize("lives", [6, pytest.param(60, marks=pytest.mark.prove)])
def test_both_transports_share_exact_counts_of_each_key_and_day(lives: int) -> None:
    SEEN.clear()
    run_state_machine_as_test(
        QuotaMachine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=50,
            deadline=None,
            database=None,
            derandomize=True,
            # Each example starts a service, so to shorten one that fails would take minutes.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    assert {200, 400, 403, 429, 503} <= set(SEEN)


@pytest.mark.clause("8.46")
@pytest.mark.prove
async def test_polling_all_day_as_recommended_takes_96_calls(served: RunningService) -> None:
    manifest = (await served.client.get("/api/v1")).json()
    interval_ms = manifest["polling"]["recommended_interval_s"] * 1000
    served.clock.now = MIDNIGHT
    while served.clock.now < MIDNIGHT + DAY_MS:
        polled = await call_rest(served, "/signals?since=2026-09-30T12:03:00Z", served.key_headers)
        served.clock.now += interval_ms
    assert polled.quota == (10_000, 10_000 - 96, "2026-10-02T00:00:00.000Z")


async def test_a_repeated_query_is_accepted_until_the_time_that_it_names_is_refused(
    served: RunningService, transport: Transport
) -> None:
    """An accepted `as_of` leaves the stored history when the clock goes back before it."""
    named = {"ticker": "BTC", "as_of": format_instant(served.clock.now)}
    assert [(await call(served, transport, STATE, **named)).status for _ in range(2)] == [200] * 2
    served.clock.now -= 2 * DAY_MS
    assert (await call(served, transport, STATE, **named)).status == 400
    assert count_usage(served) == 3


@pytest.mark.clause("8.52")
async def test_calls_before_the_first_compute_count_and_are_checked_when_repeated(
    tmp_path: Path, transport: Transport
) -> None:
    async with run_service(tmp_path) as served:
        assert (await call(served, transport)).status == 503
        assert (await call(served, transport, STATE, ticker="BTX")).status == 503
        await seed_market(served.market, make_coverage())
        assert (await call(served, transport, STATE, ticker="BTX")).status == 400
        assert count_usage(served) == 3


@pytest.mark.clause("4.14.13", "8.12", "8.14", "8.52")
async def test_what_needs_no_key_is_not_counted(served: RunningService) -> None:
    answers = [
        await served.post_mcp(
            {"jsonrpc": "2.0", "id": 1, "method": method, **params}, **served.key_headers
        )
        for method, params in (
            ("initialize", {"params": {"protocolVersion": "2025-06-18"}}),
            *((method, {}) for method in ("ping", "tools/list", "resources/list", "tools/call")),
            ("tools/call", {"params": {"name": "signals_get_nothing"}}),
            ("tools/call", {"params": {"name": CATALOG, "arguments": []}}),
            ("tools/call", {"params": {"name": CATALOG}}),
            ("tools/call", {"params": {"name": CATALOG, "arguments": {"colour": "red"}}}),
            ("tools/call", {"params": {"name": STATS}}),
        )
    ]
    assert {answer.status_code for answer in answers} == {200}
    notification = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": STATE}}
    answers.append(await served.post_mcp(notification, **served.key_headers))
    assert answers[-1].status_code == 202
    for path in ("", "/catalog", "/stats", "/signals/sample", "/openapi.json", "/nowhere"):
        answers.append(await served.get_api(path))
    for path in ("/access/checkout", "/access/claim", "/access-request"):
        for sent in ({}, {"contact_email": "agent@example.com"}):
            url = f"/api/v1{path}"
            answers.append(await served.client.post(url, json=sent, headers=served.key_headers))
    for answer in answers:
        assert parse_quota(answer.headers) is None
        assert "signals/quota" not in answer.text
    assert count_usage(served) == 0


async def test_the_page_for_agents_names_every_key_that_a_results_meta_can_have(
    scarce: RunningService,
) -> None:
    results = [await scarce.call(STATE) for _ in range(LIMIT + 1)]
    results.append(await scarce.call(STATE, headers={}))
    named = re.findall(r"^\| `(signals/\w+)` \|", AGENTS, re.MULTILINE)
    assert set(named) == {key for result in results for key in result["_meta"]}


@pytest.mark.clause("2.11.2", "2.11.5", "2.11.6", "4.0.4", "5.18", "5.22", "7.2", "8.52")
@pytest.mark.parametrize(
    ("bills_in", "refused"), [("live", {"test"}), ("test", {"live"}), (None, set())]
)
async def test_a_key_bought_in_one_mode_is_not_provisioned_on_a_server_of_the_other(
    tmp_path: Path, transport: Transport, bills_in: Mode | None, refused: set[Mode]
) -> None:
    provider = NoBilling()
    provider.mode = bills_in
    async with run_service(tmp_path, make_coverage(), provider=provider) as served:
        assert (await call(served, transport)).status == 200
        assert (await served.fetch_answer(transport, USAGE))["mode"] == bills_in
        for mode in ("test", "live"):
            headers, used = await bought(served, mode), count_usage(served)
            called = await call(served, transport, headers=headers)
            if mode not in refused:
                assert called.status == 200
                continue
            assert (called.status, called.code) == (403, "not_provisioned")
            for words in (f"{mode} mode", f"{bills_in} mode", "/api/v1/access/checkout"):
                assert words in called.message
            assert called.quota == (10_000, 10_000, "2026-10-01T00:00:00.000Z")
            assert (await call(served, transport, USAGE, headers=headers)).status == 403
            assert count_usage(served) == used


@pytest.mark.clause("5.21")
async def test_a_key_bought_in_test_mode_reads_the_same_data_as_a_live_one(
    served: RunningService, tmp_path: Path
) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    provider = NoBilling()
    provider.mode = "live"
    async with run_service(folder, make_coverage(), provider=provider) as live:
        in_test, in_live = await bought(served, "test"), await bought(live, "live")
        for tool in (STATE, SIGNALS, CONFLUENCE, FLIPS):
            path = build_path(tool, {})
            read, meant = await served.get_api(path, **in_test), await live.get_api(path, **in_live)
            assert (read.status_code, read.content) == (200, meant.content)


@pytest.mark.clause("3.5.4", "5.25", "5.31")
async def test_an_expired_key_is_refused_with_the_time_and_the_way_to_another(
    served: RunningService, transport: Transport
) -> None:
    expires_at = served.clock.now + 1000
    own = await served.keys.create("own", expires_at)
    sold = await bought(served, "test")
    run_sql(
        served.access._engine.path,
        "UPDATE keys SET expires_at = ? WHERE mode = 'test'",
        (expires_at,),
    )
    for headers, remedy in (
        ({"authorization": f"Bearer {own}"}, "use another key"),
        (sold, f"create a new key at {served.base_url}/settings/api-access"),
    ):
        assert (await call(served, transport, STATE, headers, **BTC)).status == 200
        served.clock.now = expires_at
        refused = await call(served, transport, STATE, headers, **BTC)
        assert (refused.status, refused.code) == (403, "revoked_key")
        assert f"expired at 2026-09-30T12:06:21.000Z: {remedy}." in refused.message
        assert refused.quota is not None
        served.clock.now = expires_at - 1000

"""Which calls of a key count, over both transports."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from access.billing.sandbox import NoBilling
from access.keys import generate_key, hash_key
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
    (SIGNALS, {"since": "yesterday"}),
    (CONFLUENCE, {"as_of": "2020-01-01"}),
    (FLIPS, {"timeframe": "1h", "hours": 7}),
]
AGENTS = Path("docs/agents.md").read_text()


class LiveBilling(NoBilling):
    """A provider in live mode."""

    mode: Mode | None = "live"


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
    params = {"name": tool, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = await served.post_mcp(body, **sent)
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
    """Return the number of counted calls of all keys."""
    (row,) = run_sql(served.access._engine.path, "SELECT coalesce(sum(used), 0) FROM usage")
    total: int = row[0]
    return total


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


@pytest.mark.clause("4.0.4", "4.14.15", "8.1", "8.5", "8.8", "8.9", "8.10")
async def test_rest_and_mcp_share_one_count(served: RunningService) -> None:
    faces: list[Transport] = ["rest", "mcp", "mcp", "rest", "mcp"]
    left = [(await call(served, transport, **BTC)).quota for transport in faces]
    assert left == [
        (10_000, 10_000 - made, "2026-10-01T00:00:00.000Z") for made in range(1, len(faces) + 1)
    ]
    assert count_usage(served) == len(faces)


@pytest.mark.clause("4.0.4", "4.10.2", "8.4", "8.11")
async def test_every_key_protected_call_counts(
    served: RunningService, transport: Transport
) -> None:
    for made, tool in enumerate(KEYED_PATHS, 1):
        called = await call(served, transport, tool)
        assert (called.status, called.quota) == (
            200,
            (10_000, 10_000 - made, "2026-10-01T00:00:00.000Z"),
        )
    assert count_usage(served) == len(KEYED_PATHS) == 5


@pytest.mark.clause("8.6")
async def test_each_page_of_the_feed_counts(served: RunningService, transport: Transport) -> None:
    for offset in (0, 3, 6):
        assert (await call(served, transport, SIGNALS, limit=3, offset=offset)).status == 200
    assert count_usage(served) == 3


@pytest.mark.clause("8.46")
async def test_polling_all_day_as_recommended_takes_96_calls(served: RunningService) -> None:
    manifest = (await served.client.get("/api/v1")).json()
    interval_ms = manifest["polling"]["recommended_interval_s"] * 1000
    served.clock.now = MIDNIGHT
    while served.clock.now < MIDNIGHT + DAY_MS:
        polled = await call_rest(served, "/signals?since=2026-09-30T12:03:00Z", served.key_headers)
        served.clock.now += interval_ms
    assert polled.quota == (10_000, 10_000 - 96, "2026-10-02T00:00:00.000Z")


@pytest.mark.clause("5.2", "8.2")
async def test_calls_are_counted_per_key(served: RunningService, transport: Transport) -> None:
    await call(served, transport)
    other = {"X-Api-Key": await served.keys.create("other")}
    for remaining in (9_999, 9_998):
        quota = (await call(served, transport, headers=other)).quota
        assert quota is not None
        assert quota[1] == remaining


@pytest.mark.clause("8.52")
async def test_a_call_with_bad_arguments_counts_like_any_other(
    served: RunningService, transport: Transport
) -> None:
    for count, (tool, arguments) in enumerate(BAD_CALLS, 1):
        refused = await call(served, transport, tool, **arguments)
        assert refused.status == 400
        assert refused.quota == (10_000, 10_000 - count, "2026-10-01T00:00:00.000Z")
    assert count_usage(served) == len(BAD_CALLS)


@pytest.mark.clause("8.52")
async def test_an_exhausted_key_is_refused_before_its_arguments_are_read(
    scarce: RunningService, transport: Transport
) -> None:
    for _ in range(LIMIT):
        assert (await call(scarce, transport, STATE, ticker="BTX")).status == 400
    for arguments in (BTC, {"ticker": "BTX"}):
        refused = await call(scarce, transport, STATE, **arguments)
        assert (refused.status, refused.quota) == (429, (LIMIT, 0, "2026-10-01T00:00:00.000Z"))
    assert count_usage(scarce) == LIMIT


async def test_a_repeated_query_is_accepted_until_the_time_that_it_names_is_refused(
    served: RunningService, transport: Transport
) -> None:
    """An accepted `as_of` leaves the stored history when the clock goes back before it."""
    named = {"ticker": "BTC", "as_of": format_instant(served.clock.now)}
    for _ in range(2):
        assert (await call(served, transport, STATE, **named)).status == 200
    served.clock.now -= 2 * DAY_MS
    assert (await call(served, transport, STATE, **named)).status == 400
    assert count_usage(served) == 3


async def test_a_query_that_could_not_be_checked_at_first_is_checked_when_repeated(
    tmp_path: Path, transport: Transport
) -> None:
    async with run_service(tmp_path) as served:
        assert (await call(served, transport, STATE, ticker="BTX")).status == 503
        await seed_market(served.market, make_coverage())
        assert (await call(served, transport, STATE, ticker="BTX")).status == 400
        assert count_usage(served) == 2


async def test_a_call_with_bad_arguments_that_cannot_be_counted_is_503(
    served: RunningService, transport: Transport
) -> None:
    with break_usage_counting(served.access):
        refused = await call(served, transport, STATE, ticker="BTX")
    assert (refused.status, refused.code, refused.quota) == (503, "unavailable", None)


@pytest.mark.clause("8.52")
async def test_a_call_before_the_first_compute_counts(
    served_empty: RunningService, transport: Transport
) -> None:
    assert (await call(served_empty, transport)).status == 503
    assert count_usage(served_empty) == 1


@pytest.mark.clause("8.13", "8.52")
async def test_a_call_without_a_known_key_is_not_counted_and_has_no_quota(
    served: RunningService, transport: Transport
) -> None:
    for headers in ({}, {"X-Api-Key": "nonsense"}, {"Authorization": f"Bearer ek_{'a' * 43}"}):
        refused = await call(served, transport, headers=headers)
        assert (refused.status, refused.quota) == (401, None)
    assert count_usage(served) == 0


@pytest.mark.clause("5.1", "5.2", "5.29")
@pytest.mark.parametrize(
    ("authorization", "x_api_key", "status"),
    [
        ("bEARER  {}", None, 200),
        ("Basic cHJveHk6cHJveHk=", "{}", 200),
        ("Bearer of.another.service", "{}", 200),
        ("Bearer {}", "", 200),
        ("Bearer {}", "{}", 200),
        ("Bearer {}", "{other}", 401),
        ("Basic {}", "", 401),
        ("Bearer '{}'", None, 401),
        ("Bearer ${SIGNALS_API_KEY}", "", 401),
    ],
)
async def test_keys_are_accepted_as_people_send_them(
    served: RunningService,
    transport: Transport,
    authorization: str,
    x_api_key: str | None,
    status: int,
) -> None:
    other = await served.keys.create("other")
    sent = {"Authorization": authorization, "X-Api-Key": x_api_key}
    headers = {
        name: value.replace("{}", served.api_key).replace("{other}", other)
        for name, value in sent.items()
        if value is not None
    }
    called = await call(served, transport, STATE, headers, **BTC)
    assert called.status == status
    assert (called.quota is None) is (status == 401)
    assert count_usage(served) == (1 if status == 200 else 0)
    if status == 401:
        assert called.code == "invalid_key"
        assert served.api_key not in called.message


@pytest.mark.clause("4.14.13", "8.12", "8.52")
async def test_mcp_methods_without_a_key_are_not_counted(served: RunningService) -> None:
    for method, params in (
        ("initialize", {"protocolVersion": "2025-06-18"}),
        ("ping", None),
        ("tools/list", None),
        ("resources/list", None),
        ("tools/call", None),
        ("tools/call", {"name": "signals_get_nothing"}),
        ("tools/call", {"name": CATALOG, "arguments": []}),
        ("tools/call", {"name": CATALOG}),
        ("tools/call", {"name": CATALOG, "arguments": {"colour": "red"}}),
        ("tools/call", {"name": STATS}),
    ):
        given = {} if params is None else {"params": params}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, **given}
        response = await served.post_mcp(body, **served.key_headers)
        assert response.status_code == 200
        assert parse_quota(response.headers) is None
        assert "signals/quota" not in response.text
    assert count_usage(served) == 0


@pytest.mark.clause("8.52")
async def test_a_notification_is_not_counted(served: RunningService) -> None:
    body = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": STATE}}
    response = await served.post_mcp(body, **served.key_headers)
    assert (response.status_code, parse_quota(response.headers)) == (202, None)
    assert count_usage(served) == 0


@pytest.mark.clause("8.12", "8.14")
async def test_open_endpoints_are_not_counted(served: RunningService) -> None:
    for path in ("", "/catalog", "/stats", "/signals/sample", "/openapi.json", "/nowhere"):
        response = await served.get_api(path)
        assert parse_quota(response.headers) is None
    for path in ("/access/checkout", "/access/claim", "/access-request"):
        for body in ({}, {"contact_email": "agent@example.com"}):
            response = await served.client.post(
                f"/api/v1{path}", json=body, headers=served.key_headers
            )
            assert parse_quota(response.headers) is None
    assert count_usage(served) == 0


@pytest.mark.clause(
    "4.6.10",
    "4.14.15",
    "5.26",
    "7.23",
    "7.24",
    "8.1",
    "8.8",
    "8.9",
    "8.10",
    "8.14",
    "8.15",
    "8.52",
)
async def test_the_limit_is_exact_and_the_error_says_when_to_retry(
    scarce: RunningService, transport: Transport
) -> None:
    left = [(await call(scarce, transport, **BTC)).quota for _ in range(LIMIT)]
    assert [quota and quota[1] for quota in left] == [2, 1, 0]
    for _ in range(2):
        refused = await call(scarce, transport, **BTC)
        assert (refused.status, refused.code) == (429, "rate_limited")
        assert refused.quota == (LIMIT, 0, "2026-10-01T00:00:00.000Z")
        # 12:06:20 to midnight.
        assert refused.retry_after_s == 11 * 3600 + 53 * 60 + 40
        for words in ("3 calls", "2026-10-01T00:00:00.000Z", "42820 seconds"):
            assert words in refused.message
    assert count_usage(scarce) == LIMIT


async def test_the_page_for_agents_names_every_key_that_a_results_meta_can_have(
    scarce: RunningService,
) -> None:
    results = [await scarce.call(STATE) for _ in range(LIMIT + 1)]
    results.append(await scarce.call(STATE, headers={}))
    named = re.findall(r"^\| `(signals/\w+)` \|", AGENTS, re.MULTILINE)
    assert set(named) == {key for result in results for key in result["_meta"]}


@pytest.mark.clause("8.7", "8.15")
async def test_retry_after_is_in_whole_seconds_that_lead_into_the_next_day(
    scarce: RunningService, transport: Transport
) -> None:
    for before_ms, told_s in ((1, 1), (999, 1), (1000, 1), (1001, 2), (DAY_MS, 86_400)):
        scarce.clock.now = MIDNIGHT - before_ms
        for _ in range(LIMIT):
            await call(scarce, transport)
        assert (await call(scarce, transport)).retry_after_s == told_s
        scarce.clock.now += told_s * 1000
        assert (await call(scarce, transport)).status == 200
        scarce.api_key = await scarce.keys.create("another")


@pytest.mark.clause("8.3", "8.7", "8.10")
async def test_the_count_restarts_at_midnight(scarce: RunningService, transport: Transport) -> None:
    scarce.clock.now = MIDNIGHT - 1
    statuses = [(await call(scarce, transport)).status for _ in range(LIMIT + 1)]
    scarce.clock.now = MIDNIGHT
    again = [await call(scarce, transport) for _ in range(LIMIT + 1)]
    assert statuses == [one.status for one in again] == [200, 200, 200, 429]
    assert again[0].quota == (LIMIT, 2, "2026-10-02T00:00:00.000Z")


@pytest.mark.clause("2.13.11", "4.10.1", "4.10.2", "5.26", "7.23", "8.4", "8.52")
async def test_usage_is_counted_and_answers_with_an_exhausted_quota(
    scarce: RunningService, transport: Transport
) -> None:
    quotas = []
    for _ in range(LIMIT + 2):
        answer = await scarce.fetch_answer(transport, USAGE)
        quotas.append((answer["quota"]["used_today"], answer["quota"]["remaining_today"]))
        note = answer["meta"]["note"]
        assert (note is None) is (answer["quota"]["remaining_today"] > 0)
    assert quotas == [(1, 2), (2, 1), (3, 0), (3, 0), (3, 0)]
    assert "exhausted" in note
    assert "2026-10-01T00:00:00.000Z" in note
    assert (await call(scarce, transport, USAGE)).quota == (LIMIT, 0, "2026-10-01T00:00:00.000Z")
    assert (await call(scarce, transport)).status == 429
    assert count_usage(scarce) == LIMIT


async def test_bad_arguments_of_usage_are_refused_with_an_exhausted_quota(
    scarce: RunningService, transport: Transport
) -> None:
    for _ in range(LIMIT):
        await call(scarce, transport, USAGE)
    assert (await call(scarce, transport, USAGE, colour="red")).status == 400


@pytest.mark.clause("3.5.3", "3.5.4", "5.25", "7.19", "8.11", "8.52")
async def test_a_revoked_key_is_refused_at_once_keeps_its_quota_and_counts_no_more(
    served: RunningService, transport: Transport
) -> None:
    assert (await call(served, transport)).status == 200
    (key,) = await served.keys.list()
    await served.keys.revoke(key.id)
    for tool in (STATE, USAGE):
        refused = await call(served, transport, tool)
        assert (refused.status, refused.code) == (403, "revoked_key")
        assert refused.quota == (10_000, 9_999, "2026-10-01T00:00:00.000Z")
    assert count_usage(served) == 1


@pytest.mark.clause("2.11.2", "2.11.5", "2.11.6", "4.0.4", "5.18", "5.22", "7.2", "8.52")
async def test_a_key_bought_in_test_mode_is_not_provisioned_on_a_live_server(
    tmp_path: Path, transport: Transport
) -> None:
    async with run_service(tmp_path, make_coverage(), provider=LiveBilling()) as served:
        test, live = await bought(served, "test"), served.key_headers
        refused = await call(served, transport, headers=test)
        assert (refused.status, refused.code) == (403, "not_provisioned")
        for words in ("test mode", "live mode", "/api/v1/access/checkout"):
            assert words in refused.message
        assert refused.quota == (10_000, 10_000, "2026-10-01T00:00:00.000Z")
        assert (await call(served, transport, USAGE, headers=test)).status == 403
        assert count_usage(served) == 0
        assert (await call(served, transport, headers=live)).status == 200
        assert (await served.fetch_answer(transport, USAGE))["mode"] == "live"


@pytest.mark.clause("2.11.6", "7.2")
async def test_a_key_bought_in_live_mode_is_not_provisioned_on_a_test_server(
    served: RunningService, transport: Transport
) -> None:
    refused = await call(served, transport, headers=await bought(served, "live"))
    assert (refused.status, refused.code) == (403, "not_provisioned")


@pytest.mark.clause("5.21")
async def test_a_key_bought_in_test_mode_reads_the_same_data_as_a_live_one(
    served: RunningService, tmp_path: Path
) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    async with run_service(folder, make_coverage(), provider=LiveBilling()) as live:
        in_test, in_live = (
            await bought(served, "test"),
            await bought(live, "live"),
        )
        for tool in (STATE, SIGNALS, CONFLUENCE, FLIPS):
            path = build_path(tool, {})
            read, meant = await served.get_api(path, **in_test), await live.get_api(path, **in_live)
            assert (read.status_code, read.content) == (200, meant.content)


async def test_with_billing_off_every_key_works(tmp_path: Path, transport: Transport) -> None:
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as served:
        for headers in (
            served.key_headers,
            await bought(served, "test"),
            await bought(served, "live"),
        ):
            assert (await call(served, transport, headers=headers)).status == 200


async def test_a_call_that_cannot_be_counted_is_503_and_the_next_one_works(
    served: RunningService, transport: Transport
) -> None:
    with break_usage_counting(served.access):
        refused = await call(served, transport)
    assert (refused.status, refused.code, refused.quota) == (503, "unavailable", None)
    assert refused.retry_after_s == 60
    assert (await call(served, transport)).quota == (10_000, 9_999, "2026-10-01T00:00:00.000Z")


@pytest.mark.clause("3.5.4", "5.25", "5.31")
async def test_an_expired_key_is_refused_with_the_time_and_the_way_to_another(
    served: RunningService, transport: Transport
) -> None:
    expires_at = served.clock.now + 1000
    own = await served.keys.create("own", expires_at)
    sold = await bought(served, "test")
    run_sql(
        served.access._engine.path,  # type: ignore[attr-defined]
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

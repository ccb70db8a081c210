"""API keys and their daily quota on a real store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from access.keys_and_quota import MAX_LOOP_TURNS, Caller, QuotaGuard, hash_key, identify_key
from schemas.errors import ApiError
from schemas.usage import Quota
from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import CallGroup, CountedGroup
from store.sql.access_store import AccessStore
from store.store_errors import StoreError
from tests.support.running_service import ManualClock, OperatorKeys
from tests.support.store_homes import StoreHome, open_and_close, run_sql

pytestmark = pytest.mark.clause("access")


WELL_FORMED = "ek_" + "A" * 43
MALFORMED = (
    *(f"{WELL_FORMED}A", WELL_FORMED[:-1], f"{WELL_FORMED[:-1]}é", f"EK_{WELL_FORMED[3:]}"),
    *(f"{WELL_FORMED[:-1]}\n", f"{WELL_FORMED} {WELL_FORMED}", "x"),
)
MIDNIGHT = 1_790_812_800_000  # 2026-10-01T00:00:00Z


class HeldStore(AccessStore):
    """Holds every decision until it is released, and records the groups of each.

    The next one raises `error`, as with a full disk.
    """

    error: StoreError | None = None

    def hold(self) -> None:
        self.groups: list[list[int]] = []
        self.started, self.let_go = asyncio.Event(), asyncio.Event()

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        self.groups.append([group.calls for group in groups])
        self.started.set()
        await self.let_go.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return await super().count_calls(groups, mode, limit)


class BoundedQuotaGuard(QuotaGuard):
    """Waits at most ten seconds for a decision."""

    async def authorize(self, key_hash: bytes, **options: bool) -> Caller:
        async with asyncio.timeout(10):
            return await super().authorize(key_hash, **options)


# Tests that do not depend on the store run on one engine only.
OVER_ONE_STORE = pytest.mark.parametrize("new_home", ["sqlite"], indirect=True)


@pytest.fixture
async def held(home: StoreHome) -> AsyncIterator[HeldStore]:
    async with open_and_close(home.open_access(HeldStore)) as store:
        store.hold()
        yield store


@pytest.fixture
def keys(store: AccessStore, clock: ManualClock) -> OperatorKeys:
    return OperatorKeys(store, clock)


@pytest.fixture
def quota_guard(store: AccessStore, clock: ManualClock) -> QuotaGuard:
    return make_quota_guard(store, clock)


def make_quota_guard(store: AccessStore, clock: ManualClock, daily_limit: int = 10) -> QuotaGuard:
    return BoundedQuotaGuard(store, clock, mode=None, daily_limit=daily_limit)


async def load_usage(home: StoreHome) -> list[tuple[Any, ...]]:
    """Return day and count of every key, sorted by key."""
    return await run_sql(home, "SELECT day, used FROM usage ORDER BY key_id, day")


async def get_refusal(
    quota_guard: QuotaGuard, authorization: str | None, x_api_key: str | None = None
) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await quota_guard.authorize(identify_key(authorization, x_api_key))
    error = refused.value
    assert "\n" not in error.message
    assert "ek_A" not in error.message
    return error


async def outcomes(
    quota_guard: QuotaGuard, api_key: str, calls: int
) -> list[Caller | BaseException]:
    """Return the results of concurrent calls of one key, in order of arrival."""
    return await asyncio.gather(
        *(quota_guard.authorize(hash_key(api_key)) for _ in range(calls)), return_exceptions=True
    )


def list_admitted_counts(outcomes: Sequence[Caller | BaseException]) -> list[int]:
    """Return the counts of the admitted calls; assert that all others were over the limit."""
    for outcome in outcomes:
        assert isinstance(outcome, Caller) or (
            isinstance(outcome, ApiError) and outcome.code == "rate_limited"
        ), outcome
    return [one.quota.used_today for one in outcomes if isinstance(one, Caller)]


@OVER_ONE_STORE
@pytest.mark.parametrize("label", ["", "x" * 121, "two\nlines", "bell\x07"])
async def test_a_bad_label_is_refused_in_one_line(keys: OperatorKeys, label: str) -> None:
    with pytest.raises(ValueError, match=r"^a label must have 1 to 120 printable characters$"):
        await keys.create(label)
    await keys.create("é" * 120)
    assert [key.label for key in await keys.list()] == ["é" * 120]


@OVER_ONE_STORE
@pytest.mark.clause("5.1", "5.2")
@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        ("Bearer {}", None),
        ("bearer {}", None),
        ("BEARER   {} ", None),
        (" Bearer\t{}", None),
        (None, "{}"),
        (None, " {} "),
        ("Bearer {}", "{}"),
        ("Bearer {}", ""),
        ("Bearer {}", "  "),
        ("Bearer {}", "${{SIGNALS_API_KEY}}"),
        ("Bearer {}", "nonsense"),
        ("", "{}"),
        ("Basic cHJveHk6cHJveHk=", "{}"),
        ("Negotiate YII=", "{}"),
        ('Digest username="proxy", realm="proxy"', "{}"),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln", "{}"),
        ("Bearer ek_short", "{}"),
        ("Bearer ${{SIGNALS_API_KEY}}", "{}"),
    ],
)
async def test_a_live_key_is_accepted_in_either_header(
    quota_guard: QuotaGuard, keys: OperatorKeys, authorization: str | None, x_api_key: str | None
) -> None:
    key = await keys.create("agent")
    admitted = await quota_guard.authorize(
        identify_key(
            authorization and authorization.format(key), x_api_key and x_api_key.format(key)
        )
    )
    assert admitted.label == "agent"
    quota = Quota(
        daily_limit=10, used_today=1, remaining_today=9, resets_at="2026-10-01T00:00:00.000Z"
    )
    assert admitted.quota.to_json() == quota.model_dump_json()
    assert admitted.quota._asdict() == quota.model_dump()


@OVER_ONE_STORE
@pytest.mark.clause("5.1", "5.23", "7.18")
@pytest.mark.parametrize(
    ("authorization", "x_api_key", "named"),
    [
        ("Bearer ${SIGNALS_API_KEY}", None, "${SIGNALS_API_KEY}"),
        ("${SIGNALS_API_KEY}", None, "${SIGNALS_API_KEY}"),
        (None, "${SIGNALS_API_KEY}", "set the environment variable"),
        ("Bearer ${MY_KEY:-}", None, "set the environment variable"),
        ("Basic cHJveHk6cHJveHk=", "${env:SIGNALS_API_KEY}", "set the environment variable"),
        ("Bearer $SIGNALS_API_KEY", None, "placeholder"),
        ("Bearer %SIGNALS_API_KEY%", None, "placeholder"),
        ("Bearer {{SIGNALS_API_KEY}}", None, "placeholder"),
        ("Bearer {env:SIGNALS_API_KEY}", None, "placeholder"),
        ("Bearer <API_KEY>", None, "placeholder"),
        ("Bearer <your key>", None, "placeholder"),
        ("Bearer YOUR_API_KEY", None, "placeholder"),
        (None, "your-api-key", "placeholder"),
        ("Bearer undefined", None, "placeholder"),
        ("Bearer null", None, "placeholder"),
        ('Bearer "{}"', None, "quotes or brackets"),
        ("Bearer '{}'", None, "quotes or brackets"),
        ('"Bearer {}"', None, "quotes or brackets"),
        ("Bearer <{}>", None, "quotes or brackets"),
        ("Bearer {}'", None, "quotes or brackets"),
        (None, "`{}`", "quotes or brackets"),
        (None, "“{}”".encode().decode("latin-1"), "quotes or brackets"),
        ("Bearer Bearer {}", None, "The word Bearer"),
        (None, "Bearer {}", "The word Bearer"),
        ("Bearer {}, Bearer {}", None, "several values"),
        ("Basic cHJveHk6cHJveHk=, Bearer {}", None, "several values"),
        (None, "{}, {}", "several values"),
        (None, ", {}", "several values"),
        ("Bearer at_" + "A" * 43, None, "OAuth access token works only at"),
        ("{}", None, "does not use the Bearer scheme. Send it as `Authorization: Bearer"),
        ("Basic {}", None, "does not use the Bearer scheme. Send it as `Authorization: Bearer"),
        ("Token {}", None, "does not use the Bearer scheme. Send it as `Authorization: Bearer"),
        (f"Bearer {WELL_FORMED}", None, "unknown"),
        (f"Bearer\t{WELL_FORMED}", None, "unknown"),
        (None, WELL_FORMED, "unknown"),
        *((f"Bearer {sent}", None, "malformed") for sent in MALFORMED),
        *((None, sent, "malformed") for sent in MALFORMED),
        ("Basic cHJveHk6cHJveHk=", None, "does not use the Bearer scheme"),
        ("Basic cHJveHk6cHJveHk=", "", "does not use the Bearer scheme"),
        ("Basic cHJveHk6cHJveHk=", "ek_short", "malformed"),
        ("Bearer ek_short", "", "malformed"),
        ("Bearer\tek_short", None, "malformed"),
        ("", "", "empty"),
        ("", None, "empty"),
        (None, " ", "empty"),
        (None, None, "This call needs an API key. Send it as"),
        ("bearer", None, "empty"),
        ("Bearer ", "", "empty"),
    ],
)
async def test_a_refusal_names_the_mistake_and_quotes_no_secret(
    quota_guard: QuotaGuard,
    keys: OperatorKeys,
    authorization: str | None,
    x_api_key: str | None,
    named: str,
) -> None:
    key = await keys.create("agent")
    sent = [value and value.replace("{}", key) for value in (authorization, x_api_key)]
    error = await get_refusal(quota_guard, *sent)
    code = "missing_key" if sent == [None, None] else "invalid_key"
    assert (error.code, error.status, error.quota) == (code, 401, None)
    assert named in error.message
    assert key not in error.message
    assert "cHJveHk" not in error.message


@OVER_ONE_STORE
@pytest.mark.clause("5.29")
async def test_two_different_keys_are_refused_even_if_both_are_live(
    quota_guard: QuotaGuard, keys: OperatorKeys, home: StoreHome
) -> None:
    one, other = await keys.create("one"), await keys.create("other")
    error = await get_refusal(quota_guard, f"Bearer {one}", other)
    assert error.code == "invalid_key"
    assert one not in error.message
    assert other not in error.message
    assert await load_usage(home) == []


async def test_pending_calls_are_written_together_and_counted_in_order_of_arrival(
    held: HeldStore, keys: OperatorKeys, clock: ManualClock, home: StoreHome
) -> None:
    api_key, quota_guard = await keys.create("agent"), make_quota_guard(held, clock, daily_limit=90)
    first = asyncio.create_task(quota_guard.authorize(hash_key(api_key)))
    await held.started.wait()
    rest = asyncio.create_task(outcomes(quota_guard, api_key, 99))
    await asyncio.sleep(0)
    held.let_go.set()
    assert list_admitted_counts([await first, *(await rest)]) == list(range(1, 91))
    assert held.groups == [[1], [99]]
    assert await load_usage(home) == [(clock.now // DAY_MS, 90)]


@OVER_ONE_STORE
async def test_arriving_calls_are_written_together_after_a_few_turns_at_most(
    held: HeldStore, keys: OperatorKeys, clock: ManualClock
) -> None:
    held.let_go.set()
    api_key, quota_guard = await keys.create("agent"), make_quota_guard(held, clock, daily_limit=90)
    calls = []
    for _ in range(20):
        calls.append(asyncio.create_task(quota_guard.authorize(hash_key(api_key))))
        await asyncio.sleep(0)
    assert list_admitted_counts(await asyncio.gather(*calls)) == list(range(1, 21))
    written = [calls for [calls] in held.groups]
    assert sum(written) == 20
    assert MAX_LOOP_TURNS <= max(written) <= MAX_LOOP_TURNS + 1


@pytest.mark.clause("8.2")
async def test_concurrent_calls_of_several_keys_are_counted_per_key(
    quota_guard: QuotaGuard, keys: OperatorKeys, home: StoreHome
) -> None:
    made = [await keys.create(f"agent {number}") for number in range(3)]
    decided = await asyncio.gather(
        *(outcomes(quota_guard, key, 5 + n) for n, key in enumerate(made))
    )
    assert [list_admitted_counts(one) for one in decided] == [
        list(range(1, 6 + n)) for n in range(3)
    ]
    assert {one.label for one in decided[2] if isinstance(one, Caller)} == {"agent 2"}
    assert [used for _, used in await load_usage(home)] == [5, 6, 7]


@pytest.mark.clause("8.3")
async def test_a_call_counts_for_the_day_of_its_arrival_however_late_it_is_written(
    held: HeldStore, keys: OperatorKeys, clock: ManualClock, home: StoreHome
) -> None:
    api_key, quota_guard = await keys.create("agent"), make_quota_guard(held, clock, daily_limit=1)
    clock.now = MIDNIGHT - 1
    late = asyncio.create_task(outcomes(quota_guard, api_key, 2))
    await held.started.wait()
    clock.now = MIDNIGHT
    next_day = asyncio.create_task(outcomes(quota_guard, api_key, 2))
    await asyncio.sleep(0)
    held.let_go.set()
    for (admitted, refused), resets_at, retry_after_s in (
        (await late, "2026-10-01T00:00:00.000Z", 1),
        (await next_day, "2026-10-02T00:00:00.000Z", 86_400),
    ):
        assert isinstance(admitted, Caller)
        assert isinstance(refused, ApiError)
        assert admitted.quota.resets_at == resets_at
        assert (refused.quota, refused.retry_after_s) == (admitted.quota, retry_after_s)
    assert await load_usage(home) == [(MIDNIGHT // DAY_MS - 1, 1), (MIDNIGHT // DAY_MS, 1)]


async def test_a_disconnected_caller_is_counted_and_affects_no_other(
    held: HeldStore, keys: OperatorKeys, clock: ManualClock, home: StoreHome
) -> None:
    api_key, quota_guard = await keys.create("agent"), make_quota_guard(held, clock)
    waiting = [asyncio.create_task(quota_guard.authorize(hash_key(api_key))) for _ in range(5)]
    await held.started.wait()
    for leaving in (waiting[0], waiting[3]):
        leaving.cancel()
    await asyncio.sleep(0)
    held.let_go.set()
    decided = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.quota.used_today for one in decided if isinstance(one, Caller)] == [2, 3, 5]
    assert [used for _, used in await load_usage(home)] == [5]


@pytest.mark.parametrize("callers", [0, 3])
async def test_a_group_that_cannot_be_counted_is_refused_and_the_next_is_counted(
    held: HeldStore, keys: OperatorKeys, clock: ManualClock, home: StoreHome, callers: int
) -> None:
    held.error = StoreError("database or disk is full")
    held.let_go.set()
    api_key, quota_guard = await keys.create("agent"), make_quota_guard(held, clock)
    first = asyncio.create_task(outcomes(quota_guard, api_key, 3))
    for _ in range(2):
        await asyncio.sleep(0)
    if not callers:
        # All callers disconnect.
        first.cancel()
    (decided,) = await asyncio.gather(first, return_exceptions=True)
    if callers:
        assert [type(one) for one in decided] == [StoreError] * 3
    assert await load_usage(home) == []
    assert list_admitted_counts(await outcomes(quota_guard, api_key, 3)) == [1, 2, 3]


@pytest.mark.clause("5.25")
async def test_a_batch_is_split_at_the_millisecond_in_which_its_key_expires(
    held: HeldStore, home: StoreHome, clock: ManualClock
) -> None:
    api_key = await OperatorKeys(held, clock).create("agent", clock.now + 2)
    quota_guard = make_quota_guard(held, clock)
    held.let_go.set()
    pending = []
    for arrived_at in range(clock.now, clock.now + 5):
        clock.now = arrived_at
        pending.append(asyncio.ensure_future(quota_guard.authorize(hash_key(api_key))))
        await asyncio.sleep(0)
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert [one.quota.used_today for one in results if isinstance(one, Caller)] == [1, 2]
    assert [one.code for one in results if isinstance(one, ApiError)] == ["revoked_key"] * 3
    assert held.groups == [[5], [2]]
    assert [used for _, used in await load_usage(home)] == [2]

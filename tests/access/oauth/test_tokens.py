"""Exchanges of codes and refresh tokens by several processes at once, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from access.maintenance import compute_cutoffs
from access.members import MAX_LIVE_KEYS, MemberPlan
from access.oauth.authorizations import Authorizations
from access.oauth.parameters import OAuthError, matches_challenge
from access.oauth.tokens import (
    ACCESS_TOKEN_MS,
    CODE_GRACE_MS,
    MAX_LIVE_ACCESS_TOKENS,
    REFRESH_GRACE_MS,
    REFRESH_TOKEN_MS,
    AccessTokens,
    TokenIssuer,
)
from access.throttle import Limit, Throttle
from schemas.errors import ApiError
from store.access_rows import OAuthClient, PendingAuthorization
from store.sql.access_store import AccessStore
from tests.support.oauth_client import (
    CALLBACK,
    CHALLENGE,
    REDIRECT_URI,
    VERIFIER,
    buy_plan,
    find_plan,
    make_challenge,
    read_answer,
)
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome

pytestmark = pytest.mark.clause("oauth")

ISSUER = "https://signals.example"
CLIENT = OAuthClient("oc_host", "Host", (CALLBACK,))
REQUEST = {
    "response_type": "code",
    "client_id": CLIENT.client_id,
    "redirect_uri": REDIRECT_URI,
    "code_challenge": CHALLENGE,
    "code_challenge_method": "S256",
}
RACERS = 4


class OneClient:
    """Knows one client."""

    async def find(self, client_id: str) -> OAuthClient | None:
        return CLIENT if client_id == CLIENT.client_id else None


Tokens = dict[str, Any]


class Process:
    """The OAuth server of one process on a shared database."""

    def __init__(self, store: AccessStore, clock: ManualClock, issuer: str = ISSUER) -> None:
        clients, throttle = OneClient(), Throttle(store, clock, "authorization", Limit(999, 60))
        self.store = store
        self.authorizations = Authorizations(store, clients, throttle, clock, issuer=issuer)
        self.issuer = TokenIssuer(store, clients, clock, issuer=issuer)
        self.access_tokens = AccessTokens(store, clock, issuer=issuer)

    async def begin(self) -> PendingAuthorization:
        target = await self.authorizations.begin([*REQUEST.items()], "192.0.2.1")
        return await self.authorizations.find_pending(read_answer(target)["request"])

    async def get_code(self, plan: MemberPlan | None = None) -> str:
        return read_answer(await self.authorizations.approve(await self.begin(), plan))["code"]

    async def exchange(self, code: str, **changed: str) -> Tokens | OAuthError:
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER}
        return await self._send({**form, **changed})

    async def refresh(self, refresh_token: str) -> Tokens | OAuthError:
        return await self._send({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _send(self, form: dict[str, str]) -> Tokens | OAuthError:
        try:
            return await self.issuer.exchange({"client_id": CLIENT.client_id, **form})
        except OAuthError as error:
            return error

    async def is_live(self, tokens: Tokens) -> bool:
        key_hash = await self.access_tokens.find_key_hash(tokens["access_token"].encode())
        return await self.access_tokens.is_live(key_hash)


@pytest.fixture
async def processes(home: StoreHome, clock: ManualClock) -> AsyncIterator[list[Process]]:
    """Two processes on one database."""
    async with AsyncExitStack() as opened:
        stores = [await home.open_access() for _ in range(2)]
        for store in stores:
            opened.push_async_callback(store.close)
        yield [Process(store, clock) for store in stores]


def get_tokens(outcome: Tokens | OAuthError) -> Tokens:
    assert isinstance(outcome, dict), outcome
    return outcome


@pytest.mark.clause("10.4")
async def test_several_exchanges_of_a_code_at_once_share_one_connection(
    processes: list[Process], clock: ManualClock
) -> None:
    code = await processes[0].get_code()
    won = await asyncio.gather(*(one.exchange(code) for one in processes * RACERS))
    clock.now += CODE_GRACE_MS
    won.append(await processes[0].exchange(code))
    for tokens in map(get_tokens, won):
        assert await processes[1].is_live(tokens)
        get_tokens(await processes[1].refresh(tokens["refresh_token"]))
    assert len(await processes[0].store.list_keys()) == 1
    clock.now += 1
    assert isinstance(await processes[1].exchange(code), OAuthError)
    assert not await processes[0].is_live(get_tokens(won[0]))


@pytest.mark.clause("10.4")
@pytest.mark.parametrize("changed", [{"client_id": "other"}, {"code_verifier": "A" * 43}, {}])
async def test_a_code_is_exchanged_again_only_by_its_client_with_its_verifier(
    processes: list[Process], changed: dict[str, str]
) -> None:
    code = await processes[0].get_code()
    tokens = get_tokens(await processes[0].exchange(code))
    assert isinstance(await processes[1].exchange(code, **changed), OAuthError if changed else dict)
    assert await processes[1].is_live(tokens) is not bool(changed)


@pytest.mark.clause("10.5")
async def test_several_refreshes_of_a_token_at_once_all_get_tokens_that_go_on(
    processes: list[Process], clock: ManualClock
) -> None:
    first = get_tokens(await processes[0].exchange(await processes[0].get_code()))
    racing = (one.refresh(first["refresh_token"]) for one in processes * RACERS)
    won = list(map(get_tokens, await asyncio.gather(*racing)))
    assert len({tokens["refresh_token"] for tokens in won}) == len(won)
    # Each process goes on with its own, an hour later and minutes apart.
    clock.now += ACCESS_TOKEN_MS
    for tokens in won:
        clock.now += 2 * REFRESH_GRACE_MS
        renewed = get_tokens(await processes[1].refresh(tokens["refresh_token"]))
        assert await processes[0].is_live(renewed)
    assert len(await processes[0].store.list_keys()) == 1


@pytest.mark.clause("10.5")
@pytest.mark.prove
async def test_the_tokens_of_a_connection_are_bounded(
    processes: list[Process], clock: ManualClock
) -> None:
    tokens = get_tokens(await processes[0].exchange(await processes[0].get_code()))
    # The exchange has made one of the first twenty.
    for allowed in (MAX_LIVE_ACCESS_TOKENS - 1, *[MAX_LIVE_ACCESS_TOKENS] * 4):
        for _ in range(allowed):
            renewed = get_tokens(await processes[1].refresh(tokens["refresh_token"]))
        with pytest.raises(ApiError, match="too often"):
            await processes[0].refresh(tokens["refresh_token"])
        tokens = renewed
        clock.now += ACCESS_TOKEN_MS
    async with processes[0].store._engine.acquire_connection() as db:
        (row,) = await db.execute("SELECT count(*) AS stored FROM oauth_grants")
    assert row["stored"] <= 2 * MAX_LIVE_ACCESS_TOKENS + 1


@pytest.mark.clause("11.10")
async def test_a_client_is_kept_as_long_as_it_has_a_live_connection(
    processes: list[Process], clock: ManualClock
) -> None:
    one, client = processes[0], OAuthClient(CLIENT.client_id, "Host", (CALLBACK,), clock.now)
    await one.store.oauth.add_client(client, 9, 0)
    tokens = get_tokens(await one.exchange(await one.get_code()))
    clock.now += REFRESH_TOKEN_MS - 1
    get_tokens(await one.refresh(tokens["refresh_token"]))
    for later_ms, expected in ((REFRESH_TOKEN_MS, client), (1, None)):
        clock.now += later_ms
        await one.store.prune(compute_cutoffs(clock.now))
        assert await one.store.oauth.find_client(CLIENT.client_id) == expected


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["refresh", "refresh", "exchange", "wait", "revoke"]),
        st.integers(0, 9),
        st.sampled_from([1, CODE_GRACE_MS, REFRESH_GRACE_MS, REFRESH_GRACE_MS + 1]),
    ),
    max_size=12,
)


@pytest.mark.clause("10.4", "10.5")
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@pytest.mark.prove
async def test_a_connection_lives_until_a_grant_is_used_after_its_grace(
    processes: list[Process], clock: ManualClock, steps: list[tuple[str, int, int]]
) -> None:
    code = await processes[0].get_code()
    issued = [get_tokens(await processes[0].exchange(code))]
    (*_, key) = await processes[0].store.list_keys()
    # By grant, when it was used first.
    used: dict[str, int] = {code: clock.now}
    is_live = True
    for step, number, wait_ms in steps:
        one = processes[number % 2]
        if step == "wait":
            clock.now += wait_ms
        elif step == "revoke":
            if number == 0:
                await one.store.revoke_key(key.id, clock.now)
                is_live = False
        else:
            is_code = step == "exchange"
            grant = code if is_code else issued[number % len(issued)]["refresh_token"]
            outcome = await (one.exchange if is_code else one.refresh)(grant)
            age_ms = clock.now - used.setdefault(grant, clock.now)
            is_live &= age_ms <= (CODE_GRACE_MS if is_code else REFRESH_GRACE_MS)
            assert isinstance(outcome, dict) is is_live
            if isinstance(outcome, dict):
                issued.append(outcome)
        assert {await processes[0].is_live(tokens) for tokens in issued} == {is_live}


@pytest.mark.clause("10.7")
async def test_one_of_several_decisions_on_a_request_counts(processes: list[Process]) -> None:
    pending = await processes[0].begin()

    async def decide(one: Authorizations, is_allowed: bool) -> str:
        try:
            return await (one.approve(pending, None) if is_allowed else one.deny(pending))
        except ApiError as error:
            return str(error.status)

    decided = await asyncio.gather(
        *(decide(one.authorizations, allowed) for one in processes for allowed in (True, False))
    )
    assert sorted(decided)[:3] == ["404", "404", "404"]


@pytest.mark.clause("10.8")
async def test_connections_at_once_do_not_exceed_the_keys_of_a_plan(
    processes: list[Process], clock: ManualClock
) -> None:
    plan = await buy_plan(processes[0].store, clock)
    codes = [await one.get_code(plan) for one in processes * RACERS]
    sent = zip(processes * RACERS, codes, strict=True)
    outcomes = await asyncio.gather(*(one.exchange(code) for one, code in sent))
    assert sum(isinstance(each, dict) for each in outcomes) == MAX_LIVE_KEYS
    assert len((await find_plan(processes[0].store, clock)).live_keys) == MAX_LIVE_KEYS


@pytest.mark.clause("10.2", "10.3")
async def test_a_connections_key_is_not_rotated_and_once_revoked_is_refused_by_all_processes(
    processes: list[Process], clock: ManualClock
) -> None:
    tokens = get_tokens(await processes[0].exchange(await processes[0].get_code()))
    assert await processes[1].is_live(tokens)
    store, now = processes[0].store, clock()
    (key,) = await store.list_keys()
    assert await store.rotate_key(key.id, bytes(32), now, now + 1) is None
    await store.revoke_key(key.id, now)
    assert not await processes[1].is_live(tokens)
    assert isinstance(await processes[1].refresh(tokens["refresh_token"]), OAuthError)


@pytest.mark.clause("10.9")
async def test_a_token_of_another_address_is_refused(
    processes: list[Process], clock: ManualClock
) -> None:
    code, late = [await processes[0].get_code() for _ in range(2)]
    tokens = get_tokens(await processes[0].exchange(code))
    # The operator has moved the service to another address.
    moved = Process(processes[0].store, clock, "https://other.example")
    with pytest.raises(ApiError, match="unknown"):
        await moved.is_live(tokens)
    for outcome in (await moved.refresh(tokens["refresh_token"]), await moved.exchange(late)):
        assert isinstance(outcome, OAuthError)
        assert outcome.error == "invalid_target"


@given(st.text("ABCdef019-._~", min_size=43, max_size=128), st.text(max_size=130))
def test_only_the_verifier_of_a_challenge_matches_it(verifier: str, other: str) -> None:
    challenge = make_challenge(verifier)
    assert matches_challenge(verifier, challenge)
    assert matches_challenge(other, challenge) is (other == verifier)
    assert not matches_challenge(challenge, challenge)

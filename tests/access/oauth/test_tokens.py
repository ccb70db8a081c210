"""Exchanges of codes and refresh tokens by several processes at once, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.member_keys import MAX_LIVE_KEYS, MemberPlan
from access.oauth.access_tokens import AccessTokens
from access.oauth.authorizations import Authorizations
from access.oauth.clients import OAuthClient
from access.oauth.errors import OAuthError
from access.oauth.parameters import matches_challenge
from access.oauth.tokens import TokenIssuer, Tokens
from access.throttle import Limit, Throttle
from schemas.errors import ApiError
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


class Process:
    """The OAuth server of one process on a shared database."""

    def __init__(self, store: AccessStore, clock: ManualClock) -> None:
        clients, throttle = OneClient(), Throttle(store, clock, "authorization", Limit(999, 60))
        self.store = store
        self.authorizations = Authorizations(store, clients, throttle, clock, issuer=ISSUER)
        self.issuer = TokenIssuer(store, clients, clock, issuer=ISSUER)
        self.access_tokens = AccessTokens(store, clock, issuer=ISSUER)

    async def get_code(self, plan: MemberPlan | None = None) -> str:
        target = await self.authorizations.begin([*REQUEST.items()], "192.0.2.1")
        request_id = read_answer(target)["request"]
        if plan is None:
            return read_answer(await self.authorizations.approve_as_owner(request_id))["code"]
        return read_answer(await self.authorizations.approve(request_id, plan))["code"]

    async def exchange(self, code: str) -> Tokens | OAuthError:
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER}
        return await self._send(form)

    async def refresh(self, refresh_token: str) -> Tokens | OAuthError:
        return await self._send({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _send(self, form: dict[str, str]) -> Tokens | OAuthError:
        try:
            return await self.issuer.exchange({**form, "client_id": CLIENT.client_id})
        except OAuthError as error:
            return error

    async def is_live(self, tokens: Tokens) -> bool:
        key_hash = await self.access_tokens.find_key_hash(tokens.access_token.encode())
        return await self.access_tokens.is_live(key_hash)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def processes(home: StoreHome, clock: ManualClock) -> AsyncIterator[list[Process]]:
    """Two processes on one database."""
    async with AsyncExitStack() as opened:
        stores = [await home.open_access() for _ in range(2)]
        for store in stores:
            opened.push_async_callback(store.close)
        yield [Process(store, clock) for store in stores]


def split(outcomes: list[Any]) -> tuple[list[Tokens], list[OAuthError]]:
    """Return the tokens and the errors of several exchanges."""
    errors = [each for each in outcomes if isinstance(each, OAuthError)]
    return [each for each in outcomes if isinstance(each, Tokens)], errors


@pytest.mark.clause("10.4")
async def test_one_of_several_exchanges_of_a_code_wins_and_the_others_revoke_it(
    processes: list[Process],
) -> None:
    code = await processes[0].get_code()
    won, lost = split(await asyncio.gather(*(one.exchange(code) for one in processes * RACERS)))
    assert (len(won), {error.error for error in lost}) == (1, {"invalid_grant"})
    assert not await processes[1].is_live(won[0])
    assert len(await processes[0].store.list_keys()) == 1


@pytest.mark.clause("10.5")
async def test_one_of_several_refreshes_of_a_token_wins_and_the_others_revoke_it(
    processes: list[Process],
) -> None:
    tokens = await processes[0].exchange(await processes[0].get_code())
    assert isinstance(tokens, Tokens)
    racing = (one.refresh(tokens.refresh_token) for one in processes * RACERS)
    won, lost = split(await asyncio.gather(*racing))
    assert (len(won), {error.error for error in lost}) == (1, {"invalid_grant"})
    assert not await processes[1].is_live(won[0])
    assert isinstance(await processes[1].refresh(won[0].refresh_token), OAuthError)


@pytest.mark.clause("10.7")
async def test_one_of_several_decisions_on_a_request_counts(processes: list[Process]) -> None:
    target = await processes[0].authorizations.begin([*REQUEST.items()], "192.0.2.1")
    request_id = read_answer(target)["request"]

    async def decide(one: Authorizations, is_allowed: bool) -> str:
        try:
            return await (one.approve_as_owner if is_allowed else one.deny)(request_id)
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
    won, lost = split(await asyncio.gather(*(one.exchange(code) for one, code in sent)))
    assert (len(won), len(lost)) == (MAX_LIVE_KEYS, 2 * RACERS - MAX_LIVE_KEYS)
    assert len((await find_plan(processes[0].store, clock)).live_keys) == MAX_LIVE_KEYS


@pytest.mark.clause("10.3")
async def test_a_key_revoked_by_one_process_is_refused_by_the_others_at_once(
    processes: list[Process], clock: ManualClock
) -> None:
    tokens = await processes[0].exchange(await processes[0].get_code())
    assert isinstance(tokens, Tokens)
    assert await processes[1].is_live(tokens)
    (key,) = await processes[0].store.list_keys()
    await processes[0].store.revoke_key(key.id, clock())
    assert not await processes[1].is_live(tokens)
    assert isinstance(await processes[1].refresh(tokens.refresh_token), OAuthError)


@pytest.mark.clause("10.2")
async def test_a_connection_cannot_be_rotated_to_a_key(
    processes: list[Process], clock: ManualClock
) -> None:
    store = processes[0].store
    await processes[0].exchange(await processes[0].get_code())
    (key,) = await store.list_keys()
    assert await store.rotate_key(key.id, bytes(32), clock(), clock() + 1) is None


@pytest.mark.clause("10.9")
async def test_a_token_of_another_address_is_refused(
    processes: list[Process], clock: ManualClock
) -> None:
    code, late = [await processes[0].get_code() for _ in range(2)]
    tokens = await processes[0].exchange(code)
    assert isinstance(tokens, Tokens)
    # The operator has moved the service to another address.
    moved = Process(processes[0].store, clock)
    other = "https://other.example"
    moved.issuer = TokenIssuer(moved.store, OneClient(), clock, issuer=other)
    moved.access_tokens = AccessTokens(moved.store, clock, issuer=other)
    with pytest.raises(ApiError, match="unknown"):
        await moved.is_live(tokens)
    for outcome in (await moved.refresh(tokens.refresh_token), await moved.exchange(late)):
        assert isinstance(outcome, OAuthError)
        assert outcome.error == "invalid_target"


@given(st.text("ABCdef019-._~", min_size=43, max_size=128), st.text(max_size=130))
def test_only_the_verifier_of_a_challenge_matches_it(verifier: str, other: str) -> None:
    challenge = make_challenge(verifier)
    assert matches_challenge(verifier, challenge)
    assert matches_challenge(other, challenge) is (other == verifier)
    assert not matches_challenge(challenge, challenge)

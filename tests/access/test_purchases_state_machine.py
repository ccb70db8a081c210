"""Random sequences of purchase steps, compared to a plain model."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from access.billing.provider import SESSION_LIFETIME_MS, SandboxBilling
from access.throttle import Limit
from schemas.errors import ApiError
from schemas.purchase import ActiveClaim, CheckoutResponse, PendingClaim
from tests.support.example_market import NOON
from tests.support.postgres.server import find_installations
from tests.support.running_service import ManualClock, OperatorKeys
from tests.support.sandbox_shop import BASE_URL, LookupCountingStore, SandboxShop, parse_sandbox_id
from tests.support.store_homes import HomeFactory

pytestmark = pytest.mark.clause("sales")

# Counts over all examples: a run that never reached these outcomes would prove nothing.
SEEN = Counter[str | int]()


@dataclass
class Bought:
    """The model's state of one checkout."""

    checkout: CheckoutResponse
    expires_at: int
    status: str = "open"
    is_redeemed: bool = False

    def at(self, now: int) -> str:
        return "expired" if self.status == "open" and now >= self.expires_at else self.status


@dataclass
class Held:
    """The model's state of one key."""

    api_key: str
    number: int
    is_revoked: bool = False


class PurchaseMachine(RuleBasedStateMachine):
    """Checkouts, payments, claims and revocations, across ends and restarts."""

    new_home: HomeFactory
    checkouts = Bundle("checkouts")
    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = self.new_home()
        self.home = self.run(self.place.__aenter__())
        self.clock = ManualClock(NOON)
        self.shop: SandboxShop
        self.bought: list[Bought] = []
        self.held: list[Held] = []

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize(target=checkouts)
    def begin(self) -> Any:
        self.start()
        return self.checkout("monthly")

    def start(self) -> None:
        store = self.run(self.home.open_access(LookupCountingStore))
        billing = SandboxBilling(store, self.clock, BASE_URL)
        self.shop = SandboxShop(store, self.clock, billing, Limit(10**6, 600))

    def teardown(self) -> None:
        if hasattr(self, "shop"):
            self.run(self.shop.store.close())
        self.run(self.place.__aexit__(None, None, None))
        self.runner.close()

    def assert_refused(self, work: Any) -> ApiError:
        with pytest.raises(ApiError) as refusal:
            self.run(work)
        SEEN[refusal.value.status] += 1
        return refusal.value

    @rule(target=checkouts, billing=st.sampled_from(["monthly", "yearly"]))
    def checkout(self, billing: str) -> Bought:
        made = self.run(self.shop.open_checkout(billing=billing))
        self.bought.append(Bought(made, self.clock.now + SESSION_LIFETIME_MS))
        return self.bought[-1]

    @rule(bought=checkouts, status=st.sampled_from(["paid", "cancelled"]))
    def settle(self, bought: Bought, status: Any) -> None:
        """Pay or cancel on the pay page, in any state of the checkout."""
        if bought.at(self.clock.now) == "open":
            bought.status = status
        billing = self.shop.billing
        session = self.run(billing.store.find_sandbox_session(parse_sandbox_id(bought.checkout)))
        assert self.run(billing.settle(session, status)) == bought.at(self.clock.now)

    @rule(target=keys, bought=checkouts, is_paid_first=st.booleans())
    def claim(self, bought: Bought, is_paid_first: bool) -> Any:
        """Claim once, or pay and claim."""
        if is_paid_first:
            self.settle(bought, "paid")
        token = bought.checkout.claim_token
        status = bought.at(self.clock.now)
        if bought.is_redeemed:
            self.repeat_claim(bought)
            return multiple()
        if reason := {"cancelled": "was cancelled", "expired": "expired unpaid"}.get(status):
            refusal = self.assert_refused(self.shop.claim(token))
            assert (refusal.status, f"this checkout {reason}" in refusal.message) == (404, True)
            return multiple()
        answer = self.run(self.shop.claim(token))
        if status == "open":
            assert isinstance(answer, PendingClaim)
            return multiple()
        held = self.record_key(bought, answer)
        self.repeat_claim(bought)
        return held

    def repeat_claim(self, bought: Bought) -> None:
        """Claim a redeemed token, which is refused at once and always."""
        assert self.assert_refused(self.shop.claim(bought.checkout.claim_token)).status == 409
        SEEN["repeated"] += 1

    @rule(target=keys, bought=checkouts)
    def claim_at_one_instant(self, bought: Bought) -> Any:
        """Claim five times concurrently; at most one gets the key."""

        async def claim() -> list[Any]:
            claiming = [self.shop.claim(bought.checkout.claim_token) for _ in range(5)]
            return await asyncio.gather(*claiming, return_exceptions=True)

        active = [answer for answer in self.run(claim()) if isinstance(answer, ActiveClaim)]
        assert len(active) == (bought.at(self.clock.now) == "paid" and not bought.is_redeemed)
        return self.record_key(bought, active[0]) if active else multiple()

    def record_key(self, bought: Bought, answer: ActiveClaim) -> Held:
        bought.is_redeemed = True
        SEEN["key"] += 1
        assert answer.api_key not in {held.api_key for held in self.held}
        self.held.append(Held(answer.api_key, len(self.held) + 1))
        return self.held[-1]

    @rule(token=st.sampled_from(["ct_" + "A" * 43, "ct_" + "-" * 43]))
    def claim_what_was_never_sold(self, token: str) -> None:
        assert self.assert_refused(self.shop.claim(token)).status == 404

    @rule(held=keys)
    def revoke(self, held: Held) -> None:
        """Revoke a key, which gives no other one."""
        assert self.run(OperatorKeys(self.shop.store, self.clock).revoke(held.number))
        held.is_revoked = True

    @rule(until=st.sampled_from(["soon", "expiry", "just before it"]))
    def wait(self, until: str) -> None:
        now = self.clock.now
        expiry = max([now, *(bought.expires_at for bought in self.bought)])
        self.clock.now = {
            "soon": now + 1000,
            "expiry": expiry,
            "just before it": max(now, expiry - 1),
        }[until]

    @rule()
    def restart(self) -> None:
        """Restart the service; all state is read from the disk."""
        self.run(self.shop.store.close())
        self.start()

    @invariant()
    def keys_are_those_that_were_paid_for(self) -> None:
        keys = self.run(self.shop.store.list_keys())
        assert [key.id for key in keys] == [held.number for held in self.held]
        assert [key.revoked_at is not None for key in keys] == [h.is_revoked for h in self.held]
        redeemed = [bought for bought in self.bought if bought.is_redeemed]
        assert len(redeemed) == len(keys)
        assert all(bought.status == "paid" for bought in redeemed)


@pytest.mark.clause("3.4.3")
@pytest.mark.parametrize(
    ("new_home", "lives", "steps"),
    [
        ("sqlite", 10, 40),
        pytest.param("sqlite", 30, 60, marks=[pytest.mark.prove, pytest.mark.long]),
        pytest.param(next(iter(find_installations())), 10, 40, marks=pytest.mark.prove),
    ],
    indirect=["new_home"],
)
def test_every_payment_gives_one_key(new_home: HomeFactory, lives: int, steps: int) -> None:
    SEEN.clear()
    run_state_machine_as_test(
        type("Machine", (PurchaseMachine,), {"new_home": staticmethod(new_home)}),
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=lives < 30,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    assert {"key", "repeated", 404, 409} <= set(SEEN)

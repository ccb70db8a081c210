"""Claims and new keys while two processes serve one store: one key per claim, valid at once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from access.billing.sandbox import SandboxBilling
from access.members import MemberKeys
from access.purchases import Claims
from service.commands.cli import wall_clock
from store.sql.access_store import AccessStore
from tests.end_to_end.test_counted_calls import called_together, serving
from tests.service.commands.test_access import with_store
from tests.service.commands.test_cli import write_bars
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("sales")

CLAIMS = 40
BUYER = "agent@example.com"


async def claim_at_one_instant(addresses: list[str], token: str) -> list[httpx.Response]:
    """Claim a token from each process in turn, over connections that are open already."""
    async with httpx.AsyncClient() as client:
        await asyncio.gather(
            *(client.get(f"{addresses[n % 2]}/api/v1/signals/sample") for n in range(CLAIMS))
        )
        claims = (
            client.post(f"{addresses[n % 2]}/api/v1/access/claim", json={"claim_token": token})
            for n in range(CLAIMS)
        )
        return await asyncio.gather(*claims)


@pytest.mark.clause("3.4.9")
def test_forty_claims_spread_over_two_processes_give_one_key(tmp_path):
    bars = write_bars(tmp_path / "bars")
    assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    with serving(tmp_path, 2) as processes:
        first, second = [f"http://127.0.0.1:{port}" for _, port in processes]
        email = {"contact_email": BUYER}
        checkout = httpx.post(f"{first}/api/v1/access/checkout", json=email).json()
        paid = httpx.post(checkout["checkout_url"], data={"action": "pay"})
        assert paid.status_code == 200
        answers = asyncio.run(claim_at_one_instant([first, second], checkout["claim_token"]))
        assert sorted(answer.status_code for answer in answers) == [200, *[409] * (CLAIMS - 1)]
        (api_key,) = [answer.json()["api_key"] for answer in answers if answer.is_success]
        key = {"X-Api-Key": api_key}
        used = [
            httpx.get(f"{address}/api/v1/usage", headers=key).json()["quota"]["used_today"]
            for address in (first, second)
        ]
        claim = {"claim_token": checkout["claim_token"]}
        assert httpx.post(f"{second}/api/v1/access/claim", json=claim).status_code == 409
    assert used == [1, 2]
    assert len(run_signals(tmp_path, "keys", "list").stdout.strip().splitlines()) == 1


def as_member(folder: Path, work: Callable[[MemberKeys], Awaitable[str | None]]) -> str | None:
    """Act for a member in this process, as the pages of another process would."""
    said: list[str | None] = []

    async def run(store: AccessStore) -> None:
        billing = SandboxBilling(store, wall_clock, "http://localhost")
        claims = Claims(store, billing, wall_clock)
        said.append(await work(MemberKeys(store, billing, claims, wall_clock)))

    with_store(folder, run)
    return said[0]


async def made(members: MemberKeys) -> str:
    (claim,) = await members.list_unclaimed(BUYER)
    await members.claim(BUYER, claim.id)
    (plan,) = await members.list_plans(BUYER)
    return await members.create(BUYER, plan.membership.id, "own")


async def revoked(members: MemberKeys) -> None:
    (plan,) = await members.list_plans(BUYER)
    await members.revoke(BUYER, plan.membership.id, plan.keys[-1].key.id)


@pytest.mark.clause("dashboard")
@pytest.mark.prove
def test_a_key_that_a_member_makes_works_at_once_everywhere_until_it_is_revoked(tmp_path):
    bars = write_bars(tmp_path / "bars")
    assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    with serving(tmp_path, 2) as processes:
        ports = [port for _, port in processes]
        base_url = f"http://127.0.0.1:{ports[0]}/api/v1"
        checkout = httpx.post(f"{base_url}/access/checkout", json={"contact_email": BUYER}).json()
        httpx.post(checkout["checkout_url"], data={"action": "pay"})
        api_key = as_member(tmp_path, made)
        assert api_key is not None
        assert set(asyncio.run(called_together(api_key, ports, 1))) == {200}
        as_member(tmp_path, revoked)
        assert set(asyncio.run(called_together(api_key, ports, 1))) == {403}
        late = {"claim_token": checkout["claim_token"]}
        assert httpx.post(f"{base_url}/access/claim", json=late).status_code == 409
    listed = run_signals(tmp_path, "keys", "list").stdout.splitlines()
    assert listed[0].split("\t")[2:5] == ["active", "member 1", "test"]
    assert listed[1].endswith("\town")

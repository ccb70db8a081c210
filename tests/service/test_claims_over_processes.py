"""Twenty claims at one instant, spread over two serving processes on one store: one key."""

import asyncio

import httpx
import pytest

from tests.service.commands import signals
from tests.service.test_cli import write_bars
from tests.service.test_counted_calls import serving

pytestmark = pytest.mark.clause("sales")

CLAIMS = 20


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
def test_twenty_claims_spread_over_two_processes_give_one_key_and_nineteen_409(tmp_path):
    bars = write_bars(tmp_path / "bars")
    assert signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    with serving(tmp_path, 2) as processes:
        first, second = [f"http://127.0.0.1:{port}" for _, port in processes]
        email = {"contact_email": "agent@example.com"}
        checkout = httpx.post(f"{first}/api/v1/access/checkout", json=email).json()
        paid = httpx.post(checkout["checkout_url"], data={"action": "pay"})
        assert paid.status_code == 200
        answers = asyncio.run(claim_at_one_instant([first, second], checkout["claim_token"]))
        assert sorted(answer.status_code for answer in answers) == [200, *[409] * (CLAIMS - 1)]
        (active,) = [answer.json() for answer in answers if answer.status_code == 200]
        key = {"X-Api-Key": active["api_key"]}
        used = [
            httpx.get(f"{address}/api/v1/usage", headers=key).json()["quota"]["used_today"]
            for address in (first, second)
        ]
    assert used == [1, 2]
    assert len(signals(tmp_path, "keys", "list").stdout.strip().splitlines()) == 1

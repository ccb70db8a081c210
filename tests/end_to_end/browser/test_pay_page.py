"""A real browser cancels on the pay page, with the pointer: `make prove`."""

from typing import Any

import pytest

from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.running_service import RunningService

pytestmark = [pytest.mark.clause("sales"), *BROWSER_TESTS]


async def begun(served: RunningService) -> dict[str, Any]:
    email = "procurement.agent+signals@a-department-with-a-long-name.example.com"
    response = await served.client.post("/api/v1/access/checkout", json={"contact_email": email})
    checkout: dict[str, Any] = response.json()
    return checkout


async def claim_status(served: RunningService, checkout: dict[str, Any]) -> str:
    body = {"claim_token": checkout["claim_token"]}
    response = await served.client.post("/api/v1/access/claim", json=body)
    answer = response.json()
    return str(answer["status"] if response.status_code == 200 else response.status_code)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_buyer_cancels_with_the_pointer(served: RunningService, scheme: str) -> None:
    checkout = await begun(served)
    async with open_window(WIDTHS[0], scheme) as walk:
        await walk.page.goto(checkout["checkout_url"])
        await walk.check_fits()
        async with walk.page.expect_navigation():
            await walk.page.get_by_role("button", name="Cancel").click()
        assert await walk.title() == "Checkout cancelled"
        assert await walk.page.get_by_role("status").count() == 1
        assert await walk.page.get_by_role("button").count() == 0
        await walk.check_fits()
        assert walk.complaints == []
    assert await claim_status(served, checkout) == "404"

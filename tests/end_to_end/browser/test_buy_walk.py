"""A person buys access in a real browser, by keyboard only: `make prove`."""

from urllib.parse import urlsplit

import pytest

from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.running_service import RunningService
from tests.support.web_page import API_KEY, get_usage_status

pytestmark = [pytest.mark.clause("18.1", "18.2", "18.4"), *BROWSER_TESTS]

EMAIL = "a.buyer@a-department-with-a-long-name.example.com"


@pytest.mark.parametrize(
    ("width", "scheme", "is_scripted"),
    [(WIDTHS[1], "light", True), (WIDTHS[0], "dark", True), (WIDTHS[0], "light", False)],
)
async def test_a_person_buys_access_and_goes_back_without_buying_twice(
    served: RunningService, width: int, scheme: str, is_scripted: bool
) -> None:
    async with open_window(width, scheme, is_scripted=is_scripted) as walk:
        await walk.page.goto(f"{served.base_url}/buy")
        await walk.wait_for_title("Choose a plan")
        # The browser accepts this address, and the service does not.
        await walk.fill_in("contact_email", "buyer@localhost")
        await walk.wait_for_title("Choose a plan")
        assert await walk.page.evaluate("document.activeElement.name") == "contact_email"
        await walk.page.keyboard.press("Control+A")
        await walk.page.keyboard.type(EMAIL)
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        await walk.wait_for_title("Pay for the premium plan")
        await walk.press("Pay USD 129")
        await walk.wait_for_title("Your key")
        api_key = await walk.page.inner_text("pre >> nth=0")
        assert API_KEY.fullmatch(api_key)
        assert await get_usage_status(served, api_key) == 200
        await walk.page.reload()
        await walk.wait_for_title("No new key to show")
        await walk.page.go_back()
        assert await walk.title() in {"Paid in the sandbox", "Choose a plan"}
        # The refused form is answered with status 400, which the console reports.
        assert [said for said in walk.complaints if "400" not in said] == []
        assert walk.hosts == {urlsplit(served.base_url).netloc}
    members = await served.access.list_memberships_by_email(EMAIL)
    assert len(members) == 1

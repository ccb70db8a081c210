"""A real browser signs in, makes a key, uses it and revokes it, by keyboard alone: `make prove`."""

from urllib.parse import urlsplit

import pytest

from tests.serving import Served
from tests.web.member import API_KEY, HOME, bought, mailed_link
from tests.web.walking import BROWSER_TESTS, WIDTHS, Walk, walking

pytestmark = [pytest.mark.clause("dashboard"), *BROWSER_TESTS]

EMAIL = "procurement.agent+signals@a-department-with-a-long-name.example.com"
LABEL = "the server that asks every hour, in the rack on the left"


async def shows(walk: Walk, title: str) -> None:
    """Assert that a page of this title is shown, and that everybody can read it."""
    assert await walk.title() == title
    await walk.fits()
    await walk.is_accessible()


async def press(walk: Walk, button: str) -> None:
    """Tab to a button or link and press it."""
    await walk.tab_to(button)
    async with walk.page.expect_navigation():
        await walk.page.keyboard.press("Enter")


async def fill_in(walk: Walk, field: str, text: str) -> None:
    """Tab to a field and send its form with a text."""
    await walk.tab_to_field(field)
    await walk.page.keyboard.type(text)
    async with walk.page.expect_navigation():
        await walk.page.keyboard.press("Enter")


async def sign_in(served: Served, walk: Walk) -> None:
    """Come to the page of the keys by way of the mailbox."""
    await walk.page.goto(served.base_url + HOME)
    await shows(walk, "Sign in")
    await fill_in(walk, "contact_email", EMAIL)
    await shows(walk, "Look into your mailbox")
    await walk.page.goto(served.base_url + await mailed_link(served))
    await shows(walk, "Sign in to signals")
    await press(walk, "Sign in")
    await shows(walk, "API access")
    assert walk.page.url == served.base_url + HOME


async def copied_key(walk: Walk) -> str:
    """Press the first copy button; return what the clipboard has then."""
    await walk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await walk.tab_to("Copy")
    await walk.page.keyboard.press("Enter")
    await walk.page.get_by_text("Copied").wait_for()
    text: str = await walk.page.evaluate("navigator.clipboard.readText()")
    return text


async def mcp_status(served: Served, api_key: str) -> int | None:
    """Return the status of a call over MCP, None where it was answered."""
    headers = {"Authorization": f"Bearer {api_key}"}
    result = await served.call("signals_get_state", {"ticker": "BTC"}, headers)
    status: int | None = result["_meta"].get("signals/status")
    return status


@pytest.mark.clause("5.13")
@pytest.mark.parametrize(("width", "scheme"), [(WIDTHS[0], "dark"), (WIDTHS[1], "light")])
async def test_a_member_makes_uses_and_revokes_a_key_by_keyboard_alone(
    served: Served, width: int, scheme: str
) -> None:
    await bought(served, EMAIL)
    async with walking(width, scheme) as walk:
        await sign_in(served, walk)
        await fill_in(walk, "label", LABEL)
        await shows(walk, "Your new key")
        api_key = await copied_key(walk)
        assert API_KEY.fullmatch(api_key)
        assert await mcp_status(served, api_key) is None
        await press(walk, "I have stored it: back to all keys")
        await shows(walk, "API access")
        assert "1 of 10,000" in await walk.page.inner_text("main")
        await walk.tab_to("Revoke")  # the key that was bought
        await press(walk, "Revoke")
        await shows(walk, "Revoke this key?")
        assert LABEL in await walk.page.inner_text("main")
        await press(walk, "Revoke it for good")
        await shows(walk, "API access")
        assert await mcp_status(served, api_key) == 403
        await press(walk, "Sign out")
        await shows(walk, "Sign in")
        assert walk.complaints == []
        assert walk.hosts == {urlsplit(served.base_url).netloc}


async def test_a_key_is_named_anew_without_script(served: Served) -> None:
    await bought(served, EMAIL)
    async with walking(WIDTHS[1]) as walk:
        await walk.page.context.route("**/*.js*", lambda route: route.abort())
        await sign_in(served, walk)
        await walk.tab_to("Rename")
        await walk.page.keyboard.press("Enter")
        await walk.tab_to_field("label")
        await walk.page.keyboard.type("server")
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert "server" in await walk.page.inner_text("tbody th")

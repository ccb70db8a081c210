"""A real browser calls the API from its viewer, and copies lines of the documentation."""

from urllib.parse import urlsplit

import pytest

from mcp_server.registration import render_claude_code
from rest_shim.endpoints import ENDPOINTS
from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.running_service import RunningService
from web.docs import build_call_anchor

pytestmark = [pytest.mark.clause("pages"), *BROWSER_TESTS]


@pytest.mark.clause("19.3", "19.5")
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_call_is_sent_with_the_key_which_is_kept_nowhere(
    served: RunningService, width: int
) -> None:
    async with open_window(width) as window:
        page, sent = window.page, []
        page.on("request", lambda request: sent.append(request))
        await page.goto(f"{served.base_url}/docs/try/signals_get_usage")
        await page.locator("input[placeholder=api-token]").first.fill(served.api_key)
        await page.get_by_role("button", name="SET").first.click()
        await page.get_by_role("button", name="TRY").first.click()
        await page.get_by_text('"used_today"').first.wait_for()
        (call,) = [one for one in sent if urlsplit(one.url).path == "/api/v1/usage"]
        assert call.headers["authorization"] == f"Bearer {served.api_key}"
        assert all(served.api_key not in request.url for request in sent)
        assert window.hosts == {urlsplit(served.base_url).netloc}
        await window.check_fits()
        await window.check_accessible()
        stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert served.api_key not in await page.evaluate(stored)
        await page.reload()
        await page.get_by_text("No API key applied").wait_for()
        assert window.complaints == []


async def test_every_operation_is_listed_and_its_fields_have_names(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as window:
        page = window.page
        await page.goto(f"{served.base_url}/docs/rest")
        for endpoint in ENDPOINTS:
            await page.locator(f"[id='{build_call_anchor(endpoint)[1:]}']").wait_for()
        await page.goto(f"{served.base_url}/docs/try/signals_get_state")
        await page.get_by_role("textbox", name="ticker").wait_for()
        await window.check_fits()
        await window.check_accessible()
        assert window.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
async def test_lines_are_copied_by_keyboard_and_the_page_confirms_it(
    served: RunningService, width: int
) -> None:
    async with open_window(width) as walk:
        await walk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await walk.page.goto(f"{served.base_url}/docs/connect")
        await walk.tab_to("Copy the lines for Claude Code")
        await walk.page.keyboard.press("Enter")
        await walk.page.get_by_role("status").get_by_text("Copied").wait_for()
        copied = await walk.page.evaluate("navigator.clipboard.readText()")
        assert copied == render_claude_code(served.base_url)
        assert walk.complaints == []


async def test_without_a_clipboard_the_lines_are_selected(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as walk:
        await walk.page.add_init_script("delete Navigator.prototype.clipboard")
        await walk.page.goto(f"{served.base_url}/docs/connect")
        await walk.page.get_by_role("button", name="Copy the lines for Claude Code").click()
        await walk.page.get_by_role("status").get_by_text("Selected").wait_for()
        selected = await walk.page.evaluate("getSelection().toString()")
        assert selected.strip() == render_claude_code(served.base_url)


async def test_a_wide_table_scrolls_by_the_keyboard(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as walk:
        await walk.page.goto(f"{served.base_url}/docs/tools")
        table = walk.page.get_by_role("group", name="Arguments of signals_get_state")
        await table.focus()
        await walk.page.keyboard.press("ArrowRight")
        await walk.page.wait_for_function("document.activeElement.scrollLeft > 0")
        assert await table.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"

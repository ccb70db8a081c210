"""A real browser reads the reference pages and copies from them: `make prove`."""

import pytest

from mcp_server.registration import render_claude_code
from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.running_service import RunningService

pytestmark = [pytest.mark.clause("pages"), *BROWSER_TESTS]


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

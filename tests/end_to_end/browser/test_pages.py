"""A real browser walks the board, the chart of an asset, the feed and the documentation."""

import re
from urllib.parse import urlsplit

import pytest

from mcp_server.registration import CLIENTS_BY_NAME
from rest_shim.endpoints import ENDPOINTS
from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    fill_full_universe,
    make_batch,
    make_change,
)
from tests.support.running_service import RunningService
from web.docs import build_call_anchor

pytestmark = [*BROWSER_TESTS]


WHOLE = 251  # the universe, without its removed asset


@pytest.fixture
async def full(served_empty: RunningService) -> RunningService:
    """The service on a board of the whole universe."""
    await fill_full_universe(served_empty.market)
    return served_empty


async def member_of(served: RunningService) -> list[dict[str, str]]:
    name, _, value = (await served.get_session_cookie()).partition("=")
    return [{"name": name, "value": value, "url": served.base_url}]


async def shown(walk: BrowserWindow) -> list[str]:
    """Return the tickers of the visible rows."""
    tickers = await walk.page.locator(".board tbody th[scope=row] a:visible").all_inner_texts()
    assert (await walk.page.inner_text("#shown")) == str(len(tickers))
    return tickers


@pytest.mark.clause("pages")
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_member_filters_as_they_type_and_opens_an_asset_by_keyboard(
    full: RunningService, width: int
) -> None:
    async with open_window(width, cookies=await member_of(full)) as walk:
        await walk.page.goto(full.base_url)
        assert len(await shown(walk)) == WHOLE
        await walk.tab_to_field("text")
        await walk.page.keyboard.type("BITcoin")
        found = await shown(walk)
        assert "BTC" in found
        assert len(found) < 10
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert await shown(walk) == found
        await walk.tab_to("BTC")
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert await walk.title() == "Bitcoin (BTC)"


@pytest.mark.clause("pages")
async def test_each_filter_leaves_the_same_rows_with_and_without_a_script(
    full: RunningService,
) -> None:
    async with open_window(WIDTHS[1], cookies=await member_of(full)) as walk:
        for chosen in (
            {"direction": "bearish"},
            {"indicator": "ceres"},
            {"indicator": "ceres", "direction": "neutral"},
            {"asset_class": "metal", "direction": "bullish"},
            {"asset_class": "crypto", "direction": "neutral", "indicator": "llnr"},
        ):
            await walk.page.goto(full.base_url)
            for name, value in chosen.items():
                await walk.page.select_option(f"select[name={name}]", value)
            cells = walk.page.locator(".board td:visible")
            by_script = await shown(walk), await cells.count()
            await walk.page.get_by_role("button", name="Filter").click()
            await walk.page.wait_for_url("**/?*")
            assert (await shown(walk), await cells.count()) == by_script
            assert len(by_script[0]) > 0


@pytest.mark.clause("pages")
async def test_a_star_is_stored_and_the_watchlist_narrows_as_it_changes(
    full: RunningService,
) -> None:
    async with open_window(WIDTHS[0], "dark", await member_of(full)) as walk:
        await walk.page.goto(full.base_url)
        for ticker in ("ETH", "BTC"):
            await walk.page.get_by_role("button", name=f"Watch {ticker}", exact=True).click()
            await walk.page.get_by_role("button", name=f"Stop watching {ticker}").wait_for()
        await walk.page.click("label.fold")
        await walk.page.select_option("select[name=show]", "watched")
        assert set(await shown(walk)) == {"BTC", "ETH"}
        await walk.page.get_by_role("button", name="Stop watching ETH").click()
        await walk.page.locator("#ETH").wait_for(state="hidden")
        await walk.page.goto(f"{full.base_url}/?show=watched")
        assert await shown(walk) == ["BTC"]


# A tab behind another one, and the notifications that it shows.
IN_BACKGROUND = """
window.shown = [];
Object.defineProperty(document, "hidden", { get: () => true });
window.Notification = class extends Notification {
  constructor(title, options) { super(title, options); shown.push([title, options.body]); }
};
"""


@pytest.mark.clause("pages")
@pytest.mark.parametrize(("path", "title"), [("", "Board of readings"), ("feed", "Feed")])
async def test_new_readings_are_offered_counted_and_notified_and_never_move_the_page(
    full: RunningService, path: str, title: str
) -> None:
    async with open_window(WIDTHS[1], cookies=await member_of(full)) as walk:
        await walk.page.context.grant_permissions(["notifications"])
        await walk.page.add_init_script(IN_BACKGROUND)
        await walk.page.clock.install()
        await walk.page.goto(f"{full.base_url}/{path}")
        fetched: list[str] = []
        walk.page.on(
            "request", lambda sent: sent.resource_type == "fetch" and fetched.append(sent.url)
        )
        await walk.page.clock.fast_forward(50_000)
        assert fetched == []
        turned = make_change(NOON + HOUR_MS, "BTC", "ceres", "1h", 1, 0)
        await full.market.commit(make_batch(NOON + HOUR_MS, [turned]))
        async with walk.page.expect_response("**/board/latest.json"):
            await walk.page.clock.fast_forward(60_000)
        offer = walk.page.get_by_role("link", name="New readings from 13:03 – show")
        await offer.wait_for()
        assert await walk.page.title() == f"(1) {title} - Signals"
        assert await walk.page.evaluate("shown") == [
            ["1 change at 13:03 UTC", f"{title} - Signals"]
        ]
        assert fetched == [f"{full.base_url}/board/latest.json"]
        as_of = walk.page.locator("p:has-text('As of') time").first
        assert "12:03 UTC" in await as_of.inner_text()
        async with walk.page.expect_navigation():
            await offer.click()
        assert "13:03 UTC" in await as_of.inner_text()


RANGE = "view.max - view.min"
# The 359 bars of 60 days on 4h, and the room after them.
ALL_BARS = 366
# The marks that are shown beyond the edges of the chart.
CUT_MARKS = """
() => [...document.querySelectorAll(".time use[visibility=visible]")]
  .map(mark => [mark.getBoundingClientRect(), mark.closest(".area").getBoundingClientRect()])
  .filter(([mark, all]) => mark.left < all.left - .5 || mark.right > all.right + .5)
"""


async def open_chart(walk: BrowserWindow, served: RunningService) -> None:
    await walk.page.goto(f"{served.base_url}/assets/BTC?timeframe=4h")
    await walk.page.wait_for_selector("#plot.drawn")
    # On a phone, the current readings stand above it.
    await walk.page.locator("#plot").scroll_into_view_if_needed()


async def wait_for_range(walk: BrowserWindow, condition: str) -> float:
    """Return the number of bars in view, when it meets a condition."""
    await walk.page.wait_for_function(f"() => {{ const bars = {RANGE}; return {condition}; }}")
    return await walk.page.evaluate(RANGE)


@pytest.mark.clause("15.3")
async def test_the_chart_zooms_by_wheel_keys_buttons_and_drag(served: RunningService) -> None:
    async with open_window(WIDTHS[1]) as walk:
        await open_chart(walk, served)
        assert await wait_for_range(walk, "bars > 0") == ALL_BARS
        box = await walk.page.locator("#plot").bounding_box()
        await walk.page.mouse.move(box["x"] + 600, box["y"] + 100)
        await walk.page.mouse.wheel(0, -200)
        wheeled = await wait_for_range(walk, f"bars < {ALL_BARS}")
        assert await walk.page.evaluate("view.max") == ALL_BARS
        await walk.page.locator("#plot").focus()
        await walk.page.keyboard.press("+")
        await wait_for_range(walk, f"bars < {wheeled}")
        await walk.page.keyboard.press("Home")
        await wait_for_range(walk, f"bars === {ALL_BARS}")
        # The newest bar stays at the right edge, also when there is nothing left to zoom into.
        for _ in range(10):
            await walk.page.get_by_role("button", name="Zoom in").click()
            assert await walk.page.evaluate("view.max") == ALL_BARS
        assert await wait_for_range(walk, f"bars < {ALL_BARS}") == 12
        assert await walk.page.evaluate(CUT_MARKS) == []
        await walk.page.get_by_role("button", name="All bars").click()
        await wait_for_range(walk, f"bars === {ALL_BARS}")
        await walk.page.mouse.move(box["x"] + 500, box["y"] + 100)
        await walk.page.mouse.down()
        await walk.page.mouse.move(box["x"] + 700, box["y"] + 100, steps=4)
        await walk.page.mouse.up()
        await wait_for_range(walk, f"bars < {ALL_BARS} / 2")
        assert await walk.page.evaluate(CUT_MARKS) == []
        # The time of the oldest listed change leads to its bar.
        link = walk.page.locator("a[data-at]").last
        at = await link.get_attribute("data-at")
        await link.click()
        bar = await walk.page.evaluate(f"chart.closes.indexOf({at})")
        assert await wait_for_range(walk, f"view.min < {bar} && {bar} < view.max") <= 60
        assert await walk.page.locator(".cursor line").count() == 1


@pytest.mark.clause("15.3")
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_tooltip_shows_prices_and_readings_of_a_bar_and_the_text_of_a_mark(
    served: RunningService, width: int
) -> None:
    async with open_window(width) as walk:
        await open_chart(walk, served)
        box = await walk.page.locator("#plot").bounding_box()
        # Between price and lanes there are no marks.
        await walk.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 258)
        said = await walk.page.inner_text(".tip")
        assert re.match(r"2026-\d\d-\d\d \d\d:00 UTC to \d\d:00 UTC\nO [\d,.]+ +H", said)
        assert "Trend Oracle: " in said
        mark = await walk.page.locator(".time use").last.bounding_box()
        await walk.page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
        said = await walk.page.inner_text(".tip")
        assert re.match(r"2026-\d\d-\d\d \d\d:00 UTC\n.+\nPrice [\d,.]+$", said)
        await walk.check_fits()
        await walk.check_accessible()


@pytest.mark.clause("15.3")
async def test_without_a_script_the_chart_is_a_picture(
    served: RunningService,
) -> None:
    async with open_window(WIDTHS[0], is_scripted=False) as walk:
        await walk.page.goto(f"{served.base_url}/assets/BTC?timeframe=4h")
        picture = walk.page.locator("#plot svg.area")
        assert await picture.is_visible()
        # Each of two alerts stands at its candle.
        assert await picture.locator("use.alert").count() == 2
        assert await picture.locator("rect.bullish").count() > 20
        assert await walk.page.locator("path.line").is_visible()
        await walk.check_fits()


# The first row lies on the first screen: 900 px high on a desktop, 844 on a phone.
MAX_Y = {1440: 400, 390: 700}
TITLES = {"feed": "Feed", "flips": "Flips", "confluence": "Confluence"}


@pytest.mark.clause("pages")
@pytest.mark.parametrize("width", WIDTHS)
async def test_rows_and_errors_can_be_read_and_reached(served: RunningService, width: int) -> None:
    # A browser logs the status of the last page, which is 400.
    async with open_window(width, "dark", await member_of(served), accepts="400") as walk:
        for path, title in TITLES.items():
            await walk.page.goto(f"{served.base_url}/{path}?timeframe=1h")
            await walk.wait_for_title(title)
            box = await walk.page.locator("tbody tr").first.bounding_box()
            assert box["y"] < MAX_Y[width]
            assert box["x"] + box["width"] <= width
        await walk.page.goto(f"{served.base_url}/feed?ticker=NVDA&timeframe=1h&since=2026-09-30")
        await walk.wait_for_title("Feed")
        assert walk.complaints == []
        await walk.page.goto(f"{served.base_url}/feed?ticker=x&limit=0&since=now")
        await walk.wait_for_title("Feed")
        assert walk.hosts == {urlsplit(served.base_url).netloc}


@pytest.mark.clause("pages", "17.9")
async def test_relative_times_go_on_while_the_page_is_open(served: RunningService) -> None:
    served.clock.now += 120_000
    async with open_window(WIDTHS[1], cookies=await member_of(served)) as walk:
        await walk.page.clock.install()
        await walk.page.goto(f"{served.base_url}/feed")
        first = walk.page.locator("tbody .ago").first
        assert await first.inner_text() == "5 min ago"
        await walk.page.clock.run_for(10 * 60_000)
        assert await first.inner_text() == "15 min ago"


@pytest.mark.clause("pages")
async def test_a_form_sends_only_the_filters_that_are_set(served: RunningService) -> None:
    async with open_window(WIDTHS[0], cookies=await member_of(served)) as walk:
        await walk.page.goto(f"{served.base_url}/feed")
        await walk.page.click("label.fold")
        await walk.page.select_option("select[name=timeframe]", "1h")
        async with walk.page.expect_navigation():
            await walk.page.get_by_role("button", name="Filter").click()
        assert urlsplit(walk.page.url).query == "tier=universe&timeframe=1h&order=newest"
        assert await walk.page.locator("tbody tr:has(td)").count() == 6
        await walk.page.click("label.fold")
        await walk.press("Clear")
        assert walk.page.url == f"{served.base_url}/feed"


@pytest.mark.clause("pages", "19.3", "19.5")
@pytest.mark.parametrize("width", WIDTHS)
async def test_a_call_is_sent_with_the_key_which_is_kept_nowhere(
    served: RunningService, width: int
) -> None:
    async with open_window(width) as window:
        page, sent = window.page, []
        page.on("request", lambda request: sent.append(request))
        await page.goto(f"{served.base_url}/docs/rest#get-/api/v1/usage")
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


@pytest.mark.clause("pages")
async def test_every_operation_is_listed_and_its_fields_have_names(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as window:
        page = window.page
        await page.goto(f"{served.base_url}/docs/rest")
        for endpoint in ENDPOINTS:
            await page.locator(f"[id='{build_call_anchor(endpoint)[1:]}']").wait_for()
        await page.goto(f"{served.base_url}/docs/rest#get-/api/v1/state")
        await page.get_by_role("textbox", name="ticker").wait_for()
        await window.check_fits()
        await window.check_accessible()


@pytest.mark.clause("pages")
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
        assert copied == CLIENTS_BY_NAME["claude-code"].render_lines(served.base_url).rstrip()


@pytest.mark.clause("pages")
async def test_without_a_clipboard_the_lines_are_selected(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as walk:
        await walk.page.add_init_script("delete Navigator.prototype.clipboard")
        await walk.page.goto(f"{served.base_url}/docs/connect")
        await walk.page.get_by_role("button", name="Copy the lines for Claude Code").click()
        await walk.page.get_by_role("status").get_by_text("Selected").wait_for()
        selected = await walk.page.evaluate("getSelection().toString()")
        assert (
            selected.strip()
            == CLIENTS_BY_NAME["claude-code"].render_lines(served.base_url).rstrip()
        )


# What is typed into the fields, and what the page says of it.
CHECKS: list[tuple[str, str, str, str]] = [
    ("row", "", "", "Proven: the row is leaf "),
    ("row", '"price": ', '"price": 1', "do not lead to the signed root"),
    ("row", '"price": ', '"prize": ', "The row has no price."),
    ("proof", "\nindex ", "\nindex 1", "do not lead to the signed root"),
    ("proof", "/api/v1/log\n", "/api/v2/log\n", "The key did not sign the checkpoint"),
    ("key", "/api/v1/log+", "/api/v2/log+", "The key is not the key of a log."),
]


@pytest.mark.clause("pages", "21.14")
async def test_a_row_is_checked_in_the_browser_and_a_changed_one_or_false_path_is_seen(
    served: RunningService,
) -> None:
    row = (await served.get_api("/signals?limit=1")).json()["signals"][0]
    async with open_window(WIDTHS[0], cookies=await member_of(served)) as walk:
        await walk.page.goto(f"{served.base_url}/log/row?id={row['id']}")
        await walk.wait_for_title("Proof of a row")
        for field, old, new, expected in CHECKS:
            box = walk.page.locator(f"[name={field}]")
            text = await box.input_value()
            assert old in text
            await box.fill(text.replace(old, new, 1))
            await walk.page.get_by_role("button", name="Check").click()
            await walk.page.locator("form.check").get_by_text(expected).wait_for()
            await box.fill(text)
        await walk.page.goto(f"{served.base_url}/log")
        await walk.wait_for_title("Log of the feed")


@pytest.mark.clause("pages")
async def test_a_wide_table_scrolls_by_the_keyboard(served: RunningService) -> None:
    async with open_window(WIDTHS[0]) as walk:
        await walk.page.goto(f"{served.base_url}/docs/tools")
        table = walk.page.get_by_role("group", name="Arguments of signals_get_state")
        await table.focus()
        await walk.page.keyboard.press("ArrowRight")
        await walk.page.wait_for_function("() => document.activeElement.scrollLeft > 0")
        assert await table.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"

"""The official bridge of MCP Apps shows results of tools in a chat: `make prove`.

With SCREENSHOTS=FOLDER the run also saves pictures there.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, Router

from tests.support.browser import (
    BROWSER_TESTS,
    BrowserWindow,
    compute_luminance,
    open_browser,
    open_tab,
)
from tests.support.example_market import fill_full_universe
from tests.support.running_service import RunningService, run_service, serve_app
from tools.client_environments import get_node_environment

pytestmark = [
    pytest.mark.clause("14.4"),
    pytest.mark.asyncio(loop_scope="session"),
    *BROWSER_TESTS,
]
STATE, FLIPS = "signals_get_state", "signals_get_flips"
# The bridge logs each message, and the browser that there is no stream and how the specification
# has the host frame a view.
LOGGED = r"^(Sending|Parsed) message|405 \(Method Not Allowed\)$|its sandboxing\.$"
# The policy of a host for a view that declares no domain.
SANDBOX_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; media-src 'self' data:; object-src 'none'; connect-src 'none'"
)
# The proxy between the host and a view, whose origin is not the host's.
SANDBOX = """<!doctype html>
<style>body { margin: 0 } iframe { width: 100%; height: 100vh; border: 0 }</style>
<script>
const inner = document.createElement("iframe");
inner.setAttribute("sandbox", "allow-scripts allow-same-origin");
document.documentElement.append(inner);
addEventListener("message", ({ source, data }) => {
  if (source === inner.contentWindow) parent.postMessage(data, "*");
  else if (data.method === "ui/notifications/sandbox-resource-ready") {
    inner.contentDocument.open();
    inner.contentDocument.write(data.params.html);
    inner.contentDocument.close();
  } else inner.contentWindow.postMessage(data, "*");
});
const method = "ui/notifications/sandbox-proxy-ready";
parent.postMessage({ jsonrpc: "2.0", method, params: {} }, "*");
</script>"""
HOST = """<!doctype html>
<title>Host</title>
<style>iframe { width: 100%; border: 0 }</style>
<link rel="icon" href="data:,">
<body><script src="host.js"></script>"""


async def bundle_host() -> bytes:
    """Return the script of the host with the packages that it imports."""
    folder = await asyncio.to_thread(get_node_environment)
    process = await asyncio.create_subprocess_exec(
        str(folder / "node_modules" / ".bin" / "node"),
        *(
            "node_modules/esbuild/bin/esbuild",
            "chat_host.mjs",
            "--bundle",
            "--format=iife",
            "--log-level=error",
        ),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    script, _ = await process.communicate()
    assert process.returncode == 0
    return script


@dataclass
class Stage:
    served: RunningService
    browser: Any
    host: str
    sandbox: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    # A response is an application that sends itself.
    script = Response(await bundle_host(), media_type="text/javascript")
    host_pages = Router([Route("/host.js", script), Route("/", HTMLResponse(HOST))])
    sandbox_page = HTMLResponse(SANDBOX, headers={"Content-Security-Policy": SANDBOX_POLICY})
    async with (
        serve_app(lambda _: host_pages) as host,
        serve_app(lambda _: sandbox_page) as sandbox,
        run_service(tmp_path_factory.mktemp("chat"), allowed_origins=(host,)) as served,
        open_browser() as browser,
    ):
        await fill_full_universe(served.market, has_prices=True)
        yield Stage(served, browser, host, sandbox)


@asynccontextmanager
async def show_result(
    stage: Stage, tool: str, theme: str, *, mode: str = "legacy", width: int = 720, **input_: Any
) -> AsyncIterator[tuple[BrowserWindow, Any, dict[str, Any]]]:
    """Call a tool in the host; yield the window, the frame of the view, and what the host read."""
    # The scheme of the system is the other one, so the host's theme decides.
    other = "light" if theme == "dark" else "dark"
    async with open_tab(stage.browser, 1440, other, accepts=LOGGED) as window:
        await window.page.set_viewport_size({"width": width, "height": 900})
        await window.page.goto(stage.host)
        read = await window.page.evaluate(
            "plan => showResult(plan)",
            {
                **{"url": f"{stage.served.base_url}/api/v1/mcp", "sandbox": stage.sandbox},
                **{"key": stage.served.api_key, "mode": mode, "theme": theme},
                **{"tool": tool, "input": input_},
            },
        )
        view = window.page.frame_locator("iframe").frame_locator("iframe")
        await view.locator("#page :is(h1, .refused)").wait_for()
        yield window, view, read
        # The view itself asked nobody for anything.
        allowed = {urlsplit(url).netloc for url in (stage.host, stage.sandbox)}
        assert window.hosts == {*allowed, urlsplit(stage.served.base_url).netloc}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_state_of_an_asset_is_its_chart_in_the_theme_of_the_host(
    stage: Stage, theme: str, mode: str
) -> None:
    asked = {"ticker": "BTC", "timeframe": "4h", "view": "lines"}
    async with show_result(stage, STATE, theme, mode=mode, **asked) as (window, view, read):
        assert read["csp"] == {"connectDomains": [], "resourceDomains": []}
        assert await view.locator("h1").inner_text() == "Bitcoin (BTC)"
        assert "Simulated market" in await view.locator(".badge").inner_text()
        assert await view.locator("figure.drawn .candles").count() == 2
        assert await view.locator("svg.gutter > text").count() == 7
        ground = await view.locator("body").evaluate(
            "one => getComputedStyle(one).backgroundColor.match(/[0-9.]+/g).map(Number)"
        )
        assert (compute_luminance(ground) < 0.5) is (theme == "dark")
        await window.save_picture("chat", "chart", theme)
        await view.locator(".tabs a", has_text="1d").click()
        await view.locator("#chart", has_text="BTC on 1d").wait_for()
        # The theme changes while the view is open.
        other = "light" if theme == "dark" else "dark"
        await window.page.evaluate("theme => bridge.setHostContext({ theme })", other)
        await view.locator(f"html[style*='color-scheme: {other}']").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_changed_assets_are_a_board_that_opens_charts(stage: Stage, theme: str) -> None:
    async with show_result(stage, FLIPS, theme, timeframe="1d") as (window, view, _):
        rows = view.locator(".board tbody tr")
        shown = {await row.get_attribute("id") for row in await rows.all()}
        flips = await stage.served.fetch_answer("mcp", FLIPS, timeframe="1d")
        assert shown == {group["ticker"] for group in flips["groups"]}
        await window.save_picture("chat", "board", theme)
        await rows.first.locator("th a").click()
        await view.locator("figure.drawn").wait_for()
        await view.get_by_text("← Board").click()
        await rows.first.wait_for()


@pytest.mark.parametrize(
    ("asked", "tab"),
    [
        ({}, "All"),
        ({"timeframe": "1h", "view": "board"}, "1h"),
        ({"timeframe": "1d", "view": "lines"}, "1d"),
    ],
)
async def test_the_state_of_several_assets_is_their_board_on_a_phone_too(
    stage: Stage, asked: dict[str, str], tab: str
) -> None:
    async with show_result(stage, STATE, "light", width=390, ticker="BTC,NVDA,gold", **asked) as (
        window,
        view,
        _,
    ):
        rows = await view.locator(".board tbody tr").all()
        assert {await row.get_attribute("id") for row in rows} == {"BTC", "NVDA", "XAU"}
        assert await view.locator(".tabs [aria-current]").inner_text() == tab
        wide = "document.documentElement.scrollWidth - innerWidth"
        assert await view.locator("body").evaluate(f"() => {wide}") <= 0
        await window.save_picture("chat", "phone", tab)


async def test_a_refused_call_shows_its_message(stage: Stage) -> None:
    async with show_result(stage, STATE, "dark", ticker="BTCC") as (_, view, __):
        assert "did you mean BTC (Bitcoin)?" in await view.locator("#page").inner_text()

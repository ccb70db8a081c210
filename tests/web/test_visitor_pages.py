"""Visitors see the sample on the same pages as members, and nothing of the live store.

A page without a session costs little, whatever is requested: kept bytes, and bounded texts.
"""

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rest_shim.sample import render_sample
from schemas.signals import SignalsResponse
from schemas.vocabulary import HOUR_MS, TIMEFRAMES
from tests.support.example_market import LATER, NAMES, make_batch, make_change
from tests.support.row_builders import create_session_cookie
from tests.support.running_service import RunningService, fetch, run_service
from tests.support.web_page import (
    WELCOME,
    MemberBrowser,
    Page,
    add_request,
    check_page,
    get_board,
    member as member,
    parse_board,
    parse_heat_map,
)
from web.pages import VisitorPages

pytestmark = pytest.mark.clause("pages")

BROWSER = {"Accept": "text/html"}
KEPT_PAGES = [
    *("/", "/?timeframe=1h&sort=asset", "/feed", "/flips", "/confluence", "/assets"),
    *("/assets/BTC", "/assets/ETH?timeframe=1d", "/docs", "/docs/tools", "/docs/rest"),
]
# Longer than what any page may repeat, and than any `maxLength`, yet short enough for a form.
LONG = "z" * 7000
MAX_ECHO = 100


@pytest.mark.parametrize("path", KEPT_PAGES)
async def test_a_visitors_page_is_rendered_once_for_a_version_of_the_data(
    served: RunningService, path: str
) -> None:
    async def get_together() -> list[bytes]:
        answers = await asyncio.gather(*(served.client.get(path) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {200}
        return [answer.content for answer in answers]

    first = await get_together()
    served.clock.now += 60_000
    plain = await served.client.get(path, headers={"Accept-Encoding": "identity"})
    assert {*first, *await get_together(), plain.content} == {first[0]}
    assert served.app.state.site.visitor_pages.rendered == 1
    await served.market.commit(make_batch(LATER, [make_change(LATER, "BTC", "enzo", "1d", -1, 1)]))
    await get_together()
    assert served.app.state.site.visitor_pages.rendered == 2


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/?text={}",
            "/feed?ticker={}",
            "/feed?utm_source={}&since=2026-09-0{}",
        ),
        *("/confluence?as_of=2026-09-0{}", "/assets?text={}", "/assets/X{}", "/docs/{}"),
        "/{}",
    ],
)
async def test_a_stranger_cannot_fill_the_kept_pages(served: RunningService, path: str) -> None:
    for number in range(1, 5):
        await served.client.get(path.format(number, number), headers=BROWSER)
    assert served.app.state.site.visitor_pages.rendered == 0


async def test_parameters_that_a_page_ignores_lead_to_the_same_bytes(
    served: RunningService,
) -> None:
    for path in ("/docs", "/feed", "/assets", "/assets/BTC", "/"):
        answers = [await served.client.get(f"{path}{query}") for query in ("", "?utm_source=x")]
        assert answers[0].content == answers[1].content
    assert served.app.state.site.visitor_pages.rendered == 5


async def test_the_kept_pages_have_a_bounded_size(served: RunningService) -> None:
    pages = VisitorPages(max_bytes=1)
    served.app.state.site = replace(served.app.state.site, visitor_pages=pages)
    # Of pages that exceed the bound together, only the newest is kept.
    for path, rendered in [("/feed", 1), ("/feed", 1), ("/flips", 2), ("/feed", 3), ("/flips", 4)]:
        assert ((await served.client.get(path)).status_code, pages.rendered) == (200, rendered)


async def test_a_member_never_gets_a_visitors_page_nor_a_visitor_a_members(
    served: RunningService,
) -> None:
    for path in KEPT_PAGES:
        before = await served.get_page(path)
        own = await served.get_page(path, is_member=True)
        after = await served.get_page(path)
        assert before.content == after.content
        assert "form_token" in own.text
        assert "form_token" not in after.text
        assert "Cookie" in after.headers["vary"]


@pytest.mark.parametrize("beginning", ["/", "/docs/", "/assets/", "/x/"])
async def test_the_page_of_a_missing_address_has_one_size_at_any_depth(
    served: RunningService, beginning: str
) -> None:
    short, deep = [
        await served.client.get(beginning + path, headers=BROWSER)
        for path in ("x/y", "/".join(["x"] * 480))
    ]
    assert (short.status_code, deep.status_code) == (404, 404)
    assert len(deep.content) <= len(short.content) + MAX_ECHO
    assert all(link.startswith("/") for link in Page(deep).links if not link.startswith("#"))


@pytest.mark.parametrize(
    "path",
    [
        *("/?timeframe={}", "/?indicator={}", "/?sort={}", "/?text={}"),
        *(f"/feed?{name}={{}}" for name in ("tier", "direction", "timeframe", "indicator")),
        *(f"/feed?{name}={{}}" for name in ("ticker", "since", "limit", "offset", "order")),
        *(f"/flips?{name}={{}}" for name in ("hours", "direction", "timeframe", "asset_class")),
        *(f"/confluence?{name}={{}}" for name in ("min_agree", "as_of", "direction")),
        *("/assets?text={}", "/assets?asset_class={}", "/assets/BTC?timeframe={}"),
        *("/checkout/paid?session_id={}", "/sandbox/checkout/{}"),
        *("/oauth/consent?request={}", "/oauth/authorize?client_id={}", "/oauth/buy?request={}"),
        *("/assets/{}", "/docs/{}", "/sign-in/{}", "/{}", "/x?{}"),
    ],
)
async def test_no_page_repeats_more_than_100_characters_of_a_bad_value(
    served: RunningService, path: str
) -> None:
    # A path may have 1 KB, a query more.
    value = LONG if "?" in path else LONG[:900]
    answer = await served.client.get(path.format(value), headers=BROWSER)
    assert "z" * (MAX_ECHO + 1) not in answer.text


@pytest.mark.parametrize(
    ("path", "field", "others"),
    [
        ("/sign-in", "contact_email", {}),
        ("/buy", "contact_email", {"billing": "monthly"}),
        ("/buy", "billing", {"contact_email": "a@example.com"}),
        ("/oauth/consent", "request", {"action": "allow"}),
        ("/oauth/consent", "action", {"request": "pending"}),
        ("/oauth/buy", "contact_email", {"request": "pending", "billing": "monthly"}),
        ("/oauth/buy", "billing", {"request": "pending", "contact_email": "a@example.com"}),
    ],
)
async def test_a_too_long_field_of_a_form_is_refused_and_cut(
    served: RunningService, path: str, field: str, others: dict[str, str]
) -> None:
    pending = await add_request(served)
    sent = {name: pending.id if text == "pending" else text for name, text in others.items()}
    answer = await served.client.post(path, data={**sent, field: LONG}, headers=BROWSER)
    assert answer.status_code in (400, 404)
    assert "z" * 255 not in answer.text


async def test_a_too_long_field_of_a_members_form_is_refused_and_cut(
    member: MemberBrowser,
) -> None:
    keys = await member.find_keys_path()
    await member.create_and_read_key("laptop")
    key = await member.find_key_path("laptop")
    for path, field in [
        *((keys, "label"), (keys, "expires"), (f"{key}/label", "label")),
        *((f"{key}/rotate", "overlap"), ("/watchlist", "add"), ("/watchlist", "form_token")),
    ]:
        answer = await member.send_form(path, **{field: LONG})
        assert answer.status_code in (400, 403, 404)
        assert "z" * 121 not in answer.text


@pytest.mark.parametrize(
    "beginning", ["a@example.com", "a@example.com" + " " * 300, "e\u0301" * 100 + "@example.com"]
)
async def test_the_beginning_of_a_too_long_address_is_no_address(
    served: RunningService, beginning: str
) -> None:
    for path in ("/sign-in", "/buy"):
        typed = {"contact_email": beginning.ljust(400) + "z", "billing": "monthly"}
        answer = await fetch(served.client, "POST", path, 400, data=typed)
        assert "not an e-mail address" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        *("/sign-in", "/buy", "/oauth/consent", "/oauth/buy", "/sign-in/sl_x"),
    ],
)
async def test_a_form_has_at_most_8_kib(served: RunningService, path: str) -> None:
    answer = await fetch(
        served.client, "POST", path, 413, content=b"x=" + b"z" * 8191, headers=BROWSER
    )
    assert "exceeds 8 KiB" in answer.text


SAMPLED = {"BTC", "ETH", "SOL", "XRP", "NVDA", "AAPL", "TSLA", "XAU", "XAG"}
# Those that the deployment covers: any other asset has no page.
COVERED = ("BTC", "ETH", "NVDA", "XAU")


@pytest.mark.clause("15.6")
@pytest.mark.parametrize("timeframe", TIMEFRAMES)
async def test_every_asset_of_the_sample_board_has_a_page_that_ends_in_its_readings(
    served: RunningService, timeframe: str
) -> None:
    board = (await served.client.get(f"/board.json?timeframe={timeframe}")).json()["assets"]
    assert {asset["ticker"] for asset in board} == SAMPLED
    for asset in board:
        answer = await served.client.get(f"/assets/{asset['ticker']}?timeframe={timeframe}")
        # Any other asset has no page.
        assert answer.status_code == (200 if asset["ticker"] in COVERED else 404)
        if answer.status_code == 404:
            continue
        chart = Page(answer).chart
        ends = {lane["name"]: lane["spans"][-1][0] for lane in chart["lanes"]}
        assert ends == {NAMES[key]: cells[timeframe] for key, cells in asset["readings"].items()}
        if timeframe == "1h":
            assert chart["bars"][3][-1] == asset["last_close_usd"]


@pytest.mark.clause("15.6")
async def test_rows_of_the_sample_feed_are_on_the_pages_with_a_bar_at_their_price(
    served: RunningService,
) -> None:
    sample = SignalsResponse.model_validate_json(render_sample())
    rows = [row for row in sample.signals if row.ticker in COVERED]
    assert rows
    for row in rows:
        fired_s = int(row.id.rsplit(".", 3 if row.action else 2)[1])
        page = Page(await served.get_page(f"/assets/{row.ticker}?timeframe={row.timeframe}"))
        closes = dict(zip(page.chart["closes"], page.chart["bars"][3], strict=True))
        assert closes[fired_s] == row.price
        marks = [mark["data-text"] for mark in page.find_all("use") if "data-text" in mark]
        assert any(row.indicator_name in mark for mark in marks)
        assert row.indicator_name in [cells[1] for cells in page.rows if len(cells) == 4]


async def test_visitors_see_the_sample_marked_as_such_and_how_to_get_access(served):
    page = await get_board(
        served,
        "a simulated market",
        is_member=False,
        links=["./sign-in", "./buy", "./docs"],
    )
    shown = parse_heat_map(page)
    assert (shown.keys(), tuple(shown["BTC"])) == (SAMPLED, tuple(NAMES.values()))
    assert page.text.count("Sample, not live data") == 2  # The badge and the notice.
    # And the public counts.
    text = " ".join(page.text.split())
    stats = (await served.client.get("/api/v1/stats")).json()
    assert "4 of 5 assets: 3 crypto, 2 stocks and metals" in text
    assert f"Changes in 30 days{stats['universe_tier']['total_signals']} " in text


@pytest.mark.prove
async def test_the_sample_board_agrees_with_the_sample_feed(served):
    sample = (await served.client.get("/api/v1/signals/sample")).json()
    newest = {}
    for row in sample["signals"][::-1]:
        if row["transition"]:
            newest[row["ticker"], row["indicator"], row["timeframe"]] = row
    assert len(newest) > 3
    for row in newest.values():
        page = await get_board(served, is_member=False, timeframe=row["timeframe"])
        assert parse_board(page)[row["ticker"]][row["indicator_name"]] == row["transition"]["to"]


@pytest.mark.clause("1.38")
async def test_a_viewer_without_a_plan_sees_the_visitors_page(served):
    cookie = await create_session_cookie(served.access, served.clock, is_member=False)
    lapsed = check_page(await served.get_page("/", cookie=cookie), 200, WELCOME)
    assert parse_heat_map(lapsed) == parse_heat_map(await get_board(served, is_member=False))
    assert "Sample, not live data" in (await served.get_page("/assets/BTC", cookie=cookie)).text


@pytest.mark.clause("1.38")
async def test_no_reading_ever_reaches_a_visitor(
    served_alone: RunningService,
):
    async def seen() -> list[str]:
        paths = ("/", "/?timeframe=1d", "/?text=btc", "/assets/BTC", "/assets/MATIC?timeframe=1h")
        pages = [await served_alone.get_page(path) for path in paths]
        counted = re.compile(r"(Changes in 30 days</dt><dd>)[0-9,]+")
        return [counted.sub(r"\1", page.text) for page in pages]

    before, members = await seen(), parse_heat_map(await get_board(served_alone))
    rows = [
        make_change(LATER, row.ticker, row.indicator, row.timeframe, -1 if row.reading else 1, 0)
        for row in await served_alone.market.readings()
    ]
    spaced = [row._replace(created_at=LATER + place) for place, row in enumerate(rows)]
    await served_alone.market.commit(make_batch(LATER, spaced))
    assert parse_heat_map(await get_board(served_alone)) != members
    assert await seen() == before
    assert "101.50" not in "".join(before)  # The price of every row of the store.


async def test_before_the_first_run_members_get_503_and_visitors_the_sample(
    served_empty: RunningService,
):
    for path in ("/", "/feed", "/flips", "/confluence", "/assets/BTC"):
        answer = await served_empty.get_page(path, is_member=True)
        check_page(answer, 503, "Not ready yet", "Nothing has been computed yet")
        assert answer.headers["retry-after"] == "900"
        shown = await served_empty.get_page(path)
        # Which assets have a page is only known after a run.
        assert shown.status_code == (503 if "assets" in path else 200)
    board = await get_board(served_empty, is_member=False)
    assert parse_heat_map(board).keys() == SAMPLED
    assert "no data of its own yet. Nothing has been computed yet" in " ".join(board.text.split())


@pytest.mark.clause("15.6")
@pytest.mark.parametrize(
    ("path", "expected", "unexpected"),
    [
        # No time passes in the sample.
        ("/confluence?as_of=2026-11-01T00:00:00Z", "2026-10-02", "2026-11-30"),
        ("/feed?ticker=ADA", "The sample does not have this asset.", "repeated"),
        ("/feed?ticker=BTC&ticker=ETH", "repeated", "The sample does not have this asset."),
    ],
)
async def test_a_filter_of_the_sample_is_refused_for_what_it_lacks(
    served_alone: RunningService, path: str, expected: str, unexpected: str
) -> None:
    served_alone.clock.now += 60 * 24 * HOUR_MS
    answer = await fetch(served_alone.client, "GET", path, 400)
    assert expected in answer.text
    assert unexpected not in answer.text


@pytest.mark.clause("16.4")
async def test_only_the_board_hides_the_prices_of_the_sample(tmp_path: Path, seeded: Path) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path, shows_prices=False) as running:
        board = (await running.client.get("/board.json")).json()["assets"]
        chart = Page(await running.client.get("/assets/BTC")).chart
        feed = (await running.client.get("/feed.csv")).text
    assert not any("last_close_usd" in asset for asset in board)
    assert chart["bars"]
    assert "price" in feed.splitlines()[0].split(",")

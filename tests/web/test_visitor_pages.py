"""A page without a session costs little, whatever is asked: kept bytes, and bounded texts."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from schemas.vocabulary import HOUR_MS
from tests.support.example_market import NOON, make_batch, make_change
from tests.support.running_service import RunningService
from tests.support.web_page import Page, add_request, buy_plan, open_member_browser
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


def get_pages(served: RunningService) -> VisitorPages:
    pages: VisitorPages = served.app.state.site.visitor_pages
    return pages


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
    assert get_pages(served).rendered == 1
    later = NOON + HOUR_MS
    await served.market.commit(make_batch(later, [make_change(later, "BTC", "enzo", "1d", -1, 1)]))
    await get_together()
    assert get_pages(served).rendered == 2


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
    assert get_pages(served).rendered == 0


async def test_parameters_that_a_page_ignores_lead_to_the_same_bytes(
    served: RunningService,
) -> None:
    for path in ("/docs", "/feed", "/assets", "/assets/BTC", "/"):
        answers = [await served.client.get(f"{path}{query}") for query in ("", "?utm_source=x")]
        assert answers[0].content == answers[1].content
    assert get_pages(served).rendered == 5


async def test_the_kept_pages_have_a_bounded_size(served: RunningService) -> None:
    pages = VisitorPages(max_bytes=1)
    served.app.state.site = replace(served.app.state.site, visitor_pages=pages)
    # Of pages that exceed the bound together, only the newest is kept.
    for path, rendered in [("/feed", 1), ("/feed", 1), ("/flips", 2), ("/feed", 3), ("/flips", 4)]:
        assert (await served.client.get(path)).status_code == 200
        assert pages.rendered == rendered


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


async def send_too_long(
    client: httpx.AsyncClient, path: str, field: str, others: dict[str, str]
) -> httpx.Response:
    return await client.post(path, data={**others, field: LONG}, headers=BROWSER)


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
    answer = await send_too_long(served.client, path, field, sent)
    assert answer.status_code in (400, 404)
    assert "z" * 255 not in answer.text


async def test_a_too_long_field_of_a_members_form_is_refused_and_cut(
    served: RunningService,
) -> None:
    await buy_plan(served)
    async with open_member_browser(served) as member:
        keys = await member.find_keys_path()
        await member.create_and_read_key("laptop")
        key = await member.find_key_path("laptop")
        for path, field in [
            (keys, "label"),
            (keys, "expires"),
            (f"{key}/label", "label"),
            (f"{key}/rotate", "overlap"),
            ("/watchlist", "add"),
            ("/watchlist", "form_token"),
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
        answer = await served.client.post(path, data=typed)
        assert answer.status_code == 400
        assert "not an e-mail address" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        *("/sign-in", "/buy", "/oauth/consent", "/oauth/buy", "/sign-in/sl_x"),
    ],
)
async def test_a_form_has_at_most_8_kib(served: RunningService, path: str) -> None:
    answer = await served.client.post(path, content=b"x=" + b"z" * 8191, headers=BROWSER)
    assert answer.status_code == 413
    assert "exceeds 8 KiB" in answer.text

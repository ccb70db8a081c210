"""Errors are pages for browsers, with a next step; programs get the error body.

Markdown as HTML: links, anchors, tables, code, and escaped text.
"""

import re
import xml.etree.ElementTree as ET
from urllib.parse import urlsplit

import httpx
import pytest

from compute.indicators.registry import INDICATORS
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_IDS
from tests.support.running_service import RunningService, served as served
from tests.support.web_page import Page, check_page
from web.docs import (
    GUIDES,
    list_shown_links,
    load_changes,
    parse_article,
    render_inline,
)

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
JSON = "application/json"


def read_steps(answer: httpx.Response) -> list[str]:
    """Return the links of the page's content, without those of its header and footer."""
    content = answer.text.partition("<main")[2].partition("</main>")[0]
    return Page(httpx.Response(200, html=content)).links


@pytest.mark.clause("20.1", "20.2")
@pytest.mark.parametrize(
    ("method", "path", "status", "title", "step"),
    [
        *(
            ("GET", path, 404, "Page not found", step)
            for path, step in (
                ("/nonsense", "/"),
                ("/aset", "/assets"),
                ("/conflunce/x", "/confluence"),
                ("/settings/nonsense", "/settings/api-access"),
                ("/sign-in/x/y", "/sign-in"),
                ("/sandbox/nonsense", "/buy"),
                ("/docs2/x", "/docs"),
            )
        ),
        ("POST", "/sign-in/sl_unknown", 404, "Not found", "/sign-in"),
        ("GET", "/?timeframe=9h", 400, "Something went wrong", "/"),
        ("GET", "/sandbox/checkout/unknown", 404, "Not found", "/buy"),
        *(
            ("DELETE", path, 405, "Not available this way", path)
            for path in ("/", "/docs", "/assets/BTC")
        ),
        # From another site.
        ("POST", "/settings/api-access", 403, "Not sent from here", "/settings/api-access"),
    ],
)
async def test_an_error_is_a_page_with_a_next_step(
    served: RunningService, method: str, path: str, status: int, title: str, step: str
) -> None:
    origin = {"Origin": "https://evil.example"} if status == 403 else {}
    answer = await served.client.request(method, path, headers=BROWSER | origin)
    page = check_page(answer, status, title)
    assert httpx.URL(served.base_url + path).join(read_steps(answer)[0]).path == step
    # Only a checkout is begun by an agent.
    assert ("api/v1" in page.text) is ("/checkout/" in path)
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


@pytest.mark.clause("20.1")
@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/html;q=0.5, */*"])
async def test_a_program_gets_the_error_body(served: RunningService, accept: str) -> None:
    for path in ("/nonsense", "/sandbox/checkout/unknown"):
        answer = await served.client.get(path, headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, JSON)
        assert answer.json()["error"] == "invalid_parameter"


@pytest.mark.clause("20.1")
@pytest.mark.parametrize(
    "path", ["/api/v1/nope", "/api/nope", "/mcp/x", "/.well-known/x", "/oauth/token", "/legal/x"]
)
async def test_the_api_has_no_error_pages(served: RunningService, path: str) -> None:
    answer = await served.client.request("DELETE", path, headers=BROWSER)
    assert answer.status_code in (404, 405)
    assert answer.headers["content-type"] == JSON


@pytest.mark.clause("20.3")
async def test_the_page_of_a_wrong_host_names_the_right_address(served: RunningService) -> None:
    headers = {**BROWSER, "Host": "evil.example"}
    answer = await served.client.get("/assets/<b>", headers=headers)
    page = check_page(answer, 421, "Wrong address", "SIGNALS_ALLOWED_HOSTS")
    assert page.links == [f"{served.base_url}/assets/%3Cb%3E"]
    # Nothing is loaded from the wrong host, which would refuse it too.
    assert not page.find_all("script") + page.find_all("link")
    answer = await served.client.get("/api/v1", headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (421, JSON)


@pytest.mark.clause("20.4")
@pytest.mark.parametrize(
    "path", ["/", "/docs", "/docs/getting-started", "/sign-in", "/web/page.css"]
)
async def test_head_has_the_headers_of_get_and_no_body(served: RunningService, path: str) -> None:
    got, head = await served.client.get(path), await served.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-security-policy", "cache-control"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.clause("20.6")
async def test_an_error_page_asks_only_visitors_to_sign_in(served: RunningService) -> None:
    for is_member in (True, False):
        answer = await served.get_page("/nonsense", is_member=is_member, **BROWSER)
        assert ("/sign-in" in check_page(answer, 404, "Page not found").links) is not is_member


VISITOR_PAGES = ["./", "./feed", "./flips", "./confluence", "./assets", "./docs"]
PUBLIC = ["/", "/docs", "/sign-in", "/assets/BTC", "/assets/ETH"]
NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


def read_header(text: str) -> list[str]:
    """Return the links of a page's header, after those to its content and to the board."""
    header = text.partition("<header>")[2].partition("</header>")[0]
    return re.findall(r'href="([^"]+)"', header)[1:]


def read_meta(page: Page) -> dict[str, str]:
    return {
        one.get("name") or one["property"]: one["content"]
        for one in page.find_all("meta")
        if "content" in one
    }


@pytest.mark.clause("1.48", "20.6")
async def test_a_visitor_sees_how_to_buy_and_sign_in_and_a_member_their_keys(
    served: RunningService,
) -> None:
    visitors = await served.get_page("/")
    assert read_header(visitors.text) == [*VISITOR_PAGES, "./buy", "./sign-in"]
    assert f"Signals {VERSION}" in visitors.text.partition("<footer>")[2]
    members = await served.get_page("/", is_member=True)
    assert read_header(members.text) == [*VISITOR_PAGES, "./settings/api-access"]
    assert Page(members).actions[0] is None  # the button to sign out


@pytest.mark.clause("20.7")
async def test_every_page_has_a_title_and_a_description_of_its_own_and_a_picture(
    served: RunningService,
) -> None:
    texts: set[str] = set()
    for path in [*PUBLIC, *(f"/docs/{link.name}" for link in list_shown_links(sells_keys=True))]:
        page = Page(await served.get_page(path))
        meta = read_meta(page)
        assert not texts & {meta["description"], meta["og:title"]}, path
        texts |= {meta["description"], meta["og:title"]}
        assert 25 <= len(meta["description"]) <= 200, path
        assert meta["og:description"] == meta["description"]
        assert meta["og:title"] in page.text
        if "robots" not in meta:
            assert meta["og:url"] == served.base_url + path
        image = await served.client.get(urlsplit(meta["og:image"]).path)
        assert meta["og:image"].startswith(served.base_url)
        width, height = int(meta["og:image:width"]), int(meta["og:image:height"])
        assert image.content[16:24] == width.to_bytes(4, "big") + height.to_bytes(4, "big")
        assert len(image.content) < 100_000


@pytest.mark.clause("20.7")
async def test_every_icon_is_served_with_its_type(served: RunningService) -> None:
    links = Page(await served.get_page("/docs/getting-started")).find_all("link")
    icons = {link["rel"]: f"/docs/{link['href']}" for link in links if "icon" in str(link["rel"])}
    icons["fallback"] = "/favicon.ico"
    assert {
        name: (await served.client.get(path)).headers["content-type"]
        for name, path in icons.items()
    } == {
        "icon": "image/svg+xml",
        "apple-touch-icon": "image/png",
        "fallback": "image/x-icon",
    }


@pytest.mark.clause("20.8")
async def test_crawlers_find_every_public_page_and_no_private_one(served: RunningService) -> None:
    rules = (await served.client.get("/robots.txt")).text
    assert f"Sitemap: {served.base_url}/sitemap.xml" in rules
    hidden = re.findall(r"Disallow: (\S+)", rules)
    assert "/settings" in hidden
    sitemap = ET.fromstring((await served.client.get("/sitemap.xml")).text)
    found = [str(one.text) for one in sitemap.iter(f"{NAMESPACE}loc")]
    assert {f"{served.base_url}/docs/{link.name}" for link in list_shown_links(sells_keys=True)} < {
        *found
    }
    paths = [address.removeprefix(served.base_url) for address in found]
    assert not [path for path in paths if path.startswith(tuple(hidden))]


@pytest.mark.clause("20.7")
async def test_a_static_text_is_compressed_if_the_browser_accepts_it(
    served: RunningService,
) -> None:
    plain, packed, picture = [
        await served.client.get(f"/web/{name}", headers={"Accept-Encoding": encoding})
        for name, encoding in (
            ("rapidoc.js", "identity"),
            ("rapidoc.js", "gzip"),
            ("preview.png", "gzip"),
        )
    ]
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.content) == ("gzip", plain.content)
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in picture.headers


TEXT = """# A *title*

One `first` sentence
over two lines. Another.

<!-- generated: rows -->
| a | b |
| --- | --: |
| 1 | 2 |
<!-- end -->

## What `meta` says, twice

[page](other.md), [part](other.md#a-part), [own](#what-meta-says-twice), [file](../CONTRIBUTING.md),
[missing](gone.md) and [elsewhere](https://example.org/x.md).

## What meta says, twice

```sh
echo "<b>" & done
```
"""


@pytest.mark.clause("pages")
def test_an_article_has_a_title_a_summary_and_unique_anchors() -> None:
    read = parse_article(TEXT, ["other"])
    assert (read.title, read.about) == ("A title", "One first sentence over two lines.")
    assert [(level, id_) for level, id_, _ in read.headings] == [
        (2, "what-meta-says-twice"),
        (2, "what-meta-says-twice-1"),
    ]
    for _, id_, _ in read.headings:
        assert f'<h2 id="{id_}">' in read.html
    assert "<h1" not in read.html


@pytest.mark.clause("pages")
def test_links_lead_to_pages_and_others_become_text() -> None:
    html = parse_article(TEXT, ["other"]).html
    links = (
        '<a href="other">page</a>, <a href="other#a-part">part</a>',
        '<a href="#what-meta-says-twice">own</a>, file,',
        'missing and <a href="https://example.org/x.md">elsewhere</a>',
    )
    assert [link for link in links if link not in html] == []


@pytest.mark.clause("pages")
def test_tables_and_code_scroll_by_keyboard_and_marks_are_left_out() -> None:
    html = parse_article(TEXT, []).html
    parts = (
        *('tabindex="0"><table>', '<td class="right">2</td>'),
        '<pre tabindex="0" data-copy><code>echo &#34;&lt;b&gt;&#34; &amp; done\n',
    )
    assert [part for part in parts if part not in html] == []
    assert html.count("</table></div>") == 1
    assert not re.search("style|generated", html)


@pytest.mark.clause("pages")
@pytest.mark.clause("19.7")
def test_what_is_for_developers_is_left_out() -> None:
    left_out = "<!-- developers -->\n## Two\n\n`make`\n\n<!-- end of developers -->\n"
    read = parse_article(f"# T\n\nOne.\n\n{left_out}Three.\n", [])
    assert (read.html, read.headings) == ("<p>One.</p>\n<p>Three.</p>\n", ())


@pytest.mark.clause("pages")
@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        '<img src=x onerror="alert(1)">',
        "[x](javascript:alert(1))",
        "[x](data:text/html,x)",
        "[x](//evil.example/x.md)",
        "[x](http://evil.example/other.md)",
    ],
)
def test_hostile_text_stays_text(hostile: str) -> None:
    html = parse_article(f"# T\n\n{hostile}\n", ["other"]).html
    assert not [start for start in ("<script", "<img", "<a ") if start in html]
    assert "<script" not in render_inline(hostile)


@pytest.mark.clause("19.9")
async def test_the_page_explains_every_indicator_with_a_picture_and_its_changes_a_month(
    served: RunningService,
) -> None:
    answer = await served.client.get("/docs/indicator-guide")
    page = Page(answer)
    labels = [str(picture["aria-label"]) for picture in page.find_all("svg")]
    assert [label.partition(":")[0] for label in labels] == [one.name for one in INDICATORS]
    for one, picture in zip(INDICATORS, answer.text.split("<svg")[1:], strict=True):
        shown = set(re.findall(r'class="run (\w+)"', picture.partition("</svg>")[0]))
        assert shown == {"bullish", "neutral", "bearish"}
        guide = GUIDES[one.id]
        assert guide[0] == one.name
        assert all(text in page.text for text in guide)
        assert f"../docs/indicators#{one.id.replace('_', '-')}" in page.links
    assert {"trend-oracle", "bayesian-trend", "perpkit"} <= set(page.ids)
    changes = load_changes()
    assert set(changes) == set(INDICATOR_IDS)
    # docs/indicators.md, by hand: Trend Oracle changes once a day on 1h for crypto.
    assert changes["trend_oracle"][:3] == [1.00, 0.26, 0.05]
    # 1.00, 0.26 and 0.05 a day, and 0.21, 0.08 and 0.03 a day, times 30.
    assert "crypto: 30 on 1h, 8 on 4h, 1.5 on 1d; stocks: 6 on 1h, 2 on 4h, 0.9 on 1d." in page.text

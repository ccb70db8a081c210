"""What every page has: navigation by role, footer, descriptions, icons; files for crawlers."""

import re
import xml.etree.ElementTree as ET
from urllib.parse import urlsplit

import pytest

from schemas.version import VERSION
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page
from web.docs import list_shown_links

VISITOR_PAGES = ["./", "./feed", "./flips", "./confluence", "./assets", "./docs"]
PUBLIC = ["/", "/docs", "/sign-in", "/assets/BTC", "/assets/ETH"]
NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


def read_header(text: str) -> list[str]:
    """Return the links of a page's header, after those to its content and to the board."""
    header = text.partition("<header>")[2].partition("</header>")[0]
    return re.findall(r'href="([^"]+)"', header)[1:]


def read_meta(page: Page) -> dict[str, str]:
    names = [
        (one.get("name") or one.get("property"), one.get("content"))
        for one in page.find_all("meta")
    ]
    return {name: content for name, content in names if name and content}


@pytest.mark.clause("20.6")
async def test_a_visitor_sees_how_to_buy_and_sign_in(served: RunningService) -> None:
    answer = await served.get_page("/")
    assert read_header(answer.text) == [*VISITOR_PAGES, "./buy", "./sign-in"]


@pytest.mark.clause("20.6")
async def test_a_member_sees_their_keys_and_no_offer(served: RunningService) -> None:
    answer = await served.get_page("/", is_member=True)
    assert read_header(answer.text) == [*VISITOR_PAGES, "./settings/api-access"]
    assert Page(answer).actions[0] is None  # the button to sign out


@pytest.mark.clause("20.7")
async def test_every_page_has_a_title_and_a_description_of_its_own_and_a_picture(
    served: RunningService,
) -> None:
    described: dict[str, str] = {}
    titles: dict[str, str] = {}
    for path in [*PUBLIC, *(f"/docs/{link.name}" for link in list_shown_links(sells_keys=True))]:
        page = Page(await served.get_page(path))
        meta = read_meta(page)
        described[path] = meta["description"]
        titles[path] = meta["og:title"]
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
    for texts in (described, titles):
        assert len({*texts.values()}) == len(texts), texts


@pytest.mark.clause("20.7")
async def test_every_icon_is_served_with_its_type(served: RunningService) -> None:
    links = Page(await served.get_page("/docs/faq")).find_all("link")
    icons = {link["rel"]: f"/docs/{link['href']}" for link in links if "icon" in str(link["rel"])}
    icons["fallback"] = "/favicon.ico"
    types = {
        name: (await served.client.get(path)).headers["content-type"]
        for name, path in icons.items()
    }
    assert types == {
        "icon": "image/svg+xml",
        "apple-touch-icon": "image/png",
        "fallback": "image/x-icon",
    }


@pytest.mark.clause("1.48", "20.6")
async def test_the_footer_names_the_version(served: RunningService) -> None:
    footer = (await served.get_page("/sign-in")).text.partition("<footer>")[2]
    assert f"Signals {VERSION}" in footer


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

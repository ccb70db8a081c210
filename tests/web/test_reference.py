"""The reference pages over a real socket: public, short, and without dead links."""

from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest

from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import MAX_BYTES, Page, check_page
from web.docs_tree import OPERATORS, PAGE_ORDER, PAGES_BY_READER
from web.reference_pages import list_page_links

pytestmark = pytest.mark.clause("pages")

ROOT = Path(__file__).parents[2]
# Links that install the server open a host on the reader's machine.
INSTALL_SCHEMES = ("cursor://", "vscode:mcp/", "lmstudio://", "goose://")
TITLES = {link.name: link.title for link in list_page_links(sells_keys=True)}
A_MINUTE = "public, max-age=60"
# `connect` is generated with the server's own address, the others are for developers.
NO_PAGES = {"README", "architecture", "connect", "decisions", "evals", "glossary", "performance"}


@pytest.mark.parametrize("name", ["", *TITLES])
async def test_a_page_is_public_short_and_cached_for_a_minute(
    served: RunningService, name: str
) -> None:
    path = f"/docs/{name}".removesuffix("/")
    answer = await served.client.get(path)
    page = check_page(answer, 200, TITLES.get(name, "Documentation"), A_MINUTE)
    metas = {meta["name"]: meta.get("content") for meta in page.find_all("meta") if "name" in meta}
    assert "robots" not in metas
    assert 30 < len(str(metas["description"])) < 200
    size = len(answer.content)
    for link in (*page.find_all("link"), *page.find_all("script")):
        asset = await served.client.get(urljoin(path, str(link.get("href") or link.get("src"))))
        assert asset.status_code == 200
        size += len(asset.content)
    assert size < MAX_BYTES


async def test_every_link_and_anchor_leads_somewhere(served: RunningService) -> None:
    pages: dict[str, Page] = {}
    asked = ["/docs", "/docs/unknown/below"]
    asked += [f"/docs/{name}" for name in TITLES]
    for path in asked:
        pages[path] = Page(await served.client.get(path))
    for path in asked:
        links = {str(link["href"]) for link in pages[path].find_all("a")}
        assert len(links) > len(TITLES)
        for link in links:
            target, anchor = urldefrag(urljoin(served.base_url + path, link))
            to = urlsplit(target).path
            if not target.startswith(served.base_url):
                assert target.startswith(("https://", *INSTALL_SCHEMES)), link
            else:
                if to not in pages:
                    answer = await served.client.get(to, follow_redirects=True)
                    assert answer.status_code == 200, link
                    pages[to] = Page(answer)
                assert not anchor or anchor in pages[to].ids, link


async def test_no_page_has_an_anchor_twice_or_a_heading_without_one(served: RunningService) -> None:
    for name in TITLES:
        page = Page(await served.client.get(f"/docs/{name}"))
        assert len(page.ids) == len(set(page.ids))
        assert all("id" in heading for heading in (*page.find_all("h2"), *page.find_all("h3")))


async def test_the_index_and_a_missing_page_name_every_page(served: RunningService) -> None:
    there = check_page(await served.client.get("/docs"), 200, "Documentation", A_MINUTE)
    for path in ("/docs/unknown", "/docs/", "/docs/tools/state", "/docs/decisions"):
        answer = await served.client.get(path)
        missing = check_page(answer, 404, "Page not found")
        assert {"name": "robots", "content": "noindex"} in missing.find_all("meta")
        for page in (there, missing):
            assert all(title in page.text for title in TITLES.values())
    assert (await served.client.head("/docs/tools")).status_code == 200
    assert (await served.client.post("/docs/tools")).status_code == 405


async def test_the_pages_exist_before_the_first_run(served_empty: RunningService) -> None:
    for name in TITLES:
        assert (await served_empty.client.get(f"/docs/{name}")).status_code == 200


def test_every_text_exists_once_and_each_file_of_docs_is_a_page() -> None:
    texts = list((ROOT / "web" / "texts").iterdir())
    homes = {ROOT / "docs", ROOT / "rest_shim"}
    assert [text for text in texts if not text.is_symlink()] == []
    assert {text.resolve(strict=True).parent for text in texts} == homes
    written = {text.stem for text in (ROOT / "docs").glob("*.md")}
    assert written - NO_PAGES <= {text.stem for text in texts}


@pytest.mark.clause("19.1")
async def test_every_page_has_the_tree_and_its_neighbours(served: RunningService) -> None:
    names = [link.name for link in list_page_links(sells_keys=True)]
    assert sorted(names) == sorted(PAGE_ORDER)
    for place, name in enumerate(PAGE_ORDER):
        page = Page(await served.client.get(f"/docs/{name}"))
        links = page.find_all("a")
        assert {f"../docs/{other}" for other in PAGE_ORDER} <= set(page.links)
        current = [link["href"] for link in links if link.get("aria-current") == "page"]
        assert current == ["../docs", f"../docs/{name}"]
        for rel, at in (("prev", place - 1), ("next", place + 1)):
            expected = [f"../docs/{PAGE_ORDER[at]}"] if 0 <= at < len(PAGE_ORDER) else []
            assert [link["href"] for link in links if link.get("rel") == rel] == expected
        for reader in PAGES_BY_READER:
            assert reader in page.text


@pytest.mark.clause("19.7")
async def test_customers_pages_show_no_records_of_the_project(served: RunningService) -> None:
    for name in set(PAGE_ORDER) - set(PAGES_BY_READER[OPERATORS]):
        text = Page(await served.client.get(f"/docs/{name}")).text
        for internal in ("decisions.md", "clauses.toml", "make prove", "make bench", "tests/"):
            assert internal not in text, (name, internal)
    moved = await served.client.get("/docs/performance")
    assert (moved.status_code, moved.headers["location"]) == (303, "../docs/scaling")


@pytest.mark.clause("19.10")
async def test_a_member_sees_their_navigation_and_no_cache_keeps_it(
    served: RunningService,
) -> None:
    for path in ("/docs", "/docs/tools", "/docs/try/signals_get_state"):
        page = Page(answer := await served.get_page(path, is_member=True))
        assert answer.headers["cache-control"] == "no-store"
        assert [form for form in page.find_all("form") if form.get("method") == "post"]
        visitor = await served.client.get(path)
        assert "sign-out" not in visitor.text
    assert "Cookie" in (await served.client.get("/docs/tools")).headers["vary"]

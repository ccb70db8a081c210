"""The search of the documentation: ranking, prefixes, marked and escaped snippets."""

import pytest

from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page, check_page
from web.docs_search import MAX_RESULTS_PER_PAGE, Section, build_index, search

pytestmark = pytest.mark.clause("19.2")

HTML = """
<nav>Skipped words</nav><article><h1>Keys</h1><p>About <code>api_key</code>, &amp; more.</p>
<h2 id="rotate">Rotate a key</h2><p>The old key works for an hour.</p><svg><text>drawn</text></svg>
<ul><li><span id="4.1"></span><strong>4.1</strong> A <b>quota</b> of calls.</li></ul></article>
"""


def make_section(heading: str, text: str, page: str = "one", title: str = "One") -> Section:
    return Section(page, title, heading.lower(), heading, text)


def test_a_page_is_split_at_headings_and_anchors_without_navigation_and_pictures() -> None:
    sections = build_index({"keys": ("Keys", HTML)})
    assert [(one.anchor, one.heading) for one in sections] == [
        ("", ""),
        ("rotate", "Rotate a key"),
        ("4.1", "4.1"),
    ]
    assert sections[0].text == "Keys About api_key, & more."
    assert sections[1].text == "The old key works for an hour."
    assert sections[2].text == "4.1 A quota of calls."


def test_a_heading_outranks_a_text_and_all_words_outrank_some() -> None:
    index = [
        make_section("Limits", "nothing else"),
        make_section("Other", "a quota here"),
        make_section("Quota", "daily"),
        make_section("Both", "the daily quota"),
    ]
    assert [one.section.heading for one in search("quota", index)] == ["Quota", "Other", "Both"]
    assert [one.section.heading for one in search("quota daily", index)] == ["Quota", "Both"]
    # The words in this order, next to each other, are worth more than a heading.
    assert [one.section.heading for one in search("daily quota", index)] == ["Both", "Quota"]
    assert [one.section.heading for one in search("limits zebra", index)] == ["Limits"]
    assert search("zebra", index) == search("", index) == search("!?", index) == []


def test_a_word_matches_words_that_begin_with_it_and_plurals() -> None:
    index = [make_section("A", "signals_get_state returns one price"), make_section("B", "estate")]
    for query in ("state", "STATES", "get_state", "prices", "sig"):
        assert [one.section.heading for one in search(query, index)] == ["A"], query


def test_one_page_has_only_its_best_sections() -> None:
    index = [make_section(f"Key {place}", "x") for place in range(9)]
    index.append(make_section("Other", "key", page="two"))
    pages = [one.section.page for one in search("key", index)]
    assert pages == ["one"] * MAX_RESULTS_PER_PAGE + ["two"]


def test_a_snippet_shows_the_word_and_stays_text() -> None:
    text = "word " * 100 + "<b>needle & thread</b> " + "word " * 100
    (one,) = search("needle", [make_section("A", text)])
    assert "&lt;b&gt;<mark>needle</mark> &amp; thread" in one.snippet
    assert one.snippet.startswith("… ")
    assert one.snippet.endswith(" …")
    assert len(one.snippet) < 260


async def test_the_search_finds_sections_of_written_and_generated_pages(
    served: RunningService,
) -> None:
    for query, link in (
        ("signals_get_flips", "../docs/tools#signals_get_flips"),
        ("4.9.12", "../docs/contract#4.9.12"),
        ("cooldown publisher", "../docs/indicators#publisher-with-cooldown"),
        ("revoke a key", "../docs/members#create-rename-rotate-and-revoke-keys"),
        ("SIGNALS_PORT", "../docs/settings"),
    ):
        answer = await served.client.get("/docs/search", params={"q": query})
        page = check_page(answer, 200, f"Search: {query}")
        found = [str(href) for href in page.links if href]
        assert any(href.startswith(link) for href in found), query
        assert page.find_all("mark")


async def test_what_was_searched_is_escaped_and_nothing_found_says_what_to_do(
    served: RunningService,
) -> None:
    answer = await served.client.get("/docs/search", params={"q": '"><zzz>'})
    page = check_page(answer, 200, 'Search: "><zzz>')
    assert not page.find_all("zzz")
    assert "Check the spelling" in page.text
    assert page.fields["q"] == '"><zzz>'
    empty = Page(await served.client.get("/docs/search"))
    assert "Type a word or two" in empty.text

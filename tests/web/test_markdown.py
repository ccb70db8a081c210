"""Markdown as HTML: links, anchors, tables, code, and escaped text."""

import re

import pytest

from compute.indicators.registry import INDICATORS
from schemas.vocabulary import INDICATOR_IDS
from tests.support.running_service import RunningService
from tests.support.running_service import served as served
from tests.support.web_page import Page
from web.docs import GUIDES, load_changes, load_picture
from web.markdown import list_code_blocks, parse_article, render_inline

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
    assert [(heading.level, heading.id) for heading in read.headings] == [
        (2, "what-meta-says-twice"),
        (2, "what-meta-says-twice-1"),
    ]
    for heading in read.headings:
        assert f'<h2 id="{heading.id}">' in read.html
    assert "<h1" not in read.html


@pytest.mark.clause("pages")
def test_links_lead_to_pages_and_others_become_text() -> None:
    html = parse_article(TEXT, ["other"]).html
    assert '<a href="other">page</a>, <a href="other#a-part">part</a>' in html
    assert '<a href="#what-meta-says-twice">own</a>, file,' in html
    assert 'missing and <a href="https://example.org/x.md">elsewhere</a>' in html


@pytest.mark.clause("pages")
def test_tables_and_code_scroll_by_keyboard_and_marks_are_left_out() -> None:
    html = parse_article(TEXT, []).html
    assert 'tabindex="0"><table>' in html
    assert '<td class="right">2</td>' in html
    assert "style" not in html
    assert html.count("</table></div>") == 1
    assert '<pre tabindex="0" data-copy><code>echo &#34;&lt;b&gt;&#34; &amp; done\n' in html
    assert "generated" not in html
    assert list_code_blocks(TEXT) == ['echo "<b>" & done\n']


@pytest.mark.clause("pages")
@pytest.mark.clause("19.7")
def test_what_is_for_developers_is_left_out() -> None:
    left_out = "<!-- developers -->\n## Two\n\n`make`\n\n<!-- end of developers -->\n"
    text = f"# T\n\nOne.\n\n{left_out}Three.\n"
    read = parse_article(text, [])
    assert read.html == "<p>One.</p>\n<p>Three.</p>\n"
    assert read.headings == ()


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
@pytest.mark.parametrize("id_", INDICATOR_IDS)
def test_a_picture_shows_all_three_readings(id_) -> None:
    shown = set(re.findall(r'class="run (\w+)"', load_picture(id_)))
    assert shown == {"bullish", "neutral", "bearish"}


@pytest.mark.clause("19.9")
async def test_the_page_explains_every_indicator_with_a_picture(served: RunningService) -> None:
    page = Page(await served.client.get("/docs/indicator-guide"))
    labels = [str(picture["aria-label"]) for picture in page.find_all("svg")]
    assert [label.partition(":")[0] for label in labels] == [one.name for one in INDICATORS]
    for one in INDICATORS:
        guide = GUIDES[one.id]
        assert guide.name == one.name
        assert all(text in page.text for text in guide)
        assert f"../docs/indicators#{one.id.replace('_', '-')}" in page.links
    assert {"trend-oracle", "bayesian-trend", "perpkit"} <= set(page.ids)


@pytest.mark.clause("19.9")
def test_the_changes_a_month_are_those_of_the_measured_table() -> None:
    changes = load_changes()
    assert set(changes) == set(INDICATOR_IDS)
    # docs/indicators.md, by hand: Trend Oracle changes once a day on 1h for crypto.
    assert changes["trend_oracle"][:3] == [1.00, 0.26, 0.05]


@pytest.mark.clause("19.9")
async def test_the_changes_are_shown_per_month(served: RunningService) -> None:
    page = Page(await served.client.get("/docs/indicator-guide"))
    # 1.00, 0.26 and 0.05 a day, and 0.21, 0.08 and 0.03 a day, times 30.
    assert "crypto: 30 on 1h, 8 on 4h, 1.5 on 1d; stocks: 6 on 1h, 2 on 4h, 0.9 on 1d." in page.text

"""The contract is one short page, with a section for the clauses that tests cite."""

import re

import pytest

from tools.clauses import ROOT, read_specification

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "contract.md").read_text()
MAX_WORDS = 5000
# Sections 13 to 20 are one: the pages of a service.
PAGES = {str(number) for number in range(13, 21)}


def test_the_page_is_short():
    shown = re.sub(r"<!--.*?-->|^#+|^- |---|\|", " ", PAGE, flags=re.MULTILINE)
    assert len(PAGE.split()) <= MAX_WORDS
    assert len(shown.split()) <= MAX_WORDS


def test_every_section_of_a_clause_has_a_heading():
    headings = dict(re.findall(r"^##+ (\d[\d.]*) (.+)$", PAGE, re.MULTILINE))
    assert headings.pop("13") == "to 20 Pages"
    titles = read_specification().titles
    assert headings == {id_: titles[id_] for id_ in titles.keys() - PAGES}

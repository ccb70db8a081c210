import pytest

from tools import interop_table as interop

pytestmark = pytest.mark.clause("tests")

PAGE = "before\n<!-- generated: interop -->\nold\n<!-- end -->\nafter\n"
RESULTS = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests">
<testsuite name="pytest" tests="7" timestamp="2026-11-21T22:50:20.123456+00:00">
{cases}
</testsuite>
</testsuites>
"""
CASES = """
<testcase classname="tests.compute.test_bars" name="test_bars_are_whole" time="0.1" />
<testcase classname="tests.interop.test_clients" name="test_it_lists_the_tools[one]" time="0.1">
<properties><property name="interop" value='["one", "1.2", "tools"]' />
</properties></testcase>
<testcase classname="tests.interop.test_clients" name="test_it_lists_the_tools[two]" time="0.1">
<skipped type="pytest.skip" message="npm is not installed">at test_clients.py:1</skipped>
</testcase>
<testcase classname="tests.interop.test_clients" name="test_it_is_refused[one]" time="0.1">
<properties><property name="interop" value='["one", "1.2", "refusals"]' />
</properties></testcase>
<testcase classname="tests.interop.test_clients" name="test_a_quota[one]" time="0.1">
<properties><property name="interop" value='["one", "1.2", "a|b"]' />
</properties><failure message="assert 1 == 2">assert 1 == 2</failure></testcase>
<testcase classname="tests.interop.test_suite" name="test_all_of_it_passes" time="0.1">
<error message="failed on setup">npm ci</error></testcase>
"""


@pytest.fixture
def page(tmp_path):
    page = tmp_path / "interop.md"
    page.write_text(PAGE)
    return page


@pytest.fixture
def results(tmp_path):
    results = tmp_path / "results.xml"
    results.write_text(RESULTS.format(cases=CASES))
    return results


def test_the_table_has_a_row_for_each_client_and_outcome(page, results):
    assert interop.main([str(results)], page) == 0
    assert page.read_text().splitlines() == [
        "before",
        "<!-- generated: interop -->",
        "Run on 2026-11-21.",
        "",
        "| client or suite | version | what ran | outcome |",
        "| --- | --- | --- | --- |",
        "| one | 1.2 | tools; refusals | passed |",
        "| two | - | it lists the tools | skipped: npm is not installed |",
        "| one | 1.2 | a\\|b | failed |",
        "| suite | - | all of it passes | failed |",
        "<!-- end -->",
        "after",
    ]


def test_results_without_interop_tests_do_not_change_the_table(page, results, capsys):
    results.write_text(RESULTS.format(cases=""))
    assert interop.main([str(results)], page) == 1
    assert str(results) in capsys.readouterr().err
    assert page.read_text() == PAGE


def test_the_page_has_a_place_for_the_table():
    assert [match[2] for match in interop.BLOCK_PATTERN.finditer(interop.PAGE.read_text())] == [
        "interop"
    ]

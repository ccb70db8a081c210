"""A search finds our tools by users' questions, among the tools of public servers."""

import json

import pytest

from tests.support.tool_search import (
    DATA,
    HALVES,
    ListedTool,
    RankCounts,
    ToolIndex,
    add_ranks,
    count_ranks,
    list_own_tools,
    read_earlier_tools,
    read_questions,
    read_stop_words,
)

pytestmark = pytest.mark.clause("found")

SERVERS = json.loads((DATA / "public_tools.json").read_text())
ORDERS = ListedTool("place_order", "Places an order.", {"symbol": "What to buy."})
FILES = ListedTool("read_files", "Reads files, directories and entries.", {"path": "The file."})
WEATHER = ListedTool("get_weather", "Returns the weather of a city.", {"city": ""})


@pytest.fixture(scope="module")
def counts() -> dict[str, RankCounts]:
    """The counts by half, and those of all questions."""
    by_half = {half: count_ranks(list_own_tools(), half) for half in HALVES}
    return by_half | {"all": add_ranks(by_half.values())}


def test_the_right_tool_comes_first_for_most_questions(counts):
    assert counts["all"].first / counts["all"].questions >= 0.7


def test_the_right_tool_is_among_the_first_three_for_nearly_all_questions(counts):
    assert counts["all"].first_three / counts["all"].questions >= 0.95


def test_the_unseen_half_is_found_far_better_than_before(counts):
    earlier = count_ranks(read_earlier_tools(), "unseen")
    assert counts["unseen"].first >= 2 * earlier.first
    assert counts["unseen"].first_three >= 1.5 * earlier.first_three


def test_there_are_eighty_questions_about_every_tool():
    halves = [read_questions(half) for half in HALVES]
    questions = [one for half in halves for tool in half.values() for one in tool]
    assert len(questions) == len(set(questions)) == 80
    for half in halves:
        assert half.keys() == {tool.name for tool in list_own_tools()}


def test_the_other_tools_are_those_of_many_servers_with_source_and_licence():
    assert len({server["source"] for server in SERVERS}) >= 8
    for server in SERVERS:
        assert {"server", "source", "path", "commit", "licence"} <= server.keys()
        assert server["tools"]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Which file has the most entries?", FILES),
        ("What is the weather in the city?", WEATHER),
        ("Buy it for me", ORDERS),
        ("symbols", ORDERS),
    ],
)
def test_a_search_ranks_by_words_of_name_description_and_arguments(question, found):
    index = ToolIndex([ORDERS, WEATHER, FILES], read_stop_words())
    assert index.rank(question)[0] == found.name


def test_a_rare_word_counts_more_than_a_common_one():
    index = ToolIndex(
        [
            ListedTool("a", "price price trend", {}),
            ListedTool("b", "price of gold", {}),
            ListedTool("c", "price of files", {}),
        ],
        frozenset(["of"]),
    )
    assert index.rank("price of gold")[0] == "b"

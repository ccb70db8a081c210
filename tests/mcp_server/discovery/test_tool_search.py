"""A search finds our tools by users' questions, among the tools of public servers.

Hosts that load tools on demand search their names and descriptions with BM25, as here.
"""

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from mcp_server.tools.registry import TOOLS

pytestmark = pytest.mark.clause("found")

DATA = Path(__file__).parent
HALVES = ("seen", "unseen")

# The defaults of Apache Lucene.
K1, B = 1.2, 0.75


class ListedTool(NamedTuple):
    """The texts of a listed tool that a host searches."""

    name: str
    description: str
    arguments: Mapping[str, str]

    @property
    def text(self) -> str:
        """The name, the description, and the names and descriptions of all arguments."""
        parts = [self.name, self.description, *self.arguments, *self.arguments.values()]
        return " ".join(parts).replace("_", " ")


class RankCounts(NamedTuple):
    """How many questions find the right tool first, and how many among the first three."""

    first: int
    first_three: int
    questions: int


class ToolIndex:
    """An index of the texts of tools. `stop_words` are not searched for."""

    def __init__(self, tools: Iterable[ListedTool], stop_words: Container[str]) -> None:
        self._stop_words = stop_words
        self._words = {tool.name: Counter(self._split(tool.text)) for tool in tools}
        self._mean_length = sum(map(Counter.total, self._words.values())) / len(self._words)
        self._frequencies = Counter(word for words in self._words.values() for word in words)

    def rank(self, question: str) -> list[str]:
        """Return the names of all tools, the best match first."""
        asked = self._split(question)
        return sorted(self._words, key=lambda tool: -self._score(asked, self._words[tool]))

    def _split(self, text: str) -> list[str]:
        """Return the words of a text in lower case and singular, without stop words."""
        words = re.findall(r"[a-z0-9]+(?:,\d+)*", text.lower())
        return [_strip_plural(word) for word in words if word not in self._stop_words]

    def _score(self, asked: Sequence[str], words: Counter[str]) -> float:
        norm = K1 * (1 - B + B * words.total() / self._mean_length)
        return sum(self._weigh(word) * words[word] / (words[word] + norm) for word in asked)

    def _weigh(self, word: str) -> float:
        """Return the inverse document frequency of a word."""
        count = self._frequencies[word]
        return math.log(1 + (len(self._words) - count + 0.5) / (count + 0.5))


def _strip_plural(word: str) -> str:
    """Return a word without its plural ending, by the rules of Harman's S stemmer."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return f"{word[:-3]}y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def list_own_tools() -> list[ListedTool]:
    """Return the tools of this server."""
    return [
        ListedTool(
            tool.name,
            tool.description,
            {name: field.description or "" for name, field in tool.query.model_fields.items()},
        )
        for tool in TOOLS
    ]


def read_earlier_tools() -> list[ListedTool]:
    """Return the tools as they were described before the questions were written."""
    listed = json.loads((DATA / "earlier_tools.json").read_text())
    return [ListedTool(**tool) for tool in listed]


def read_public_tools() -> list[ListedTool]:
    """Return the tools of all public servers."""
    servers = json.loads((DATA / "public_tools.json").read_text())
    return [ListedTool(**tool) for server in servers for tool in server["tools"]]


def read_stop_words() -> frozenset[str]:
    """Return the function words of English, as NLTK lists them."""
    return frozenset((DATA / "stop_words.txt").read_text().split())


def read_questions(half: str) -> Mapping[str, Sequence[str]]:
    """Return the questions of a half by the tool that answers them."""
    return tomllib.loads((DATA / f"{half}_questions.toml").read_text())


def count_ranks(own: Iterable[ListedTool], half: str) -> RankCounts:
    """Return how well the right tools are found among the public ones."""
    index = ToolIndex([*own, *read_public_tools()], read_stop_words())
    # 1 if the right tool comes first.
    ranks = [
        index.rank(question).index(tool) + 1
        for tool, questions in read_questions(half).items()
        for question in questions
    ]
    return RankCounts(
        sum(rank == 1 for rank in ranks), sum(rank <= 3 for rank in ranks), len(ranks)
    )


def add_ranks(counts: Iterable[RankCounts]) -> RankCounts:
    """Return the sums of some counts."""
    return RankCounts(*map(sum, zip(*counts, strict=True)))


SERVERS = json.loads((DATA / "public_tools.json").read_text())
ORDERS = ListedTool("place_order", "Places an order.", {"symbol": "What to buy."})
FILES = ListedTool("read_files", "Reads files, directories and entries.", {"path": "The file."})
WEATHER = ListedTool("get_weather", "Returns the weather of a city.", {"city": ""})


@pytest.fixture(scope="module")
def counts() -> dict[str, RankCounts]:
    """The counts by half, and those of all questions."""
    by_half = {half: count_ranks(list_own_tools(), half) for half in HALVES}
    return by_half | {"all": add_ranks(by_half.values())}


@pytest.mark.prove
def test_the_right_tool_often_comes_first(counts):
    assert counts["all"].first / counts["all"].questions >= 0.5


@pytest.mark.prove
def test_the_right_tool_is_among_the_first_three_for_most_questions(counts):
    assert counts["all"].first_three / counts["all"].questions >= 0.75


@pytest.mark.prove
def test_the_unseen_half_is_found_better_than_before(counts):
    earlier = count_ranks(read_earlier_tools(), "unseen")
    assert counts["unseen"].first >= 1.3 * earlier.first
    assert counts["unseen"].first_three >= 1.3 * earlier.first_three


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

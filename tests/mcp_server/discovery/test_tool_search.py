"""A search finds our tools by users' questions, among the tools of public servers.

Hosts that load tools on demand search their names and descriptions with BM25, as here.
"""

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import pytest

from mcp_server.tools.tool_table import TOOLS

pytestmark = pytest.mark.clause("found")

DATA = Path(__file__).parent
HALVES = ("seen", "unseen")
# The questions of each half by the tool that answers them.
QUESTIONS: dict[str, dict[str, list[str]]] = {
    half: tomllib.loads((DATA / f"{half}_questions.toml").read_text()) for half in HALVES
}
SERVERS = json.loads((DATA / "public_tools.json").read_text())
# The function words of English, as NLTK lists them.
STOP_WORDS = frozenset((DATA / "stop_words.txt").read_text().split())
# The defaults of Apache Lucene.
K1, B = 1.2, 0.75


class ToolIndex:
    """An index of the texts of tools by their name. `stop_words` are not searched for."""

    def __init__(self, texts: Mapping[str, str], stop_words: Container[str] = STOP_WORDS) -> None:
        self._stop_words = stop_words
        self._words = {name: Counter(self._split(text)) for name, text in texts.items()}
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


def join_text(name: str, description: str, arguments: Mapping[str, str]) -> str:
    """Return the name, the description, and the names and descriptions of all arguments."""
    return " ".join([name, description, *arguments, *arguments.values()]).replace("_", " ")


def count_ranks(own: Mapping[str, str], half: str) -> tuple[int, int]:
    """Return how often the right tool comes first among the public ones, or is in the first 3."""
    others = {t["name"]: join_text(**t) for server in SERVERS for t in server["tools"]}
    index = ToolIndex({**own, **others})
    ranks = [
        index.rank(question).index(tool)
        for tool, questions in QUESTIONS[half].items()
        for question in questions
    ]
    return sum(rank == 0 for rank in ranks), sum(rank < 3 for rank in ranks)


OWN = {
    tool.name: join_text(
        tool.name,
        tool.description,
        {name: field.description or "" for name, field in tool.query.model_fields.items()},
    )
    for tool in TOOLS
}


@pytest.mark.prove
def test_the_right_tool_often_comes_first_and_mostly_is_among_the_first_three():
    counts = [count_ranks(OWN, half) for half in HALVES]
    first, first_three = map(sum, zip(*counts, strict=True))
    assert first / 80 >= 0.5
    assert first_three / 80 >= 0.75
    # As the tools were described before the questions were written.
    listed = json.loads((DATA / "earlier_tools.json").read_text())
    earlier = count_ranks({tool["name"]: join_text(**tool) for tool in listed}, "unseen")
    assert [now >= 1.3 * then for now, then in zip(counts[1], earlier, strict=True)] == [True, True]


def test_there_are_eighty_questions_about_every_tool():
    questions = [one for half in QUESTIONS.values() for tool in half.values() for one in tool]
    assert len(questions) == len(set(questions)) == 80
    assert all(half.keys() == OWN.keys() for half in QUESTIONS.values())


def test_the_other_tools_are_those_of_many_servers_with_source_and_licence():
    assert len({server["source"] for server in SERVERS}) >= 8
    for server in SERVERS:
        assert {"server", "source", "path", "commit", "licence"} <= server.keys()
        assert server["tools"]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Which file has the most entries?", "read_files"),
        ("What is the weather in the city?", "get_weather"),
        ("Buy it for me", "place_order"),
        ("symbols", "place_order"),
        # A rare word counts more than a common one.
        ("the order of files", "read_files"),
    ],
)
def test_a_search_ranks_by_words_of_name_description_and_arguments(question, found):
    index = ToolIndex(
        {
            "place_order": "place order Places an order. symbol What to buy.",
            "get_weather": "get weather Returns the weather of a city in order. city",
            "read_files": "read files Reads files, folders and entries in order. path The file.",
        }
    )
    assert index.rank(question)[0] == found

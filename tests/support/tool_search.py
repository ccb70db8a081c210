"""Ranks the tools of this server among those of public servers for users' questions, with BM25.

Hosts that load tools on demand search their names and descriptions like this. The questions and the
public tools are data of the tests.
"""

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from mcp_server.tools.registry import TOOLS

DATA = Path(__file__).parents[1] / "mcp_server" / "discovery"
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
    return [ListedTool(tool.name, tool.description, _list_arguments(tool.query)) for tool in TOOLS]


def _list_arguments(query: type[BaseModel]) -> dict[str, str]:
    return {name: field.description or "" for name, field in query.model_fields.items()}


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


def find_ranks(index: ToolIndex, half: str) -> dict[str, int]:
    """Return the rank of the right tool by question of a half, 1 if it comes first."""
    return {
        question: index.rank(question).index(tool) + 1
        for tool, questions in read_questions(half).items()
        for question in questions
    }


def count_ranks(own: Iterable[ListedTool], half: str) -> RankCounts:
    """Return how well the right tools are found among the public ones."""
    ranks = find_ranks(ToolIndex([*own, *read_public_tools()], read_stop_words()), half).values()
    return RankCounts(
        sum(rank == 1 for rank in ranks), sum(rank <= 3 for rank in ranks), len(ranks)
    )


def add_ranks(counts: Iterable[RankCounts]) -> RankCounts:
    """Return the sums of some counts."""
    return RankCounts(*map(sum, zip(*counts, strict=True)))

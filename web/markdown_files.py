"""Loads the Markdown files of web/texts; each is a page.

They are symbolic links into docs/, so each text exists once. A wheel contains their targets.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from web.markdown import Article, list_code_blocks, parse_article


class Example(NamedTuple):
    """A tool call and its result, both as JSON text."""

    arguments: dict[str, Any]
    call: str
    answer: str


@cache
def load_articles(other_pages: tuple[str, ...]) -> dict[str, Article]:
    """Return all articles by name; they can link to each other and to `other_pages`."""
    names = [name.removesuffix(".md") for name in _list_file_names() if name.endswith(".md")]
    return {name: parse_article(read_text(name), [*other_pages, *names]) for name in names}


@cache
def load_examples() -> dict[str, Example]:
    """Return the example of each tool, by name."""
    # In docs/examples.md, code blocks alternate between a call and its result.
    blocks = list_code_blocks(read_text("examples"))
    calls = map(json.loads, blocks[::2])
    pairs = zip(calls, blocks[::2], blocks[1::2], strict=True)
    return {
        call["name"]: Example(call["arguments"], call_text, answer_text)
        for call, call_text, answer_text in pairs
    }


def _list_file_names() -> list[str]:
    return [file.name for file in files("web").joinpath("texts").iterdir()]


def read_text(name: str) -> str:
    """Return the Markdown of an article."""
    return files("web").joinpath("texts", f"{name}.md").read_text(encoding="utf-8")

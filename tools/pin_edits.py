"""Edits of a clause's change: its text at a new place in the code, and its entry in the TOML."""

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from tools.clauses import Change
from tools.token_alignment import Text

LEFT_OUT = re.compile(r" ?(\w+\.)*")


class NotUpdatedError(Exception):
    """The program cannot update a change, so a person has to."""


class Place(NamedTuple):
    """The place of a change's tokens in a file.

    `line` has their indexes at the base, and `pairs` maps indexes at the base to those of now.
    `lead` is how much the score exceeds that of the next best place.
    """

    change: Change
    line: range
    file: str
    pairs: dict[int, int]
    score: float
    lead: float


def find_edit(place: Place, text: str, spans: dict[int, tuple[int, int]]) -> tuple[int, int, str]:
    """Return the start, end and replacement of the part of a text that a change replaces."""
    # Only the tokens between the common prefix and suffix of old and new are replaced, so that the
    # rest of the line keeps its present wording.
    old, new = Text(place.change.old), Text(place.change.new)
    prefix = _count_equal(old.tokens, new.tokens)
    suffix = _count_equal(old.tokens[prefix:][::-1], new.tokens[prefix:][::-1])
    first, last = place.line.start + prefix, place.line.stop - suffix
    before = new.spans[prefix - 1][1] if prefix else len(new) - len(new.lstrip())
    after = new.spans[-suffix][0] if suffix else len(new.rstrip())
    needed = {first, last - 1} if first < last else {first - 1 if prefix else first}
    if not needed <= spans.keys():
        raise NotUpdatedError(f"{place.file} lacks a part of: {old}")
    if first == last and prefix:
        start = spans[first - 1][1]
        gap = old[old.spans[prefix - 1][1] : old.spans[-suffix][0] if suffix else None]
        return start, start, new[before:after].removesuffix(gap)
    if first == last:
        return spans[first][0], spans[first][0], new[before:after]
    (start, _), (_, end) = spans[first], spans[last - 1]
    added = new.spans[prefix : len(new.spans) - suffix] or [(before, before)]
    added_from, added_to = added[0][0], added[-1][1]
    # Adjacent spaces belong to the replaced part, unless the formatter broke the line there. So
    # does the object, if a name has become its attribute.
    if prefix and first - 1 in spans and LEFT_OUT.fullmatch(text[spans[first - 1][1] : start]):
        start, added_from = spans[first - 1][1], before
    if suffix and last in spans and text[end : spans[last][0]] in ("", " "):
        end, added_to = spans[last][0], after
    return start, end, new[added_from:added_to]


def replace_change(text: str, id_: str, change: Change) -> str:
    """Return the TOML text with the change of one clause replaced."""
    entry = re.compile(rf'(^id = "{re.escape(id_)}"\n(?:(?!\[\[).*\n)*?change = ).*$', re.MULTILINE)

    def render(match: re.Match[str]) -> str:
        entries = [f'file = "{change.file}"']
        for key, value in (("old", change.old), ("new", change.new)):
            is_basic = f' {key} = "' in match[0] and not {'"', "\\"} & {*value}
            literal = json.dumps(value, ensure_ascii=False)
            entries.append(f"{key} = " + (literal if is_basic or "'" in value else f"'{value}'"))
        return f"{match[1]}{{ {', '.join(entries)} }}"

    return entry.sub(render, text, count=1)


def _count_equal(first: Sequence[str], second: Sequence[str]) -> int:
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))])

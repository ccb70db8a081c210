"""Validates arguments, alike for both transports; one error names every bad argument."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from heapq import nlargest
from itertools import takewhile
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ValidationError

from schemas.errors import ApiError
from schemas.query import MAX_LIST_CHARS
from schemas.vocabulary import ErrorCode, fold_name
from serving.json_schema import Schema, build_input_schema

MAX_QUOTED_CHARS = 60
MAX_LISTED_ITEMS = 20
MAX_SUGGESTIONS = 3  # each takes up to 0.4 ms
MAX_COMPARED_CHARS = 400  # of a text, over all names that it is compared with
DEXTER_HINT = "dexter is the former name of enzo and is no longer updated; use enzo"
# Keys, claim tokens and the processor's secrets are longer than any name or instant.
SECRET_PATTERN = re.compile(r"([A-Za-z0-9_-]{6})[A-Za-z0-9_-]{26,}")
# Bounded: int() of a huge text is slow, and no argument has such a range. ASCII digits only, since
# int() also accepts those of other scripts.
INTEGER_PATTERN = re.compile(r"-?[0-9]{1,40}")

# Other words for values and names of arguments.
VALUE_ALIASES = {
    "timeframe": {
        **dict.fromkeys(("hourly", "hour", "60m", "60min", "1hour"), "1h"),
        **dict.fromkeys(("4hours", "4hour", "4hourly", "240", "240m"), "4h"),
        **dict.fromkeys(("daily", "day", "1day", "d", "24h"), "1d"),
    },
    "asset_class": {
        **dict.fromkeys(("cryptos", "cryptocurrency", "coin", "coins"), "crypto"),
        **dict.fromkeys(("stocks", "equity", "equities", "share", "shares"), "stock"),
        "metals": "metal",
    },
    "direction": {"up": "bullish", "down": "bearish"},
    "view": {"board": "lines", "compact": "lines"},
}
NAME_ALIASES = {
    **dict.fromkeys(("symbol", "symbols", "tickers", "coin", "asset", "pair"), "ticker"),
    **dict.fromkeys(("interval", "tf", "period", "resolution"), "timeframe"),
    **dict.fromkeys(("from", "start", "after"), "since"),
    **dict.fromkeys(("to", "end", "before"), "until"),
    **dict.fromkeys(("class", "type", "market"), "asset_class"),
    **dict.fromkeys(("count", "top", "n", "max_results"), "limit"),
    **dict.fromkeys(("date", "at", "time"), "as_of"),
    **dict.fromkeys(("format", "compact"), "view"),
}
ACTION_WORDS = {
    **dict.fromkeys(("buy", "long"), "bullish"),
    **dict.fromkeys(("sell", "short"), "bearish"),
    "close": "exit",
}

QueryT = TypeVar("QueryT", bound=BaseModel)
ValueT = TypeVar("ValueT")

# Python's own encoder yields chunks, so a huge value is not encoded whole.
_iterate_json = json.JSONEncoder(ensure_ascii=False).iterencode


class Problem(NamedTuple):
    """One bad argument: its name, a sentence without the final period, and the error code."""

    argument: str
    text: str
    code: ErrorCode = "invalid_parameter"


class ArgumentError(ApiError):
    """A 400 error that names every bad argument.

    Its code is the specific one, such as `unknown_ticker`, if all problems have it. `rest` is the
    query without the bad arguments, if other checks of it are still to come.
    """

    def __init__(self, *problems: Problem, rest: BaseModel | None = None) -> None:
        codes = {problem.code for problem in problems}
        code: ErrorCode = codes.pop() if len(codes) == 1 else "invalid_parameter"
        super().__init__(code, ". ".join(problem.text for problem in problems) + ".", 400)
        self.problems = problems
        self.rest = rest


class ProblemCollector:
    """Collects the problems of several arguments and, at the end of its block, raises them all."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __enter__(self) -> Self:
        return self

    def attempt(self, parse: Callable[[str], ValueT], text: str | None) -> ValueT | None:
        """Return the parsed value of an argument, None if it is absent or has a problem."""
        try:
            return None if text is None else parse(text)
        except ArgumentError as error:
            self._problems += error.problems
            return None

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if error is None and self._problems:
            raise ArgumentError(*self._problems)


class Rejected(NamedTuple):
    """In place of the value of an argument that a transport could not read: the problem."""

    problem: str


def quote_value(value: Any) -> str:
    """Return a value as JSON on one line, shortened to 60 characters, without secrets."""
    text = ""
    for chunk in _iterate_json(value):
        # JSON has no Infinity: the client sent a number such as 1e999. Text ends with a quote.
        if chunk.endswith("Infinity"):
            chunk = chunk.removesuffix("Infinity").removesuffix("-") + "a number out of range"
        text += SECRET_PATTERN.sub(r"\1...", chunk)
        if len(text) > MAX_QUOTED_CHARS:
            break
    text = "".join(map(_escape, text[: MAX_QUOTED_CHARS + 1]))
    return text if len(text) <= MAX_QUOTED_CHARS else text[: MAX_QUOTED_CHARS - 3] + "..."


def _escape(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def find_nearest(text: str, candidates: Mapping[str, str]) -> str | None:
    """Return the candidate whose key is most similar to a text; None if none is similar.

    The keys are folded names, the values the names to suggest.
    """
    names = find_most_similar(fold_name(text[:MAX_QUOTED_CHARS]), candidates, 0.6)
    return candidates[names[0]] if names else None


def find_most_similar(target: str, names: Iterable[str], min_ratio: float) -> list[str]:
    """Return the name that is most similar to a text, or several if they are equally similar.

    All are folded. `min_ratio` is twice the common characters divided by those of both.
    """
    # Names that are too short for that, or have too few of the characters, are dropped first:
    # difflib would take milliseconds.
    letters, size = set(target), len(target)
    spare, share = size - len(letters), min_ratio / 2
    near = [
        (common / (size + len(name)), name)
        for name in names
        if len(name) >= (needed := share * (size + len(name)))
        and (common := min(len(letters.intersection(name)) + spare, len(name))) >= needed
    ]
    # Each comparison takes quadratic time, so fewer are made of a longer text.
    compared = [name for _, name in nlargest(MAX_COMPARED_CHARS // max(size, 1), near)]
    # Of equally similar names, the one with the longer common prefix wins.
    scores = {
        name: (
            difflib.SequenceMatcher(None, name, target).ratio(),
            sum(
                1
                for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, target, strict=False))
            ),
        )
        for name in difflib.get_close_matches(target, compared, 5, min_ratio)
    }
    return [name for name, score in scores.items() if score == max(scores.values())]


def format_suggestion(text: str, names: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the nearest name, or an empty string if none is near."""
    match = find_nearest(text, {fold_name(name): name for name in names})
    return f" (did you mean {match}?)" if match else ""


@cache
def get_argument_schemas(query: type[BaseModel]) -> dict[str, Schema]:
    """Return the JSON schema of each argument of a query, by name."""
    properties: dict[str, Schema] = build_input_schema(query)["properties"]
    return properties


def parse_arguments(query: type[QueryT], raw: Mapping[str, Any]) -> QueryT:
    """Build the query from raw arguments; raise one ArgumentError that names each bad argument."""
    schemas = get_argument_schemas(query)
    problems: dict[str, Problem] = {}
    cleaned: dict[str, Any] = {}
    unknown: list[str] = []
    for name, sent in raw.items():
        schema = schemas.get(name)
        if schema is None:
            unknown.append(name)
            continue
        value = _relax_value(name, schema, sent)
        if value is None:
            continue  # Some frameworks send null for every optional argument.
        if isinstance(value, Rejected):
            problems[name] = Problem(name, f"{name}: {value.problem}")
        elif isinstance(value, str) and (
            (is_long := len(value) > schema.get("maxLength", len(value))) or not value.strip()
        ):
            # pydantic would accept it.
            fault = "is empty, omit it or give a value"
            fault = f"too long ({len(value)} characters)" if is_long else fault
            accepted = describe_accepted_values(schema)
            problems[name] = Problem(name, f"{name}: {fault}; accepted: {accepted}")
        elif schema.get("type") == "integer":
            # JSON Schema accepts 50.0 as an integer too; some models send "50".
            is_text = isinstance(value, str) and INTEGER_PATTERN.fullmatch(value)
            is_whole = isinstance(value, float) and value.is_integer()
            cleaned[name] = int(value) if is_text or is_whole else value
        else:
            cleaned[name] = value
    try:
        parsed = query.model_validate(cleaned)
    except ValidationError as error:
        # Only the location is used: pydantic's messages are written for programmers.
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(detail["loc"][0])
            value = cleaned.pop(name)
            schema = schemas[name]
            if name == "indicator" and "enum" in schema and isinstance(value, str):
                problems[name] = unknown_indicator_problem(value, schema["enum"])
                continue
            text = f"{name}: {describe_rejected_value(schema, value)}"
            action = ACTION_WORDS.get(str(value).casefold())
            if name == "direction" and action in schema["enum"]:
                hint = "for such alerts set tier to alerts and" if "tier" in schemas else "set"
                text = f"{text}; {hint} direction to {action}"
            problems[name] = Problem(name, text)
        parsed = query.model_validate(cleaned)
    if problems or unknown:
        raise ArgumentError(
            *(problems[name] for name in schemas if name in problems),
            *describe_unknown_names(unknown, schemas, "argument"),
            rest=parsed,
        )
    return parsed


def _relax_value(name: str, schema: Schema, value: Any) -> Any:
    """Return a value as its argument spells it, if the text that was sent can mean only that."""
    if isinstance(value, str) and "enum" in schema and value not in schema["enum"]:
        names: dict[str, str | None] = {fold_name(each): each for each in schema["enum"]}
        names |= VALUE_ALIASES.get(name, {})
        if "default" not in schema:
            names["all"] = None
        return names.get(fold_name(value), value) if len(value) <= MAX_QUOTED_CHARS else value
    if name != "ticker":
        # That of signals is no enum.
        is_short = isinstance(value, str) and len(value) <= MAX_QUOTED_CHARS
        return None if name == "indicator" and is_short and fold_name(value) == "all" else value
    # Some models send a list, or its JSON text.
    if isinstance(value, str) and value.startswith("[") and len(value) <= MAX_LIST_CHARS:
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return value


def unknown_indicator_problem(text: str, names: Iterable[str]) -> Problem:
    """Return the problem of an indicator that does not exist; for `dexter` it points to enzo."""
    names = list(names)
    message = f"indicator: {quote_value(text)} is not an indicator; accepted: {', '.join(names)}"
    is_dexter = fold_name(text[:MAX_QUOTED_CHARS]) == "dexter"
    hint = f". {DEXTER_HINT}" if is_dexter else format_suggestion(text, names)
    return Problem("indicator", f"{message}{hint}", "unknown_indicator")


def describe_rejected_value(schema: Schema, value: Any) -> str:
    """Return a message that quotes a rejected value and lists the accepted ones."""
    hint = format_suggestion(value, schema.get("enum", ())) if isinstance(value, str) else ""
    accepted = describe_accepted_values(schema)
    # Programs that fill every argument send 0 for none.
    omit = (
        "; omit it for the default"
        if type(value) is int and value == 0 and schema.get("type") == "integer"
        else ""
    )
    return f"{quote_value(value)} is not accepted{hint}; accepted: {accepted}{omit}"


def describe_accepted_values(schema: Schema) -> str:
    """Describe the values that an argument's schema accepts."""
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema["type"] == "integer":
        top = f" to {schema['maximum']}" if "maximum" in schema else ""
        return f"an integer from {schema['minimum']}{top}"
    top = f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""
    return f"text{top} ({schema['description']})"


def describe_unknown_names(
    names: Sequence[str], schemas: Mapping[str, Schema], kind: str
) -> list[Problem]:
    """Return one problem that lists unknown names with suggestions; none if `names` is empty."""
    if not names:
        return []
    accepted = f"accepted: {', '.join(schemas)}" if schemas else "this call takes no arguments"

    def suggest(name: str) -> str:
        alias = NAME_ALIASES.get(name.casefold()[:MAX_QUOTED_CHARS])
        return f" (did you mean {alias}?)" if alias in schemas else format_suggestion(name, schemas)

    listed = list_names(names, suggest)
    return [Problem("", f"unknown {kind} {listed}; {accepted}")]


def list_names(names: Sequence[str], suggest: Callable[[str], str]) -> str:
    """Return the quoted names; the first have suggestions, the last ones of many are counted."""
    listed = [
        f"{quote_value(name)}{suggest(name) if index < MAX_SUGGESTIONS else ''}"
        for index, name in enumerate(names[:MAX_LISTED_ITEMS])
    ]
    left = len(names) - len(listed)
    return ", ".join(listed) + (f" and {left} more" if left else "")


BAD_PERCENT_PATTERN = re.compile(r"%(?![0-9A-Fa-f]{2})")
REPEATED = Rejected("is repeated; send it once")
BADLY_ESCAPED = Rejected(
    "is not percent-encoded UTF-8; encode special characters, a percent sign as %25"
)


def parse_query_string(
    query_string: bytes, query: type[BaseModel], *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """Return the arguments of a query string as text.

    The value of a repeated or badly escaped parameter is `Rejected`. `parse_arguments` validates
    the values, with the same messages on both transports. `ignore_unknown` skips unknown names.
    """
    schemas = get_argument_schemas(query)
    raw: dict[str, Any] = {}
    for part in query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if part and not (ignore_unknown and name.decode("latin-1") not in schemas):
            key, text = _decode(name) or name.decode("utf-8", "replace"), _decode(value)
            raw[key] = REPEATED if key in raw else BADLY_ESCAPED if text is None else text
    return raw


def _decode(part: bytes) -> str | None:
    """Return a part unescaped, None if it is not percent-encoded UTF-8."""
    try:
        text = part.decode("ascii").replace("+", " ")
        if "%" not in text:
            return text
        return None if BAD_PERCENT_PATTERN.search(text) else unquote_to_bytes(text).decode("utf-8")
    except ValueError:
        return None

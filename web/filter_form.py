"""Builds a page's filter form from the query model of its tool, so that no filter is missing."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.coverage import CoveredIndicator
from schemas.query import Query
from schemas.vocabulary import fold_name, format_instant
from serving.argument_values import parse_instant_ms
from serving.arguments import (
    ArgumentError,
    Rejected,
    get_argument_schemas,
)
from serving.json_schema import Schema
from web.pages import MAX_ECHOED_CHARS

FieldKind = Literal["choice", "asset", "number", "time", "text"]
# The links between pages set it, because another filter begins again at the first page.
PAGING_ARGUMENT = "offset"
# A whole number with at most so many values is chosen from a list.
MAX_LISTED_NUMBERS = 12


# A value of a filter and its label; an empty value leaves the filter out.
Choice = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FormTexts:
    """How a page words its filters: labels by argument, and labels of values by argument.

    `main` are the arguments in the first row; the others are behind "More filters".
    """

    labels: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]]
    main: Collection[str]


@dataclass(frozen=True, slots=True)
class FilterField:
    """One field of the form; `error` is empty if its value is accepted."""

    name: str
    label: str
    kind: FieldKind
    value: str
    is_main: bool
    choices: list[Choice] = field(default_factory=list)
    minimum: int | None = None
    maximum: int | None = None
    default: str = ""
    error: str = ""

    @property
    def is_set(self) -> bool:
        """Whether the viewer should see this field: it has a value of its own, or an error."""
        return bool(self.error) or self.value != (self.default if self.kind == "choice" else "")

    def describe(self, value: Any) -> str:
        """Return a value as the form words it; None stands for any."""
        text = "" if value is None else str(value)
        return dict(self.choices).get(text, text or "any")


def build_fields(
    query: type[Query],
    sent: Mapping[str, Any],
    errors: Mapping[str, str],
    texts: FormTexts,
    indicators: Iterable[CoveredIndicator],
) -> list[FilterField]:
    """Return the fields of a form with the values that were sent."""
    fields = []
    for name, schema in get_argument_schemas(query).items():
        # The view is for agents: a page always shows rows.
        if name in (PAGING_ARGUMENT, "view"):
            continue
        kind, error, value = _find_kind(name, schema), errors.get(name, ""), sent.get(name)
        choices = _list_choices(name, schema, texts, indicators) if kind == "choice" else []
        typed = "" if value is None or isinstance(value, Rejected) else str(value)
        if error:
            typed = typed[:MAX_ECHOED_CHARS]
        default = str(schema.get("default", ""))
        if kind == "choice" and error and typed:
            # The value that was sent stays visible beside its error.
            choices = [*choices, (typed, typed)]
        elif kind == "choice":
            # A value or its label, ignoring case and spacing.
            labels = {fold_name(text): pair[0] for pair in choices for text in pair[::-1]}
            typed = labels.get(fold_name(typed or default), "")
        elif kind == "time" and not error:
            typed = _to_local_time(typed)
        fields.append(
            FilterField(
                name=name,
                label=texts.labels.get(name, name.replace("_", " ").capitalize()),
                kind=kind,
                value=typed,
                is_main=name in texts.main,
                choices=choices,
                minimum=schema.get("minimum"),
                maximum=schema.get("maximum"),
                default=default,
                error=error,
            )
        )
    return fields


def _find_kind(name: str, schema: Schema) -> FieldKind:
    if name == "ticker":
        return "asset"
    if schema.get("format") == "date-time":
        return "time"
    if schema["type"] == "integer":
        return "choice" if _list_numbers(schema) else "number"
    return "choice" if "enum" in schema or name == "indicator" else "text"


def _list_choices(
    name: str, schema: Schema, texts: FormTexts, indicators: Iterable[CoveredIndicator]
) -> list[Choice]:
    labels = texts.values.get(name, {})
    if name == "indicator":
        choices = [(str(one.id), one.name) for one in indicators]
    else:
        values = schema.get("enum") or _list_numbers(schema)
        choices = [(value, labels.get(value, value.capitalize())) for value in values]
    is_optional = "default" not in schema
    return [("", labels.get("", "Any")), *choices] if is_optional else choices


def _list_numbers(schema: Schema) -> list[str]:
    """Return the values of a whole number if they are few."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None or high is None or high - low >= MAX_LISTED_NUMBERS:
        return []
    return [str(number) for number in range(low, high + 1)]


def _to_local_time(text: str) -> str:
    """Return an instant as browsers' time fields hold it, in UTC without its zone."""
    if not text:
        return ""
    try:
        instant = format_instant(parse_instant_ms("time", text)).removesuffix("Z")
    except ArgumentError:
        # A relative time, such as 7d, which the query has as an instant.
        return ""
    return instant.removesuffix(".000").removesuffix(":00")


def describe_problems(error: ArgumentError) -> dict[str, str]:
    """Return what to change, by argument: the sentences of the tool without its name."""
    texts = {}
    for problem in error.problems:
        text = problem.text.removeprefix(f"{problem.argument}: ")
        texts[problem.argument] = f"{text[0].upper()}{text[1:]}."
    return texts

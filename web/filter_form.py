"""Builds a page's filter form from the query model of its tool, so that no filter is missing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from schemas.query import Query
from schemas.vocabulary import fold_name, format_instant
from serving.argument_values import parse_instant_ms
from serving.arguments import (
    ArgumentError,
    Rejected,
    get_argument_schemas,
    quote_value,
)
from serving.asset_hints import AssetHints, NamedAsset, format_asset
from serving.json_schema import Schema
from web.pages import MAX_ECHOED_CHARS

FieldKind = Literal["choice", "asset", "number", "time", "text"]
# The links between pages set it, because another filter begins again at the first page.
PAGING_ARGUMENT = "offset"
# A whole number with at most so many values is chosen from a list.
MAX_LISTED_NUMBERS = 12
# Longer lists of choices are not repeated in an error: they stand right below it.
MAX_NAMED_CHOICES = 4


class Choice(NamedTuple):
    """One value of a filter and its label; an empty value leaves the filter out."""

    value: str
    label: str


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
        labels = {one.value: one.label for one in self.choices}
        text = "" if value is None else str(value)
        return labels.get(text, text or "any")


@dataclass(frozen=True, slots=True)
class FormValues:
    """The values that a form offers: the covered assets, and the indicators' names by id."""

    assets: Collection[NamedAsset]
    indicators: Mapping[str, str]


def build_fields(
    query: type[Query],
    sent: Mapping[str, Any],
    errors: Mapping[str, str],
    texts: FormTexts,
    offered: FormValues,
) -> list[FilterField]:
    """Return the fields of a form with the values that were sent."""
    fields = []
    for name, schema in get_argument_schemas(query).items():
        # The view is for agents: a page always shows rows.
        if name in (PAGING_ARGUMENT, "view"):
            continue
        kind, error, value = _find_kind(name, schema), errors.get(name, ""), sent.get(name)
        choices = _list_choices(name, schema, texts, offered) if kind == "choice" else []
        typed = "" if value is None or isinstance(value, Rejected) else str(value)
        if error:
            typed = typed[:MAX_ECHOED_CHARS]
        default = str(schema.get("default", ""))
        if kind == "choice" and error and typed:
            # The value that was sent stays visible beside its error.
            choices = [*choices, Choice(typed, typed)]
        elif kind == "choice":
            # A value or its label, ignoring case and spacing.
            labels = {
                fold_name(text): one.value for one in choices for text in (one.label, one.value)
            }
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


def _list_choices(name: str, schema: Schema, texts: FormTexts, offered: FormValues) -> list[Choice]:
    labels = texts.values.get(name, {})
    if name == "indicator":
        choices = [Choice(*pair) for pair in offered.indicators.items()]
    else:
        values = schema.get("enum") or _list_numbers(schema)
        choices = [Choice(value, labels.get(value, value.capitalize())) for value in values]
    is_optional = "default" not in schema
    return [Choice("", labels.get("", "Any")), *choices] if is_optional else choices


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


def describe_problems(
    error: ArgumentError,
    query: type[Query],
    sent: Mapping[str, Any],
    texts: FormTexts,
    offered: FormValues,
) -> dict[str, str]:
    """Return what to change, in plain words, by argument."""
    # The messages of the tools name arguments and formats, for programs.
    bad = {problem.argument for problem in error.problems}
    return {
        name: _describe_problem(name, schema, sent.get(name), texts, offered)
        for name, schema in get_argument_schemas(query).items()
        if name in bad
    }


def _describe_problem(
    name: str, schema: Schema, sent: Any, texts: FormTexts, offered: FormValues
) -> str:
    kind = _find_kind(name, schema)
    if isinstance(sent, Rejected):
        return "This value cannot be read. Choose it again."
    if kind == "asset":
        hints, text = AssetHints(offered.assets), str(sent)[:MAX_ECHOED_CHARS]
        hint = "Choose one from the list."
        if explanation := hints.explain(text):
            hint = f"{explanation}."
        elif asset := hints.find_similar(text):
            hint = f"Did you mean {format_asset(asset)}?"
        return f"There is no asset {quote_value(sent)}. {hint}"
    if kind == "number":
        return f"Enter a whole number from {schema['minimum']} to {schema['maximum']}."
    if kind == "time":
        return "Enter a date and a time in UTC, such as 2026-10-01 13:05."
    labels = [one.label for one in _list_choices(name, schema, texts, offered) if one.value]
    options = f"{', '.join(labels[:-1])} or {labels[-1]}" if len(labels) > 1 else "".join(labels)
    named = f"Choose {options}" if 0 < len(labels) <= MAX_NAMED_CHOICES else "Choose from the list"
    return f"{quote_value(sent)} is not available. {named}."

"""Schemas as table rows: every field at any depth, with its type and allowed values."""

from typing import Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from tools.field_rows import list_shapes, walk_field_rows

pytestmark = pytest.mark.clause("pages")


class Part(BaseModel):
    """The description
    of a part."""

    share: float = Field(ge=0, le=1, description="Its share.")
    side: Literal["a", "b"] | None


class Whole(BaseModel):
    """A whole."""

    parts: list[Part]
    best: Part | None
    by_key: dict[Literal["x", "y"], dict[str, Literal["on", "off"]]]
    kept: dict[str, Part]
    size: int = Field(default=3, ge=1)
    name: str = Field(max_length=9)


class Nothing(BaseModel):
    """Nothing at all."""

    why: str


class Either(RootModel[Whole | Nothing]):
    """One of two."""


def test_every_field_has_a_row_with_its_type_and_what_is_accepted() -> None:
    (shape,) = list_shapes(Whole)
    assert shape.description == "A whole."
    assert [(row.path, row.type, row.accepted) for row in shape.rows] == [
        ("parts", "list of objects", ""),
        ("parts[].share", "number", "0 to 1"),
        ("parts[].side", "string or null", "a, b"),
        ("best", "object or null", ""),
        ("best.share", "number", "0 to 1"),
        ("best.side", "string or null", "a, b"),
        ("by_key", "object", "x, y to on, off"),
        ("kept", "object", ""),
        ("kept.*.share", "number", "0 to 1"),
        ("kept.*.side", "string or null", "a, b"),
        ("size", "integer", "at least 1"),
        ("name", "string", "at most 9 characters"),
    ]


def test_a_row_has_default_required_and_description() -> None:
    rows = {row.path: row for row in walk_field_rows(Whole.model_json_schema())}
    assert (rows["size"].default, rows["size"].is_required) == ("3", False)
    assert (rows["name"].default, rows["name"].is_required) == ("", True)
    meanings = {row.path: row.description for row in list_shapes(Whole)[0].rows}
    assert meanings["best"] == "The description of a part."
    assert meanings["best.share"] == "Its share."


def test_a_union_response_has_two_shapes() -> None:
    assert [(one.description, len(one.rows)) for one in list_shapes(Either)] == [
        ("A whole.", 12),
        ("Nothing at all.", 1),
    ]

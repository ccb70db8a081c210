"""Names of assets that the coverage lacks: former and other names, and assets that are not covered.

They are in asset_names.toml.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from schemas.vocabulary import AssetClass

Relation = Literal["renamed", "merged", "also_called", "same_index", "assets"]

_CLASSES: dict[str, AssetClass] = {each: each for each in get_args(AssetClass)}
_SKIPPED = re.compile(r"[\W_]+")


class KnownName(NamedTuple):
    """A name, and the asset that it means; `asset_class` is None if it is like no covered asset.

    With the relation `assets`, `text` itself is the ticker, and `asset_name` the name of the asset.
    With the others, `asset_name` is empty if the asset is one of the standard universe.
    """

    text: str
    relation: Relation
    asset_class: AssetClass | None
    ticker: str
    asset_name: str


@lru_cache(4096)
def fold_asset_name(text: str) -> str:
    """Return a ticker or name in lower case, without spaces and punctuation."""
    return _SKIPPED.sub("", text.casefold())


@cache
def load_known_names() -> Mapping[str, KnownName]:
    """Return all known names, by the folded name."""
    by_name: dict[str, KnownName] = {}
    names = list(_read_names())
    for name in names:
        by_name[fold_asset_name(name.text)] = name
    # The name of an asset yields to the ticker of another one.
    for name in names:
        if name.relation == "assets":
            by_name.setdefault(fold_asset_name(name.asset_name), name)
    return by_name


def _read_names() -> Iterator[KnownName]:
    text = files("serving").joinpath("asset_names.toml").read_text("utf-8")
    table: dict[str, dict[Relation, dict[str, str]]] = tomllib.loads(text)
    for group, relations in table.items():
        asset_class = _CLASSES.get(group)
        assets = relations.get("assets", {})
        for relation, values in relations.items():
            for name, value in values.items():
                if relation == "assets":
                    yield KnownName(name, relation, asset_class, name, value)
                else:
                    yield KnownName(name, relation, asset_class, value, assets.get(value, ""))

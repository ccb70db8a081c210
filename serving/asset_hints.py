"""Explains what an unknown ticker may mean: by known names, else by its similarity to others."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from schemas.coverage import CoveredAsset
from schemas.vocabulary import AssetClass
from serving.arguments import MAX_QUOTED_CHARS, find_most_similar

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
    text = files("serving").joinpath("asset_names.toml").read_text("utf-8")
    table: dict[str, dict[Relation, dict[str, str]]] = tomllib.loads(text)
    by_name: dict[str, KnownName] = {}
    assets = list[KnownName]()
    for group, relations in table.items():
        asset_class, names = _CLASSES.get(group), relations.get("assets", {})
        for relation, values in relations.items():
            for name, value in values.items():
                known = KnownName(name, relation, asset_class, value, names.get(value, ""))
                if relation == "assets":
                    known = KnownName(name, relation, asset_class, name, value)
                    assets.append(known)
                by_name[fold_asset_name(name)] = known
    # The name of an asset yields to the ticker of another one.
    for known in assets:
        by_name.setdefault(fold_asset_name(known.asset_name), known)
    return by_name


# Measured without the table of known names, on tickers and names of the universe with one letter
# wrong, missing, added or swapped, but not the first, and on 535 tickers of other assets: 60 and
# 96 % of the typos lead to the asset, and 12 % of the other tickers to a wrong one. With 0.66 it is
# 40 %, because one letter of three may differ; with 0.8, only 47 % of the tickers are found.
MIN_SIMILARITY = 0.75
MIN_SIMILAR_CHARS = 3
# Shorter known names are codes. What is similar to a former code is not similar to the asset.
MIN_KNOWN_CHARS = 5
# A symbol as venues and charts spell it: BTCUSDT, BTC/USDT:USDT, BTC-PERP, $BTC, NASDAQ:AAPL.
MARKET_PATTERN = re.compile(
    r"(?:[A-Z]+:)?\$?([A-Z0-9]{2,12}?|[A-Z](?=[-/_.]))"
    r"(?:[-/_.]?(?:USDT|USDC|USD|PERP)(?:[-:.](?:USDT|USDC|PERP|SWAP|P))?|[-/_.](?:EUR|US))?"
)
VERBS = {"renamed": "was renamed", "merged": "was merged into"}


def format_asset(asset: CoveredAsset) -> str:
    """Return the ticker with the name, such as `BTC (Bitcoin)`."""
    return f"{asset.ticker} ({asset.name})"


class AssetHints:
    """Explains unknown tickers by the assets that callers can request."""

    def __init__(
        self, assets: Iterable[CoveredAsset], asset_class: AssetClass | None = None
    ) -> None:
        """With `asset_class`, assets of other classes are not suggested."""
        self._assets = {asset.ticker: asset for asset in assets}
        self._asset_class = asset_class

    def explain(self, text: str) -> str:
        """Return what a known name means, without the final period; empty if it is not known."""
        known, folded = load_known_names(), fold_asset_name(text[:MAX_QUOTED_CHARS])
        name = known.get(folded) or known.get(fold_asset_name(_find_base(text)))
        if folded in self._covered_by_name or name is None:
            return ""
        asset, verb = self._find_covered(name), VERBS.get(name.relation, "means")
        if asset is None:
            if name.relation == "assets":
                return f"{name.text} ({name.asset_name}) is not covered"
            if name.relation == "same_index":
                return f"{name.text} is not covered"
            meant = f"{name.ticker} ({name.asset_name})" if name.asset_name else name.ticker
            return f"{name.text} {verb} {meant}, which is not covered"
        named = format_asset(asset)
        if name.relation == "same_index":
            return f"{name.text} is not covered. {named} follows the same index. Use {asset.ticker}"
        return f"{name.text} {verb} {named}. Use {asset.ticker}"

    def find_named(self, text: str) -> CoveredAsset | None:
        """Return the asset whose name or ticker a text is, whatever its case and punctuation."""
        if len(text) > MAX_QUOTED_CHARS:
            return None
        return self._covered_by_name.get(fold_asset_name(text))

    def find_similar(self, text: str) -> CoveredAsset | None:
        """Return the asset whose ticker or name is most similar to an unknown name, if any is.

        None if the most similar name is that of an asset which is not covered, or if assets of
        several classes are equally similar.
        """
        asset = self._assets.get(_find_base(text))
        if asset is not None and self._is_allowed(asset):
            return asset
        target = fold_asset_name(text[:MAX_QUOTED_CHARS])
        if len(target) < MIN_SIMILAR_CHARS:
            return self._assets_by_name.get(target)
        names = find_most_similar(
            target,
            (name for name in self._assets_by_name if name.startswith(target[0])),
            MIN_SIMILARITY,
        )
        similar = [self._assets_by_name[name] for name in names]
        classes = {None if asset is None else asset.asset_class for asset in similar}
        return similar[0] if len(classes) == 1 else None

    def _find_covered(self, name: KnownName) -> CoveredAsset | None:
        # Another universe may have an asset of another class under the same ticker.
        asset = self._assets.get(name.ticker)
        return asset if asset is not None and asset.asset_class == name.asset_class else None

    @cached_property
    def _assets_by_name(self) -> dict[str, CoveredAsset | None]:
        """Assets by every folded name, None for names of which no asset may be suggested."""
        # Those names stay, so that no asset is suggested whose name is only the second nearest.
        known = {
            text: self._find_covered(name)
            for text, name in load_known_names().items()
            if len(text) >= MIN_KNOWN_CHARS and name.relation != "same_index"
        }
        return {
            text: asset if asset is not None and self._is_allowed(asset) else None
            for text, asset in {**known, **self._covered_by_name}.items()
        }

    @cached_property
    def _covered_by_name(self) -> dict[str, CoveredAsset]:
        names = {fold_asset_name(asset.name): asset for asset in self._assets.values()}
        return names | {fold_asset_name(ticker): each for ticker, each in self._assets.items()}

    def _is_allowed(self, asset: CoveredAsset) -> bool:
        return self._asset_class in (None, asset.asset_class)


def _find_base(text: str) -> str:
    """Return the ticker in a market's symbol; empty if the text is none."""
    match = MARKET_PATTERN.fullmatch(text[:MAX_QUOTED_CHARS].strip().upper())
    return match[1] if match else ""

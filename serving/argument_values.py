"""Parses text arguments: tickers, indicator names and instants. Each error quotes the bad value."""

import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache

from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import DAY_MS, HOUR_MS, AssetClass, IndicatorId, fold_name, format_instant
from serving.arguments import (
    MAX_LISTED_ITEMS,
    MAX_SUGGESTIONS,
    ArgumentError,
    Problem,
    list_names,
    quote_value,
    unknown_indicator_problem,
)
from serving.asset_hints import AssetHints, format_asset

# More than the standard universe has.
MAX_TICKERS = 400
SEPARATORS = re.compile("[,;]")

# A time before now.
RELATIVE_PATTERN = re.compile(r"([0-9]{1,4})([hdw])")
UNITS_MS = {"h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}

EPOCH_DAY = date(1970, 1, 1)
MAX_CACHED_INSTANTS = 1024
# More lenient than created_at: a date alone, no zone, a space for T, no seconds, a decimal comma,
# +0200. datetime's own parser is not used, because it also accepts week dates.
# The sign may be a space, which is how an unescaped + of a URL arrives.
INSTANT_PATTERN = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:[.,]([0-9]{1,9}))?)?"
    r"(?:[Zz]|([+\- ])([01][0-9]|2[0-3]):?([0-5][0-9]))?)?"
)
INSTANT_HELP = (
    "accepted: an ISO 8601 instant, as created_at gives it, for example 2026-10-01T13:05:00.000Z "
    "or 2026-10-01T15:05:00+02:00, a date, or yesterday, 24h, 7d; without a zone it is UTC"
)


def find_asset(text: str, assets: Mapping[str, CoveredAsset]) -> CoveredAsset:
    """Return the asset with a ticker or name, in any case; ArgumentError if there is none."""
    return next(iter(find_assets(text, assets).values()))


def find_assets(
    text: str, assets: Mapping[str, CoveredAsset], asset_class: AssetClass | None = None
) -> dict[str, CoveredAsset]:
    """Return the assets of a list of tickers or names, in any case and without duplicates.

    Commas, semicolons and blanks separate items. ArgumentError lists those that do not exist. With
    `asset_class`, it suggests only assets of that class.
    """
    # Most callers repeat the spelling of the catalog.
    if (asset := assets.get(text)) is not None:
        return {asset.ticker: asset}
    items = [item for part in SEPARATORS.split(text) if (item := part.strip())]
    if len(items) > MAX_TICKERS:
        raise ArgumentError(
            Problem(
                "ticker",
                f"ticker: {len(items)} items are too many; accepted: at most {MAX_TICKERS} "
                "tickers, each once; omit it for all",
            )
        )
    if not items:
        raise ArgumentError(
            Problem(
                "ticker",
                f"ticker: {quote_value(text)} has only separators; accepted: tickers separated by "
                "commas, for example BTC,ETH",
            )
        )
    by_ticker = {ticker.upper(): asset for ticker, asset in assets.items()}
    tracked = [asset for asset in assets.values() if asset.removed_on is None]
    hints = AssetHints(tracked, asset_class)

    def find(item: str) -> CoveredAsset | None:
        return by_ticker.get(item.upper()) or hints.find_named(item)

    found: dict[str, CoveredAsset] = {}
    unknown: list[str] = []
    for item in items:
        # A name may have blanks; if it is none, they separate items.
        parts = {item: find(item)}
        words = item.split()
        if parts[item] is None and len(words) > 1:
            by_word = {word: find(word) for word in words}
            parts = by_word if all(by_word.values()) else parts
        for part, asset in parts.items():
            if asset is None:
                unknown.append(part)
            else:
                found[asset.ticker] = asset
    if unknown:
        raise ArgumentError(
            _unknown_tickers_problem(list(dict.fromkeys(unknown)), len(assets), hints)
        )
    return found


def _unknown_tickers_problem(tickers: list[str], known_count: int, hints: AssetHints) -> Problem:
    explanations = {text: hints.explain(text) for text in tickers[:MAX_LISTED_ITEMS]}
    similar = {
        text: hints.find_similar(text)
        for text in tickers[:MAX_SUGGESTIONS]
        if not explanations[text]
    }

    def suggest(text: str) -> str:
        asset = similar.get(text)
        return f" (did you mean {format_asset(asset)}?)" if asset else ""

    is_every_one_clear = all(explanations.get(text) or similar.get(text) for text in tickers)
    catalog = "" if is_every_one_clear else ", as the catalog lists them"
    problem = (
        f"ticker: unknown {list_names(tickers, suggest)}; accepted: one of the {known_count} known "
        f"tickers in any case{catalog}"
    )
    sentences = dict.fromkeys(filter(None, explanations.values()))
    return Problem("ticker", ". ".join([problem, *sentences]), "unknown_ticker")


def find_indicator(text: str, coverage: Coverage) -> IndicatorId:
    """Return the indicator with this id, screener id or display name, in any case.

    ArgumentError `unknown_indicator` if there is none.
    """
    ids = [indicator.id for indicator in coverage.indicators]
    if text in ids:
        return text
    by_name = {fold_name(indicator.id): indicator.id for indicator in coverage.indicators}
    by_name |= {fold_name(indicator.name): indicator.id for indicator in coverage.indicators}
    found = by_name.get(fold_name(text))
    if found is None:
        raise ArgumentError(unknown_indicator_problem(text, ids))
    return found


def resolve_relative_time(text: str, now: int) -> str:
    """Return the instant that a word such as `7d` or `yesterday` means, other texts unchanged."""
    word = text.strip().casefold()
    if word in ("today", "yesterday"):
        return format_instant(now // DAY_MS * DAY_MS - DAY_MS * (word == "yesterday"))
    if match := RELATIVE_PATTERN.fullmatch(word):
        return format_instant(now - int(match[1]) * UNITS_MS[match[2]])
    return text


# Each call parses an instant twice, and pollers share theirs: the cursor of the newest page.
@lru_cache(MAX_CACHED_INSTANTS)
def parse_instant_ms(argument: str, text: str) -> int:
    """Return an instant as epoch milliseconds, rounded down; ArgumentError if it is malformed.

    A time without a zone is UTC, a date alone its midnight. Rounding down is exact for filters:
    rows have whole milliseconds, so a row is after the rounded instant if and only if it is after
    the given one.
    """
    match = INSTANT_PATTERN.fullmatch(text.strip())
    if match is None:
        raise _invalid_instant_error(argument, text)
    day, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups()
    try:
        midnight_ms = (date.fromisoformat(day) - EPOCH_DAY).days * DAY_MS
    except ValueError:
        raise _invalid_instant_error(argument, text) from None
    seconds = 3600 * int(hour or 0) + 60 * int(minute or 0) + int(second or 0)
    if sign:
        east = 3600 * int(zone_hour) + 60 * int(zone_minute)
        # Any sign but `-` is east.
        seconds += east if sign == "-" else -east
    return midnight_ms + 1000 * seconds + int((fraction or "").ljust(3, "0")[:3])


def _invalid_instant_error(argument: str, text: str) -> ArgumentError:
    return ArgumentError(
        Problem(argument, f"{argument}: {quote_value(text)} is not accepted; {INSTANT_HELP}")
    )

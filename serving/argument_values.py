"""What text arguments mean: tickers, indicator names and instants, or why they mean nothing."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import ApiError, invalid_parameter
from schemas.vocabulary import IndicatorId, folded
from serving.arguments import SHOWN_CHARACTERS, SHOWN_ITEMS, nearest, shown, unknown_indicator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(?:([Zz])|([+\- ])([0-9]{2}):?([0-5][0-9]))"
)
INSTANT_HELP = (
    "accepted: an ISO 8601 instant with its zone, as created_at gives it, "
    "for example 2026-10-01T13:05:00.000Z or 2026-10-01T15:05:00+02:00"
)


def one_ticker(text: str, assets: Mapping[str, CoveredAsset]) -> CoveredAsset:
    """Return the asset of one ticker in any case; ApiError `unknown_ticker`."""
    asset = _in_upper_case(assets).get(text.strip().upper())
    if asset is None:
        hint = " Give one ticker a call here." if "," in text else ""
        raise _unknown_tickers([text], assets, hint)
    return asset


def several_tickers(text: str, assets: Mapping[str, CoveredAsset]) -> dict[str, CoveredAsset]:
    """Return the assets of comma-separated tickers, each once; ApiError naming the bad ones."""
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise invalid_parameter(
            f"ticker: {shown(text)} has an empty item; accepted: tickers separated by single "
            "commas, for example BTC,ETH."
        )
    known = _in_upper_case(assets)
    unknown = list(dict.fromkeys(item for item in items if item.upper() not in known))
    if unknown:
        raise _unknown_tickers(unknown, assets)
    found = (known[item.upper()] for item in items)
    return {asset.ticker: asset for asset in found}


def _in_upper_case(assets: Mapping[str, CoveredAsset]) -> dict[str, CoveredAsset]:
    return {ticker.upper(): asset for ticker, asset in assets.items()}


def _unknown_tickers(
    given: list[str], assets: Mapping[str, CoveredAsset], hint: str = ""
) -> ApiError:
    names = {folded(asset.name): ticker for ticker, asset in assets.items()}
    names |= {folded(ticker): ticker for ticker in assets}
    parts = []
    for text in given[:SHOWN_ITEMS]:
        match = nearest(text, names)
        parts.append(f"{shown(text)}" + (f" (did you mean {match}?)" if match else ""))
    more = f" and {len(given) - SHOWN_ITEMS} more" if len(given) > SHOWN_ITEMS else ""
    return ApiError(
        "unknown_ticker",
        f"ticker: unknown {', '.join(parts)}{more}; accepted: one of the {len(assets)} known "
        f"tickers in any case, for example {', '.join(list(assets)[:3])}.{hint}",
        400,
    )


def indicator_named(text: str, coverage: Coverage) -> IndicatorId:
    """Return the indicator with this id, screener id or display name, in any case."""
    by_name = {folded(indicator.id): indicator.id for indicator in coverage.indicators}
    by_name |= {folded(indicator.name): indicator.id for indicator in coverage.indicators}
    found = by_name.get(folded(text[: SHOWN_CHARACTERS + 1]))
    if found is None:
        raise unknown_indicator(text, [indicator.id for indicator in coverage.indicators])
    return found


def instant_ms(argument: str, text: str) -> int:
    """Return epoch milliseconds of an argument that is an instant, rounded down.

    Rows have whole milliseconds, so those strictly after the rounded instant are exactly those
    strictly after the given one.
    """
    match = INSTANT.fullmatch(text.strip())
    if match is None:
        raise _bad_instant(argument, text)
    *clock, fraction, zulu, sign, hours, minutes = match.groups()
    try:
        zone = UTC if zulu else _offset(sign, int(hours), int(minutes))
        year, month, day, hour, minute, second = (int(part or 0) for part in clock)
        at = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        raise _bad_instant(argument, text) from None
    return (at - EPOCH) // timedelta(milliseconds=1) + int((fraction or "").ljust(3, "0")[:3])


def _offset(sign: str, hours: int, minutes: int) -> timezone:
    """Return a zone; the sign may be the space that an unescaped `+` of a URL becomes."""
    east = timedelta(hours=hours, minutes=minutes)
    return timezone(-east if sign == "-" else east)


def _bad_instant(argument: str, text: str) -> ApiError:
    return invalid_parameter(f"{argument}: {shown(text)} is not accepted; {INSTANT_HELP}.")

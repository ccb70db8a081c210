"""Explains why a result is empty, and whether anything can still come.

Each sentence states one cause and a next step. The cause that lasts longest is given first.
"""

from collections.abc import Collection, Iterable

from schemas.coverage import CoveredAsset, merge_timeframes
from schemas.vocabulary import AssetClass, Timeframe, format_instant
from serving.freshness import NO_CALL, format_removed_note, is_recording_over
from serving.snapshot import Snapshot

NEXT_CALL = "Call again at meta.nothing_new_before or, without it, in 15 minutes."
CATALOG_HINT = "signals_get_catalog lists the covered assets."
MAX_NAMED_TICKERS = 3


def describe_assets(tickers: Collection[str] | None, asset_class: AssetClass | None) -> str:
    """Return the assets that a query selects, as the object of "no data for"."""
    if tickers is None:
        return f"any {asset_class} asset" if asset_class else "any asset"
    if len(tickers) > MAX_NAMED_TICKERS:
        return f"any of the {len(tickers)} requested tickers"
    return " or ".join(tickers)


def explain_end(snapshot: Snapshot, asset: CoveredAsset) -> str | None:
    """Return why nothing more will come of an asset; None if it still may."""
    if snapshot.is_removed(asset):
        instead = f" Ask for {asset.continues_as} instead." if asset.continues_as else ""
        return f"{format_removed_note(asset)} {NO_CALL}{instead}"
    if not asset.timeframes:
        return f"This deployment has no data for {asset.ticker}. {NO_CALL} {CATALOG_HINT}"
    if asset.ticker in snapshot.ended_tickers:
        at = format_instant(asset.last_close or 0)
        return f"The last bar of {asset.ticker} closed at {at}. {NO_CALL}"
    return None


def explain_coverage(
    snapshot: Snapshot, assets: Iterable[CoveredAsset], named: str, timeframe: Timeframe | None
) -> str | None:
    """Return why assets cannot have a reading on a timeframe; None if they can.

    `named` describes the assets, as the object of "no data for".
    """
    # An asset that another universe file dropped is no longer covered, but keeps its readings.
    readings = snapshot.stored.readings
    covered = merge_timeframes(
        timeframes
        for asset in assets
        for timeframes in (asset.timeframes, *map(list, readings.get(asset.ticker, {}).values()))
    )
    if not covered:
        return f"This deployment has no data for {named}. {NO_CALL} {CATALOG_HINT}"
    if timeframe is None or timeframe in covered:
        return None
    return (
        f"This deployment has no {timeframe} readings of {named}, only {' and '.join(covered)}. "
        f"{NO_CALL} Set timeframe to {covered[-1]}."
    )


def explain_missing_reading(snapshot: Snapshot, assets: Collection[CoveredAsset]) -> str:
    """Return why assets that are covered on a timeframe have no reading on it."""
    if snapshot.is_past:
        return "there was no such reading yet at as_of; choose a later time or omit as_of."
    if is_recording_over(snapshot) or all(explain_end(snapshot, asset) for asset in assets):
        return f"Their bars are too few for a first reading. {NO_CALL}"
    if all(asset.ticker in snapshot.building_tickers for asset in assets):
        return "Their history is still being built. Call again in a few minutes."
    return f"A first reading needs more bars than there are so far. {NEXT_CALL}"


def explain_next_call(snapshot: Snapshot) -> str:
    """Return when to call again for a result that may fill with time."""
    if snapshot.is_past:
        return "Past readings never change."
    until = snapshot.coverage.recorded_until
    if until is not None and is_recording_over(snapshot):
        return f"The recording ended at {format_instant(until)}. {NO_CALL}"
    return NEXT_CALL

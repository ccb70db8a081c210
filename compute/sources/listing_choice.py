"""Chooses the listing whose bars an asset gets. Pure.

Prices differ between venues, so an asset stays at the source of its stored bars while that works.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from compute.sources.venue import VenueError
from compute.universe import Asset, Listing


class VenueStatus(NamedTuple):
    """The symbols that a venue lists, none unless it answered; `error` says why it did not."""

    symbols: frozenset[str]
    error: VenueError | None = None

    @property
    def is_refusing(self) -> bool:
        """Whether the venue refuses this country or key; otherwise it may answer again soon."""
        return self.error is not None and self.error.is_permanent


def choose_listings(
    assets: Iterable[Asset],
    statuses: Mapping[str, VenueStatus],
    sources: Mapping[str, str],
    now: int,
) -> dict[str, Listing]:
    """Return the listing of each asset that has one, by ticker.

    `sources` has the source of each asset's stored bars, `now` is in epoch seconds. Venues without
    a status are not used.
    """
    chosen = {
        asset.ticker: _choose_listing(asset, statuses, sources.get(asset.ticker), now)
        for asset in assets
    }
    return {ticker: listing for ticker, listing in chosen.items() if listing is not None}


def _choose_listing(
    asset: Asset, statuses: Mapping[str, VenueStatus], source: str | None, now: int
) -> Listing | None:
    usable = [listing for listing in asset.listings if listing.venue in statuses]
    open_ones = [listing for listing in usable if listing.is_open(now)]
    confirmed = [one for one in open_ones if one.symbol in statuses[one.venue].symbols]
    silent = [
        one
        for one in open_ones
        if statuses[one.venue].error is not None and not statuses[one.venue].is_refusing
    ]
    # If the universe has a new symbol for the stored one, the asset stays at the same venue.
    venue = (source or "").partition(" ")[0]
    stored = [one for one in usable if str(one) == source]
    stored = stored or [one for one in usable if one.venue == venue]
    # Stored bars wait for a venue that is silent or limits requests. They are replaced only by
    # those of a venue that answers: otherwise the asset would be late at either.
    for listing in stored:
        if listing in confirmed or listing in silent or not confirmed:
            return listing
    # Without stored bars there is nothing to mix, so an asset does not wait for a silent venue
    # while another one answers.
    return next(iter([*confirmed, *silent]), None)

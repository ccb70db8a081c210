"""The packaged universe, restricted to the venues of the double."""

from collections.abc import Iterable

from compute.bars import DAY_S
from compute.universe import Asset, Listing, Universe, load_universe
from tests.doubles.venues.market import Market
from tests.doubles.venues.sample_markets import make_simulated_markets
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import START, list_markets

# Some assets of every venue.
SAMPLE_TICKERS = ("BTC", "FLR", "MNT", "HYPE", "XMR", "AKT", "XAU", "NVDA")


def load_covered_universe(tickers: Iterable[str] | None = None) -> Universe:
    """Return the packaged universe, or part of it, with only listings that the double has.

    The double has no spot markets of Hyperliquid, so HYPE is listed as its perpetual.
    """
    packaged = load_universe()
    chosen = packaged.by_ticker if tickers is None else tickers
    assets = tuple(_move_to_covered_venues(packaged.by_ticker[ticker]) for ticker in chosen)
    return Universe(assets=assets, renamed_on=packaged.renamed_on)


def _move_to_covered_venues(asset: Asset) -> Asset:
    first, *others = map(_move_listing, asset.listings)
    return asset.model_copy(update={**first.model_dump(), "fallbacks": tuple(others)})


def _move_listing(listing: Listing) -> Listing:
    if listing.venue != "hyperliquid" or listing.perpetual is None:
        return listing
    return listing.model_copy(update={"symbol": listing.perpetual})


async def list_packaged_universe(
    double: VenuesDouble, universe: Universe, days: int
) -> dict[str, Market]:
    """List the universe on the double, with bars from some days before START to two days after."""
    first, last = START - (days + 2) * DAY_S, START + 2 * DAY_S
    made = await make_simulated_markets(universe, universe.by_ticker, first, last)
    list_markets(double, universe, made)
    return made

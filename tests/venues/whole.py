"""The packaged universe on the double, as far as that plays its venues."""

from collections.abc import Iterable

from compute.bars import DAY_S
from compute.universe import Asset, Listing, Universe, load_universe
from tests.venues.double import DIALECTS, VenuesDouble
from tests.venues.live import START, put
from tests.venues.made import made_up_markets
from tests.venues.market import Market

# Some of every venue.
FEW = ("BTC", "FLR", "MNT", "HYPE", "XMR", "XAU", "NVDA", "SPY")
KRAKENS = 700  # of its bars it tells the newest 720


def played(tickers: Iterable[str] | None = None) -> Universe:
    """Return the packaged universe, or some of it, as far as the double plays its venues.

    For want of Gate, KuCoin and Hyperliquid's spot markets, AKT and XMR are asked of Kraken,
    and FARTCOIN and HYPE are their perpetuals.
    """
    packaged = load_universe()
    chosen = packaged.by_ticker if tickers is None else tickers
    assets = tuple(_at_played_venues(packaged.by_ticker[ticker]) for ticker in chosen)
    return Universe(assets=assets, renamed_on=packaged.renamed_on)


def _at_played_venues(asset: Asset) -> Asset:
    first, *others = filter(None, map(_played, asset.listings))
    return asset.model_copy(update={**first.model_dump(), "fallbacks": tuple(others)})


def _played(listing: Listing) -> Listing | None:
    if listing.venue != "hyperliquid" or listing.is_stand_in:
        return listing if listing.venue in DIALECTS else None
    perpetual = listing.perpetual
    return None if perpetual is None else listing.model_copy(update={"symbol": perpetual})


async def listed(double: VenuesDouble, universe: Universe, days: int) -> dict[str, Market]:
    """List the universe on the double, with bars of some days before START and two after it."""
    first, last = START - (days + 2) * DAY_S, START + 2 * DAY_S
    made = await made_up_markets(universe, universe.by_ticker, first, last)
    for ticker, market in made.items():
        if universe.by_ticker[ticker].venue == "kraken":
            made[ticker] = Market(market.bars()[-KRAKENS:])
    put(double, universe, made)
    return made

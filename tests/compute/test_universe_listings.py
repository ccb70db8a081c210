import re
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from compute.universe import Asset, Listing, Universe, load_universe
from schemas.vocabulary import compute_midnight_s

pytestmark = pytest.mark.clause("live")

EXCHANGES = {"binance", "bybit", "okx", "kraken", "hyperliquid", "kucoin", "gate", "coinbase"}
VENUES = EXCHANGES | {"alpaca"}
RENAMED = {
    "IP": "DATA: the coin's name since mid-2026",
    "TON": "GRAM: the coin's name since June 2026",
    "BTTC": "BTT: the same token on some venues",
    "NEIRO": "NEIROCTO: distinguishes it from another coin of that name",
}
ANOTHER_BASE = {
    ("binance", "RAYSOL/USDT:USDT"): "RAY",
    ("bybit", "PUMPFUN/USDT:USDT"): "PUMP",
}
WITHOUT_FUNDING = {
    "BTTC": "no perpetual on Binance; its fallback on Gate has one",
    "DCR": "no perpetual on a venue that this build knows",
    "LEO": "no perpetual on a venue that this build knows",
    "OKB": "no perpetual of an exchange's own token there",
    "PI": "no perpetual known on OKX; its fallback on Gate has one",
}
METALS = {"XAU": "GOLD", "XAG": "SILVER", "XPT": "PLATINUM", "XPD": "PALLADIUM"}


@pytest.fixture(scope="module")
def packaged() -> Universe:
    return load_universe()


def base(symbol: str) -> str:
    """Return the coin of a symbol, without the multiplier of a contract such as 1000PEPE."""
    coin = symbol.split("/")[0]
    return re.sub(r"^1000(?=[A-Z])|(?<=[A-Z])1000$", "", coin)


def of_class(universe: Universe, asset_class: str) -> list[Asset]:
    return [asset for asset in universe.tracked_assets if asset.asset_class == asset_class]


def lasting(asset: Asset) -> list[Listing]:
    """Return the listings of an asset that have not ended."""
    return [listing for listing in asset.listings if listing.until is None]


def every_listing(universe: Universe) -> list[tuple[Asset, Listing]]:
    return [(asset, listing) for asset in universe.assets for listing in asset.listings]


def test_an_asset_without_the_new_fields_has_its_one_listing(packaged: Universe):
    removed = packaged.by_ticker["MATIC"]
    assert removed.listings == (Listing(venue="binance", symbol="MATIC/USDT"),)


def test_the_first_choice_comes_before_the_fallbacks_in_their_order(packaged: Universe):
    listings = packaged.by_ticker["SHIB"].listings
    assert [(each.venue, each.symbol, each.perpetual) for each in listings] == [
        ("binance", "SHIB/USDT", "1000SHIB/USDT:USDT"),
        ("bybit", "SHIB/USDT", "SHIB1000/USDT:USDT"),
        ("okx", "SHIB/USDT", "SHIB/USDT:USDT"),
        ("kraken", "SHIB/USD", None),
    ]


def test_every_venue_is_one_that_this_build_has_a_client_for(packaged: Universe):
    assert {listing.venue for _, listing in every_listing(packaged)} == VENUES


def test_no_two_assets_share_a_symbol_or_a_perpetual_of_a_venue(packaged: Universe):
    symbols = Counter(
        (listing.venue, symbol)
        for _, listing in every_listing(packaged)
        for symbol in (listing.symbol, listing.perpetual)
        if symbol
    )
    assert [symbol for symbol, count in symbols.items() if count > 1] == []


def test_an_asset_is_listed_once_a_venue_at_a_time(packaged: Universe):
    for asset in packaged.assets:
        venues = [listing.venue for listing in lasting(asset)]
        assert len(set(venues)) == len(venues), asset.ticker


def test_the_first_choice_of_an_asset_has_not_ended(packaged: Universe):
    ended = [asset.ticker for asset in packaged.tracked_assets if asset.until is not None]
    assert ended == []


def test_endings_and_renames_are_listings_with_dates(packaged: Universe):
    ended = {
        f"{asset.ticker} {listing}": listing.until
        for asset, listing in every_listing(packaged)
        if listing.until
    }
    assert ended == {
        "IP okx IP/USDT": date(2026, 8, 31),
        "IP kucoin IP/USDT": date(2026, 11, 22),
        "IP coinbase IP/USD": date(2026, 11, 22),
        "LRC binance LRC/USDT": date(2026, 4, 1),
        "TON okx TON/USDT": date(2026, 6, 16),
    }
    assert str(packaged.by_ticker["IP"].listings[0]) == "okx DATA/USDT"
    assert str(packaged.by_ticker["LRC"].listings[0]) == "bybit LRC/USDT"
    assert "Toncoin" in packaged.by_ticker["TON"].name
    assert packaged.by_ticker["TON"].name.startswith("Gram")


def test_the_clock_decides_whether_a_listing_is_open():
    noon, day = compute_midnight_s(date(2026, 6, 1)) + 43_200, 86_400
    listing = Listing(venue="okx", symbol="B/U", since=date(2026, 6, 1), until=date(2026, 6, 3))
    found = [listing.is_open(noon + days * day) for days in (-1, 0, 1, 2)]
    assert found == [False, True, True, False]
    assert listing.is_open(compute_midnight_s(date(2026, 6, 1)))
    assert not listing.is_open(compute_midnight_s(date(2026, 6, 3)))


def test_a_symbol_names_the_coin_of_its_ticker(packaged: Universe):
    others = {
        asset.ticker
        for asset in of_class(packaged, "crypto")
        for listing in lasting(asset)
        if listing.symbol.split("/")[0] != asset.ticker
    }
    assert others == RENAMED.keys()


def test_a_perpetual_belongs_to_the_same_coin_as_the_spot_market(packaged: Universe):
    for asset, listing in every_listing(packaged):
        if listing.perpetual:
            named = (listing.venue, listing.perpetual)
            belongs_to = ANOTHER_BASE.get(named, base(listing.perpetual))
            assert belongs_to == base(listing.symbol), asset.ticker


def test_the_ambiguous_symbol_spx_is_not_listed(packaged: Universe):
    assert [asset for asset, each in every_listing(packaged) if "SPX" in each.symbol] == []


def test_tickers_of_one_letter_are_a_coin_at_exchanges_or_a_stock_at_alpaca(packaged: Universe):
    short = {asset.ticker: asset for asset in packaged.assets if len(asset.ticker) == 1}
    assert {t: asset.asset_class for t, asset in short.items()} == {
        "A": "crypto",
        "S": "crypto",
        "W": "crypto",
        "V": "stock",
    }
    for ticker in "ASW":
        assert {listing.symbol.split("/")[0] for listing in short[ticker].listings} == {ticker}


def test_bars_of_coins_are_spot_bars(packaged: Universe):
    stand_ins = [a.ticker for a in of_class(packaged, "crypto") for x in a.listings if x.is_proxy]
    assert stand_ins == []


def test_every_coin_has_a_fallback(packaged: Universe):
    assert [a.ticker for a in of_class(packaged, "crypto") if len(lasting(a)) < 2] == []


def test_every_coin_has_funding_at_its_first_choice_or_a_reason_why_not(packaged: Universe):
    without = {a.ticker for a in of_class(packaged, "crypto") if a.perpetual is None}
    assert without == WITHOUT_FUNDING.keys()


def test_kraken_which_serves_720_bars_never_precedes_another_venue(packaged: Universe):
    for asset in packaged.assets:
        assert "kraken" not in [listing.venue for listing in lasting(asset)[:-1]], asset.ticker
        assert lasting(asset)[0].venue != "kraken", asset.ticker


def test_stocks_come_from_alpaca_by_their_ticker_and_fall_back_on_proxy_instruments(
    packaged: Universe,
):
    for asset in of_class(packaged, "stock"):
        first, *others = asset.listings
        assert first == Listing(venue="alpaca", symbol=asset.ticker)
        assert not first.is_proxy
        assert all(other.is_proxy for other in others)
        spelled = {other.symbol.split("/")[0].removeprefix("XYZ-") for other in others}
        assert spelled <= {asset.ticker}


def test_metals_come_from_proxy_instruments(packaged: Universe):
    for asset in of_class(packaged, "metal"):
        assert [(each.venue, each.symbol, each.is_proxy) for each in asset.listings] == [
            ("binance", f"{asset.ticker}/USDT:USDT", True),
            ("hyperliquid", f"XYZ-{METALS[asset.ticker]}/USDC:USDC", True),
        ]


def counted(universe: Universe, chosen: Callable[[Asset], list[Listing]]) -> Counter[str]:
    return Counter(listing.venue for asset in universe.tracked_assets for listing in chosen(asset))


def test_the_page_of_sources_counts_the_assets_of_each_venue(packaged: Universe):
    page = Path("docs/sources.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    allowed = {
        a.ticker: [x for x in lasting(a) if x.venue != "binance"] for a in packaged.tracked_assets
    }
    columns = [
        counted(packaged, lambda asset: [asset.listings[0]]),
        counted(packaged, lambda asset: [x for x in asset.listings[:1] if x.perpetual]),
        counted(packaged, lambda asset: allowed[asset.ticker][:1]),
        counted(packaged, lambda asset: [x for x in allowed[asset.ticker][:1] if x.perpetual]),
        counted(packaged, lambda asset: lasting(asset)[1:]),
    ]
    assert {venue: [int(cell) for cell in cells] for venue, *cells in rows} == {
        venue: [column[venue] for column in columns] for venue in VENUES
    }


def test_the_page_of_sources_counts_the_stocks_without_a_proxy_instrument(packaged: Universe):
    stocks = of_class(packaged, "stock")
    covered = sum(bool(asset.fallbacks) for asset in stocks)
    page = Path("docs/sources.md").read_text(encoding="utf-8")
    assert f"Without a key {covered} stocks and funds" in page
    assert f"the other {len(stocks) - covered} are not covered" in page


def test_the_page_of_the_universe_counts_the_open_and_the_confirmed_listings(packaged: Universe):
    page = Path("docs/universe.md").read_text(encoding="utf-8")
    facts = re.findall(r"^\| (\w+) \| `(\w+) (\S+)` \| (.*) \| (\S+) \|$", page, re.M)
    open_by_venue = counted(packaged, lasting)
    confirmed = {venue: list[str]() for venue in VENUES}
    for ticker, venue, symbol, fact, day in facts:
        [listing] = [
            one for one in packaged.by_ticker[ticker].listings if str(one) == f"{venue} {symbol}"
        ]
        if listing.until is None and not fact.startswith("unconfirmed"):
            confirmed[venue].append(day)
    proxies = [
        (asset.asset_class, listing)
        for asset in packaged.tracked_assets
        for listing in lasting(asset)
        if listing.is_proxy and listing.venue == "binance"
    ]
    of_stocks = [kind for kind, _ in proxies if kind == "stock"]
    text = rf"^\| {len(of_stocks)} stocks and funds, 4 metals \| .* \| public list \| (\S+) \|$"
    [day] = re.findall(text, page, re.M)
    confirmed["binance"] += [day] * len(proxies)
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\S+) \|$", page, re.M)
    assert {venue: (int(count), int(known), day) for venue, count, known, day in rows} == {
        venue: (open_by_venue[venue], len(days), max(days, default="none"))
        for venue, days in confirmed.items()
    }
    ended = {f"{a.ticker} {one}" for a, one in every_listing(packaged) if one.until}
    assert ended <= {f"{ticker} {venue} {symbol}" for ticker, venue, symbol, _, _ in facts}

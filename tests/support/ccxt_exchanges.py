"""The real exchange library, with only its URLs and its clock replaced.

The clock matters: by it the library chooses OKX's endpoint for bars and Hyperliquid's end of range.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from compute.sources.ccxt_venue import import_exchange
from tests.doubles.venues.server import VenuesDouble, redirect_exchange

# A market with bars, and one that also has funding if the venue has perpetuals.
SYMBOLS = {
    "binance": ("BTC/USDT", "BTC/USDT:USDT"),
    "bybit": ("BTC/USDT", "BTC/USDT:USDT"),
    "okx": ("BTC/USDT", "BTC/USDT:USDT"),
    "kraken": ("BTC/USD", None),
    "hyperliquid": ("BTC/USDC:USDC", "XYZ-GOLD/USDC:USDC"),
    "gate": ("BTC/USDT", "BTC/USDT:USDT"),
    "kucoin": ("BTC/USDT", "BTC/USDT:USDT"),
    "coinbase": ("BTC/USD", None),
}
EXCHANGES = tuple(SYMBOLS)
PERPETUALS = {name: perpetual for name, (_, perpetual) in SYMBOLS.items() if perpetual}


@asynccontextmanager
async def open_exchange(double: VenuesDouble, name: str, **config: Any) -> AsyncIterator[Any]:
    """Open an exchange on a double, its rate limiter off unless `config` says otherwise.

    It gets a session from here: if it creates its own, it emits warnings on newer Pythons.
    """
    async with aiohttp.ClientSession() as session:
        usual = {"enableRateLimit": False, "verify": False, "session": session}
        exchange = redirect_exchange(import_exchange(name)(usual | config), double.base_url)
        exchange.milliseconds = double.clock
        exchange.timeout_on_exit = 0
        try:
            yield exchange
        finally:
            await exchange.close()

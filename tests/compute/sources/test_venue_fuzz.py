"""Any JSON for one symbol: its own calls fail cleanly, and all others get what they always get."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compute.bars import DAY_S, HOUR_S, Series, find_settlement_fault, validate_bars
from compute.sources.alpaca import AlpacaVenue
from compute.sources.ccxt_venue import CcxtVenue
from compute.sources.venue import Venue, VenueError
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.doubles.venues.market import Market
from tests.doubles.venues.round_number_market import HOUR, make_market
from tests.doubles.venues.sample_markets import halve_bars
from tests.doubles.venues.server import VenuesDouble
from tests.support.ccxt_exchanges import PERPETUALS
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")

NUMBERS = st.sampled_from(
    [0, 1, -1, 2**63, 10**30, 1e18, 1e308, -1e308, 5e-324, 1e-320, HOUR, 1000 * HOUR, 1e15]
)
TEXTS = st.sampled_from(
    ["", "x", "0", "-1", "1e400", "NaN", "Infinity", "1e-320", str(1000 * HOUR)]
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=7),
        st.dictionaries(st.sampled_from(["result", "list", "data", "t", "o", "bars"]), inner),
    ),
    max_leaves=12,
)
# A step into the right answer: the n-th entry of a list or an object; then it is replaced there.
PATHS = st.lists(st.integers(0, 11), max_size=4)
NAMES = ["binance", "bybit", "okx", "hyperliquid", "alpaca"]


def replace_at(body: Any, path: list[int], value: Any) -> Any:
    """Return an answer with another value at the place to which the path leads."""
    if not path or not isinstance(body, list | dict) or not body:
        return value
    keys = list(body) if isinstance(body, dict) else list(range(len(body)))
    chosen = keys[path[0] % len(keys)]
    replaced = {key: body[key] for key in keys}
    replaced[chosen] = replace_at(body[chosen], path[1:], value)
    return replaced if isinstance(body, dict) else list(replaced.values())


@pytest.fixture(params=NAMES)
async def venue(
    request: pytest.FixtureRequest, double: VenuesDouble, clock: ManualClock, tmp_path: Any
) -> AsyncIterator[tuple[Venue, str, str]]:
    """A client of each dialect, with a symbol to spoil and another one."""
    name: str = request.param
    symbol = "A" if name == "alpaca" else PERPETUALS[name]
    other = symbol.replace("BTC", "ETH").replace("GOLD", "SILVER") if symbol != "A" else "B"
    for one in (symbol, other):
        market = make_market()
        bars = halve_bars(market) if name == "alpaca" else Market(market.table, market.settlements)
        double.get_venue(name).add_listing(one, bars)
    client: Venue
    if name == "alpaca":
        data, trading = (
            f"{double.base_url}/{host}.alpaca.markets" for host in ("data", "paper-api")
        )
        client = AlpacaVenue(
            API_KEY_ID, API_SECRET_KEY, data_address=data, trading_address=trading, spacing_s=0
        )
    else:
        kept = tmp_path / "kept.json"
        client = CcxtVenue(name, {symbol, other}, kept, clock, double.base_url, is_paced=False)
    await client.fetch_symbols()
    yield client, symbol, other
    await client.close()


async def read_usable(client: Venue, symbol: str) -> tuple[int, list[tuple[int, float]]]:
    """Fetch a symbol as the live source does; return the numbers of usable bars and rates."""
    period_s = HOUR_S // 2 if client.name == "alpaca" else HOUR_S
    rows = await client.fetch_bars(symbol, HOUR - DAY_S, HOUR - HOUR_S, period_s)
    bars = Series.from_rows(validate_bars(rows, period_s)[0], period_s)
    settlements = await client.fetch_funding(symbol, HOUR - 3 * DAY_S, HOUR)
    return len(bars), [row for row in settlements if not find_settlement_fault(*row)]


@pytest.mark.parametrize(
    "size", [12, pytest.param(1000, marks=pytest.mark.prove)], ids=["few", "many"]
)
@pytest.mark.sampled(3)
async def test_any_json_for_one_symbol_costs_the_others_nothing(
    double: VenuesDouble, venue: tuple[Venue, str, str], size: int
) -> None:
    client, symbol, other = venue
    right = await read_usable(client, other)
    assert right[0] >= 20

    @settings(
        max_examples=size,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(path=PATHS, value=ANY_JSON)
    def collect(path: list[int], value: Any) -> None:
        cases.append((path, value))

    cases: list[tuple[list[int], Any]] = []
    collect()
    server = double.get_venue(client.name)
    for path, value in cases:
        server.clear_failures()
        server.add_failure(
            "garbled",
            symbol=symbol,
            times=None,
            garble=lambda body, path=path, value=value: spoil(body, symbol, path, value),
        )
        spoiled, others = await asyncio.gather(
            read_usable(client, symbol), read_usable(client, other), return_exceptions=True
        )
        assert isinstance(spoiled, VenueError | tuple), (path, value)
        assert others == right, (path, value)


def spoil(body: Any, symbol: str, path: list[int], value: Any) -> Any:
    """Spoil the answer for one symbol; of Alpaca's, which is for several, only its rows."""
    if symbol == "A" and isinstance(body, dict) and "bars" in body:
        rows = replace_at(body["bars"].get(symbol, []), path, value)
        return body | {"bars": body["bars"] | {symbol: rows}}
    return replace_at(body, path, value)

"""Responses that the exchange library hides: types, orders, windows and refusals as documented."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from compute.bars import HOUR_S
from tests.doubles.venues.round_number_market import HOUR, NOW, make_market
from tests.doubles.venues.server import VenuesDouble
from tests.support.ccxt_exchanges import SYMBOLS

pytestmark = [pytest.mark.clause("live"), pytest.mark.prove]

HOUR_MS = HOUR * 1000


@pytest.fixture
async def client(double: VenuesDouble) -> AsyncIterator[httpx.AsyncClient]:
    for name, symbols in SYMBOLS.items():
        for symbol in filter(None, symbols):
            double.get_venue(name).add_listing(symbol, make_market())
    async with httpx.AsyncClient(base_url=double.base_url, verify=False) as opened:
        yield opened


async def read(client: httpx.AsyncClient, path: str, **query: Any) -> Any:
    return (await client.get(path, params=query)).json()


async def test_binance_returns_prices_as_text_and_the_last_millisecond_of_a_bar(
    client: httpx.AsyncClient,
) -> None:
    path = "/api.binance.com/api/v3/klines"
    arguments = {"symbol": "BTCUSDT", "interval": "1h", "endTime": HOUR_MS - 1, "limit": 1}
    opened = HOUR_MS - HOUR_S * 1000
    values = ["19999", "20008", "19990", "19999.5", "10.25"]
    rows = await read(client, path, **arguments)
    assert rows == [[opened, *values, HOUR_MS - 1, "0", 1, "0", "0", "0"]]


async def test_bybit_is_newest_first_and_wants_both_ends_of_settlements(
    client: httpx.AsyncClient,
) -> None:
    linear = {"category": "linear", "symbol": "BTCUSDT"}
    path = "/api.bybit.com/v5/market"
    answer = await read(client, f"{path}/kline", **linear, interval=60, limit=3)
    assert [int(row[0]) for row in answer["result"]["list"]] == [
        HOUR_MS - n * HOUR_S * 1000 for n in range(3)
    ]
    window = {"start": HOUR_MS - 9 * HOUR_S * 1000, "end": HOUR_MS - 1}
    newest = await read(client, f"{path}/kline", **linear, **window, interval=60, limit=1)
    assert [int(row[0]) for row in newest["result"]["list"]] == [HOUR_MS - HOUR_S * 1000]
    path = f"{path}/funding/history"
    assert (await read(client, path, **linear, startTime=0))["retCode"] == 10001
    whole = await read(client, path, **linear, startTime=0, endTime=HOUR_MS)
    assert whole["result"]["list"][0]["fundingRateTimestamp"] == str(HOUR_MS)


async def test_okx_leaves_both_ends_out_and_returns_the_newest_of_a_window(
    client: httpx.AsyncClient,
) -> None:
    path, hour_ms = "/www.okx.com/api/v5/market/candles", HOUR_S * 1000
    arguments = {"instId": "BTC-USDT", "bar": "1H", "limit": 2, "before": HOUR_MS - 9 * hour_ms}
    newest = (await read(client, path, **arguments))["data"]
    assert [(int(row[0]) - HOUR_MS, row[-1]) for row in newest] == [(0, "0"), (-hour_ms, "1")]
    window = (await read(client, path, **arguments, after=HOUR_MS - 6 * hour_ms))["data"]
    assert [(int(row[0]) - HOUR_MS) // hour_ms for row in window] == [-7, -8]
    both = arguments | {"limit": 9, "after": HOUR_MS - 6 * hour_ms}
    assert len((await read(client, path, **both))["data"]) == 2
    closed = (await read(client, path.replace("candles", "history-candles"), **arguments))["data"]
    assert [int(row[0]) - HOUR_MS for row in closed] == [-hour_ms]


async def test_kraken_always_ends_with_the_forming_bar_and_names_the_last_committed_one(
    client: httpx.AsyncClient,
) -> None:
    arguments = {"pair": "XXBTZUSD", "interval": 60, "since": NOW}
    answer = await read(client, "/api.kraken.com/0/public/OHLC", **arguments)
    (forming,) = answer["result"]["XXBTZUSD"]
    assert forming[0] == HOUR
    assert [type(value) for value in forming] == [int, *[str] * 6, int]
    assert answer["result"]["last"] == HOUR - HOUR_S
    later = await read(
        client, "/api.kraken.com/0/public/OHLC", **arguments | {"since": HOUR - HOUR_S}
    )
    assert len(later["result"]["XXBTZUSD"]) == 1


async def test_hyperliquid_answers_by_type_and_fails_on_an_unknown_coin(
    client: httpx.AsyncClient,
) -> None:
    path = "/api.hyperliquid.xyz/info"
    meta = (await client.post(path, json={"type": "meta", "dex": "xyz"})).json()
    assert [row["name"] for row in meta["universe"]] == ["xyz:GOLD"]
    request = {"coin": "xyz:GOLD", "interval": "1h", "startTime": HOUR_MS, "endTime": HOUR_MS}
    body = {"type": "candleSnapshot", "req": request}
    (candle,) = (await client.post(path, json=body)).json()
    assert (candle["t"], candle["T"], candle["s"]) == (HOUR_MS, HOUR_MS + 3_599_999, "xyz:GOLD")
    unknown = {"type": "candleSnapshot", "req": request | {"coin": "NOPE"}}
    failed = await client.post(path, json=unknown)
    assert (failed.status_code, failed.json()) == (500, None)


@pytest.mark.parametrize(
    ("path", "status", "refusal"),
    [
        (
            "api.binance.com/api/v3/klines?symbol=NOPE&interval=1h",
            400,
            {"code": -1121, "msg": "Invalid symbol."},
        ),
        (
            "api.binance.com/api/v3/klines?symbol=BTCUSDT&interval=9h",
            400,
            {"code": -1120, "msg": "Invalid interval."},
        ),
        ("api.bybit.com/v5/market/kline?category=spot&symbol=NOPE", 200, {"retCode": 10001}),
        ("www.okx.com/api/v5/market/candles?instId=NOPE", 200, {"code": "51001"}),
        (
            "api.kraken.com/0/public/OHLC?pair=NOPE",
            200,
            {"error": ["EQuery:Unknown asset pair"]},
        ),
        (
            "api.gateio.ws/api/v4/spot/candlesticks?currency_pair=NOPE_USDT&interval=1h",
            400,
            {"label": "INVALID_CURRENCY_PAIR"},
        ),
        (
            "api.gateio.ws/api/v4/spot/candlesticks?currency_pair=BTC_USDT&interval=1h&from=0",
            400,
            {"label": "INVALID_PARAM_VALUE"},
        ),
        (
            "api.kucoin.com/api/v1/market/candles?symbol=NOPE-USDT&type=1hour",
            400,
            {"code": "400100"},
        ),
        (
            "api.coinbase.com/api/v3/brokerage/market/products/NOPE-USD/candles",
            404,
            {"error": "NOT_FOUND"},
        ),
        (
            "api.coinbase.com/api/v3/brokerage/market/products/BTC-USD/candles"
            f"?granularity=ONE_HOUR&start={HOUR - 350 * HOUR_S}&end={HOUR}",
            400,
            {"error": "INVALID_ARGUMENT"},
        ),
    ],
)
async def test_refusals_are_worded_as_documented(
    client: httpx.AsyncClient, path: str, status: int, refusal: dict[str, Any]
) -> None:
    answer = await client.get(f"/{path}")
    assert answer.status_code == status
    assert answer.json().items() >= refusal.items()

"""Arguments that both transports refuse, with the error code and words of the message."""

from typing import Any
from urllib.parse import urlencode

STATE, SIGNALS = "signals_get_state", "signals_get_signals"
CONFLUENCE, FLIPS, USAGE = "signals_get_confluence", "signals_get_flips", "signals_get_usage"
CATALOG, STATS = "signals_get_catalog", "signals_get_stats"
KEYED_PATHS = {
    STATE: "/state",
    SIGNALS: "/signals",
    CONFLUENCE: "/confluence",
    FLIPS: "/flips",
    USAGE: "/usage",
}
# Reads of the log, which MCP does not have. The first one needs an argument.
PROOF_PATH, LEAVES_PATH = "/log/proof", "/log/leaves"
PATHS = {**KEYED_PATHS, CATALOG: "/catalog", STATS: "/stats"}
INVALID, TICKER, INDICATOR = "invalid_parameter", "unknown_ticker", "unknown_indicator"

BAD_INPUTS: list[tuple[str, dict[str, Any], str, list[str]]] = [
    (STATE, {"colour": "red"}, INVALID, ["colour", "accepted: ticker, asset_class"]),
    (STATE, {"tickers": "BTC"}, INVALID, ["did you mean ticker?"]),
    (STATE, {"Ticker": "BTC"}, INVALID, ["did you mean ticker?"]),
    (STATE, {"limit": 5}, INVALID, ["limit"]),
    (STATE, {"ticker": " , "}, INVALID, ["only separators"]),
    (STATE, {"ticker": "BTCC,ETH,NVDX"}, TICKER, ["mean BTC (Bitcoin)?", "mean NVDA (NVIDIA)?"]),
    (STATE, {"ticker": "bitcoine"}, TICKER, ["did you mean BTC (Bitcoin)?"]),
    (STATE, {"ticker": "XBT"}, TICKER, ["XBT means BTC (Bitcoin). Use BTC."]),
    (SIGNALS, {"ticker": "FB"}, TICKER, ["FB was renamed META, which is not covered."]),
    (STATE, {"ticker": "X" * 5000}, INVALID, ["too long (5000 characters)", "at most 2000"]),
    (STATE, {"ticker": "X" * 2000}, TICKER, ["..."]),
    (STATE, {"asset_class": "forex"}, INVALID, ["asset_class", '"forex"', "crypto, stock, metal"]),
    (STATE, {"asset_class": "stonk"}, INVALID, ["did you mean stock?"]),
    (STATE, {"timeframe": "1w"}, INVALID, ["timeframe", "1h, 4h, 1d"]),
    (STATE, {"direction": "exit"}, INVALID, ["bullish, bearish, neutral"]),
    (STATE, {"direction": "bull", "timeframe": "2h"}, INVALID, ["direction", "timeframe"]),
    (STATE, {"indicator": "trend-orakle"}, INDICATOR, ["did you mean trend_oracle?"]),
    (STATE, {"indicator": "macd"}, INDICATOR, ["perpkit"]),
    (STATE, {"indicator": "dexter"}, INDICATOR, ["use enzo"]),
    (SIGNALS, {"indicator": "dexter"}, INDICATOR, ["use enzo"]),
    (SIGNALS, {"indicator": "all_rsi"}, INDICATOR, ["enzo"]),
    (SIGNALS, {"indicator": "enzo" + "-" * 57 + "xyz"}, INDICATOR, ["enzo"]),
    (SIGNALS, {"ticker": "BTC" + "." * 57 + "ETH"}, TICKER, ["ticker"]),
    (STATE, {"direction": "bullish" + "-" * 53 + "zzz"}, INVALID, ["bullish"]),
    (SIGNALS, {"indicator": "trend_orcale"}, INDICATOR, ["did you mean trend_oracle?"]),
    (SIGNALS, {"ticker": "BTC,ETHX"}, TICKER, ["ETHX"]),
    (SIGNALS, {"asset_class": "bond"}, INVALID, ["crypto", "stock", "metal"]),
    (FLIPS, {"ticker": "ETHX"}, TICKER, ["ETHX"]),
    (CATALOG, {"ticker": "BTCC"}, TICKER, ["did you mean BTC (Bitcoin)?"]),
    (SIGNALS, {"ticker": "BTCC", "asset_class": "stock"}, TICKER, ['"BTCC"; accepted']),
    (SIGNALS, {"ticker": "BTCC,NVDX", "asset_class": "stock"}, TICKER, ['"BTCC", "NVDX" (did']),
    (FLIPS, {"ticker": "BTCC", "asset_class": "stock"}, TICKER, ['"BTCC"; accepted']),
    (FLIPS, {"asset_class": "bond"}, INVALID, ["crypto", "stock", "metal"]),
    (SIGNALS, {"ticker": "NVDX"}, TICKER, ["did you mean NVDA (NVIDIA)?"]),
    (SIGNALS, {"tier": "free"}, INVALID, ["universe, alerts, all"]),
    (SIGNALS, {"limit": 0}, INVALID, ["limit", "1 to 200"]),
    (SIGNALS, {"limit": 201}, INVALID, ["limit", "1 to 200"]),
    (SIGNALS, {"limit": -1}, INVALID, ["limit", "-1"]),
    (SIGNALS, {"limit": "many"}, INVALID, ["limit", '"many"']),
    (SIGNALS, {"limit": 1.5}, INVALID, ["limit", "1.5"]),
    (SIGNALS, {"offset": -1}, INVALID, ["offset", "an integer from 0"]),
    (SIGNALS, {"since": "2026-09-30Z"}, INVALID, ["since", "a date, or yesterday, 24h, 7d"]),
    (SIGNALS, {"since": "2026-13-01"}, INVALID, ["since", "is not accepted"]),
    (SIGNALS, {"since": "someday"}, INVALID, ["since", '"someday"', "2026-10-01T13:05"]),
    (SIGNALS, {"since": "1790769600"}, INVALID, ["since"]),
    (SIGNALS, {"since": "0000-01-01T00:00:00Z"}, INVALID, ["since"]),
    (SIGNALS, {"since": "12026-01-01T00:00:00Z"}, INVALID, ["since"]),
    (SIGNALS, {"since": "2026-02-30T00:00:00Z"}, INVALID, ["since"]),
    (SIGNALS, {"since": "2026-01-01T00:00:00+25:00"}, INVALID, ["since"]),
    (SIGNALS, {"since": "2026-01-01T00:00:00Z\nX"}, INVALID, ["since"]),
    (SIGNALS, {"sinse": "2026-01-01T00:00:00Z"}, INVALID, ["did you mean since?"]),
    (SIGNALS, {"order": "forward"}, INVALID, ["order", "newest, oldest"]),
    (CONFLUENCE, {"min_agree": 0}, INVALID, ["min_agree", "an integer from 1 to 6"]),
    (CONFLUENCE, {"min_agree": 7}, INVALID, ["min_agree", "an integer from 1 to 6"]),
    (CONFLUENCE, {"min_agree": 2.5}, INVALID, ["min_agree", "2.5"]),
    (CONFLUENCE, {"direction": "neutral"}, INVALID, ["direction", "accepted: bullish, bearish"]),
    (CONFLUENCE, {"timeframe": "8h", "min_agree": 9}, INVALID, ["timeframe", "min_agree"]),
    (CONFLUENCE, {"asset_class": "bonds"}, INVALID, ["asset_class", "crypto, stock, metal"]),
    (CONFLUENCE, {"min_agre": 3}, INVALID, ["did you mean min_agree?"]),
    (CONFLUENCE, {"ticker": "BTC"}, INVALID, ["ticker", "accepted: timeframe, direction"]),
    (FLIPS, {"timeframe": "1h", "hours": 7}, INVALID, ["hours: 7", "1 to 6", "timeframe 1h"]),
    (FLIPS, {"timeframe": "4h", "hours": 25}, INVALID, ["hours: 25", "1 to 24", "timeframe 4h"]),
    (FLIPS, {"timeframe": "1h", "hours": 72}, INVALID, ["hours: 72", "1 to 6"]),
    (FLIPS, {"hours": 73}, INVALID, ["hours", "an integer from 1 to 72"]),
    (FLIPS, {"hours": 0}, INVALID, ["hours", "an integer from 1 to 72"]),
    (FLIPS, {"hours": -1}, INVALID, ["hours", "-1"]),
    (FLIPS, {"hours": 1.5}, INVALID, ["hours", "1.5"]),
    (FLIPS, {"hours": "48h"}, INVALID, ["hours", '"48h"']),
    (FLIPS, {"direction": "neutral"}, INVALID, ["direction", "all, bullish, bearish"]),
    (FLIPS, {"timeframe": "weekly"}, INVALID, ["timeframe", "1h, 4h, 1d"]),
    (STATE, {"ticker": "BTX,NVDX", "as_of": "2020-01-01"}, INVALID, ["BTX", "NVDX", "as_of"]),
    (STATE, {"ticker": "BTCC", "timeframe": "2h", "x": 1}, INVALID, ["BTC (", '"2h"', '"x"']),
    (STATE, {"ticker": "BTX,,NVDX"}, TICKER, ['"BTX"', "mean NVDA ("]),
    (STATE, {"indicator": "macd", "ticker": "BTCC"}, INVALID, ["macd", "mean BTC (Bitcoin)?"]),
    (STATE, {"ticker": ",".join(f"ZZ{n}" for n in range(20))}, TICKER, ['"ZZ0"', '"ZZ19"']),
    (
        STATE,
        {"as_of": "2026-09-30T12:06:20+2", "view": "x"},
        INVALID,
        ["as_of", "full, lines"],
    ),
    (SIGNALS, {"ticker": "BTX", "indicator": "macd"}, INVALID, ["BTX", "macd"]),
    (SIGNALS, {"since": "now", "ticker": "BTX", "limit": 0}, INVALID, ["now", "BTX", "limit: 0"]),
    (SIGNALS, {"indicator": "macd", "tier": "x"}, INVALID, ['"macd"', "universe, alerts, all"]),
    (CONFLUENCE, {"as_of": "soon", "min_agree": 9}, INVALID, ['"soon"', "min_agree: 9"]),
    (FLIPS, {"timeframe": "1h", "hours": 7, "x": 1}, INVALID, ["hours: 7", 'argument "x"']),
    (FLIPS, {"since": "2026-01-01T00:00:00Z"}, INVALID, ["accepted: timeframe, hours, direction"]),
    # Words that agents send.
    (STATE, {"symbol": "BTC"}, INVALID, ["did you mean ticker?"]),
    (SIGNALS, {"interval": "1d"}, INVALID, ["did you mean timeframe?"]),
    (SIGNALS, {"start": "7d"}, INVALID, ["did you mean since?"]),
    (FLIPS, {"top": 5}, INVALID, ["did you mean limit?"]),
    (SIGNALS, {"direction": "buy"}, INVALID, ["set tier to alerts and direction to bullish"]),
    (STATE, {"direction": "long"}, INVALID, ["; set direction to bullish"]),
    (CONFLUENCE, {"timeframe": "all"}, INVALID, ["accepted: 1h, 4h, 1d"]),
    (SIGNALS, {"since": "9999w9"}, INVALID, ["yesterday, 24h, 7d"]),
    (STATE, {"ticker": "[" * 1999}, TICKER, ["unknown"]),
]

# MCP takes these as left out, because agent frameworks fill every argument.
BLANK_INPUTS: list[tuple[str, dict[str, Any], str, list[str]]] = [
    (STATE, {"ticker": ""}, INVALID, ["ticker", "empty"]),
    (STATE, {"ticker": "  "}, INVALID, ["ticker", "empty"]),
    (STATE, {"timeframe": ""}, INVALID, ["timeframe", "empty"]),
    (SIGNALS, {"indicator": ""}, INVALID, ["indicator", "empty"]),
    (SIGNALS, {"limit": ""}, INVALID, ["limit", "empty"]),
    (SIGNALS, {"since": ""}, INVALID, ["since", "empty"]),
    (FLIPS, {"hours": ""}, INVALID, ["hours", "empty"]),
]


def build_path(tool: str, arguments: dict[str, Any]) -> str:
    """Return a path with the arguments as a query string."""
    return f"{PATHS[tool]}?{urlencode(arguments)}"


def build_call(tool: str, arguments: Any = None) -> dict[str, Any]:
    """Return the JSON-RPC message that calls a tool."""
    params = {"name": tool, "arguments": {} if arguments is None else arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

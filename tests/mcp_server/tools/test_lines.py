"""The view lines, limit, times and words as agents send them, over both transports."""

import re

import pytest

from mcp_server.tools.lines import build_lines, format_readings
from mcp_server.tools.tool_table import TOOLS
from serving.json_text import to_json
from tests.support.bad_inputs import CATALOG, CONFLUENCE, FLIPS, SIGNALS, STATE, STATS, USAGE
from tests.support.example_market import fill_full_universe
from tests.support.running_service import RunningService, served as served

pytestmark = pytest.mark.clause("answers")

ROWS = {STATE: "assets", SIGNALS: "signals", FLIPS: "groups", CONFLUENCE: "results"}
HEADER = "view=lines, JSON by view=full; "
STATE_HEADER = f"{HEADER}ticker timeframe score close changed price_then readings (else neutral)"
SIGNALS_HEADER = f"{HEADER}created_at ticker timeframe indicator change price"
FLIPS_HEADER = f"{HEADER}ticker score dominant changed price_then turned"
CONFLUENCE_HEADER = f"{HEADER}ticker agree/total votes (else neutral), without dexter"
BTC = "BTC 7/7 bullish: trend_oracle, bayesian_trend, reversals, ceres, enzo, llnr, perpkit"
ETH = "ETH 6/7 bullish: trend_oracle, bayesian_trend, reversals, enzo, llnr, perpkit"
ALL_BEARISH = "bearish: trend_oracle, bayesian_trend, reversals, enzo, llnr, perpkit"
ENZO = "2026-09-30T12:03:00.005Z ETH 1h enzo bullish>bearish 101.5"
TREND_ORACLE = "2026-09-30T12:03:00.004Z BTC 1h trend_oracle bullish>bearish 101.5"
LLNR = "2026-09-30T11:03:00.001Z NVDA 1d llnr bearish>neutral 101.5"


@pytest.mark.parametrize(
    ("tool", "arguments", "lines"),
    [
        (
            STATE,
            {"ticker": "XAU"},
            [
                STATE_HEADER,
                "XAU 1h - - - - -",
                "XAU 4h - - - - -",
                f"XAU 1d -6 - 2025-08-26T12:03Z 101.5 {ALL_BEARISH}",
            ],
        ),
        (
            STATE,
            {"ticker": "BTC", "timeframe": "1h"},
            [
                STATE_HEADER,
                "BTC 1h +2 - 2026-09-30T12:03Z 101.5 bullish: bayesian_trend, reversals, enzo, "
                "llnr; bearish: trend_oracle, perpkit",
            ],
        ),
        (
            STATE,
            {"ticker": "BTC", "timeframe": "1h", "direction": "neutral"},
            [
                STATE_HEADER.replace(" (else neutral)", ", only neutral"),
                "BTC 1h +2 - 2026-09-30T12:03Z 101.5 neutral: ceres",
            ],
        ),
        (
            STATE,
            {"ticker": "BTC", "timeframe": "1h", "indicator": "ceres"},
            [
                STATE_HEADER.replace("readings", "readings of ceres"),
                "BTC 1h +2 - 2026-09-30T12:03Z 101.5 -",
            ],
        ),
        (STATE, {"ticker": "DARK"}, [STATE_HEADER]),
        (SIGNALS, {"limit": 2}, [SIGNALS_HEADER, ENZO, TREND_ORACLE]),
        (SIGNALS, {"timeframe": "1d"}, [SIGNALS_HEADER, LLNR]),
        (SIGNALS, {"offset": 99}, [SIGNALS_HEADER]),
        (
            FLIPS,
            {"timeframe": "1h"},
            [
                FLIPS_HEADER,
                "ETH 1 bearish 2026-09-30T12:03Z 101.5 bearish: enzo",
                "BTC 1 bearish 2026-09-30T12:03Z 101.5 bearish: trend_oracle",
            ],
        ),
        (FLIPS, {}, [FLIPS_HEADER, "NVDA 0 mixed 2026-09-30T11:03Z 101.5 neutral: llnr"]),
        (CONFLUENCE, {}, [CONFLUENCE_HEADER, BTC, ETH]),
        (CONFLUENCE, {"min_agree": 6, "asset_class": "stock"}, [CONFLUENCE_HEADER]),
    ],
)
async def test_lines_are_a_header_and_a_line_per_row(served, transport, tool, arguments, lines):
    answer = await served.fetch_answer(transport, tool, view="lines", **arguments)
    assert (answer["lines"].split("\n"), answer[ROWS[tool]]) == (lines, [])


@pytest.mark.parametrize("tool", ROWS)
async def test_rows_are_objects_by_default(served, transport, tool):
    usual = await served.fetch_answer(transport, tool)
    assert (await served.fetch_answer(transport, tool, view="full")) == usual
    assert usual[ROWS[tool]]
    assert "lines" not in usual


def test_many_rows_have_letters_that_the_header_explains():
    readings = {
        "trend_oracle": "bullish",
        "enzo": "bullish",
        "perpkit": "bearish",
        "llnr": "neutral",
    }
    assert format_readings(readings, is_worded=False) == "+TE-P"
    assert format_readings(readings, is_worded=False, with_neutral=True) == "+TE-P=L"
    assert format_readings({"ceres": "neutral"}, is_worded=False) == ""
    assert build_lines("ticker votes", [["BTC", "+TE"]], is_worded=False).split("\n") == [
        f"{HEADER}ticker votes; letters: T trend_oracle, B bayesian_trend, R reversals, C ceres, "
        "E enzo, L llnr, P perpkit; + bullish, - bearish, = neutral.",
        "BTC +TE",
    ]


async def test_limit_keeps_the_best_and_counts_all(served, transport):
    flips = await served.fetch_answer(transport, FLIPS, timeframe="1h", limit=1)
    assert [group["ticker"] for group in flips["groups"]] == ["ETH"]
    assert (flips["counts"], flips["capped"]) == ({"groups": 2, "flips": 2}, False)
    assert flips["meta"]["note"] == "limit leaves out 1 of 2 groups."
    confluence = await served.fetch_answer(transport, CONFLUENCE, limit=1)
    assert [result["ticker"] for result in confluence["results"]] == ["BTC"]
    assert confluence["meta"]["note"] == "limit leaves out 1 of 2 assets."


@pytest.mark.clause("4.7.11", "4.7.34")
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({"until": "2026-09-30T11:03:00.001Z"}, 2),
        ({"until": "2026-09-30T11:03:00.000Z"}, 1),
        ({"until": "2026-09-30"}, 0),
        ({"since": "2026-09-30T11:03:00Z", "until": "2026-09-30T12:03:00Z"}, 2),
        ({"until": "2026-09-30T12:03:00.005Z", "order": "oldest"}, 8),
        ({"timeframe": "all"}, 8),
        ({"until": "2030-01-01"}, 8),
        # The clock is at 12:06:20.
        ({"since": "1h"}, 6),
        ({"since": "2h"}, 8),
        ({"since": "24h"}, 8),
        ({"since": "today"}, 8),
        ({"since": "Yesterday", "until": "today"}, 0),
        ({"until": "1h"}, 2),
        ({"since": "7d"}, 8),
        ({"since": "1w"}, 8),
        # A date is its midnight in UTC.
        ({"since": "2026-09-30"}, 8),
        ({"since": " 2026-09-30 "}, 8),
        ({"since": "2026-09-30T00:00Z"}, 8),
        ({"since": "2026-10-01"}, 0),
        ({"since": "2026-10-01T00:00Z"}, 0),
        # The rows of 12:03 came in its first six milliseconds.
        *(
            ({"since": since}, 2)
            for since in (
                "2026-09-30T12:03:00.003Z",
                "2026-09-30T12:03:00.003999Z",
                "2026-09-30T14:03:00.003+02:00",
                "2026-09-30T12:03:00.003+00:00",
                "2026-09-30T12:03:00.003 00:00",
                "2026-09-30 12:03:00,003z",
            )
        ),
    ],
)
async def test_rows_are_after_since_and_up_to_until(served, transport, arguments, rows):
    assert len((await served.fetch_answer(transport, SIGNALS, **arguments))["signals"]) == rows


@pytest.mark.parametrize("tool", [STATE, CONFLUENCE])
async def test_a_relative_as_of_reads_the_past(served, transport, tool):
    past = await served.fetch_answer(transport, tool, as_of="1h")
    assert past["as_of"] == "2026-09-30T11:03:00.000Z"


@pytest.mark.parametrize("tool", [STATE, CONFLUENCE])
async def test_a_date_as_of_says_which_instant_it_means(served, transport, tool):
    dated = await served.fetch_answer(transport, tool, as_of="2026-09-30")
    note = "as_of means 2026-09-30T00:00Z; for the end of that day give 2026-10-01."
    assert note in dated["meta"]["note"]
    exact = await served.fetch_answer(transport, tool, as_of="2026-09-30T00:00Z")
    assert note not in exact["meta"]["note"]
    assert dated["as_of"] == exact["as_of"] == "2026-09-29T23:03:00.000Z"


@pytest.mark.parametrize(
    ("tool", "sent", "means"),
    [
        (STATE, {"ticker": "btc; eth"}, {"ticker": "BTC,ETH"}),
        (STATE, {"ticker": "btc eth"}, {"ticker": "BTC,ETH"}),
        (STATE, {"ticker": '["BTC", "ETH"]'}, {"ticker": "BTC,ETH"}),
        (SIGNALS, {"ticker": "gold"}, {"ticker": "XAU"}),
        (STATE, {"ticker": "Bitcoin"}, {"ticker": "BTC"}),
        (STATE, {"timeframe": "4H"}, {"timeframe": "4h"}),
        (CONFLUENCE, {"timeframe": "daily"}, {"timeframe": "1d"}),
        (FLIPS, {"timeframe": "hourly"}, {"timeframe": "1h"}),
        (SIGNALS, {"indicator": "ALL"}, {}),
        (SIGNALS, {"asset_class": "stocks"}, {"asset_class": "stock"}),
        (STATE, {"indicator": "Trend Oracle"}, {"indicator": "trend_oracle"}),
        (SIGNALS, {"direction": "Bullish"}, {"direction": "bullish"}),
    ],
)
async def test_other_words_for_a_value_are_read(served, transport, tool, sent, means):
    assert await served.fetch_answer(transport, tool, **sent) == await served.fetch_answer(
        transport, tool, **means
    )


async def test_a_list_of_tickers_is_read(served):
    answer = await served.fetch_answer("mcp", STATE, ticker=["ETH", "BTC"])
    assert [asset["ticker"] for asset in answer["assets"]] == ["BTC", "ETH"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("signals_get_price", "signals_get_state with view=lines has the last close"),
        ("get_alerts", "signals_get_signals with tier=alerts"),
        ("signals_get_flip", "signals_get_flips"),
    ],
)
async def test_an_unknown_tool_is_answered_with_one_that_does_it(served, name, words):
    answer = await served.rpc("tools/call", {"name": name, "arguments": {}}, **served.key_headers)
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("tool", "arguments", "most"),
    [
        (STATE, {"ticker": "BTC", "view": "lines"}, 260),
        (FLIPS, {"timeframe": "4h", "view": "lines"}, 260),
        (CONFLUENCE, {"min_agree": 6, "view": "lines", "timeframe": "1d"}, 260),
        (SIGNALS, {"since": "2026-09-30T12:03:00.005Z"}, 330),
    ],
)
async def test_meta_of_a_small_answer_is_short(served, transport, tool, arguments, most):
    meta = (await served.fetch_answer(transport, tool, **arguments))["meta"]
    # ETH is late on 1h in this market, which is an exception.
    meta.pop("late_assets", None)
    assert len(to_json(meta)) <= most


@pytest.fixture
async def whole(served_empty: RunningService) -> RunningService:
    """A month of the whole universe."""
    await fill_full_universe(served_empty.market)
    return served_empty


SIZES = [
    (STATE, {}, 120_000, 135_000),
    (STATE, {"view": "lines"}, 5_000, 11_000),
    (STATE, {"view": "lines", "timeframe": "4h"}, 3_000, 6_000),
    (STATE, {"view": "lines", "ticker": "BTC"}, 500, 700),
    (SIGNALS, {"limit": 200}, 60_000, 69_000),
    (SIGNALS, {"limit": 200, "view": "lines"}, 10_000, 14_000),
    (CONFLUENCE, {}, 10_000, 74_000),
    (CONFLUENCE, {"view": "lines"}, 1_000, 4_000),
    (CONFLUENCE, {"view": "lines", "limit": 5}, 500, 1_000),
    (FLIPS, {}, 30_000, 294_000),
    (FLIPS, {"view": "lines"}, 4_000, 12_000),
    (FLIPS, {"view": "lines", "limit": 5}, 500, 1_000),
    (CATALOG, {}, 36_000, 42_000),
    (CATALOG, {"view": "tickers"}, 3_000, 4_000),
    (CATALOG, {"view": "tickers", "ticker": "SHIB"}, 250, 350),
    (STATS, {}, 1_500, 2_100),
    (USAGE, {}, 400, 450),
]


@pytest.mark.clause("1.21")
@pytest.mark.prove
async def test_each_view_has_the_size_that_its_description_names_and_large_ones_say_so(whole):
    for tool, arguments, least, most in SIZES:
        answer = await whole.fetch_answer("mcp", tool, **arguments)
        size, note = len(to_json(answer)), answer["meta"].get("note", "")
        assert least <= size <= most, (tool, arguments, size)
        assert ("view=lines says the same in far fewer" in note) is (size > 50_000)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_each_size_in_a_description_is_measured(tool):
    named = re.findall(r"[\d,]{3,}(?= (?:characters|for|with|to\b)|\.)", tool.description)
    bounds = {bound for name, _, *own in SIZES if name == tool.name for bound in own}
    assert {int(number.replace(",", "")) for number in named} <= bounds
    assert named


async def test_the_list_of_tools_is_short(served):
    tools = (await served.rpc("tools/list"))["result"]["tools"]
    assert len(to_json(tools)) <= 24_000
    inputs = [{key: part for key, part in tool.items() if key != "outputSchema"} for tool in tools]
    assert len(to_json(inputs)) <= 9_000
    texts = [tool["description"] for tool in tools]
    assert max(map(len, texts)) <= 450
    assert sum(map(len, texts)) <= 2_400
    assert all(
        tool.get("_meta", {}).get("anthropic/maxResultSizeChars", 0) <= 60_000 for tool in tools
    )

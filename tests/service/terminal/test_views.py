"""The commands that read a service print what it answers, as a table, as JSON and as CSV."""

import csv
import io
import json
import re
import shutil
import sys
from itertools import zip_longest

import pytest

from schemas.errors import ArgumentsError
from service.terminal.commands import TransientError
from service.terminal.views import VIEWS
from tests.doubles.fixed_answers import KEY, loopback
from tests.service.commands.test_cli import refused
from tests.service.terminal.conftest import Read, ReadFrom
from tests.support.example_market import HOUR_MS, NOON
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.signals_command import run_signals
from verifier.client import ServiceClient, ServiceError

COMMANDS = ["state", "board", "feed", "flips", "confluence", "usage"]
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
COLOUR = re.compile(r"\x1b\[[\d;]*3[1-6][\d;]*m")


def cells(table: str) -> list[list[str]]:
    """Return the cells of each line of a table, of which two spaces or more separate columns."""
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


def parse_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.clause("operation")
async def test_state_has_a_row_for_each_asset_with_its_score_price_and_newest_change(read: Read):
    assert cells(await read("state", "btc", "XAU", "--indicator", "ceres"))[1:4] == [
        ["TICKER", "NAME", "1h: C", "4h: C", "1d: C", "SCORE", "PRICE", "AGE"],
        ["BTC", "Bitcoin", "N", "U", "N", "+1", "-", "60 min"],
        ["XAU", "Gold", ".", ".", "N", "0", "-", "400 d"],
    ]
    (asset,) = json.loads(await read("state", "BTC", "--changes", "--json"))["assets"]
    since = {"since": "2026-09-27T12:03:00.000Z", "price": 1.5, "change_percent": None}
    body = {
        "assets": [
            {
                **asset,
                "signals": {"enzo": {"1d": "bearish"}, "dexter": {"1d": "bullish"}},
                "changes": {"enzo": {"1d": since}},
                "last_bar": {"closed_at": "2026-09-30T12:00:00.000Z", "close": 112_000.5},
            }
        ],
        "meta": {"as_of": "2026-09-30T12:03:00.000Z"},
    }
    (row,) = VIEWS["state"].build_table(body).rows
    assert [cell.plain for cell in row] == ["BTC", "Bitcoin", "D U", "-1", "112000.5", "3 d"]


@pytest.mark.clause("operation")
async def test_changes_of_state_have_a_row_for_each_reading(read: Read, served: RunningService):
    command = ("state", "BTC", "--timeframe", "4h", "--changes")
    (asset,) = (await served.get_api("/state?ticker=BTC&timeframe=4h&detail=changes")).json()[
        "assets"
    ]
    records = parse_csv(await read(*command, "--csv"))
    assert [row["indicator"] for row in records] == [*asset["signals"]]
    for row in records:
        change = asset["changes"][row["indicator"]].get("4h") or {}
        assert (row["since"], row["price"]) == (
            change.get("since", ""),
            str(change.get("price", "")),
        )
    _, columns, *rows = cells(await read(*command))
    assert columns == [
        *("TICKER", "INDICATOR", "TF", "READING"),
        *("SINCE (UTC)", "AGE", "PRICE THEN", "MOVE"),
    ]
    assert len(rows) >= len(records)
    assert json.loads(await read(*command, "--json"))["assets"] == [asset]


@pytest.mark.clause("operation")
@pytest.mark.parametrize("command", ["feed", "flips"])
async def test_several_tickers_and_a_class_filter_changes(read: Read, command: str):
    printed = await read(command, "--ticker", "BTC,NVDA", "--asset-class", "stock", "--json")
    answer = json.loads(printed)
    assert {row["ticker"] for row in answer.get("signals") or answer["groups"]} == {"NVDA"}


@pytest.mark.clause("operation")
async def test_state_shows_only_the_timeframes_that_it_has(read: Read):
    printed = await read("state", "NVDA", "--timeframe", "1d")
    assert cells(printed)[1][2:] == ["1d: T B R C E L P", "SCORE", "PRICE", "AGE"]


@pytest.mark.clause("operation")
async def test_the_board_has_a_letter_for_each_reading_and_explains_them(read: Read):
    printed = await read("board", "--timeframe", "1d", "--asset-class", "metal")
    assert [line.split() for line in printed.splitlines()[1:3]] == [
        ["TICKER", "1d:", *"TBRCELP"],
        ["XAU", *"DDDNDDD"],
    ]
    assert "E enzo" in printed
    assert "U bullish  D bearish  N neutral" in printed


@pytest.mark.clause("operation")
async def test_the_feed_has_a_row_for_each_change(read: Read):
    assert cells(await read("feed", "--ticker", "NVDA"))[1:3] == [
        ["TIME (UTC)", "TICKER", "TF", "INDICATOR", "CHANGE OR ACTION", "PRICE"],
        ["2026-09-30 11:03", "NVDA", "1d", "llnr", "bearish > neutral", "101.5"],
    ]


@pytest.mark.clause("operation")
async def test_flips_and_confluence_are_ranked_as_the_service_ranks_them(
    read: Read, served: RunningService
):
    for name, command, list_key in (
        ("signals_get_flips", ["flips", "--timeframe", "1h"], "groups"),
        ("signals_get_confluence", ["confluence", "--timeframe", "1h"], "results"),
    ):
        answer = await served.fetch_answer("rest", name, timeframe="1h")
        tickers = [row[0] for row in cells(await read(*command))[2:]]
        wanted = [one["ticker"] for one in answer[list_key]]
        assert tickers[: len(wanted)] == wanted
        assert len(wanted) > 1


@pytest.mark.clause("operation")
@pytest.mark.parametrize("width", [40, 80, 100, 160])
async def test_a_narrow_terminal_cuts_nothing_but_names(read: Read, monkeypatch, width: int):
    commands = ["state BTC NVDA", "state BTC --changes", "flips --timeframe 4h", *COMMANDS[:-1]]
    wide = [await read(*command.split()) for command in commands]
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for command, whole in zip(commands, wide, strict=True):
        narrow = ESCAPE.sub("", await read(*command.split()))
        assert max(map(len, narrow.splitlines())) <= width
        # In the order of the wide form, maybe with names between them.
        words = iter(narrow.split())
        header = cells(whole)[1]
        for row in cells(whole):
            kept = [cell for name, cell in zip_longest(header, row) if name != "NAME"]
            wanted = kept if len(row) == len(header) else row
            assert [word for word in " ".join(wanted).split() if word not in words] == []


@pytest.mark.clause("operation", "22.1", "fresh")
async def test_usage_shows_the_quota_of_the_key_below_the_mark_of_its_data(read: Read):
    assert (await read("usage")).startswith("SIMULATED")
    assert cells(await read("usage"))[2][:5] == ["tests", "test", "2", "9998", "10000"]


@pytest.mark.clause("operation")
@pytest.mark.parametrize("command", COMMANDS)
async def test_json_is_the_answer_of_the_service(read: Read, served: RunningService, command):
    printed = json.loads(await read(command, "--json"))
    path = {"board": "state", "feed": "signals"}.get(command, command)
    answer = (await served.get_api(f"/{path}")).json()
    for body in (printed, answer):
        body.get("quota", {}).pop("used_today", None)
        body.get("quota", {}).pop("remaining_today", None)
    assert printed == answer


@pytest.mark.clause("operation")
@pytest.mark.parametrize(
    ("command", "path"),
    [
        (["feed"], "feed"),
        (["flips", "--timeframe", "1h"], "flips"),
        (["confluence", "--timeframe", "1h"], "confluence"),
        (["board"], "board"),
    ],
)
async def test_csv_has_the_columns_and_values_of_the_pages(
    read: Read, served: RunningService, command, path
):
    query = "?timeframe=1h" if len(command) > 1 else ""
    page = await served.get_page(f"/{path}.csv{query}", is_member=True)
    given = parse_csv(await read(*command, "--csv"))
    # The board of the pages lists assets without readings too.
    covered = {row["ticker"] for row in given}
    wanted = [row for row in parse_csv(page.text) if row["ticker"] in covered]
    assert len(wanted) > 1
    # The window of flips ends at the time of the call.
    shared = wanted[0].keys() & given[0].keys() - {"as_of"}
    assert wanted[0].keys() - shared <= {"as_of", *PAGE_ONLY}
    given_values = [{name: row[name] for name in shared} for row in given]
    for row in wanted:
        assert {name: row[name] for name in shared} in given_values


# The board of the pages also has names, scores and prices.
PAGE_ONLY = {
    *("name", "asset_class", "net_score", "last_close_usd", "change_24h_percent"),
    *("change_7d_percent", "last_close_at", "changed_at"),
}


@pytest.mark.clause("operation")
async def test_state_as_csv_has_a_record_for_each_reading(read: Read):
    given = parse_csv(await read("state", "XAU", "--csv"))
    assert given[0] == {
        **{"ticker": "XAU", "name": "Gold", "asset_class": "metal", "indicator": "trend_oracle"},
        **{"timeframe": "1d", "reading": "bearish", "as_of": "2026-09-30T12:03:00.000Z"},
        **{"source": "simulated", "stale": "false"},
    }
    assert len(given) == 7


@pytest.mark.clause("operation", "22.1", "fresh")
@pytest.mark.parametrize("command", COMMANDS[:-1])
async def test_a_stale_table_says_so_above_and_below(
    served_alone: RunningService, read_from: ReadFrom, command
):
    served_alone.clock.now = NOON + 2 * HOUR_MS
    lines = (await read_from(served_alone, command)).splitlines()
    assert lines[0].startswith("SIMULATED, STALE, as of 2026-09-30 12:03 UTC")
    assert any(line.startswith("Stale: ") for line in lines[1:])
    # The daily flips do not have ETH.
    assert (lines[-1] == "Late: ETH (1h).") is (command != "flips")


@pytest.mark.clause("operation")
async def test_colours_are_for_terminals_and_repeat_the_words(read: Read, monkeypatch):
    plain = await read("state", "BTC")
    assert ESCAPE.search(plain) is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = await read("state", "BTC")
    assert COLOUR.search(coloured)
    assert ESCAPE.sub("", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert COLOUR.search(await read("state", "BTC")) is None


@pytest.mark.clause("operation")
async def test_a_bad_argument_gets_the_message_of_the_service(read: Read):
    with pytest.raises(
        ArgumentsError, match=r'answered 400: ticker: unknown "BTCC" \(did you mean'
    ):
        await read("state", "BTCC")


async def refuse(address: str, api_key: str, view: str = "state") -> ServiceError | TransientError:
    """Return the error of a call."""
    async with ServiceClient(address, api_key) as client:
        with pytest.raises((ServiceError, TransientError)) as raised:
            await client.read_view(view)
    error: ServiceError | TransientError = raised.value
    assert "\n" not in str(error)
    assert api_key not in str(error)
    return error


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("command", [*COMMANDS, "feed --follow"])
def test_without_a_key_it_says_where_one_comes_from(tmp_path, command):
    line = refused(tmp_path, *command.split())
    assert re.match("signals: SIGNALS_API_KEY is not set: .*`signals keys create", line)


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_refused_key_is_not_tried_again(served: RunningService):
    error = await refuse(served.base_url, KEY)
    assert isinstance(error, ServiceError)
    assert "answered 401: The API key is unknown" in str(error)
    assert str(error).endswith("Check the key in SIGNALS_API_KEY.")


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
def test_a_service_that_does_not_run_is_named_with_the_next_step(tmp_path):
    line = refused(tmp_path, "state", port="1", api_key=KEY)
    assert line.startswith("signals: http://127.0.0.1:1/api/v1/state did not answer: ConnectError")
    assert "(`signals serve`), or set --url" in line


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
async def test_an_exhausted_quota_says_when_to_come_back(tmp_path, seeded):
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path, daily_limit=1) as running:
        await running.get_api("/usage")
        await running.get_api("/state")
        error = await refuse(running.base_url, running.api_key)
    assert isinstance(error, TransientError)
    # It is 12:06:20, and the quota is reset at midnight.
    assert error.retry_after_s == 3600  # at most an hour, of the 12 until midnight
    assert "The daily quota of 1 calls is used up" in str(error)


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_first_start_that_has_computed_nothing_may_pass(served_empty: RunningService):
    error = await refuse(served_empty.base_url, served_empty.api_key)
    assert isinstance(error, TransientError)
    assert error.retry_after_s > 0


@pytest.mark.clause("22.5")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize("body", [b"{}", b'{"meta": {}, "key": null}', b'{"meta": 1, "key": 2}'])
def test_an_answer_in_another_form_is_one_line(tmp_path, body):
    with loopback(200, body) as (address, _):
        for command in (["usage"], ["feed", "--follow"]):
            line = refused(tmp_path, *command, "--url", address, api_key=KEY)
            assert "answered in a form that this version does not know" in line
        as_json = run_signals(tmp_path, "usage", "--json", "--url", address, api_key=KEY)
    assert as_json.stdout == f"{body.decode()}\n"

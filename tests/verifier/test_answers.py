"""`signals verify --answers` finds answers that do not follow from the feed and the catalog."""

import asyncio
import json
import pickle
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
import pytest

from tests.mcp_server.tools.test_get_signals import publish_alerts
from tests.service.conftest import Service, serve_bars
from tests.support.bad_inputs import build_call
from tests.support.bar_sets import copy_newest_rows, generate_folder
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_change, make_flips
from tests.support.signals_command import run_signals
from verifier.answers import (
    ATTEMPTS,
    CHECKS,
    CONFLUENCE_QUERIES,
    FLIPS_QUERIES,
    PAGE_QUERIES,
    PAST_BOARDS,
    Answers,
    Query,
    check_answers,
    read_answers,
)
from verifier.client import Answer, Json, ServiceClient, format_time, parse_served_time
from verifier.report import VerifyError
from verifier.served_rows import DEFAULT_DAYS, read_feed
from verifier.verification import check_sequence

pytestmark = [pytest.mark.clause("audit"), pytest.mark.usefixtures("use_single_ca")]

CHECKED = [
    *("answers", "readings", "readings held against the feed", "assets", "pages", "rows"),
    *("alerts", "assets ranked by confluence", "assets ranked by flips", "rows counted by stats"),
    "answers held against their schema",
]
# state twice, and a page of the feed to find its end.
OTHER_CALLS = len(CONFLUENCE_QUERIES) + len(FLIPS_QUERIES) + len(PAGE_QUERIES) + 2 + 2 * PAST_BOARDS
SUBSET = {"BTC": 5000, "ETH": 1500, "SOL": 1500}
Tamper = Callable[[Answers], None]


def no_progress(done: int, total: int) -> None:
    assert 0 < done <= total


async def read_all(client: Any, days: int = 365) -> Answers:
    now = datetime.now(UTC)
    feed = await read_feed(client, None, now, no_progress)
    if days != DEFAULT_DAYS:
        since = parse_served_time(feed.since) + timedelta(days=DEFAULT_DAYS - days)
        feed = await read_feed(client, since, now, no_progress)
    return await read_answers(client, feed, no_progress, Random(1))


@pytest.fixture(scope="session")
def bars_service(tmp_path_factory) -> Iterator[Service]:
    """A service of the newest generated bars of some coins and a stock."""
    folder = tmp_path_factory.mktemp("public")
    generated, bars = generate_folder(max(SUBSET.values())), folder / "bars"
    for ticker, rows in SUBSET.items():
        copy_newest_rows(generated, bars, (f"{ticker}_1h.csv", f"{ticker}_funding.csv"), rows)
    copy_newest_rows(generated, bars, ("NVDA_1h.csv",), 1740)
    with serve_bars(folder, bars) as running:
        yield running


@pytest.fixture(scope="session")
def bars_answers(bars_service) -> Answers:
    async def read() -> Answers:
        async with ServiceClient(*bars_service) as client:
            return await read_all(client)

    return asyncio.run(read())


# A sound service


def verify(folder, service: Service, *arguments: str) -> list[str]:
    """Verify a service with its answers; return the lines after `checked`."""
    address, api_key = service
    done = run_signals(folder, "verify", "--answers", "--url", address, *arguments, api_key=api_key)
    print(done.stdout)
    checked, *lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "verified")
    named = [part.split(" ", 1)[1] for part in checked.removeprefix("checked: ").split(", ")]
    assert named == ["signed checkpoint", "rows in the log", *CHECKED]
    assert api_key not in done.stdout + done.stderr
    return lines


@pytest.mark.clause("verify")
def test_answers_over_hard_bars_follow_from_the_feed(bars_service, tmp_path):
    lines = verify(tmp_path, bars_service)
    assert not any("not checked" in line for line in lines)
    assert re.search(r"^\d+ calls counted against the key's daily quota$", "\n".join(lines), re.M)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


@pytest.mark.prove
def test_answers_over_a_year_of_hard_bars_follow_from_the_feed(tmp_path):
    with serve_bars(tmp_path, generate_folder(7800)) as service:
        verify(tmp_path, service, "--since", "2024-01-01")


async def test_what_needs_more_of_the_feed_than_was_read_is_not_checked(bars_service):
    async with ServiceClient(*bars_service) as client:
        report = check_answers(await read_all(client, days=1))
    assert report.findings == []
    assert report.not_checked == {
        "flips of windows longer than the feed read": 6,
        "stats, whose 30 days are longer than the feed read": 2,
    }


class McpClient:
    """Reads the same views over MCP, as plain JSON-RPC."""

    address, calls = "", 0

    def __init__(self, client: httpx.AsyncClient, api_key: str) -> None:
        self._client, self._headers = client, {"Authorization": f"Bearer {api_key}"}

    async def read_view(self, view: str, arguments: Json | None = None, **_: bool) -> Answer:
        if view == "openapi.json":
            return Answer((await self._client.get("/api/v1/openapi.json")).json(), "", None)
        body = build_call(f"signals_get_{view}", arguments)
        answer = await self._client.post("/api/v1/mcp", json=body, headers=self._headers)
        result = answer.json()["result"]
        assert result["isError"] is False, result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return Answer(result["structuredContent"], "", None)


@pytest.mark.prove
async def test_both_transports_return_the_same_views(bars_service, bars_answers):
    address, api_key = bars_service
    async with httpx.AsyncClient(base_url=address) as client:
        over_mcp = await read_all(McpClient(client, api_key))
    assert over_mcp == bars_answers
    assert check_answers(over_mcp).findings == []


@pytest.mark.prove
async def test_a_store_with_removed_and_renamed_assets_has_answers_that_follow(served, transport):
    await publish_alerts(served)
    if transport == "mcp":
        read = await read_all(McpClient(served.client, served.api_key))
    else:
        async with ServiceClient(served.base_url, served.api_key) as client:
            read = await read_all(client)
    report = check_answers(read)
    assert report.findings == []
    assert list(report.checked) == CHECKED
    assert min(report.checked.values()) > 0
    assert read.removed_tickers == {"MATIC"}


@pytest.mark.prove
async def test_a_capped_window_and_a_removed_asset_in_it_are_compared_too(served):
    start = NOON + HOUR_MS
    removed = make_change(start + 5000, "MATIC", "enzo", "1h", -1, 1)
    await served.market.commit(make_batch(start, [*make_flips(start, 2104)[2:], removed]))
    async with ServiceClient(served.base_url, served.api_key) as client:
        read = await read_all(client)
    assert check_answers(read).findings == []
    assert {asked.arguments["timeframe"] for asked in read.flips if asked.body["capped"]} == {"1h"}
    assert "MATIC" in {row["ticker"] for row in read.feed.rows}


# A service that computes meanwhile


class ComputingClient(ServiceClient):
    """Reads a service that commits another hour after each of the first answers of one view."""

    def __init__(self, served, hours: int) -> None:
        super().__init__(served.base_url, served.api_key)
        self._served, self._hours, self._computed = served, hours, 0

    async def read_view(self, view: str, *arguments: Any, **options: Any) -> Answer:
        answer = await super().read_view(view, *arguments, **options)
        if view == "stats" and self._computed < self._hours:
            self._computed += 1
            at = NOON + self._computed * HOUR_MS
            sign = 1 if self._computed % 2 else -1
            row = make_change(at, "NVDA", "enzo", "1h", sign, -sign)
            await self._served.market.commit(make_batch(at, [row]))
        return answer


@pytest.mark.parametrize("hours", range(1, ATTEMPTS))
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_a_verification_overtaken_by_a_run_reads_the_new_rows_and_compares_again(
    served, hours
):
    async with ComputingClient(served, hours) as client:
        answers = await read_all(client)
        # The store is one hour old when the feed is read, so it has one past board.
        assert client.calls == 4 + (OTHER_CALLS - 2 * (PAST_BOARDS - 1) + 1) * (hours + 1)
    assert check_answers(answers).findings == []
    assert len(answers.feed.rows) == 8 + hours


@pytest.mark.prove
async def test_a_service_that_always_computes_cannot_be_compared(served):
    async with ComputingClient(served, ATTEMPTS) as client:
        with pytest.raises(VerifyError, match="had a run during each of 3 attempts"):
            await read_all(client)


# Wrong values

ROW = r'feed: "(universe|alerts)\.\S+"'
ITSELF = r"\S+\.\d+ of \S+Z"
ALERT = r'feed: "alerts\.\S+"'
PAST = r"(state|confluence) .*as_of="
PAGE = r"signals tier=\w+ .*: row \d+ is"


def find_findings(answers: Answers, tamper: Tamper, checks: Any = None) -> list[str]:
    """Return the findings in a tampered copy; without `checks`, of all but the schemas."""
    # They are left out because checking every answer takes a second.
    content = {name: check for name, check in CHECKS.items() if name != "schemas"}
    tampered = pickle.loads(pickle.dumps(replace(answers)))
    tamper(tampered)
    report = check_answers(tampered, checks or content)
    # `Verification` checks each row by itself.
    check_sequence(tampered.feed.rows, tampered.feed.as_of + timedelta(days=1), report)
    return report.findings


def assert_only_expected(findings: list[str], expected: list[str]) -> None:
    """Assert the findings; an altered row of the feed may differ from pages and past boards too."""
    assert findings
    for finding in findings:
        assert any(re.match(pattern, finding) for pattern in [*expected, PAGE, PAST]), finding
    for pattern in expected:
        assert any(re.match(pattern, finding) for finding in findings), pattern


def find_richest(queries: list[Query]) -> Query:
    return max(queries, key=lambda query: len(query.body.get("results", query.body.get("groups"))))


def list_rows(answers: Answers, tier: str) -> list[Any]:
    """Return the rows of a tier, newest first."""
    return [row for row in reversed(answers.feed.rows) if row["tier"] == tier]


def find_place(answers: Answers, path: str) -> tuple[Any, Any]:
    """Return the container at a dotted path and the last step of the path."""
    view, *steps = path.split(".")
    if view in ("universe", "alerts"):
        here: Any = list_rows(answers, view)
    elif view in ("confluence", "flips"):
        here = find_richest(getattr(answers, view)).body
        steps = [here["query"]["timeframe"] if s == "queried_timeframe" else s for s in steps]
    elif view == "pages":
        here = [query.body for query in answers.pages]
    elif view == "past":
        # The newest has the most readings.
        here = [query.body for query in max(answers.past, key=lambda pair: pair[0].body["as_of"])]
    else:
        here = getattr(answers, view)
    *steps, last = steps
    for step in steps:
        here = here[find_step(here, step)]
    return here, find_step(here, last)


def find_step(here: Any, step: str) -> Any:
    """Return a step of a path as a key, or as an index: a number, or the index of a ticker."""
    if isinstance(here, dict):
        return step
    numbers = {asset["ticker"]: at for at, asset in enumerate(here) if "ticker" in asset}
    return numbers[step] if step.isalpha() else int(step)


def pick_other_reading(reading: str) -> str:
    return "bearish" if reading == "bullish" else "bullish"


def more(number: int) -> int:
    return number + 1


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def an_hour_earlier(time: str) -> str:
    return format_time(parse_served_time(time) - timedelta(hours=1))


FIRST = "signals tier=universe offset=0 .*: "
SECOND = "signals tier=universe offset=200 .*: "
UNIVERSE_STATS = r"stats: universe_tier\.(total_signals|by_\w+)"
ALERT_STATS = r"stats: alerts_tier\.(total_signals|by_\w+)"
VALUES: list[tuple[str, Callable[[Any], Any], list[str]]] = [
    ("state.as_of", to("2025-07-26T04:02:00.000Z"), ["state: as_of is"]),
    ("state.counts.assets", more, ["state: counts.assets is 5, recomputed 4"]),
    ("state.counts.readings", more, ["state: counts.readings is"]),
    ("confluence.as_of", an_hour_earlier, ["confluence .*: as_of is"]),
    ("confluence.meta.as_of", an_hour_earlier, ["confluence .*: meta.as_of is"]),
    ("confluence.query.min_agree", more, ["confluence .*: query is"]),
    ("confluence.results.0.agree", more, [r"confluence .*: \w+: agree is \d, recomputed \d"]),
    ("confluence.results.0.total_reporting", more, ["confluence .*: total_reporting is"]),
    ("confluence.results.0.score", lambda score: score + 1e-12, ["confluence .*: score is"]),
    ("confluence.results.0.votes.ceres", pick_other_reading, ["confluence .*: votes is"]),
    ("confluence.results.0.votes.dexter", to(None), ["confluence .*: votes is"]),
    ("confluence.results.0.name", to("Else"), [r"confluence .*: \w+: name is \"Else\""]),
    ("confluence.results.0.asset_class", to("metal"), ["confluence .*: asset_class is"]),
    ("past.0.assets.0.signals", to({}), ["(state|confluence) .*as_of=.*: "]),
    ("past.1.results.0.votes.ceres", pick_other_reading, ["confluence .*as_of=.*: votes is"]),
    ("pages.0.pagination.limit", more, [f"{FIRST}pagination.limit is 201"]),
    ("pages.1.pagination.offset", more, [f"{SECOND}pagination.offset is 201"]),
    ("pages.0.pagination.returned", more, [f"{FIRST}pagination.returned is 201"]),
    ("pages.0.pagination.has_more", to(False), [f"{FIRST}pagination.has_more is false"]),
    ("pages.1.pagination.next_cursor", an_hour_earlier, [f"{SECOND}pagination.next_cursor"]),
    ("pages.1.pagination.next_cursor", to(None), [f"{SECOND}pagination.next_cursor is null"]),
    ("pages.0.signals.7.price", more, [f"{FIRST}row 8 is"]),
    ("pages.3.signals.3.price", more, ["signals tier=all offset=200 .*: row 204 is"]),
    ("feed.pages.0.meta.source", to("live"), ["signals page=1: meta.source is"]),
    ("feed.pages.0.pagination.returned", more, ["signals page=1: pagination.returned is"]),
    (
        "universe.207.id",
        lambda one: one.replace("universe", "u"),
        [f"{ITSELF} has an id that is not made of"],
    ),
    ("universe.207.asset_class", to("metal"), [f"{ROW}: asset_class is"]),
    ("universe.207.indicator_name", to("enzo"), [f"{ROW}: indicator_name is"]),
    ("universe.-2.direction", pick_other_reading, [f"{ITSELF} contradicts itself: direction"]),
    ("universe.207.change_type", to(None), [f"{ITSELF} contradicts itself: change_type"]),
    ("universe.207.action", to("LONG"), [f"{ITSELF} contradicts itself: action"]),
    ("universe.0.price", more, ["flips .*: flips is"]),
    (
        "universe.-1.created_at",
        to("2023-07-01T00:00:00.000Z"),
        [
            f"{ROW} is outside the days kept",
            f"{ITSELF} was written before its candle closed",
            "stats: universe_tier.history_starts_at is",
        ],
    ),
    ("flips.as_of", to("2025-07-26T04:02:59.999Z"), ["flips .*: as_of is before", "flips .*"]),
    ("flips.query.hours", more, ["flips .*: query is"]),
    ("flips.meta.rules.hours.queried_timeframe.max", more, ["flips .*: meta.rules.hours is"]),
    (
        "flips.meta.rules.row_limit",
        to(1),
        [
            "flips .*: capped is false, recomputed true",
            "flips .* (does not belong there|flips is|bullish is|bearish is|score is|dominant is)",
        ],
    ),
    ("flips.capped", to(True), ["flips .*: capped is true"]),
    ("flips.counts.groups", more, ["flips .*: counts is"]),
    ("flips.counts.flips", more, ["flips .*: counts is"]),
    ("flips.groups.0.dominant", to("none"), [r"flips .*: \w+: dominant is \"none\""]),
    ("flips.groups.0.bullish", more, ["flips .*: bullish is"]),
    ("flips.groups.0.bearish", more, ["flips .*: bearish is"]),
    ("flips.groups.0.score", more, ["flips .*: score is"]),
    ("flips.groups.0.latest_at", an_hour_earlier, ["flips .*: latest_at is"]),
    ("flips.groups.0.flips.0.from", to("neutral "), ["flips .*: flips is"]),
    ("flips.groups.0.flips.0.to", pick_other_reading, ["flips .*: flips is"]),
    ("flips.groups.0.flips.0.created_at", an_hour_earlier, ["flips .*: flips is"]),
    ("stats.meta.simulated", to(True), ["stats: meta.simulated is true"]),
    (
        "stats.window.until",
        an_hour_earlier,
        [
            "stats: window.until is before as_of",
            "stats: window.since is",
            f"{ROW} is outside the days kept",
            r"stats: (universe|alerts)_tier.(total_signals|by_\w+) is",
        ],
    ),
    ("stats.window.days", to(31), ["stats: window.days is 31"]),
    ("stats.window.since", an_hour_earlier, ["stats: window.since is"]),
    ("stats.universe_tier.signals_per_day", more, ["stats: universe_tier.signals_per_day is"]),
    (
        "stats.universe_tier.total_signals",
        more,
        [
            "stats: universe_tier.(total_signals|signals_per_day) is",
            r"stats: universe_tier\.by_\w+ sums to total_signals is \d+, recomputed \d+",
        ],
    ),
    ("stats.universe_tier.by_indicator.0.signals", more, ["stats: universe_tier.by_indicator"]),
    ("stats.universe_tier.by_timeframe.0.signals", more, ["stats: universe_tier.by_timeframe"]),
    ("stats.universe_tier.by_direction.0.signals", more, ["stats: universe_tier.by_direction"]),
    (
        "stats.universe_tier.by_direction.0.direction",
        to("neutral"),
        [
            "stats: universe_tier.by_direction has a repeated value",
            "stats: universe_tier.by_direction is",
        ],
    ),
    (
        "stats.universe_tier.history_starts_at",
        to(None),
        ["stats: universe_tier.history_starts_at is"],
    ),
    (
        "stats.alerts_tier.total_signals",
        more,
        [
            r"stats: alerts_tier.by_\w+ sums to total_signals is",
            "stats: alerts_tier.(signals_per_day|total_signals) is",
        ],
    ),
    ("stats.alerts_tier.by_direction.0.signals", more, ["stats: alerts_tier.by_direction"]),
    ("alerts.7.asset_class", to("metal"), [f"{ALERT}: asset_class is"]),
    ("alerts.7.indicator_name", to("x"), [f"{ALERT}: indicator_name is"]),
    ("alerts.7.direction", to("neutral"), [f"{ITSELF} contradicts itself: direction", ALERT_STATS]),
    ("alerts.7.change_type", to("reversal"), [f"{ITSELF} contradicts itself: change_type"]),
    ("alerts.7.transition", to({}), [f"{ITSELF} contradicts itself: transition"]),
    ("alerts.7.action", to("HOLD"), [f"{ITSELF} contradicts itself: direction"]),
    (
        "alerts.7.timeframe",
        to("1h"),
        [
            f"{ITSELF} has an id that is not made of",
            f"{ALERT}: the catalog does not cover it",
            "cooldown: an answer does not match the API contract",
            ALERT_STATS,
        ],
    ),
    ("catalog.meta.source", to("live"), ["catalog: meta.source is"]),
    ("catalog.assets.total", more, ["catalog: assets.total is 252, recomputed 251"]),
    ("catalog.assets.crypto", more, ["catalog: assets.crypto is 177, recomputed 176"]),
    ("catalog.assets.equities_and_metals", more, ["catalog: assets.equities_and_metals is 76"]),
    (
        "catalog.coverage.assets.BTC.ticker",
        to("XXX"),
        [
            "catalog: coverage.assets is",
            "catalog: tiers.alerts.tickers is",
            f"{ALERT}: the catalog does not cover it",
        ],
    ),
    ("catalog.coverage.assets.BTC.asset_class", to("metal"), ["catalog: coverage.assets is"]),
    (
        "catalog.coverage.assets.BTC.universe",
        to([]),
        ["catalog: tiers.universe.(assets|logged_combinations|state_readings) is"],
    ),
    (
        "catalog.coverage.indicators_by_tier.alerts",
        to([]),
        ["catalog: coverage.indicators_by_tier"],
    ),
    ("catalog.tiers.universe.timeframes", to(["1h"]), ["catalog: tiers.universe.timeframes is"]),
    (
        "catalog.tiers.universe.indicators",
        to(["enzo"]),
        [
            "catalog: tiers.universe.(indicators|logged_combinations) is",
            f"{ROW}: the catalog does not cover it",
        ],
    ),
    ("catalog.tiers.universe.assets", more, ["catalog: tiers.universe.assets is 5, recomputed 4"]),
    (
        "catalog.tiers.universe.logged_combinations",
        more,
        ["catalog: tiers.universe.logged_combinations is"],
    ),
    ("catalog.tiers.universe.state_readings", more, ["catalog: tiers.universe.state_readings is"]),
    ("catalog.tiers.alerts.engines", more, ["catalog: tiers.alerts.engines is"]),
    ("catalog.tiers.alerts.tickers", to([]), ["catalog: tiers.alerts.tickers is"]),
    ("catalog.meta.removed_assets", to(["BTC", "MATIC"]), ["state: BTC is neither .* or both"]),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("path", "change", "expected"), [pytest.param(*value, id=value[0]) for value in VALUES]
)
def test_a_wrong_value_is_found(bars_answers, path, change, expected):
    def tamper(answers: Answers) -> None:
        if path.startswith("feed.pages."):
            here, last = answers.feed.pages[0][path.split(".")[3]], path.split(".")[4]
        else:
            here, last = find_place(answers, path)
        here[last] = change(here.get(last) if isinstance(here, dict) else here[last])

    assert_only_expected(find_findings(bars_answers, tamper), expected)


# Wrong structures


def results(answers: Answers) -> list[Any]:
    return find_richest(answers.confluence).body["results"]


def groups(answers: Answers) -> list[Any]:
    return find_richest(answers.flips).body["groups"]


def swap(ranked: list[Any]) -> None:
    ranked[0], ranked[1] = ranked[1], ranked[0]


def deep_row(answers: Answers) -> Any:
    """Return an activation outside the windows of flips, in a cell that has older rows."""
    rows = list_rows(answers, "universe")[200:]
    return next(row for row in rows if row["change_type"] == "activation")


def flip_a_reading(answers: Answers) -> None:
    row = list_rows(answers, "universe")[0]
    asset = next(one for one in answers.state["assets"] if one["ticker"] == row["ticker"])
    readings = asset["signals"][row["indicator"]]
    readings[row["timeframe"]] = pick_other_reading(readings[row["timeframe"]])


def forget_an_asset(answers: Answers) -> None:
    assets = answers.state["assets"]
    gone = next(asset for asset in assets if asset["ticker"] == "SOL")
    assets.remove(gone)
    answers.state["counts"]["assets"] -= 1
    answers.state["counts"]["readings"] -= sum(map(len, gone["signals"].values()))


def rename_an_asset(answers: Answers) -> None:
    listed = answers.catalog["assets"]["list"]
    next(asset for asset in listed if asset["ticker"] == "BTC")["name"] = "Bitcoin Cash"


def remove_an_asset(answers: Answers) -> None:
    """Mark BTC as removed everywhere, while it is still ranked and in the catalog."""
    for query in answers.list_queries():
        query.body["meta"]["removed_assets"] = ["BTC"]


def remove_an_asset_behind_the_catalogs_back(answers: Answers) -> None:
    remove_an_asset(answers)
    answers.catalog["meta"]["removed_assets"] = []


def double_a_row(answers: Answers) -> None:
    row = deep_row(answers)
    copy = {
        **deepcopy(row),
        "created_at": format_time(parse_served_time(row["created_at"]) + timedelta(milliseconds=1)),
    }
    answers.feed.rows.insert(answers.feed.rows.index(row) + 1, copy)


def change_a_transition(answers: Answers) -> None:
    transition = deep_row(answers)["transition"]
    transition["from"] = pick_other_reading(transition["to"])


def stand_still(answers: Answers) -> None:
    transition = deep_row(answers)["transition"]
    transition["from"] = transition["to"]


def publish_perpkit(answers: Answers) -> None:
    """Call a change PerpKit's that differs from PerpKit's reading in the state."""
    states = {asset["ticker"]: asset["signals"]["perpkit"] for asset in answers.state["assets"]}
    row = next(
        row
        for row in list_rows(answers, "universe")[200:]
        if row["change_type"] == "activation"
        and row["direction"] != states[row["ticker"]][row["timeframe"]]
    )
    row["indicator"] = "perpkit"


def close_after_it_was_written(answers: Answers) -> None:
    row = deep_row(answers)
    row["id"] = re.sub(r"\.(\d+)\.(\d+)$", r".9\1.\2", row["id"])


def drop_a_flip(answers: Answers) -> None:
    answer = find_richest(answers.flips).body
    group = max(answer["groups"], key=lambda one: len(one["flips"]))
    del group["flips"][-1]
    answer["counts"]["flips"] -= 1


def drop_a_group(answers: Answers) -> None:
    answer = find_richest(answers.flips).body
    answer["counts"] = {
        "groups": answer["counts"]["groups"] - 1,
        "flips": answer["counts"]["flips"] - len(answer["groups"].pop()["flips"]),
    }


def agree_too_little(answers: Answers) -> None:
    """Add a result of min_agree=1 to the answer for min_agree=6."""
    strict = next(a for a in answers.confluence if a.arguments["min_agree"] == 6)
    lenient = answers.confluence[answers.confluence.index(strict) - 2]
    listed = {result["ticker"] for result in strict.body["results"]}
    strict.body["results"] += [r for r in lenient.body["results"] if r["ticker"] not in listed][-1:]


def repeat_an_alert(answers: Answers) -> None:
    """Publish an action of an engine again, an hour after it was published."""
    rows = answers.feed.rows
    alert = list_rows(answers, "alerts")[20]
    close = alert["id"].split(".")[-3]
    created_at = format_time(parse_served_time(alert["created_at"]) + timedelta(hours=1))
    alert_id = alert["id"].replace(close, str(int(close) + 3600))
    rows.append({**deepcopy(alert), "id": alert_id, "created_at": created_at})
    rows.sort(key=lambda row: row["created_at"])


STRUCTURES: list[tuple[Tamper, list[str]]] = [
    (
        lambda a: a.feed.rows.remove(list_rows(a, "alerts")[3]),
        ["signals tier=alerts .*: row 4 is", ALERT_STATS],
    ),
    (
        repeat_an_alert,
        [f"{ALERT} is within the cooldown", "signals tier=(alerts|all)", ALERT_STATS],
    ),
    (lambda a: swap(a.pages[3].body["signals"]), ["signals tier=all .*: row 201 is"]),
    (
        lambda a: a.pages[1].body["signals"].pop(),
        [f"{SECOND}number of rows is 199", f"{SECOND}pagination"],
    ),
    (
        flip_a_reading,
        [
            r"state: \w+ \w+ \w+ against \"universe.* is \"\w+\", recomputed \"\w+\"",
            "confluence .*",
        ],
    ),
    (
        forget_an_asset,
        [
            r"state: SOL \w+ \w+ against \"universe.* is null, recomputed",
            "confluence .*: SOL does not belong there",
        ],
    ),
    (
        lambda a: a.state["assets"].append(a.state["assets"][0]),
        [
            "state: counts.assets is 4, recomputed 5",
            "state: counts.readings is",
            "state: BTC occurs 2 times",
        ],
    ),
    (
        rename_an_asset,
        [
            'state: BTC: name is "Bitcoin", recomputed "Bitcoin Cash"',
            "(confluence|flips) .*: BTC: name is",
        ],
    ),
    (
        remove_an_asset,
        [
            "state: BTC is neither in the catalog nor removed, or both",
            "confluence .*: BTC does not belong there",
        ],
    ),
    (
        remove_an_asset_behind_the_catalogs_back,
        [
            "catalog: meta.removed_assets lacks BTC",
            "confluence .*: BTC does not belong there",
        ],
    ),
    (
        lambda a: a.catalog["assets"]["list"].append(a.catalog["assets"]["list"][0]),
        [
            "catalog: assets.total is 251, recomputed 252",
            "catalog: assets.crypto is 176, recomputed 177",
            r"catalog: \w+ occurs 2 times",
        ],
    ),
    (lambda a: swap(results(a)), [r"confluence .*: place 1 is \"\w+\", recomputed \"\w+\""]),
    (lambda a: results(a).pop(), [r"confluence .*: \w+ is missing"]),
    (lambda a: results(a).append(results(a)[0]), [r"confluence .*: \w+ occurs 2 times"]),
    (agree_too_little, [r"confluence .* min_agree=6: \w+ does not belong there"]),
    (
        lambda a: a.feed.rows.remove(deep_row(a)),
        [f"{ITSELF} does not continue universe", UNIVERSE_STATS, FIRST[:23]],
    ),
    (
        lambda a: a.feed.rows.remove(list_rows(a, "universe")[0]),
        [r"state: \w+ \w+ \w+ against", "flips .*", UNIVERSE_STATS, f"{FIRST}row 1 is"],
    ),
    (
        double_a_row,
        [
            f"{ITSELF} has the id of a row of",
            f"{ITSELF} does not continue universe",
            UNIVERSE_STATS,
        ],
    ),
    (change_a_transition, [f"{ITSELF} contradicts itself"]),
    (stand_still, [f"{ITSELF} contradicts itself"]),
    (
        lambda a: deep_row(a).update(ticker="XXX"),
        [
            f"{ROW}: asset_class is",
            f"{ITSELF} has an id that is not made of",
            f"{ITSELF} does not continue universe",
            "state: XXX .* is null",
        ],
    ),
    (
        publish_perpkit,
        [
            f"{ROW}: the catalog does not cover it",
            f"{ROW}: indicator_name is",
            f"{ITSELF} has an id that is not made of",
            f"{ITSELF} does not continue universe",
            "stats: universe_tier.by_indicator is",
            "state: .* perpkit .*",
        ],
    ),
    (
        lambda a: deep_row(a).update(timeframe="2h"),
        [
            f"{ITSELF} has an id that is not made of",
            f"{ITSELF} does not continue universe",
            "stats: universe_tier.by_timeframe is",
            "state: .* 2h against",
        ],
    ),
    (close_after_it_was_written, [f"{ITSELF} was written before its candle closed"]),
    (lambda a: swap(groups(a)), ["flips .*: place 1 is"]),
    (drop_a_group, [r"flips .*: \w+ is missing"]),
    (drop_a_flip, ["flips .*: flips is"]),
    (
        lambda a: groups(a).append(groups(a)[0]),
        [r"flips .*: \w+ occurs 2 times", "flips .*: counts is"],
    ),
    (
        lambda a: a.stats.pop("universe_tier"),
        [r"stats: an answer does not match the API contract \(KeyError\('universe_tier'\)\)"],
    ),
]


@pytest.mark.parametrize(
    ("tamper", "expected"), STRUCTURES, ids=[one[0].__name__ for one in STRUCTURES]
)
@pytest.mark.sampled(4)
def test_a_wrong_structure_is_found(bars_answers, tamper, expected):
    assert_only_expected(find_findings(bars_answers, tamper), expected)


@pytest.mark.parametrize("view", ["state", "catalog", "stats", "pages", "confluence", "flips"])
def test_an_answer_that_breaks_the_contract_is_found_by_every_check(bars_answers, view):
    def tamper(answers: Answers) -> None:
        held = getattr(answers, view)
        (held[0].body if isinstance(held, list) else held).clear()

    findings = find_findings(bars_answers, tamper)
    assert {finding.split(":")[0] for finding in findings} <= CHECKS.keys()
    assert findings[0].startswith("one version: an answer does not match the API contract")


def name_readings(answers: Answers, change: Callable[[Any], None]) -> None:
    change(next(one for one in answers.state["assets"] if one["ticker"] == "BTC")["signals"])


BREACHES: list[tuple[Tamper, str]] = [
    (lambda a: a.state["meta"].update(stale="false"), r"state: \$.meta.stale .*: type"),
    (lambda a: a.feed.pages[0]["meta"].pop("as_of"), r"signals page=1: \$.meta .*: required"),
    (
        lambda a: name_readings(a, lambda readings: readings.update(macd={"1h": "bullish"})),
        r"state: \$.assets\[0\].signals .*: enum",
    ),
    (
        lambda a: name_readings(a, lambda readings: readings["perpkit"].update({"2h": "bullish"})),
        r"state: \$.assets",
    ),
    (
        lambda a: name_readings(a, lambda readings: readings["perpkit"].update({"1d": "strong"})),
        r"state: \$.assets.*1d.* does not match the OpenAPI document: enum",
    ),
    (lambda a: a.openapi["paths"].pop("/api/v1/stats"), "stats: .* has no usable schema"),
    (
        lambda a: a.openapi["components"]["schemas"].update(
            StatsResponse={"$ref": "http://127.0.0.1:9/schema"}
        ),
        "stats: the OpenAPI document has no usable schema",
    ),
]


@pytest.mark.parametrize(("tamper", "expected"), BREACHES)
@pytest.mark.sampled(3)
def test_a_breach_of_the_published_schema_is_found(bars_answers, tamper, expected):
    findings = find_findings(bars_answers, tamper, {"schemas": CHECKS["schemas"]})
    assert len(findings) == 1
    assert re.match(expected, findings[0]), findings

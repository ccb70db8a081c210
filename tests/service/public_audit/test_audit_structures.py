"""The public audit finds missing, repeated, misordered and contradictory parts of responses."""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from service.public_audit.answers import QueryResponse, Responses, format_epoch_ms, parse_epoch_ms
from service.public_audit.audit import CHECKS
from tests.support.example_market import HOUR_MS
from tests.support.tampered_answers import (
    ROW,
    assert_only_expected,
    audit_tampered,
    find_richest,
    pick_other_reading,
)

pytestmark = pytest.mark.clause("audit")


def results(answers: Responses) -> list[Any]:
    return find_richest(answers.confluence).body["results"]


def groups(answers: Responses) -> list[Any]:
    """Yield the groups of a response, then update its counts."""
    return find_richest(answers.flips).body["groups"]


def swap(ranked: list[Any]) -> None:
    ranked[0], ranked[1] = ranked[1], ranked[0]


def deep_row(answers: Responses) -> Any:
    """Return an activation outside the windows of flips, in a cell that has older rows."""
    rows = answers.pages[1]["signals"]
    return next(row for row in rows if row["change_type"] == "activation")


def reading_of(answers: Responses) -> tuple[Any, str]:
    """Return the readings of the newest row's indicator, and the row's timeframe."""
    row = answers.pages[0]["signals"][0]
    state = next(a for a in answers.state["assets"] if a["ticker"] == row["ticker"])
    return state["signals"][row["indicator"]], row["timeframe"]


def flip_a_reading(answers: Responses) -> None:
    cells, timeframe = reading_of(answers)
    cells[timeframe] = pick_other_reading(cells[timeframe])


def name_an_unknown_reading(answers: Responses) -> None:
    answers.state["assets"][0]["signals"]["perpkit"]["1h"] = "strong"


def name_an_unknown_key(answers: Responses) -> None:
    signals = answers.state["assets"][0]["signals"]
    signals["macd"] = signals.pop("perpkit")


def name_an_unknown_timeframe(answers: Responses) -> None:
    cells = answers.state["assets"][0]["signals"]["perpkit"]
    cells["2h"] = "bullish"
    answers.state["counts"]["readings"] += 1


def forget_an_asset(answers: Responses) -> None:
    dropped = answers.state["assets"].pop()
    answers.state["counts"]["assets"] -= 1
    answers.state["counts"]["readings"] -= sum(map(len, dropped["signals"].values()))


def show_an_asset_twice(answers: Responses) -> None:
    answers.state["assets"].append(answers.state["assets"][0])


def rename_an_asset(answers: Responses) -> None:
    listed = answers.catalog["assets"]["list"]
    next(asset for asset in listed if asset["ticker"] == "BTC")["name"] = "Bitcoin Cash"


def remove_an_asset(answers: Responses) -> None:
    """Mark BTC as removed everywhere, while it is still ranked and in the catalog."""
    for _, _, answer in answers.iterate_named():
        answer["meta"]["removed_assets"] = ["BTC"]


def remove_an_asset_behind_the_catalogs_back(answers: Responses) -> None:
    remove_an_asset(answers)
    answers.catalog["meta"]["removed_assets"] = []


def list_one_twice(answers: Responses) -> None:
    answers.catalog["assets"]["list"].append(answers.catalog["assets"]["list"][0])


def drop_a_row(answers: Responses) -> None:
    answers.pages[1]["signals"].remove(deep_row(answers))


def drop_the_newest_row(answers: Responses) -> None:
    page = answers.pages[0]
    del page["signals"][0]
    page["pagination"]["next_cursor"] = page["signals"][0]["created_at"]


def double_a_row(answers: Responses) -> None:
    rows = answers.pages[1]["signals"]
    rows[51] = deepcopy(rows[50])


def swap_two_rows(answers: Responses) -> None:
    rows = answers.pages[1]["signals"]
    rows[50], rows[51] = rows[51], rows[50]


def share_an_instant(answers: Responses) -> None:
    rows = answers.pages[1]["signals"]
    rows[51]["created_at"] = rows[50]["created_at"]


def change_a_transition(answers: Responses) -> None:
    row = deep_row(answers)
    was = row["transition"]["from"]
    row["transition"]["from"] = next(
        r for r in ("bullish", "bearish", "neutral") if r not in (was, row["direction"])
    )


def stand_still(answers: Responses) -> None:
    row = deep_row(answers)
    row["transition"]["from"] = row["transition"]["to"]


def name_an_unknown_ticker(answers: Responses) -> None:
    deep_row(answers)["ticker"] = "XXX"


def publish_perpkit(answers: Responses) -> None:
    """Call a change PerpKit's that differs from PerpKit's reading in the state."""
    states = {asset["ticker"]: asset["signals"]["perpkit"] for asset in answers.state["assets"]}
    row = next(
        row
        for row in answers.pages[1]["signals"]
        if row["change_type"] == "activation"
        and row["direction"] != states[row["ticker"]][row["timeframe"]]
    )
    row["indicator"] = "perpkit"


def invent_a_timeframe(answers: Responses) -> None:
    deep_row(answers)["timeframe"] = "2h"


def close_after_it_was_written(answers: Responses) -> None:
    row = deep_row(answers)
    row["id"] = re.sub(r"\.(\d+)\.(\d+)$", r".9\1.\2", row["id"])


def drop_a_flip(answers: Responses) -> None:
    answer = find_richest(answers.flips).body
    group = max(answer["groups"], key=lambda g: len(g["flips"]))
    del group["flips"][-1]
    answer["counts"]["flips"] -= 1


def drop_a_group(answers: Responses) -> None:
    answer = find_richest(answers.flips).body
    answer["counts"] = {
        "groups": answer["counts"]["groups"] - 1,
        "flips": answer["counts"]["flips"] - len(answer["groups"].pop()["flips"]),
    }


def lose_a_part(answers: Responses) -> None:
    del answers.stats["universe_tier"]


def agree_too_little(answers: Responses) -> None:
    """Add a result of min_agree=1 to the response for min_agree=6."""
    strict = next(a for a in answers.confluence if a.arguments["min_agree"] == 6)
    lenient = answers.confluence[answers.confluence.index(strict) - 2]
    listed = {result["ticker"] for result in strict.body["results"]}
    strict.body["results"] += [r for r in lenient.body["results"] if r["ticker"] not in listed][-1:]


def drop_an_alert(answers: Responses) -> None:
    page = answers.alert_pages[0]
    del page["signals"][3]
    page["pagination"]["returned"] -= 1


def repeat_an_alert(answers: Responses) -> None:
    """Publish an action of an engine again, an hour after it was published."""
    rows = answers.alert_pages[0]["signals"]
    created = [parse_epoch_ms(row["created_at"]) for row in rows]
    latest = parse_epoch_ms(answers.state["as_of"]) - HOUR_MS
    repeated = next(place for place, at in enumerate(created) if at <= latest)
    row = deepcopy(rows[repeated])
    close = row["id"].split(".")[-3]
    row["id"] = row["id"].replace(close, str(int(close) + 3600))
    row["created_at"] = format_epoch_ms(created[repeated] + HOUR_MS)
    rows.insert(next(n for n, at in enumerate(created) if at < created[repeated] + HOUR_MS), row)


def swap_two_alerts(answers: Responses) -> None:
    swap(answers.alert_pages[0]["signals"])


def merge_wrongly(answers: Responses) -> None:
    swap(answers.merged_pages[0]["signals"])


def end_the_merged_feed_early(answers: Responses) -> None:
    del answers.merged_pages[1:]
    answers.merged_pages[0]["pagination"]["has_more"] = False


STRUCTURES: list[tuple[Callable[[Responses], None], list[str]]] = [
    (drop_an_alert, ["alerts page 1 is not full", "tier=all: row", "stats: alerts_tier"]),
    (
        repeat_an_alert,
        [
            'alerts: "alerts.* is within the cooldown',
            "alerts page 1( is not full|: pagination)",
            "stats: alerts_tier",
            "tier=all: row",
        ],
    ),
    (swap_two_alerts, ['alerts: "alerts.* is not older than']),
    (merge_wrongly, ["tier=all: row 1 is"]),
    (end_the_merged_feed_early, ["tier=all: ends before the last row of both tiers"]),
    (
        flip_a_reading,
        [
            r"state: \w+ \w+ \w+ against \"universe.* is \"\w+\", recomputed \"\w+\"",
            "confluence .*",
        ],
    ),
    (name_an_unknown_reading, ['state: .*: "strong" is not a reading', "confluence .*"]),
    (name_an_unknown_key, ["state: BTC macd is not a known key", "confluence .*: BTC: votes is"]),
    (name_an_unknown_timeframe, ["state: BTC perpkit 2h is not a timeframe"]),
    (
        forget_an_asset,
        [
            r"state: SOL \w+ \w+ against \"universe.* is null, recomputed",
            "confluence .*: SOL does not belong there",
        ],
    ),
    (
        show_an_asset_twice,
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
        list_one_twice,
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
        drop_a_row,
        [
            "signals page 2: pagination.returned is 200, recomputed 199",
            "signals page 2 is not full, but more rows follow",
            f'{ROW} does not continue "universe',
            r"stats: universe_tier.(total_signals|by_\w+) is",
        ],
    ),
    (
        drop_the_newest_row,
        [
            "signals page 1: pagination.returned is 200, recomputed 199",
            "signals page 1 is not full, but more rows follow",
            r"state: \w+ \w+ \w+ against",
            r"flips .*",
            r"stats: universe_tier.(total_signals|by_\w+) is",
        ],
    ),
    (
        double_a_row,
        [
            'signals: "universe\\S+ occurs 2 times',
            f'{ROW} is not older than "universe',
            f'{ROW} does not continue "universe',
            r"stats: universe_tier.by_\w+ is",
        ],
    ),
    (swap_two_rows, [f'{ROW} is not older than "universe']),
    (share_an_instant, [f'{ROW} is not older than "universe']),
    (change_a_transition, [f"{ROW}: change_type is", f'{ROW} does not continue "universe']),
    (
        stand_still,
        [
            f"{ROW}: transition .* is not valid",
            f"{ROW}: change_type is",
            f'{ROW} does not continue "universe',
        ],
    ),
    (
        name_an_unknown_ticker,
        [
            f'{ROW}: ticker "XXX" is not valid',
            f"{ROW}: (asset_class is|id does not match)",
            f'{ROW} does not continue "universe',
            "state: XXX .* is null",
        ],
    ),
    (
        publish_perpkit,
        [
            f'{ROW}: indicator "perpkit" is not valid',
            f"{ROW}: (indicator_name is|id does not match)",
            f'{ROW} does not continue "universe',
            "stats: universe_tier.by_indicator is",
            "state: .* perpkit .*",
        ],
    ),
    (
        invent_a_timeframe,
        [
            f'{ROW}: timeframe "2h" is not valid',
            f"{ROW}: id does not match",
            f'{ROW} does not continue "universe',
            "stats: universe_tier.by_timeframe is",
            "state: .* 2h against",
        ],
    ),
    (close_after_it_was_written, [f"{ROW}: id does not match the other fields"]),
    (lambda a: swap(groups(a)), ["flips .*: place 1 is"]),
    (drop_a_group, [r"flips .*: \w+ is missing"]),
    (drop_a_flip, ["flips .*: flips is"]),
    (
        lambda a: groups(a).append(groups(a)[0]),
        [
            r"flips .*: \w+ occurs 2 times",
            "flips .*: counts is",
        ],
    ),
    (
        lose_a_part,
        ["stats: a response does not match the API contract \\(KeyError\\('universe_tier'\\)\\)"],
    ),
]


@pytest.mark.parametrize(
    ("tamper", "expected"), STRUCTURES, ids=[s[0].__name__ for s in STRUCTURES]
)
@pytest.mark.sampled(4)
def test_a_wrong_structure_is_found(bars_answers, tamper, expected):
    assert_only_expected(audit_tampered(bars_answers, tamper), expected)


@pytest.mark.parametrize("view", ["state", "catalog", "stats", "pages", "confluence", "flips"])
def test_a_view_that_breaks_the_contract_is_found_by_every_check(bars_answers, view):
    def tamper(answers: Responses) -> None:
        held = getattr(answers, view)
        first = held[0] if isinstance(held, list) else held
        (first.body if isinstance(first, QueryResponse) else first).clear()

    findings = audit_tampered(bars_answers, tamper)
    assert {finding.split(":")[0] for finding in findings} <= CHECKS.keys()
    assert findings[0].startswith("one version: a response does not match the API contract")


def quote_a_truth(answers: Responses) -> None:
    answers.state["meta"]["stale"] = "false"


def drop_the_note(answers: Responses) -> None:
    del answers.alert_pages[0]["meta"]["note"]


def forget_a_path(answers: Responses) -> None:
    del answers.openapi["paths"]["/api/v1/stats"]


def refer_to_another_host(answers: Responses) -> None:
    schemas = answers.openapi["components"]["schemas"]
    schemas["StatsResponse"] = {"$ref": "http://127.0.0.1:9/schema"}


BREACHES: list[tuple[Callable[[Responses], None], str]] = [
    (quote_a_truth, "state: $.meta.stale does not match the OpenAPI document: type"),
    (drop_the_note, "alerts page 1: $.meta does not match the OpenAPI document: required"),
]


@pytest.mark.parametrize(("tamper", "expected"), BREACHES, ids=[b[0].__name__ for b in BREACHES])
@pytest.mark.sampled(2)
def test_a_breach_of_the_published_schema_is_found_that_no_other_check_sees(
    bars_answers, tamper, expected
):
    (finding,) = audit_tampered(bars_answers, tamper, CHECKS)
    assert finding.startswith(expected)


@pytest.mark.parametrize("tamper", [forget_a_path, refer_to_another_host])
@pytest.mark.sampled(2)
def test_a_document_without_a_usable_schema_is_found(bars_answers, tamper):
    (finding,) = audit_tampered(bars_answers, tamper, CHECKS)
    assert finding.startswith("stats: the OpenAPI document has no usable schema (")

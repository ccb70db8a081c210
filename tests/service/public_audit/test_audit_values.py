"""The public audit finds every wrong value in answers of a real service."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.public_audit.answers import Responses, format_epoch_ms, parse_epoch_ms
from service.public_audit.windows import HOUR_MS
from tests.support.tampered_answers import (
    ALERT,
    MERGED,
    ROW,
    STATS,
    assert_only_expected,
    audit_tampered,
    find_place,
    pick_other_reading,
)

pytestmark = pytest.mark.clause("audit")


def more(number: int) -> int:
    return number + 1


def to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def an_hour_earlier(time: str) -> str:
    return format_epoch_ms(parse_epoch_ms(time) - HOUR_MS)


SUMS = [r"stats: universe_tier\.by_\w+ sums to total_signals is \d+, recomputed \d+"]
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
    ("pages.0.pagination.limit", more, ["signals page 1: pagination.limit is 201"]),
    ("pages.1.pagination.offset", more, ["signals page 2: pagination.offset is 201"]),
    ("pages.0.pagination.returned", more, ["signals page 1: pagination.returned is 201"]),
    ("pages.0.pagination.has_more", to(False), ["signals page 1: pagination.has_more is false"]),
    ("pages.-2.pagination.has_more", to(True), [r"signals page \d+: pagination.has_more is true"]),
    ("pages.1.pagination.next_cursor", an_hour_earlier, ["signals page 2: pagination.next_cursor"]),
    (
        "pages.1.pagination.next_cursor",
        to(None),
        ["signals page 2: pagination.next_cursor is null"],
    ),
    ("pages.1.meta.retention_days.universe", to(366), ["signals page 2: meta.retention_days is"]),
    ("pages.1.meta.removed_assets", to(["BTC"]), ["signals page 2: meta.removed_assets is"]),
    (
        "pages.1.signals.7.id",
        lambda i: i.replace("universe", "u"),
        ["signals: .* id does not match"],
    ),
    ("pages.1.signals.7.tier", to("alerts"), [rf"{ROW}: tier is \"alerts\""]),
    ("pages.1.signals.7.asset_class", to("metal"), [f"{ROW}: asset_class is"]),
    ("pages.1.signals.7.indicator_name", to("enzo"), [f"{ROW}: indicator_name is"]),
    ("pages.-2.signals.7.direction", pick_other_reading, [f"{ROW}: direction is"]),
    ("pages.1.signals.7.change_type", to(None), [f"{ROW}: change_type is null"]),
    ("pages.1.signals.7.action", to("LONG"), [rf"{ROW}: action is \"LONG\""]),
    ("pages.0.signals.0.price", more, ["flips .*: flips is"]),
    (
        "pages.-2.signals.-1.created_at",
        to("2024-07-01T00:00:00.000Z"),
        [
            f"{ROW} is outside the requested days",
            f"{ROW}: id does not match",
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
            f"{ROW} is outside the requested days",
            r"stats: (universe|alerts)_tier.(total_signals|by_\w+) is",
        ],
    ),
    ("stats.window.days", to(31), ["stats: window.days is 31"]),
    (
        "stats.window.since",
        an_hour_earlier,
        ["stats: window.since is"],
    ),
    ("stats.universe_tier.signals_per_day", more, ["stats: universe_tier.signals_per_day is"]),
    (
        "stats.universe_tier.total_signals",
        more,
        [
            "stats: universe_tier.total_signals is",
            "stats: universe_tier.signals_per_day is",
            *SUMS,
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
    ("stats.universe_tier.history_starts_at", to(None), ["stats: .*history_starts_at is null"]),
    (
        "stats.alerts_tier.total_signals",
        more,
        [
            r"stats: alerts_tier.by_\w+ sums to total_signals is",
            "stats: alerts_tier.(signals_per_day|total_signals) is",
        ],
    ),
    ("stats.alerts_tier.by_direction.0.signals", more, ["stats: alerts_tier.by_direction"]),
    ("stats.alerts_tier.history_starts_at", to(None), ["stats: alerts_.*history_starts_at is"]),
    ("alert_pages.0.pagination.limit", more, ["alerts page 1: pagination.limit is 201"]),
    ("merged_pages.1.pagination.offset", more, ["tier=all page 2: pagination.offset is 201"]),
    ("alert_pages.0.signals.7.tier", to("universe"), [rf"{ALERT}: tier is", MERGED]),
    ("alert_pages.0.signals.7.asset_class", to("metal"), [f"{ALERT}: asset_class is", MERGED]),
    ("alert_pages.0.signals.7.indicator_name", to("x"), [f"{ALERT}: indicator_name is", MERGED]),
    ("alert_pages.0.signals.7.direction", to("neutral"), [f"{ALERT}: direction is", MERGED, STATS]),
    ("alert_pages.0.signals.7.change_type", to("reversal"), [f"{ALERT}: change_type is", MERGED]),
    ("alert_pages.0.signals.7.transition", to({}), [f"{ALERT}: transition is", MERGED]),
    (
        "alert_pages.0.signals.7.action",
        to("HOLD"),
        [f"{ALERT}: direction is", f"{ALERT}: id does not match", MERGED],
    ),
    (
        "alert_pages.0.signals.7.timeframe",
        to("1h"),
        [
            f"{ALERT}: id does not match",
            f"{ALERT}: the catalog lists no such engine",
            "cooldown: a response does not match the API contract",
            MERGED,
            STATS,
        ],
    ),
    ("merged_pages.0.signals.3.price", more, [MERGED]),
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
            f"{ALERT}: the catalog lists no such engine",
        ],
    ),
    ("catalog.coverage.assets.BTC.asset_class", to("metal"), ["catalog: coverage.assets is"]),
    (
        "catalog.coverage.assets.BTC.universe",
        to([]),
        [
            "catalog: tiers.universe.(assets|logged_combinations|state_readings) is",
        ],
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
        ["catalog: tiers.universe.(indicators|logged_combinations) is"],
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
    def tamper(answers: Responses) -> None:
        here, last = find_place(answers, path)
        here[last] = change(here[last])

    assert_only_expected(audit_tampered(bars_answers, tamper), expected)


def test_a_history_start_after_a_row_is_found_in_a_partial_audit(bars_answers):
    oldest, _ = bars_answers.rows[-1]
    read = replace(bars_answers, since=oldest - 1)
    assert audit_tampered(read, lambda answers: None) == []

    def tamper(answers: Responses) -> None:
        answers.stats["universe_tier"]["history_starts_at"] = format_epoch_ms(oldest + 1)

    expected = ["stats: universe_tier.history_starts_at is after a row"]
    assert_only_expected(audit_tampered(read, tamper), expected)

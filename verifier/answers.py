"""Recomputes the answers of a service from public facts: its feed, its catalog and its schemas.

Implements the rules of docs/contract.md and of `meta.rules` independently of the serving code, and
takes the schemas from the service's OpenAPI document. What these prove is not checked again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import chain, product
from random import Random, SystemRandom
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from verifier.client import PAGE_ROWS, Json, ServiceClient, format_time, parse_served_time
from verifier.record import RETENTION
from verifier.report import Report, VerifyError, format_value
from verifier.served_rows import Cell, Feed, OnProgress, Row, get_cell

ATTEMPTS, PAST_BOARDS = 3, 3
STATS_DAYS = 30
SIDES = ("bullish", "bearish")
# The default and the longest window of flips.
WINDOW_HOURS = {"1h": (3, 6), "4h": (12, 24), "1d": (48, 72)}
# 20 candles of the timeframe.
COOLDOWN_S = {"4h": 80 * 3600, "1d": 20 * 86_400}
PAGE_QUERIES: tuple[Json, ...] = (
    *({"tier": "universe", "offset": 0}, {"tier": "universe", "offset": PAGE_ROWS}),
    *({"tier": "alerts", "offset": 0}, {"tier": "all", "offset": PAGE_ROWS}),
)
CONFLUENCE_QUERIES: list[Json] = [
    {"timeframe": timeframe, "direction": side, "min_agree": min_agree}
    for timeframe, side, min_agree in product(WINDOW_HOURS, SIDES, (1, 3, 6))
]
FLIPS_QUERIES: list[Json] = [
    {"timeframe": timeframe, "direction": direction, **hours}
    for timeframe, direction in product(WINDOW_HOURS, ("all", *SIDES))
    for hours in ({}, {"hours": WINDOW_HOURS[timeframe][1]})
]
DOCUMENT_URI = "urn:openapi"
# The errors that the checks raise on an answer with another structure than the contract's.
SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


class Query(NamedTuple):
    """A view, its arguments, and the body of its answer."""

    view: str
    arguments: Json
    body: Json

    @property
    def name(self) -> str:
        """The name in findings, such as `flips timeframe=1d direction=all`."""
        return " ".join([self.view, *(f"{key}={value}" for key, value in self.arguments.items())])


@dataclass(frozen=True)
class Answers:
    """What a service answers about one run, and its feed, from which the answers follow."""

    feed: Feed
    state: Json
    catalog: Json
    stats: Json
    openapi: Json
    pages: list[Query]
    confluence: list[Query]
    flips: list[Query]
    # State and confluence as of some past instants.
    past: list[tuple[Query, Query]]

    @cached_property
    def assets(self) -> dict[str, Json]:
        """The ticker, name and asset_class of every asset in state or catalog."""
        listed = [*self.state["assets"], *self.catalog["assets"]["list"]]
        return {
            asset["ticker"]: {key: asset[key] for key in ("ticker", "name", "asset_class")}
            for asset in listed
        }

    @property
    def removed_tickers(self) -> set[str]:
        """The tickers that are no longer covered."""
        return set(self.state["meta"].get("removed_assets", []))

    def list_queries(self) -> list[Query]:
        """Return all answers but the document and the pages by which the feed was read."""
        single = (("state", self.state), ("catalog", self.catalog), ("stats", self.stats))
        return [
            *(Query(view, {}, body) for view, body in single),
            *(*self.pages, *self.confluence, *self.flips),
        ]

    def list_feed_pages(self) -> list[Query]:
        """Return the pages by which the feed was read, numbered from 1."""
        pages = enumerate(self.feed.pages, 1)
        return [Query("signals", {"page": number}, body) for number, body in pages]


async def audit_answers(
    client: ServiceClient, feed: Feed, on_progress: OnProgress, report: Report
) -> None:
    """Read every view, and report each answer that does not follow from the feed and the catalog.

    VerifyError if the views cannot be read or compared.
    """
    try:
        answers = await read_answers(client, feed, on_progress, SystemRandom())
    except SHAPE_ERRORS as error:
        text = f"{client.address} sent an answer that does not match the API contract ({error!r})"
        raise VerifyError(client.format_line(text)) from None
    found = check_answers(answers)
    report.checked.update(found.checked)
    report.not_checked.update(found.not_checked)
    report.findings += map(client.format_line, found.findings)
    report.notes.append(f"{client.calls} calls counted against the key's daily quota")


async def read_answers(
    client: ServiceClient, feed: Feed, on_progress: OnProgress, draw: Random
) -> Answers:
    """Read all views, again if a run came in between; VerifyError after 3 attempts.

    `draw` chooses the instants of the past boards.
    """
    for _ in range(ATTEMPTS):
        state = (await client.read_view("state")).body
        await feed.extend(client, on_progress)
        page_queries = [
            {**query, "limit": PAGE_ROWS, "since": feed.since} for query in PAGE_QUERIES
        ]
        catalog, stats, openapi = [
            (await client.read_view(view, is_open=True)).body
            for view in ("catalog", "stats", "openapi.json")
        ]
        pages, confluence, flips = [
            [Query(view, query, (await client.read_view(view, query)).body) for query in asked]
            for view, asked in (
                ("signals", page_queries),
                ("confluence", CONFLUENCE_QUERIES),
                ("flips", FLIPS_QUERIES),
            )
        ]
        past = [
            (
                Query("state", at, (await client.read_view("state", at)).body),
                Query("confluence", query, (await client.read_view("confluence", query)).body),
            )
            for at in _choose_instants(feed, draw)
            for query in [CONFLUENCE_QUERIES[0] | at]
        ]
        answers = Answers(feed, state, catalog, stats, openapi, pages, confluence, flips, past)
        # A run changes as_of; a batch of late assets changes only readings.
        last = (await client.read_view("state")).body
        if all(last[key] == state[key] for key in ("as_of", "assets")):
            return answers
    raise VerifyError(
        f"{client.address} had a run during each of {ATTEMPTS} attempts, so its answers could not "
        f"be compared (as_of is now {last['as_of']}): try again"
    )


def _choose_instants(feed: Feed, draw: Random) -> list[Json]:
    """Return the argument `as_of` of some hours of the feed, each a minute before its run."""
    if not feed.rows:
        return []
    first = parse_served_time(feed.rows[0]["created_at"])
    # The first row may come from a run after that of `as_of`.
    hours = max(int((feed.as_of - first) / timedelta(hours=1)), 0)
    chosen = draw.sample(range(1, hours + 1), min(PAST_BOARDS, hours))
    start = first.replace(minute=2, second=0, microsecond=0)
    return [{"as_of": format_time(start + timedelta(hours=hour))} for hour in chosen]


def check_one_version(answers: Answers, report: Report) -> None:
    """Check that all answers have the same run, source and coverage."""
    meta = answers.state["meta"]
    queries, pages = answers.list_queries(), answers.list_feed_pages()
    shared = ("source", "simulated")
    for query, keys in chain(product(queries, [("as_of", *shared)]), product(pages, [shared])):
        for key in keys:
            served = query.body["meta"].get(key)
            report.check_equal(f"{query.name}: meta.{key}", served, meta.get(key))
    report.checked["answers"] += len(queries)
    for query in (Query("state", {}, answers.state), *answers.confluence):
        report.check_equal(f"{query.name}: as_of", query.body["as_of"], meta["as_of"])


def check_state(answers: Answers, report: Report) -> None:
    """Check the counts of state, and that each reading is the `to` of its newest row."""
    counts = answers.state["counts"]
    readings = sum(
        len(cells) for asset in answers.state["assets"] for cells in asset["signals"].values()
    )
    report.check_unique("state", (asset["ticker"] for asset in answers.state["assets"]))
    report.check_equal("state: counts.assets", counts["assets"], len(answers.state["assets"]))
    report.check_equal("state: counts.readings", counts["readings"], readings)
    report.checked["readings"] += readings
    boards = Query("state", {}, answers.state), *(state for state, _ in answers.past)
    for query in boards:
        state = {asset["ticker"]: asset["signals"] for asset in query.body["assets"]}
        until = query.arguments.get("as_of", "9")
        newest = {
            get_cell(row): row
            for row in answers.feed.rows
            if row["tier"] == "universe" and row["created_at"] <= until
        }
        for (ticker, indicator, timeframe), row in newest.items():
            reading = state.get(ticker, {}).get(indicator, {}).get(timeframe)
            cell = f"{ticker} {indicator} {timeframe}"
            label = f"{query.name}: {cell} against {format_value(row['id'])}"
            report.check_equal(label, reading, row["transition"]["to"])
        report.checked["readings held against the feed"] += len(newest)


def check_catalog(answers: Answers, report: Report) -> None:
    """Check that the totals and tiers of the catalog follow from its list of assets."""
    catalog, listed = answers.catalog, answers.catalog["assets"]["list"]
    tiers, covered = catalog["tiers"], catalog["coverage"]["assets"]
    universe, alerts = tiers["universe"], tiers["alerts"]
    crypto = sum(asset["asset_class"] == "crypto" for asset in listed)
    cells = sum(len(asset["universe"]) for asset in covered)
    engines = {asset["ticker"]: len(asset["alerts"]) for asset in covered if asset["alerts"]}
    assets, logged = universe["assets"], universe["logged_combinations"]
    readings = universe["state_readings"]
    report.check_unique("catalog", (asset["ticker"] for asset in listed))
    for name, actual, expected in (
        ("assets.total", catalog["assets"]["total"], len(listed)),
        ("assets.crypto", catalog["assets"]["crypto"], crypto),
        (
            "assets.equities_and_metals",
            catalog["assets"]["equities_and_metals"],
            len(listed) - crypto,
        ),
        (
            "coverage.assets",
            {asset["ticker"]: asset["asset_class"] for asset in covered},
            {asset["ticker"]: asset["asset_class"] for asset in listed},
        ),
        ("tiers.universe.assets", assets, sum(bool(asset["universe"]) for asset in covered)),
        ("tiers.universe.logged_combinations", logged, cells * len(universe["indicators"])),
        ("tiers.universe.state_readings", readings, cells * len(universe["state_indicators"])),
        ("tiers.alerts.tickers", sorted(alerts["tickers"]), sorted(engines)),
        (
            "tiers.alerts.engines",
            alerts["engines"],
            sum(engines.values()) * len(alerts["indicators"]),
        ),
    ):
        report.check_equal(f"catalog: {name}", actual, expected)
    for tier, totals in (("universe", universe), ("alerts", alerts)):
        indicators = [one["id"] for one in catalog["indicators"] if tier in one["available_in"]]
        timeframes = {timeframe for asset in covered for timeframe in asset[tier]}
        by_tier = catalog["coverage"]["indicators_by_tier"][tier]
        name = f"catalog: tiers.{tier}"
        report.check_equal(f"{name}.indicators", totals["indicators"], indicators)
        report.check_equal(f"catalog: coverage.indicators_by_tier.{tier}", by_tier, indicators)
        report.check_equal(f"{name}.timeframes", sorted(totals["timeframes"]), sorted(timeframes))
    report.checked["assets"] += len(listed)


def check_assets(answers: Answers, report: Report) -> None:
    """Check that every asset of state is in the catalog or was removed from it."""
    # Removed assets keep their last readings in state.
    listed = {asset["ticker"]: asset for asset in answers.catalog["assets"]["list"]}
    removed = set(answers.catalog["meta"].get("removed_assets", []))
    for ticker in sorted(answers.removed_tickers - removed):
        report.findings.append(f"catalog: meta.removed_assets lacks {ticker}")
    for asset in answers.state["assets"]:
        ticker = asset["ticker"]
        report.check_true(
            f"state: {ticker} is neither in the catalog nor removed, or both",
            (ticker in listed) != (ticker in removed),
        )
        for key in ("name", "asset_class") if ticker in listed else ():
            report.check_equal(f"state: {ticker}: {key}", asset[key], listed[ticker][key])


def check_pages(answers: Answers, report: Report) -> None:
    """Check that pages by tier and offset, newest first, have the rows of the feed."""
    for query in answers.pages:
        tier, offset = query.arguments["tier"], query.arguments["offset"]
        rows = [row for row in reversed(answers.feed.rows) if tier in ("all", row["tier"])]
        expected = rows[offset : offset + PAGE_ROWS]
        actual = query.body["signals"]
        for place, (row, wanted) in enumerate(zip(actual, expected, strict=False), offset + 1):
            if row != wanted:
                ids = (format_value(one["id"]) for one in (row, wanted))
                report.findings.append(f"{query.name}: row {place} is {' instead of '.join(ids)}")
                break
        report.check_equal(f"{query.name}: number of rows", len(actual), len(expected))
        has_more = len(rows) > offset + PAGE_ROWS
        _check_pagination(query, {"offset": offset, "has_more": has_more}, report)
    for page in answers.list_feed_pages():
        _check_pagination(page, {"offset": 0}, report)


def _check_pagination(query: Query, expected: Json, report: Report) -> None:
    rows = query.body["signals"]
    next_cursor = max((row["created_at"] for row in rows), default=None)
    expected = {"limit": PAGE_ROWS, "returned": len(rows), "next_cursor": next_cursor} | expected
    for name, value in expected.items():
        actual = query.body["pagination"][name]
        report.check_equal(f"{query.name}: pagination.{name}", actual, value)
    report.checked["pages"] += 1


def check_rows(answers: Answers, report: Report) -> None:
    """Check each row against the catalog; `Verification` checks the rows by themselves."""
    names = {one["id"]: one["name"] for one in answers.catalog["indicators"]}
    tiers, covered = answers.catalog["tiers"], answers.catalog["coverage"]["assets"]
    engines = {asset["ticker"]: asset["alerts"] for asset in covered if asset["alerts"]}
    until = parse_served_time(answers.stats["window"]["until"])
    for row in answers.feed.rows:
        label, tier = f"feed: {format_value(row['id'])}", row["tier"]
        created_at = parse_served_time(row["created_at"])
        oldest = answers.feed.as_of - RETENTION[tier]
        report.check_true(f"{label} is outside the days kept", oldest < created_at <= until)
        asset_class = answers.assets.get(row["ticker"], {}).get("asset_class")
        report.check_equal(f"{label}: asset_class", row["asset_class"], asset_class)
        name = names.get(row["indicator"])
        report.check_equal(f"{label}: indicator_name", row["indicator_name"], name)
        is_covered = row["indicator"] in tiers[tier]["indicators"] and (
            tier == "universe" or row["timeframe"] in engines.get(row["ticker"], ())
        )
        report.check_true(f"{label}: the catalog does not cover it", is_covered)
        report.checked["alerts" if tier == "alerts" else "rows"] += 1


def check_cooldown(answers: Answers, report: Report) -> None:
    """Check that an engine repeats an action only after its cooldown of 20 candles."""
    # Alerts of earlier versions may lie close together: a service that was down wrote them when it
    # was back. But no alert is due before its candle closes, or before the cooldown of the previous
    # one ends, so these two times give a lower bound for the alerts of every version.
    ends: dict[tuple[str, ...], int] = {}
    for row in answers.feed.rows:
        if row["tier"] == "alerts":
            action = (*get_cell(row), row["action"])
            end = ends.get(action, 0)
            is_due = parse_served_time(row["created_at"]).timestamp() >= end
            report.check_true(f"feed: {format_value(row['id'])} is within the cooldown", is_due)
            # An id ends in CLOSE.ACTION.EPOCH.
            close = int(row["id"].split(".")[-3])
            ends[action] = max(close, end) + COOLDOWN_S[row["timeframe"]]


def check_confluence(answers: Answers, report: Report) -> None:
    """Check votes, scores and ranking of confluence against state."""
    legacy = {one["id"] for one in answers.catalog["legacy_indicator_keys"]}
    present = ((query, answers.state) for query in answers.confluence)
    past = ((query, state.body) for state, query in answers.past)
    for query, state in chain(present, past):
        echo = {**query.arguments, "asset_class": None}
        report.check_equal(f"{query.name}: query", query.body["query"], echo)
        timeframe, side, min_agree, *_ = query.arguments.values()
        ranked = []
        for asset in state["assets"]:
            cells = asset["signals"].items()
            votes = {key: readings[timeframe] for key, readings in cells if timeframe in readings}
            agreeing = {key for key, vote in votes.items() if vote == side}
            agree, current = len(agreeing), len(agreeing - legacy)
            if agree >= min_agree and asset["ticker"] not in answers.removed_tickers:
                ranked.append(
                    {
                        **answers.assets[asset["ticker"]],
                        "agree": agree,
                        **({"current_agree": current} if current < agree else {}),
                        "total_reporting": len(votes),
                        "score": agree / len(votes),
                        "votes": votes,
                    }
                )
        ranked.sort(key=lambda one: (-one["score"], -one["agree"], one["ticker"]))
        _check_ranking(query.name, query.body["results"], ranked, report)
        report.checked["assets ranked by confluence"] += len(query.body["results"])


def check_flips(answers: Answers, report: Report) -> None:
    """Check groups, counts and ranking of flips against the rows in their windows."""
    for query in answers.flips:
        body, timeframe = query.body, query.arguments["timeframe"]
        default, longest = WINDOW_HOURS[timeframe]
        echo = {"hours": default, **query.arguments}
        rule = body["meta"]["rules"]["hours"][timeframe]
        hours = {"default": default, "max": longest}
        report.check_equal(f"{query.name}: meta.rules.hours", rule, hours)
        report.check_equal(f"{query.name}: query", body["query"], echo)
        # The window ends now, not at the last run, so flips can have a later as_of than state.
        end = body["as_of"]
        report.check_true(
            f"{query.name}: as_of is before that of state", end >= answers.state["as_of"]
        )
        start = format_time(parse_served_time(end) - timedelta(hours=echo["hours"]))
        if start < answers.feed.since:
            report.not_checked["flips of windows longer than the feed read"] += 1
            continue
        rows = [
            row
            for row in reversed(answers.feed.rows)
            if (row["tier"], row["timeframe"]) == ("universe", timeframe)
            and start < row["created_at"] <= end
        ]
        limit = body["meta"]["rules"]["row_limit"]
        report.check_equal(f"{query.name}: capped", body["capped"], len(rows) > limit)
        # The service reads only the newest rows of a window, and sets `capped` if there are more.
        groups = _build_groups(rows[:limit], query.arguments["direction"], answers)
        _check_ranking(query.name, body["groups"], groups, report)
        flips = sum(len(group["flips"]) for group in body["groups"])
        counts = {"groups": len(body["groups"]), "flips": flips}
        report.check_equal(f"{query.name}: counts", body["counts"], counts)
        report.checked["assets ranked by flips"] += len(body["groups"])


def _build_groups(rows: Iterable[Row], direction: str, answers: Answers) -> list[Json]:
    """Return the groups of the rows, best first; `rows` are newest first."""
    newest: dict[Cell, Row] = {}
    for row in rows:
        newest.setdefault(get_cell(row), row)
    # The direction filter comes after the newest change of each cell is chosen.
    by_ticker: dict[str, list[Row]] = {}
    for row in newest.values():
        if direction in ("all", row["transition"]["to"]):
            by_ticker.setdefault(row["ticker"], []).append(row)
    copied = ("indicator", "indicator_name", "change_type", "price", "created_at")
    groups = []
    for ticker, changes in by_ticker.items():
        counts = Counter(row["transition"]["to"] for row in changes)
        score = max(counts[side] for side in SIDES)
        leading = [side for side in SIDES if counts[side] == score]
        flips = [{**row["transition"], **{name: row[name] for name in copied}} for row in changes]
        groups.append(
            {
                **answers.assets.get(ticker, {"ticker": ticker}),
                "dominant": leading[0] if len(leading) == 1 else "mixed",
                **{side: counts[side] for side in SIDES},
                "score": score,
                "latest_at": changes[0]["created_at"],
                "flips": flips,
            }
        )
    groups.sort(key=lambda group: group["ticker"])
    groups.sort(key=lambda group: (group["score"], group["latest_at"]), reverse=True)
    return groups


def check_stats(answers: Answers, report: Report) -> None:
    """Check that the volumes add up and match the feed inside the window."""
    window, feed = answers.stats["window"], answers.feed
    since, until = window["since"], window["until"]
    start = format_time(parse_served_time(until) - timedelta(days=STATS_DAYS))
    report.check_equal("stats: window.days", window["days"], STATS_DAYS)
    report.check_equal("stats: window.since", since, start)
    report.check_true("stats: window.until is before as_of", until >= answers.state["as_of"])
    for tier in RETENTION:
        name, volumes = f"stats: {tier}_tier", answers.stats[f"{tier}_tier"]
        rows = [row for row in feed.rows if row["tier"] == tier]
        inside = [row for row in rows if since < row["created_at"] <= until]
        total = volumes["total_signals"]
        per_day = None if total is None else total / STATS_DAYS
        report.check_equal(f"{name}.signals_per_day", volumes["signals_per_day"], per_day)
        if is_read := since >= feed.since:
            report.check_equal(f"{name}.total_signals", total or 0, len(inside))
            report.checked["rows counted by stats"] += len(inside)
        else:
            report.not_checked["stats, whose 30 days are longer than the feed read"] += 1
        for by in ("indicator", "timeframe", "direction"):
            counts = volumes[f"by_{by}"]
            values, label = [one[by] for one in counts], f"{name}.by_{by}"
            report.check_true(f"{label} has a repeated value", len(set(values)) == len(values))
            report.check_equal(
                f"{label} sums to total_signals", sum(one["signals"] for one in counts), total or 0
            )
            if is_read:
                volume = {one[by]: one["signals"] for one in counts if one["signals"]}
                report.check_equal(label, volume, dict(Counter(row[by] for row in inside)))
        begin = volumes["history_starts_at"]
        # Otherwise it is the time of a row before those that were read.
        if begin is None or begin > feed.since:
            first = rows[0]["created_at"] if rows else None
            report.check_equal(f"{name}.history_starts_at", begin, first)


def _check_ranking(
    label: str, actual_entries: list[Json], expected_entries: list[Json], report: Report
) -> None:
    """Compare two rankings of assets: their members, each field, and the order."""
    tickers = [entry["ticker"] for entry in actual_entries]
    expected = {entry["ticker"]: entry for entry in expected_entries}
    report.check_unique(label, tickers)
    for ticker in set(tickers) - expected.keys():
        report.findings.append(f"{label}: {ticker} does not belong there")
    for ticker in expected.keys() - set(tickers):
        report.findings.append(f"{label}: {ticker} is missing")
    for entry in actual_entries:
        wanted = expected.get(entry["ticker"], entry)
        for name in wanted | entry:
            field = f"{label}: {entry['ticker']}: {name}"
            report.check_equal(field, entry.get(name), wanted.get(name))
    # Compare the order of common members only: missing ones are findings of their own.
    order = [ticker for ticker in dict.fromkeys(tickers) if ticker in expected]
    wanted_order = [ticker for ticker in expected if ticker in tickers]
    for place, (ticker, wanted_ticker) in enumerate(zip(order, wanted_order, strict=True), 1):
        if ticker != wanted_ticker:
            report.check_equal(f"{label}: place {place}", ticker, wanted_ticker)
            break


def check_schemas(answers: Answers, report: Report) -> None:
    """Check each answer against its published schema; report the most relevant difference."""
    document = DRAFT202012.create_resource(answers.openapi)
    registry: Registry[Any] = Registry().with_resource(DOCUMENT_URI, document)
    past = chain.from_iterable(answers.past)
    for query in [*answers.list_queries(), *past, *answers.list_feed_pages()]:
        path = f"~1api~1v1~1{query.view}/get/responses/200/content/application~1json/schema"
        reference: Json = {"$ref": f"{DOCUMENT_URI}#/paths/{path}"}
        validator = Draft202012Validator(reference, registry=registry)
        # The schemas come from the service, so anything may be wrong with them.
        try:
            error = best_match(validator.iter_errors(query.body))
        except Exception as failure:
            report.findings.append(
                f"{query.name}: the OpenAPI document has no usable schema "
                f"({type(failure).__name__})"
            )
            continue
        if error is not None:
            report.findings.append(
                f"{query.name}: {error.json_path} does not match the OpenAPI document: "
                f"{error.validator} {format_value(error.validator_value)}"
            )
        report.checked["answers held against their schema"] += 1


Check = Callable[[Answers, Report], None]
CHECKS: Mapping[str, Check] = {
    "one version": check_one_version,
    "state": check_state,
    "catalog": check_catalog,
    "assets": check_assets,
    "pages": check_pages,
    "rows": check_rows,
    "cooldown": check_cooldown,
    "confluence": check_confluence,
    "flips": check_flips,
    "stats": check_stats,
    "schemas": check_schemas,
}


def check_answers(answers: Answers, checks: Mapping[str, Check] = CHECKS) -> Report:
    """Run every check; an answer that does not match the contract is a finding too."""
    report = Report()
    for name, check in checks.items():
        try:
            check(answers, report)
        except SHAPE_ERRORS as error:
            report.findings.append(f"{name}: an answer does not match the API contract ({error!r})")
    return report

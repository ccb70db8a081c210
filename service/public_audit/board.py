"""Checks that state, catalog and confluence agree.

Implements the rules of docs/contract.md and of `meta.rules` independently of the serving code.
"""

from collections import Counter
from typing import get_args

from schemas.vocabulary import LEGACY_KEYS, STORED_KEYS, TIMEFRAMES, Reading
from service.public_audit.answers import Json, Report, Responses, format_value

READINGS = get_args(Reading)


def check_one_version(responses: Responses, report: Report) -> None:
    """Check that all responses have the same run, source and coverage."""
    meta = responses.state["meta"]
    for name, _, body in responses.iterate_named():
        keys = ("as_of", "source", "simulated", *["removed_assets"] * (name != "catalog"))
        # A page of signals without rows has no list of removed assets.
        for key in (key for key in keys if key in body["meta"] or body.get("signals") != []):
            report.check_equal(f"{name}: meta.{key}", body["meta"][key], meta[key])
        report.checked["answers"] += 1
    report.check_equal("state: as_of", responses.state["as_of"], meta["as_of"])
    for response in responses.confluence:
        report.check_equal(f"{response.name}: as_of", response.body["as_of"], meta["as_of"])


def check_state(responses: Responses, report: Report) -> None:
    """Check the counts of state, and that its keys, timeframes and readings are known."""
    readings = 0
    for asset in responses.state["assets"]:
        for key, cells in asset["signals"].items():
            label = f"state: {asset['ticker']} {key}"
            report.check_true(f"{label} is not a known key", key in STORED_KEYS)
            for timeframe, reading in cells.items():
                report.check_true(
                    f"{label} {timeframe} is not a timeframe", timeframe in TIMEFRAMES
                )
                is_known = reading in READINGS
                report.check_true(
                    f"{label} {timeframe}: {format_value(reading)} is not a reading", is_known
                )
            readings += len(cells)
    tickers = [asset["ticker"] for asset in responses.state["assets"]]
    report.check_unique("state", tickers)
    report.check_equal("state: counts.assets", responses.state["counts"]["assets"], len(tickers))
    report.check_equal("state: counts.readings", responses.state["counts"]["readings"], readings)
    report.checked["readings"] += readings


def check_catalog(responses: Responses, report: Report) -> None:
    """Check the totals of the catalog, and that it lists all assets of state."""
    totals, listed = responses.catalog["assets"], responses.catalog["assets"]["list"]
    classes = Counter(asset["asset_class"] for asset in listed)
    report.check_unique("catalog", [asset["ticker"] for asset in listed])
    report.check_equal("catalog: assets.total", totals["total"], len(listed))
    report.check_equal("catalog: assets.crypto", totals["crypto"], classes["crypto"])
    others = len(listed) - classes["crypto"]
    report.check_equal("catalog: assets.equities_and_metals", totals["equities_and_metals"], others)
    _check_coverage(responses.catalog, report)
    _check_state_assets(responses, report)
    report.checked["assets"] += len(listed)


def _check_coverage(catalog: Json, report: Report) -> None:
    """Check that coverage and tiers match the list of assets and each other."""
    covered, by_tier = catalog["coverage"]["assets"], catalog["coverage"]["indicators_by_tier"]
    listed = {asset["ticker"]: asset["asset_class"] for asset in catalog["assets"]["list"]}
    table = {asset["ticker"]: asset["asset_class"] for asset in covered}
    report.check_equal("catalog: coverage.assets", table, listed)
    for tier in ("universe", "alerts"):
        tier_totals = catalog["tiers"][tier]
        logged_indicators = [i["id"] for i in catalog["indicators"] if tier in i["available_in"]]
        timeframes = {timeframe for asset in covered for timeframe in asset[tier]}
        report.check_equal(
            f"catalog: tiers.{tier}.indicators", tier_totals["indicators"], logged_indicators
        )
        report.check_equal(
            f"catalog: coverage.indicators_by_tier.{tier}", by_tier[tier], logged_indicators
        )
        report.check_equal(
            f"catalog: tiers.{tier}.timeframes",
            sorted(tier_totals["timeframes"]),
            sorted(timeframes),
        )
    _check_totals(catalog["tiers"], covered, report)


def _check_totals(tiers: Json, covered: list[Json], report: Report) -> None:
    universe, alerts = tiers["universe"], tiers["alerts"]
    cells = sum(len(asset["universe"]) for asset in covered)
    alert_counts = {asset["ticker"]: len(asset["alerts"]) for asset in covered if asset["alerts"]}
    for name, actual, expected in (
        ("universe.assets", universe["assets"], sum(bool(a["universe"]) for a in covered)),
        (
            "universe.logged_combinations",
            universe["logged_combinations"],
            cells * len(universe["indicators"]),
        ),
        (
            "universe.state_readings",
            universe["state_readings"],
            cells * len(universe["state_indicators"]),
        ),
        ("alerts.tickers", sorted(alerts["tickers"]), sorted(alert_counts)),
        (
            "alerts.engines",
            alerts["engines"],
            sum(alert_counts.values()) * len(alerts["indicators"]),
        ),
    ):
        report.check_equal(f"catalog: tiers.{name}", actual, expected)


def _check_state_assets(responses: Responses, report: Report) -> None:
    """Check that every asset of state is in the catalog or was removed from it."""
    # Removed assets keep their last readings in state.
    listed = {asset["ticker"]: asset for asset in responses.catalog["assets"]["list"]}
    removed = set(responses.catalog["meta"]["removed_assets"])
    for ticker in sorted(responses.removed_tickers - removed):
        report.add_finding(f"catalog: meta.removed_assets lacks {ticker}")
    for asset in responses.state["assets"]:
        ticker = asset["ticker"]
        is_listed_once = (ticker in listed) != (ticker in removed)
        report.check_true(
            f"state: {ticker} is neither in the catalog nor removed, or both", is_listed_once
        )
        for key in ("name", "asset_class") if ticker in listed else ():
            report.check_equal(f"state: {ticker}: {key}", asset[key], listed[ticker][key])


def check_confluence(responses: Responses, report: Report) -> None:
    """Check votes, scores and ranking of confluence against state."""
    for response in responses.confluence:
        query = {**response.arguments, "asset_class": None}
        report.check_equal(f"{response.name}: query", response.body["query"], query)
        report.check_ranking(
            response.name,
            response.body["results"],
            _rank_confluence(responses, **response.arguments),
        )
        report.checked["assets ranked by confluence"] += len(response.body["results"])


def _rank_confluence(
    responses: Responses, timeframe: str, direction: str, min_agree: int
) -> list[Json]:
    """Return the results of a query, recomputed from state, best first."""
    ranked = []
    for asset in responses.state["assets"]:
        signals = asset["signals"].items()
        votes = {key: cells[timeframe] for key, cells in signals if timeframe in cells}
        agreeing = [key for key, vote in votes.items() if vote == direction]
        current_agree = len([key for key in agreeing if key not in LEGACY_KEYS])
        agree = len(agreeing)
        if agree >= min_agree and asset["ticker"] not in responses.removed_tickers:
            vote_counts = {
                "agree": agree,
                **({"current_agree": current_agree} if current_agree < agree else {}),
                "total_reporting": len(votes),
                "score": agree / len(votes),
            }
            result = {**responses.assets[asset["ticker"]], **vote_counts, "votes": votes}
            rank = (-result["score"], -agree, asset["ticker"])
            ranked.append((rank, result))
    return [result for _, result in sorted(ranked, key=lambda pair: pair[0])]

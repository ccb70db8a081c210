"""Whether state, catalog and confluence agree: every rule is written anew from SPEC.md and from
what the answers say of their rules, so that a fault of the code that serves cannot hide here.
"""

from collections import Counter
from typing import get_args

from schemas.vocabulary import STORED_KEYS, TIMEFRAMES, Reading
from service.public_audit.answers import Answers, Json, Report, shown

READINGS = get_args(Reading)


def check_one_version(answers: Answers, report: Report) -> None:
    """Every answer rests on the same compute, the same source and the same coverage."""
    meta = answers.state["meta"]
    for name, answer in answers.named():
        keys = ("as_of", "source", "simulated", *["removed_assets"] * (name != "catalog"))
        for key in keys:
            report.same(f"{name}: meta.{key}", answer["meta"][key], meta[key])
        report.checked["answers"] += 1
    report.same("state: as_of", answers.state["as_of"], meta["as_of"])
    for asked in answers.confluence:
        report.same(f"{asked.name}: as_of", asked.answer["as_of"], meta["as_of"])


def check_state(answers: Answers, report: Report) -> None:
    """The counts of state equal what is there, in known words."""
    readings = 0
    for asset in answers.state["assets"]:
        for key, cells in asset["signals"].items():
            where = f"state: {asset['ticker']} {key}"
            report.holds(f"{where} is no known key", key in STORED_KEYS)
            for timeframe, reading in cells.items():
                report.holds(f"{where} {timeframe} is no timeframe", timeframe in TIMEFRAMES)
                known = reading in READINGS
                report.holds(f"{where} {timeframe}: {shown(reading)} is no reading", known)
            readings += len(cells)
    tickers = [asset["ticker"] for asset in answers.state["assets"]]
    report.once("state", tickers)
    report.same("state: counts.assets", answers.state["counts"]["assets"], len(tickers))
    report.same("state: counts.readings", answers.state["counts"]["readings"], readings)
    report.checked["readings"] += readings


def check_catalog(answers: Answers, report: Report) -> None:
    """The totals of the catalog equal its list, and state shows no asset that it lacks."""
    told, listed = answers.catalog["assets"], answers.catalog["assets"]["list"]
    classes = Counter(asset["asset_class"] for asset in listed)
    report.once("catalog", [asset["ticker"] for asset in listed])
    report.same("catalog: assets.total", told["total"], len(listed))
    report.same("catalog: assets.crypto", told["crypto"], classes["crypto"])
    others = len(listed) - classes["crypto"]
    report.same("catalog: assets.equities_and_metals", told["equities_and_metals"], others)
    _check_coverage(answers.catalog, report)
    _check_known(answers, report)
    report.checked["assets"] += len(listed)


def _check_coverage(catalog: Json, report: Report) -> None:
    """Hold the tables of coverage and tiers against the list and against each other."""
    covered, by_tier = catalog["coverage"]["assets"], catalog["coverage"]["indicators_by_tier"]
    listed = {asset["ticker"]: asset["asset_class"] for asset in catalog["assets"]["list"]}
    table = {asset["ticker"]: asset["asset_class"] for asset in covered}
    report.same("catalog: coverage.assets", table, listed)
    for tier in ("universe", "alerts"):
        told = catalog["tiers"][tier]
        logged = [i["id"] for i in catalog["indicators"] if tier in i["available_in"]]
        held = {timeframe for asset in covered for timeframe in asset[tier]}
        report.same(f"catalog: tiers.{tier}.indicators", told["indicators"], logged)
        report.same(f"catalog: coverage.indicators_by_tier.{tier}", by_tier[tier], logged)
        report.same(f"catalog: tiers.{tier}.timeframes", sorted(told["timeframes"]), sorted(held))
    _check_totals(catalog["tiers"], covered, report)


def _check_totals(tiers: Json, covered: list[Json], report: Report) -> None:
    universe, alerts = tiers["universe"], tiers["alerts"]
    cells = sum(len(asset["universe"]) for asset in covered)
    followed = {asset["ticker"]: len(asset["alerts"]) for asset in covered if asset["alerts"]}
    for name, told, value in (
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
        ("alerts.tickers", sorted(alerts["tickers"]), sorted(followed)),
        ("alerts.engines", alerts["engines"], sum(followed.values()) * len(alerts["indicators"])),
    ):
        report.same(f"catalog: tiers.{name}", told, value)


def _check_known(answers: Answers, report: Report) -> None:
    """Every asset of state is in the catalog, or among those removed from it."""
    listed = {asset["ticker"]: asset for asset in answers.catalog["assets"]["list"]}
    removed = set(answers.catalog["meta"]["removed_assets"])
    for ticker in sorted(answers.removed - removed):
        report.find(f"catalog: meta.removed_assets lacks {ticker}")
    for asset in answers.state["assets"]:
        ticker = asset["ticker"]
        known = (ticker in listed) != (ticker in removed)
        report.holds(f"state: {ticker} is neither in the catalog nor removed, or both", known)
        for key in ("name", "asset_class") if ticker in listed else ():
            report.same(f"state: {ticker}: {key}", asset[key], listed[ticker][key])


def check_confluence(answers: Answers, report: Report) -> None:
    """Votes, scores and ranking of confluence follow from state."""
    for asked in answers.confluence:
        query = {**asked.arguments, "asset_class": None}
        report.same(f"{asked.name}: query", asked.answer["query"], query)
        report.ranked(asked.name, asked.answer["results"], _agreeing(answers, **asked.arguments))
        report.checked["assets ranked by confluence"] += len(asked.answer["results"])


def _agreeing(answers: Answers, timeframe: str, direction: str, min_agree: int) -> list[Json]:
    """Return the results that state makes of a query, best first."""
    results = []
    for asset in answers.state["assets"]:
        signals = asset["signals"].items()
        votes = {key: cells[timeframe] for key, cells in signals if timeframe in cells}
        agree = sum(vote == direction for vote in votes.values())
        if agree >= min_agree and asset["ticker"] not in answers.removed:
            counted = {"agree": agree, "total_reporting": len(votes), "score": agree / len(votes)}
            results.append({**answers.assets[asset["ticker"]], **counted, "votes": votes})
    return sorted(results, key=lambda r: (-r["score"], -r["agree"], r["ticker"]))

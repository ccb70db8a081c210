"""Questions of users, and the scripts that answer them with an Agent.

The scripts use only tools/list and results. The true answers are in truths.py.
"""

import re
from collections.abc import Iterable
from typing import Any

from tests.agents.agent import Agent, JsonObject, RefusedError
from tests.support.bad_inputs import CATALOG, CONFLUENCE, FLIPS, SIGNALS, STATE, USAGE

TUESDAY = "2026-09-29T12:00:00Z"  # The sessions take place on Wednesday, 2026-09-30.


async def bullish_metals(agent: Agent) -> Any:
    """Which metals turned bullish on 4h today?"""
    hours = (
        int(agent.instant_ago()[11:13]) + 1
    )  # The hours since midnight, including the current one.
    answer = await agent.call(FLIPS, timeframe="4h", hours=hours, direction="bullish")
    return {
        (group["ticker"], flip["indicator"])
        for group in answer["groups"]
        for flip in group["flips"]
        if group["asset_class"] == "metal" and flip["created_at"][:10] == answer["as_of"][:10]
    }


async def reversal_last_tuesday(agent: Agent) -> Any:
    """Was NVDA's daily reversal still in force last Tuesday, and is it now?"""
    cell = {"ticker": "NVDA", "indicator": "reversals", "timeframe": "1d"}
    then = await agent.call(STATE, **cell, as_of=TUESDAY)
    feed = await agent.call(SIGNALS, **cell, direction=_get_only_reading(then), limit=1)
    now = await agent.call(STATE, **cell)
    return _get_only_reading(then), feed["signals"][0]["created_at"], _get_only_reading(now)


async def agreement(agent: Agent) -> Any:
    """On which assets do most indicators agree on 1d, and has that changed since yesterday?"""
    requested = {"timeframe": "1d", "min_agree": 5}
    found = {}
    for direction in ("bullish", "bearish"):
        now = await agent.call(CONFLUENCE, **requested, direction=direction)
        then = await agent.call(
            CONFLUENCE, **requested, direction=direction, as_of=agent.instant_ago(days=1)
        )
        found[direction] = _to_tickers(then["results"]), _to_tickers(now["results"])
    return found


async def misspelt(agent: Agent) -> Any:
    """Which daily readings does the Trend Oracle have for Etherium, NVDIA and gold?"""
    requested = {"indicator": "trend_oracle", "timeframe": "1d"}
    try:
        await agent.call(STATE, **requested, ticker="Etherium,NVDIA,gold")
    except RefusedError as refusal:
        meant = re.findall(r"did you mean (\w+) \(", refusal.message)
    answer = await agent.call(STATE, **requested, ticker=",".join(meant))
    return {asset["ticker"]: asset["signals"]["trend_oracle"]["1d"] for asset in answer["assets"]}


async def removed(agent: Agent) -> Any:
    """Which reading does Enzo have for MATIC on 1d?"""
    requested = {"indicator": "enzo", "timeframe": "1d"}
    answer = await agent.call(STATE, **requested, ticker="MATIC")
    if "MATIC" not in answer["meta"]["removed_assets"]:
        return _get_only_reading(answer)
    (since,) = re.findall(r"MATIC was removed on ([\d-]+)", answer["meta"]["note"])
    (successor,) = re.findall(r"continues as (\w+)", answer["meta"]["note"])
    return (
        since,
        successor,
        _get_only_reading(await agent.call(STATE, **requested, ticker=successor)),
    )


async def sectors(agent: Agent) -> Any:
    """Are stocks or crypto more bullish on 1d?"""
    found = {}
    for sector in ("stock", "crypto"):
        answer = await agent.call(STATE, view="board", asset_class=sector, timeframe="1d")
        board, outdated = answer["board"], answer["meta"]["legacy_keys"]
        said = [
            board["legend"][letter]
            for ticker, word in (row.split(" ") for row in board["rows"].split(";"))
            for key, letter in zip(board["indicators"], word, strict=False)
            if ticker not in answer["meta"]["removed_assets"] and key not in outdated
        ]
        found[sector] = said.count("bullish"), len(said)
    return found


async def flips_from_the_feed(agent: Agent) -> Any:
    """Do the flips of the last two hours on 1h agree with the feed?"""
    requested = {"timeframe": "1h", "hours": 2}
    flips = await agent.call(FLIPS, **requested)
    rows = _to_rows(await _read_pages(agent, agent.instant_ago(hours=2), timeframe="1h"))
    newest = {(row["ticker"], row["indicator"]): row for row in rows}
    kept = [r for r in newest.values() if r["ticker"] not in flips["meta"]["removed_assets"]]
    groups = [
        _group_changes([row for row in kept if row["ticker"] == ticker])
        for ticker in {row["ticker"] for row in kept}
    ]
    groups.sort(key=lambda group: group["ticker"])
    groups.sort(key=lambda group: (group["score"], group["latest_at"]), reverse=True)
    assert groups == [{name: group[name] for name in groups[0]} for group in flips["groups"]]
    return [(group["ticker"], group["dominant"], group["score"]) for group in groups]


def _group_changes(rows: list[JsonObject]) -> JsonObject:
    """Group an asset's newest changes as meta.rules says."""
    sides = [row["direction"] for row in rows]
    bullish, bearish = sides.count("bullish"), sides.count("bearish")
    larger = "bullish" if bullish > bearish else "bearish"
    return {
        "ticker": rows[0]["ticker"],
        "dominant": "mixed" if bullish == bearish else larger,
        "bullish": bullish,
        "bearish": bearish,
        "score": max(bullish, bearish),
        "latest_at": max(row["created_at"] for row in rows),
    }


async def alerts(agent: Agent) -> Any:
    """Which alerts did SOL have in the last 30 days, and is a position open?

    If an engine's newest action opened a position, the cooldown may hold back a CLOSE that ends
    it. The answer is "unclear" then.
    """
    requested = {"tier": "alerts", "ticker": "SOL", "limit": 200}
    answer = await agent.call(SIGNALS, **requested)
    (held,) = re.findall(r"\((\d+) hours on 4h, (\d+) days on 1d\)", answer["meta"]["cooldown"])
    window = {
        "4h": agent.instant_ago(hours=int(held[0])),
        "1d": agent.instant_ago(days=int(held[1])),
    }
    newest_first = answer["signals"]
    positions: dict[tuple[str, str], str] = {}
    for row in newest_first:
        action = row["action"]
        engine = row["indicator"], row["timeframe"]
        if engine not in positions:
            positions[engine] = "none" if action == "CLOSE" else f"open {action}"
        elif action == "CLOSE" and row["created_at"] > window[row["timeframe"]]:
            positions[engine] = positions[engine].replace("open", "unclear")
    month = agent.instant_ago(days=30)
    recent = [row["action"] for row in newest_first if row["created_at"] > month]
    return recent, positions


async def emptiness(agent: Agent) -> Any:
    """What did PerpKit do on SOL, did ETH have alerts, on which stocks do six indicators agree?"""
    perpkit = {"ticker": "SOL", "indicator": "perpkit"}
    none = await agent.call(SIGNALS, **perpkit)
    (tier,) = re.findall(r"its actions from tier=(\w+)", none["meta"]["note"])
    actions = (await agent.call(SIGNALS, **perpkit, tier=tier))["signals"]
    no_alerts = await agent.call(SIGNALS, ticker="ETH", tier="alerts")
    (followed,) = re.findall(r"engines follow (.+) on", no_alerts["meta"]["note"])
    requested = {"asset_class": "stock", "timeframe": "1d", "direction": "bearish"}
    nowhere = await agent.call(CONFLUENCE, **requested, min_agree=6)
    if not nowhere["results"]:
        (highest,) = re.findall(r"lower min_agree to (\d)", nowhere["meta"]["note"])
        nowhere = await agent.call(CONFLUENCE, **requested, min_agree=int(highest))
    agreed = [(result["ticker"], result["agree"]) for result in nowhere["results"]]
    return [row["action"] for row in actions], followed, agreed


async def covered(agent: Agent) -> Any:
    """Are SOL, gold and DARK covered, on which timeframes, and by alerts?"""
    answer = await agent.call(CATALOG, ticker="SOL,XAU,DARK")
    return {
        asset["ticker"]: (asset["universe"], asset["alerts"])
        for asset in answer["coverage"]["assets"]
    }


async def quota(agent: Agent) -> Any:
    """What changed last on BTC, ETH and NVDA? (The quota allows two calls.)"""
    last = {}
    for ticker in ("BTC", "ETH", "NVDA"):
        try:
            answer = await agent.call(SIGNALS, ticker=ticker, limit=1)
        except RefusedError as refusal:
            assert (await agent.call(USAGE))["quota"]["remaining_today"] == 0
            await agent.wait(_parse_seconds(refusal))
            answer = await agent.call(SIGNALS, ticker=ticker, limit=1)
        (row,) = answer["signals"]
        last[ticker] = row["indicator"], row["direction"]
    return last, agent.instant_ago()


async def first_compute(agent: Agent) -> Any:
    """Which readings does NVDA have on 1d? (Nothing has been computed yet.)"""
    requested = {"ticker": "NVDA", "timeframe": "1d", "indicator": "enzo"}
    while True:
        try:
            return _get_only_reading(await agent.call(STATE, **requested))
        except RefusedError as refusal:
            await agent.wait(_parse_seconds(refusal))


async def purchase(agent: Agent) -> Any:
    """Which readings does BTC have on 1d? Buy access if necessary. (The agent has no key.)"""
    requested = {"ticker": "BTC", "timeframe": "1d", "indicator": "enzo"}
    try:
        await agent.call(STATE, **requested)
    except RefusedError as refusal:
        steps = refusal.error["how_to_get_access"]["steps"]
    method, url, fields = re.findall(r"(POST) (\S+) with (\{.*?\})", steps[0])[0]
    (field,) = re.findall(r'"(\w+)"', fields.split(":")[0])
    checkout = await agent.send_request(method, url, {field: "buyer@example.com"})
    step = checkout["next_step"]
    method, url = step["call"].split(" ")
    token = {step["body_field"]: checkout["claim_token"]}
    claim = await agent.send_request(method, url, token)
    assert claim["status"] == "pending"
    await agent.pay(checkout["checkout_url"])
    await agent.wait(claim["retry_after_seconds"])
    claim = await agent.send_request(method, url, token)
    agent.set_header(claim["usage"]["header"].replace("<API_KEY>", claim["api_key"]))
    return _get_only_reading(await agent.call(STATE, **requested))


async def a_week(agent: Agent) -> Any:
    """Report every change in the coming week. (Once a day is enough.)"""
    return await _follow_feed(agent, days=7, how_often="1d")


async def a_week_by_the_hour(agent: Agent) -> Any:
    """Report every change in the coming week, every hour."""
    return await _follow_feed(agent, days=7, how_often="1h")


async def _follow_feed(agent: Agent, days: int, how_often: str) -> Any:
    """Poll the feed for some days, once per run of a timeframe; return the polls and the rows."""
    state = await agent.call(STATE, view="board")
    since, update, end = state["as_of"], state["meta"]["next_update"], agent.instant_ago(days=-days)
    found: list[str] = []
    times, time = 0, ""
    while time != end:
        times, time = times + 1, min(update[how_often], end)
        await agent.wait_until(time)
        pages = await _read_pages(agent, since, limit=20)
        found += [row["id"] for row in _to_rows(pages)]
        since = pages[-1]["pagination"]["next_cursor"] or since
        update = pages[-1]["meta"]["next_update"]
    return times, found


async def _read_pages(agent: Agent, since: str, **filters: Any) -> list[JsonObject]:
    """Read the feed forward from an instant to its end."""
    pages: list[JsonObject] = []
    while True:
        pages.append(await agent.call(SIGNALS, order="oldest", since=since, **filters))
        if not pages[-1]["pagination"]["has_more"]:
            return pages
        since = pages[-1]["pagination"]["next_cursor"]


def _to_rows(pages: Iterable[JsonObject]) -> list[JsonObject]:
    return [row for page in pages for row in page["signals"]]


def _get_only_reading(state: JsonObject) -> str:
    """Return the reading of a state of one cell."""
    (reading,) = (
        reading
        for asset in state["assets"]
        for cells in asset["signals"].values()
        for reading in cells.values()
    )
    assert isinstance(reading, str)
    return reading


def _to_tickers(results: Iterable[JsonObject]) -> set[str]:
    return {result["ticker"] for result in results}


def _parse_seconds(refusal: RefusedError) -> int:
    (seconds,) = re.findall(r"[Rr]etry after (\d+) seconds", refusal.message)
    return int(seconds)

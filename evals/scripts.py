"""The scripts of the solver, one for each form of question.

Each takes the session, the time of the question, and the words that the form leaves open.
"""

from datetime import datetime, timedelta

from evals.board import (
    CATALOG,
    CONFLUENCE,
    FLIPS,
    SIGNALS,
    STATE,
    find_turned,
    find_words,
    join,
    list_days,
    read_board,
    read_boards,
    read_cell,
    read_feed,
    to_instant,
)
from evals.run import UNANSWERABLE
from evals.session import Session


async def count_differences(
    session: Session, now: str, ticker: str, timeframe: str, a: str, b: str
) -> str:
    """Count the indicators whose readings differ."""
    first, second = await read_boards(session, [a, b], timeframe, ticker=ticker)
    return str(sum(first.get(cell) != second.get(cell) for cell in first | second))


async def list_turned_indicators(
    session: Session, now: str, ticker: str, timeframe: str, before: str, a: str, after: str, b: str
) -> str:
    """List the indicators that had one reading, and later another."""
    boards = await read_boards(session, [a, b], timeframe, ticker=ticker)
    return join(indicator for _, indicator in find_turned(boards, before, after))


async def list_turned_assets(
    session: Session,
    now: str,
    kind: str,
    indicator: str,
    timeframe: str,
    before: str,
    a: str,
    after: str,
    b: str,
) -> str:
    """List the assets of a class on which an indicator had one reading, and later another."""
    filters = {"asset_class": kind, "indicator": indicator}
    boards = await read_boards(session, [a, b], timeframe, **filters)
    return join(ticker for ticker, _ in find_turned(boards, before, after))


async def list_newly_agreeing(
    session: Session, now: str, kind: str, count: str, side: str, timeframe: str, a: str, b: str
) -> str:
    """List the assets on which enough indicators agree, but did not agree before."""
    requested = {
        "asset_class": kind,
        "min_agree": int(count),
        "direction": side,
        "timeframe": timeframe,
    }
    found = []
    for at in (a, b):
        answer = await session.call(CONFLUENCE, {**requested, "as_of": to_instant(at)})
        found.append({result["ticker"] for result in answer["results"]})
    return join(found[1] - found[0])


async def count_days(
    session: Session,
    now: str,
    first: str,
    last: str,
    indicator: str,
    ticker: str,
    timeframe: str,
    reading: str,
) -> str:
    """Count the midnights with a reading."""
    readings = [
        await read_cell(session, f"{day}T00:00:00Z", ticker, indicator, timeframe)
        for day in list_days(first, last)
    ]
    return str(readings.count(reading))


async def find_first_day(
    session: Session,
    now: str,
    first: str,
    last: str,
    indicator: str,
    ticker: str,
    timeframe: str,
    reading: str,
) -> str:
    """Find the first noon with a reading."""
    for day in list_days(first, last):
        at = f"{day}T12:00:00Z"
        if await read_cell(session, at, ticker, indicator, timeframe) == reading:
            return day
    return "none"


async def read_before_change(
    session: Session, now: str, changed: str, ticker: str, timeframe: str, indicator: str
) -> str:
    """Read an indicator an hour before the newest change of another."""
    requested = {"ticker": ticker, "indicator": changed, "timeframe": timeframe, "limit": 1}
    (row,) = (await session.call(SIGNALS, requested))["signals"]
    at = datetime.fromisoformat(row["created_at"]) - timedelta(hours=1)
    return await read_cell(session, at.isoformat(), ticker, indicator, timeframe)


async def count_changes(
    session: Session, now: str, ticker: str, timeframe: str, a: str, b: str, indicator: str
) -> str:
    """Count the changes between two times, and read an indicator at the second."""
    start, end = to_instant(a), to_instant(b)
    rows = await read_feed(session, start, end, ticker=ticker, timeframe=timeframe)
    return f"{len(rows)}, {await read_cell(session, end, ticker, indicator, timeframe)}"


async def count_alerts(
    session: Session,
    now: str,
    action: str,
    ticker: str,
    timeframe: str,
    a: str,
    b: str,
    indicator: str,
) -> str:
    """Count the alerts of an action between two times, and read an indicator at the second."""
    start, end = to_instant(a), to_instant(b)
    filters = {"tier": "alerts", "ticker": ticker, "timeframe": timeframe}
    actions = [row["action"] for row in await read_feed(session, start, end, **filters)]
    reading = await read_cell(session, end, ticker, indicator, timeframe)
    return f"{actions.count(action)}, {reading}"


async def find_largest_share(
    session: Session, now: str, reading: str, timeframe: str, a: str
) -> str:
    """Find the class with the largest share of a reading."""
    shares = {}
    for kind in ("crypto", "stock", "metal"):
        board = await read_board(session, to_instant(a), timeframe, asset_class=kind)
        shares[kind] = list(board.values()).count(reading) / len(board)
    return max(shares, key=lambda kind: shares[kind])


async def compare_pair(
    session: Session,
    now: str,
    first: str,
    second: str,
    indicator: str,
    timeframe: str,
    a: str,
    b: str,
    c: str,
) -> str:
    """Say whether two assets had the same reading at each of three times."""
    filters = {"ticker": f"{first},{second}", "indicator": indicator}
    boards = await read_boards(session, [a, b, c], timeframe, **filters)
    return "yes" if all(len(set(board.values())) == 1 for board in boards) else "no"


async def read_successor(
    session: Session, now: str, removed: str, indicator: str, timeframe: str, a: str
) -> str:
    """Find the asset that continues a removed one, and read an indicator of it."""
    answer = await session.call(CATALOG, {"ticker": removed})
    ticker = find_words(answer["note"], r"continues as (\w+)")
    return f"{ticker}, {await read_cell(session, to_instant(a), ticker, indicator, timeframe)}"


async def read_top_flip(
    session: Session, now: str, timeframe: str, hours: str, indicator: str, a: str
) -> str:
    """Find the asset that ranks first in flips, and read an indicator of it at a past time."""
    answer = await session.call(FLIPS, {"timeframe": timeframe, "hours": int(hours)})
    ticker = answer["groups"][0]["ticker"]
    return f"{ticker}, {await read_cell(session, to_instant(a), ticker, indicator, timeframe)}"


async def list_followed(
    session: Session, now: str, reading: str, indicator: str, timeframe: str, a: str
) -> str:
    """List the assets with alert engines that had a reading."""
    covered = (await session.call(CATALOG, {}))["coverage"]["assets"]
    followed = ",".join(asset["ticker"] for asset in covered if asset["alerts"])
    filters = {"ticker": followed, "indicator": indicator}
    board = await read_board(session, to_instant(a), timeframe, **filters)
    return join(ticker for (ticker, _), found in board.items() if found == reading)


async def read_if_listed(
    session: Session, now: str, indicator: str, ticker: str, timeframe: str, a: str
) -> str:
    """Read a cell, unless the schema of the tool has no such indicator or timeframe."""
    (tool,) = [tool for tool in await session.list_tools() if tool["name"] == STATE]
    accepted = tool["inputSchema"]["properties"]
    if indicator not in accepted["indicator"]["enum"]:
        return UNANSWERABLE
    if timeframe not in accepted["timeframe"]["enum"]:
        return UNANSWERABLE
    return await read_cell(session, to_instant(a), ticker, indicator, timeframe)


async def check_if_real(session: Session, now: str) -> str:
    """Say whether the market is real."""
    answer = await session.call(STATE, {"ticker": "BTC"})
    return "no" if answer["meta"]["simulated"] else "yes"


async def check_if_fresh(session: Session, now: str, ticker: str) -> str:
    """Say whether the readings of an asset are up to date."""
    meta = (await session.call(STATE, {"ticker": ticker}))["meta"]
    outdated = [*meta["removed_assets"], *meta["late_assets"], *meta["ended_assets"]]
    return "no" if meta["stale"] or ticker in outdated else "yes"


async def measure_age(session: Session, now: str) -> str:
    """Return how many whole minutes ago the readings were computed."""
    computed = (await session.call(STATE, {"ticker": "BTC"}))["as_of"]
    age = datetime.fromisoformat(now) - datetime.fromisoformat(computed)
    return str(age // timedelta(minutes=1))


async def read_replacement(session: Session, now: str, key: str, ticker: str) -> str:
    """Return the key that replaces an outdated one."""
    answer = await session.call(STATE, {"ticker": ticker})
    return str(answer["meta"]["legacy_keys"][key])


async def find_last_bar(session: Session, now: str, ticker: str) -> str:
    """Return when the last bar of an asset closed."""
    (bars,) = (await session.call(STATE, {"ticker": ticker}))["meta"]["last_bars"]
    return f"{datetime.fromisoformat(bars['closed_at']):%Y-%m-%d %H:%M}"


async def list_removed(session: Session, now: str) -> str:
    """List the assets whose readings no longer change."""
    return join((await session.call(STATE, {"view": "board"}))["meta"]["removed_assets"])

"""The true answers for each scene, by hand or counted from the changes in its store."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from compute.universe import load_universe
from schemas.vocabulary import DAY_MS, HOUR_MS, format_instant
from store.market_rows import ChangeRow
from tests.agents.scenes import Scene
from tests.support.example_market import NOON

Cell = tuple[str, str]
DIRECTION = {1: "bullish", -1: "bearish", 0: "neutral"}
MIDNIGHT = NOON // DAY_MS * DAY_MS
MATIC = "MATIC"
CLASSES = {asset.ticker: asset.asset_class for asset in load_universe().assets}


def bullish_metals(scene: Scene) -> Any:
    today = _pick_newest(_list_changes(scene, "4h", MIDNIGHT))
    return {c for c, row in today.items() if CLASSES[c[0]] == "metal" and row.after == 1}


def reversal_last_tuesday(scene: Scene) -> Any:
    return "bullish", "2026-09-25T12:03:00.000Z", "neutral"


def agreement(scene: Scene) -> Any:
    now, then = (
        _replay_board(scene, "1d", NOON + HOUR_MS),
        _replay_board(scene, "1d", scene.served.clock() - DAY_MS),
    )
    return {
        DIRECTION[side]: (_find_agreeing(then, side), _find_agreeing(now, side)) for side in (1, -1)
    }


def _find_agreeing(board: dict[Cell, int], side: int) -> set[str]:
    votes = Counter(ticker for (ticker, _), reading in board.items() if reading == side)
    return {ticker for ticker, count in votes.items() if count >= 5 and ticker != MATIC}


def misspelt(scene: Scene) -> Any:
    board = _replay_board(scene, "1d", NOON + HOUR_MS)
    return {t: DIRECTION[board[t, "trend_oracle"]] for t in ("ETH", "NVDA", "XAU")}


def removed(scene: Scene) -> Any:
    return "2026-09-27", "POL", "bearish"


def sectors(scene: Scene) -> Any:
    board = _replay_board(scene, "1d", NOON + HOUR_MS)
    found = {}
    for sector in ("stock", "crypto"):
        said = [
            reading
            for (ticker, indicator), reading in board.items()
            if CLASSES[ticker] == sector and ticker != MATIC and indicator != "dexter"
        ]
        found[sector] = said.count(1), len(said)
    return found


def flips_from_the_feed(scene: Scene) -> Any:
    newest = _pick_newest(_list_changes(scene, "1h", scene.served.clock() - 2 * HOUR_MS))
    ranked = []
    for ticker in {ticker for ticker, _ in newest} - {MATIC}:
        rows = [row for row in newest.values() if row.ticker == ticker]
        balance = sum(row.after for row in rows)
        score = max(sum(row.after == side for row in rows) for side in (1, -1))
        dominant = {True: "bullish", False: "bearish"}[balance > 0] if balance else "mixed"
        latest = max(row.created_at for row in rows)
        ranked.append((-score, -latest, ticker, dominant))
    return [(ticker, dominant, -score) for score, _, ticker, dominant in sorted(ranked)]


def alerts(scene: Scene) -> Any:
    recent = ["LONG", "CLOSE", "CLOSE", "SHORT", "SHORT"]
    return recent, {
        ("ceres", "4h"): "unclear LONG",  # Closed a day before it, within the 80 hours.
        ("llnr", "1d"): "none",
        ("perpkit", "1d"): "open SHORT",
        ("enzo", "1d"): "open LONG",
    }


def emptiness(scene: Scene) -> Any:
    return ["SHORT"], "SOL", [("NVDA", 5)]


def covered(scene: Scene) -> Any:
    every = ["1h", "4h", "1d"]
    return {"SOL": (every, ["4h", "1d"]), "XAU": (["1d"], []), "DARK": ([], [])}


def quota(scene: Scene) -> Any:
    last = {
        "BTC": ("ceres", "bullish"),
        "ETH": ("llnr", "neutral"),
        "NVDA": ("reversals", "neutral"),
    }
    return last, format_instant(MIDNIGHT + DAY_MS)


def first_compute(scene: Scene) -> Any:
    return "bearish"


def purchase(scene: Scene) -> Any:
    return "bullish"


def a_week(scene: Scene) -> Any:
    return 8, _list_published(scene)  # Seven midnights, and the end of the week at noon.


def a_week_by_the_hour(scene: Scene) -> Any:
    return 7 * 24, _list_published(scene)


def _list_published(scene: Scene) -> list[str]:
    return [row.id for row in scene.rows if row.published and row.created_at > NOON]


def _list_changes(scene: Scene, timeframe: str, after: int) -> Iterator[ChangeRow]:
    """Yield the rows of the feed on a timeframe after a time, oldest first."""
    for row in scene.rows:
        if row.published and row.timeframe == timeframe and row.created_at > after:
            yield row


def _pick_newest(rows: Iterable[ChangeRow]) -> dict[Cell, ChangeRow]:
    return {(row.ticker, row.indicator): row for row in rows}


def _replay_board(scene: Scene, timeframe: str, at: int) -> dict[Cell, int]:
    """Return the reading of each cell of a timeframe at a time."""
    return {
        (row.ticker, row.indicator): row.after
        for row in scene.rows
        if row.timeframe == timeframe and row.created_at <= at
    }

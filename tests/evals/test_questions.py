"""The right answers, computed from everything that was committed to the store."""

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from compute.universe import load_universe
from evals.market import NOON, TICKERS, SettableClock, open_eval_market
from evals.questions import UNANSWERABLE, read_questions
from schemas.vocabulary import HOUR_MS, INDICATOR_IDS, TIMEFRAMES
from store.market_rows import AlertRow, Batch, ChangeRow

pytestmark = pytest.mark.clause("understood")


DIRECTIONS = {1: "bullish", -1: "bearish", 0: "neutral"}
UNIVERSE = load_universe()
ASSETS = {ticker: UNIVERSE.by_ticker[ticker] for ticker in TICKERS}
REMOVED = {ticker for ticker, asset in ASSETS.items() if asset.removed_on}
FOLLOWED = {"BTC", "ETH", "BNB", "SOL", "NVDA", "TSLA"}
# The forms of the questions, in which `{name}` stands for words, and the method that answers each.
FORMS = {
    (
        "How many of the seven indicators read differently for {ticker} on {timeframe} at {a} than "
        "at {b}?"
    ): "count_differences",
    (
        "Which indicators of {ticker} on {timeframe} were {before} at {a} and {after} at {b}? "
        "Answer with their ids."
    ): "list_turned_indicators",
    (
        "Which {kind} assets had a {before} {indicator} reading on {timeframe} at {a} and a {after}"
        " one at {b}?"
    ): "list_turned_assets",
    (
        "On which {kind} assets were at least {count} indicators {side} on {timeframe} at {b}, but "
        "not at {a}?"
    ): "list_newly_agreeing",
    (
        "On how many of the days from {first} to {last}, each at 00:00 UTC, was the {indicator} "
        "reading of {ticker} on {timeframe} {reading}?"
    ): "count_days",
    (
        "Of the days from {first} to {last}, each at 12:00 UTC, which is the first on which the "
        "{indicator} reading of {ticker} on {timeframe} was {reading}?"
    ): "find_first_day",
    (
        "An hour before the newest change of {changed} for {ticker} on {timeframe} was published, "
        "what did {indicator} read there?"
    ): "read_before_change",
    (
        "How many changes of {ticker} on {timeframe} were published after {a} and up to {b}, and "
        "what did {indicator} read there at the end?"
    ): "count_changes",
    (
        "How many {action} alerts did {ticker} have on {timeframe} after {a} and up to {b}, and "
        "what did {indicator} read there at the end?"
    ): "count_alerts",
    (
        "Which class had the largest share of {reading} readings on {timeframe} at {a}: crypto, "
        "stock or metal?"
    ): "find_largest_share",
    (
        "Did {first} and {second} have the same {indicator} reading on {timeframe} at each of {a}, "
        "{b} and {c}? Answer yes or no."
    ): "compare_pair",
    (
        "Under which ticker does the removed {removed} continue, and what did {indicator} read for "
        "it on {timeframe} at {a}?"
    ): "read_successor",
    (
        "Which asset ranks first in the flips of the last {hours} hours on {timeframe}, and what "
        "did {indicator} read for it on that timeframe at {a}?"
    ): "read_top_flip",
    (
        "Of the assets that alert engines follow, which had a {reading} {indicator} reading on "
        "{timeframe} at {a}?"
    ): "list_followed",
    "What did {indicator} read for {ticker} on {timeframe} at {a}?": "read_if_listed",
    "What will {indicator} read for {ticker} on {timeframe} at {a}?": "read_if_listed",
    "Are the prices of this service those of a real market? Answer yes or no.": "check_if_real",
    "Are the readings of {ticker} up to date now? Answer yes or no.": "check_if_fresh",
    "How many whole minutes ago were the readings computed?": "measure_age",
    "Which key replaces the outdated key {key} of {ticker}?": "read_replacement",
    "When did the last bar of {ticker} close? Answer as 2026-01-31 23:00.": "find_last_bar",
    (
        "Which assets of the board were removed, so that their readings no longer change?"
    ): "list_removed",
}

Cells = dict[tuple[str, str], str]


@dataclass
class Truths:
    """All changes and alerts of the market, and the answers that follow from them."""

    changes: list[ChangeRow] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        self.changes += batch.changes
        self.alerts += batch.alerts

    def find_answer(self, text: str, now: int) -> str:
        """Return the right answer to a question of one of the forms; else it has none."""
        for form, name in FORMS.items():
            match = re.fullmatch(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+?)", re.escape(form)), text)
            if match is not None:
                answer: str = getattr(self, name)(now, **match.groupdict())
                return answer
        return UNANSWERABLE

    def board(self, at: int, timeframe: str) -> Cells:
        """Return the readings of tracked assets on a timeframe at an epoch ms."""
        return {
            (row.ticker, row.indicator): DIRECTIONS[row.after]
            for row in self.changes
            if row.created_at <= at
            and row.timeframe == timeframe
            and row.indicator in INDICATOR_IDS
            and row.ticker not in REMOVED
        }

    def published(self, ticker: str, timeframe: str) -> Iterator[ChangeRow]:
        for row in self.changes:
            if row.published and (row.ticker, row.timeframe) == (ticker, timeframe):
                yield row

    def count_differences(self, now: int, ticker: str, timeframe: str, a: str, b: str) -> str:
        first, second = self.board(ms(a), timeframe), self.board(ms(b), timeframe)
        return str(sum(first.get((ticker, i)) != second.get((ticker, i)) for i in INDICATOR_IDS))

    def list_turned_indicators(
        self, now: int, ticker: str, timeframe: str, before: str, a: str, after: str, b: str
    ) -> str:
        cells = self.turned(timeframe, before, a, after, b)
        return join({indicator for found, indicator in cells if found == ticker})

    def list_turned_assets(
        self,
        now: int,
        kind: str,
        indicator: str,
        timeframe: str,
        before: str,
        a: str,
        after: str,
        b: str,
    ) -> str:
        cells = self.turned(timeframe, before, a, after, b)
        return join({t for t, i in cells if i == indicator and ASSETS[t].asset_class == kind})

    def turned(
        self, timeframe: str, before: str, a: str, after: str, b: str
    ) -> set[tuple[str, str]]:
        first, second = self.board(ms(a), timeframe), self.board(ms(b), timeframe)
        return {cell for cell in first if (first[cell], second[cell]) == (before, after)}

    def list_newly_agreeing(
        self, now: int, kind: str, count: str, side: str, timeframe: str, a: str, b: str
    ) -> str:
        def find_agreeing(at: str) -> set[str]:
            board = self.board(ms(at), timeframe)
            agreeing = [ticker for (ticker, _), reading in board.items() if reading == side]
            return {
                ticker
                for ticker in agreeing
                if agreeing.count(ticker) >= int(count) and ASSETS[ticker].asset_class == kind
            }

        return join(find_agreeing(b) - find_agreeing(a))

    def count_days(
        self,
        now: int,
        first: str,
        last: str,
        indicator: str,
        ticker: str,
        timeframe: str,
        reading: str,
    ) -> str:
        days = list_days(first, last)
        found = [self.board(ms(f"{day} 00:00 UTC"), timeframe)[ticker, indicator] for day in days]
        return str(found.count(reading))

    def find_first_day(
        self,
        now: int,
        first: str,
        last: str,
        indicator: str,
        ticker: str,
        timeframe: str,
        reading: str,
    ) -> str:
        for day in list_days(first, last):
            if self.board(ms(f"{day} 12:00 UTC"), timeframe)[ticker, indicator] == reading:
                return day
        return "none"

    def read_before_change(
        self, now: int, changed: str, ticker: str, timeframe: str, indicator: str
    ) -> str:
        rows = [row for row in self.published(ticker, timeframe) if row.indicator == changed]
        return self.board(rows[-1].created_at - HOUR_MS, timeframe)[ticker, indicator]

    def count_changes(
        self, now: int, ticker: str, timeframe: str, a: str, b: str, indicator: str
    ) -> str:
        rows = [r for r in self.published(ticker, timeframe) if ms(a) < r.created_at <= ms(b)]
        return f"{len(rows)}, {self.board(ms(b), timeframe)[ticker, indicator]}"

    def count_alerts(
        self, now: int, action: str, ticker: str, timeframe: str, a: str, b: str, indicator: str
    ) -> str:
        found = [
            row
            for row in self.alerts
            if (row.ticker, row.timeframe, row.action) == (ticker, timeframe, action)
            and ms(a) < row.created_at <= ms(b)
        ]
        return f"{len(found)}, {self.board(ms(b), timeframe)[ticker, indicator]}"

    def find_largest_share(self, now: int, reading: str, timeframe: str, a: str) -> str:
        board = self.board(ms(a), timeframe)
        shares = {}
        for kind in ("crypto", "stock", "metal"):
            found = [r for (ticker, _), r in board.items() if ASSETS[ticker].asset_class == kind]
            shares[found.count(reading) / len(found)] = kind
        assert len(shares) == 3
        return shares[max(shares)]

    def compare_pair(
        self,
        now: int,
        first: str,
        second: str,
        indicator: str,
        timeframe: str,
        a: str,
        b: str,
        c: str,
    ) -> str:
        boards = [self.board(ms(at), timeframe) for at in (a, b, c)]
        same = [board[first, indicator] == board[second, indicator] for board in boards]
        return "yes" if all(same) else "no"

    def read_successor(self, now: int, removed: str, indicator: str, timeframe: str, a: str) -> str:
        successor = str(ASSETS[removed].continues_as)
        return f"{successor}, {self.board(ms(a), timeframe)[successor, indicator]}"

    def read_top_flip(self, now: int, timeframe: str, hours: str, indicator: str, a: str) -> str:
        after = NOON - int(hours) * HOUR_MS
        newest = {
            (row.ticker, row.indicator): row.after
            for row in self.changes
            if row.published
            and row.timeframe == timeframe
            and row.created_at > after
            and row.ticker not in REMOVED
        }
        scores = {
            ticker: max(
                sum(after == side for (found, _), after in newest.items() if found == ticker)
                for side in (1, -1)
            )
            for ticker, _ in newest
        }
        (top,) = [t for t, score in scores.items() if score == max(scores.values())]
        return f"{top}, {self.board(ms(a), timeframe)[top, indicator]}"

    def list_followed(self, now: int, reading: str, indicator: str, timeframe: str, a: str) -> str:
        board = self.board(ms(a), timeframe)
        return join({ticker for ticker in FOLLOWED if board.get((ticker, indicator)) == reading})

    def read_if_listed(self, now: int, indicator: str, ticker: str, timeframe: str, a: str) -> str:
        is_known = indicator in INDICATOR_IDS and timeframe in TIMEFRAMES and ticker in ASSETS
        if not is_known or not NOON - 30 * 24 * HOUR_MS <= ms(a) <= now:
            return UNANSWERABLE
        return self.board(ms(a), timeframe)[ticker, indicator]

    def check_if_real(self, now: int) -> str:
        return "no"

    def check_if_fresh(self, now: int, ticker: str) -> str:
        return "no" if now >= NOON + 2 * HOUR_MS or ticker in REMOVED else "yes"

    def measure_age(self, now: int) -> str:
        return str((now - NOON) // 60_000)

    def read_replacement(self, now: int, key: str, ticker: str) -> str:
        return {"dexter": "enzo"}[key]

    def find_last_bar(self, now: int, ticker: str) -> str:
        # The clock stands at noon in UTC, before the exchange opens.
        return "2026-09-29 20:00" if ASSETS[ticker].asset_class == "stock" else "2026-09-30 12:00"

    def list_removed(self, now: int) -> str:
        return join(REMOVED)


def ms(time: str) -> int:
    """Return the epoch ms of a time as questions write it."""
    return int(datetime.strptime(time, "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp()) * 1000


def list_days(first: str, last: str) -> list[str]:
    days = [date.fromisoformat(first)]
    while str(days[-1]) < last:
        days.append(days[-1] + timedelta(days=1))
    return [str(day) for day in days]


def join(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


QUESTIONS = read_questions()


@pytest.fixture(scope="module")
def truths() -> Truths:
    """What the store says."""
    truths = Truths()

    async def fill() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_eval_market(Path(folder), SettableClock(), truths.add):
                pass

    asyncio.run(fill())
    return truths


def test_there_are_forty_closed_questions_and_others():
    assert Counter(q.kind for q in QUESTIONS) == {"closed": 40, "unanswerable": 6, "data": 8}
    assert (
        len({q.id for q in QUESTIONS})
        == len({(q.text, q.now) for q in QUESTIONS})
        == len(QUESTIONS)
    )


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
@pytest.mark.prove
def test_an_answer_follows_from_the_stored_changes(truths, question):
    assert question.answer == truths.find_answer(question.text, question.now)

"""What a customer reads of a service, and what an audit of it says. Imports no layer."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

Json = dict[str, Any]
Cell = tuple[str, str, str]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_CHARACTERS = 160


def ms(text: str) -> int:
    """Return epoch milliseconds of an instant as the service writes it."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def iso(epoch_ms: int) -> str:
    """Write epoch milliseconds as the service does."""
    at = EPOCH + timedelta(milliseconds=epoch_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(value: object) -> str:
    """Write a value of an answer as one short piece of ASCII."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def cell_of(row: Json) -> Cell:
    """Return the ticker, indicator and timeframe of a feed row."""
    return row["ticker"], row["indicator"], row["timeframe"]


@dataclass(frozen=True)
class Asked:
    """A read with its arguments, and the answer as it came."""

    view: str
    arguments: Json
    answer: Json

    @property
    def name(self) -> str:
        """What findings call it, such as `flips timeframe=1d direction=all`."""
        return " ".join([self.view, *(f"{key}={value}" for key, value in self.arguments.items())])


@dataclass(frozen=True)
class Answers:
    """Everything that one audit has read; it belongs to one version of the board.

    `pages` are those of the feed, newest first, the last one empty; so are `alert_pages` of
    tier=alerts; `merged_pages` are the first ones of tier=all. `since` is the exclusive start of
    what was read in epoch ms, None where it is everything that the service still shows.
    """

    state: Json
    catalog: Json
    stats: Json
    pages: list[Json]
    alert_pages: list[Json]
    merged_pages: list[Json]
    confluence: list[Asked]
    flips: list[Asked]
    since: int | None

    @cached_property
    def as_of(self) -> int:
        """When the underlying compute last ran, in epoch ms."""
        return ms(self.state["as_of"])

    @cached_property
    def rows(self) -> list[tuple[int, Json]]:
        """Every universe row with its `created_at` in epoch ms, in the order of the pages."""
        return _rows(self.pages)

    @cached_property
    def alerts(self) -> list[tuple[int, Json]]:
        """Every alert, likewise."""
        return _rows(self.alert_pages)

    @cached_property
    def merged(self) -> list[tuple[int, Json]]:
        """The rows of both tiers that were read together, likewise."""
        return _rows(self.merged_pages)

    def feeds(self) -> dict[str, list[Json]]:
        """Return the pages by what findings call them."""
        return {
            "signals": self.pages,
            "alerts": self.alert_pages,
            "tier=all": self.merged_pages,
        }

    @cached_property
    def removed(self) -> set[str]:
        """The tickers that are no longer covered."""
        return set(self.state["meta"]["removed_assets"])

    @cached_property
    def assets(self) -> dict[str, Json]:
        """Every asset that state or catalog shows: ticker, name and asset_class."""
        listed = [*self.state["assets"], *self.catalog["assets"]["list"]]
        return {
            asset["ticker"]: {key: asset[key] for key in ("ticker", "name", "asset_class")}
            for asset in listed
        }

    def named(self) -> Iterator[tuple[str, Json]]:
        """Yield every answer with what findings call it."""
        yield "state", self.state
        yield "catalog", self.catalog
        yield "stats", self.stats
        for name, pages in self.feeds().items():
            yield from ((f"{name} page {at}", page) for at, page in enumerate(pages, 1))
        yield from ((asked.name, asked.answer) for asked in [*self.confluence, *self.flips])

    def reaches(self, start: int) -> bool:
        """Tell whether the feed read holds every row after an instant (epoch ms)."""
        return self.since is None or self.since <= start


def _rows(pages: Iterable[Json]) -> list[tuple[int, Json]]:
    return [(ms(row["created_at"]), row) for page in pages for row in page["signals"]]


@dataclass
class Report:
    """What was checked, how often, what was left out, and what is wrong."""

    checked: Counter[str] = field(default_factory=Counter)
    not_checked: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def find(self, what: str) -> None:
        """Add a finding."""
        self.findings.append(what)

    def same(self, what: str, told: object, recomputed: object) -> None:
        """Add a finding where an answer differs from what other answers make of it."""
        if told != recomputed or isinstance(told, bool) != isinstance(recomputed, bool):
            self.find(f"{what} is {shown(told)}, recomputed {shown(recomputed)}")

    def holds(self, what: str, is_so: bool) -> None:
        """Add a finding where something is not so."""
        if not is_so:
            self.find(what)

    def once(self, where: str, names: Iterable[str]) -> None:
        """Add a finding for each name that comes more than once."""
        for name, times in Counter(names).items():
            self.holds(f"{where}: {name} comes {times} times", times == 1)

    def ranked(self, where: str, told: list[Json], recomputed: list[Json]) -> None:
        """Compare two rankings of assets: who is in them, every field, and the order."""
        tickers = [entry["ticker"] for entry in told]
        expected = {entry["ticker"]: entry for entry in recomputed}
        self.once(where, tickers)
        for ticker in set(tickers):
            self.holds(f"{where}: {ticker} does not belong there", ticker in expected)
        for ticker in expected.keys() - set(tickers):
            self.find(f"{where}: {ticker} is missing")
        for entry in told:
            self._fields(f"{where}: {entry['ticker']}", entry, expected.get(entry["ticker"], entry))
        order = [ticker for ticker in expected if ticker in tickers]
        listed = [ticker for ticker in dict.fromkeys(tickers) if ticker in expected]
        for place, (ticker, due) in enumerate(zip(listed, order, strict=True), 1):
            if ticker != due:
                self.same(f"{where}: place {place}", ticker, due)
                break

    def _fields(self, where: str, told: Json, recomputed: Json) -> None:
        for name in recomputed | told:
            self.same(f"{where}: {name}", told.get(name), recomputed.get(name))

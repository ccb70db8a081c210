"""The responses that an audit reads, and its report. Imports no other layer."""

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
MAX_SHOWN_CHARACTERS = 160


def parse_epoch_ms(text: str) -> int:
    """Parse a time of a response; return epoch milliseconds."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def format_epoch_ms(epoch_ms: int) -> str:
    """Format epoch milliseconds as the service does."""
    at = EPOCH + timedelta(milliseconds=epoch_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_value(value: object) -> str:
    """Format a value of a response as short ASCII JSON."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."


def get_cell(row: Json) -> Cell:
    """Return the ticker, indicator and timeframe of a feed row."""
    return row["ticker"], row["indicator"], row["timeframe"]


@dataclass(frozen=True)
class QueryResponse:
    """A view, its arguments, and the response body."""

    view: str
    arguments: Json
    body: Json

    @property
    def name(self) -> str:
        """The name in findings, such as `flips timeframe=1d direction=all`."""
        return " ".join([self.view, *(f"{key}={value}" for key, value in self.arguments.items())])


@dataclass(frozen=True)
class Responses:
    """Everything that one audit has read, all of one snapshot.

    `pages` (tier=universe) and `alert_pages` (tier=alerts) are newest first and end with an empty
    page; `merged_pages` are the first pages of tier=all. `openapi` is the document with the schemas
    of all of them. `since` is the exclusive start of the feed in epoch ms, None if all of it was
    read.
    """

    state: Json
    catalog: Json
    stats: Json
    openapi: Json
    pages: list[Json]
    alert_pages: list[Json]
    merged_pages: list[Json]
    confluence: list[QueryResponse]
    flips: list[QueryResponse]
    since: int | None

    @cached_property
    def as_of(self) -> int:
        """The time of the last run in epoch ms."""
        return parse_epoch_ms(self.state["as_of"])

    @cached_property
    def rows(self) -> list[tuple[int, Json]]:
        """Every universe row with its `created_at` in epoch ms, in the order of the pages."""
        return _flatten_rows(self.pages)

    @cached_property
    def alerts(self) -> list[tuple[int, Json]]:
        """Every alert with its `created_at` in epoch ms."""
        return _flatten_rows(self.alert_pages)

    @cached_property
    def merged_rows(self) -> list[tuple[int, Json]]:
        """The rows of tier=all with their `created_at` in epoch ms."""
        return _flatten_rows(self.merged_pages)

    def collect_pages_by_feed(self) -> dict[str, list[Json]]:
        """Return the pages of each feed by its name in findings."""
        return {
            "signals": self.pages,
            "alerts": self.alert_pages,
            "tier=all": self.merged_pages,
        }

    @cached_property
    def removed_tickers(self) -> set[str]:
        """The tickers that are no longer covered."""
        return set(self.state["meta"]["removed_assets"])

    @cached_property
    def assets(self) -> dict[str, Json]:
        """The ticker, name and asset_class of every asset in state or catalog."""
        listed = [*self.state["assets"], *self.catalog["assets"]["list"]]
        return {
            asset["ticker"]: {key: asset[key] for key in ("ticker", "name", "asset_class")}
            for asset in listed
        }

    def iterate_named(self) -> Iterator[tuple[str, str, Json]]:
        """Yield every response with its name in findings and its view."""
        yield "state", "state", self.state
        yield "catalog", "catalog", self.catalog
        yield "stats", "stats", self.stats
        for name, pages in self.collect_pages_by_feed().items():
            for position, page in enumerate(pages, 1):
                yield f"{name} page {position}", "signals", page
        for response in [*self.confluence, *self.flips]:
            yield response.name, response.view, response.body

    def has_rows_since(self, start: int) -> bool:
        """Return whether the rows read include all after a time (epoch ms)."""
        return self.since is None or self.since <= start


def _flatten_rows(pages: Iterable[Json]) -> list[tuple[int, Json]]:
    return [(parse_epoch_ms(row["created_at"]), row) for page in pages for row in page["signals"]]


@dataclass
class Report:
    """Counts of the checks that ran and did not run, and the findings."""

    checked: Counter[str] = field(default_factory=Counter)
    not_checked: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add_finding(self, text: str) -> None:
        """Add a finding."""
        self.findings.append(text)

    def check_equal(self, label: str, actual: object, expected: object) -> None:
        """Add a finding if a value differs from the one recomputed from other responses."""
        # In Python True == 1, but in JSON they differ.
        if actual != expected or isinstance(actual, bool) != isinstance(expected, bool):
            self.add_finding(
                f"{label} is {format_value(actual)}, recomputed {format_value(expected)}"
            )

    def check_true(self, text: str, is_true: bool) -> None:
        """Add a finding if a condition is false."""
        if not is_true:
            self.add_finding(text)

    def check_unique(self, label: str, names: Iterable[str]) -> None:
        """Add a finding for each name that occurs more than once."""
        for name, times in Counter(names).items():
            self.check_true(f"{label}: {name} occurs {times} times", times == 1)

    def check_ranking(
        self, label: str, actual_entries: list[Json], expected_entries: list[Json]
    ) -> None:
        """Compare two rankings of assets: their members, each field, and the order."""
        tickers = [entry["ticker"] for entry in actual_entries]
        expected_by_ticker = {entry["ticker"]: entry for entry in expected_entries}
        self.check_unique(label, tickers)
        for ticker in set(tickers):
            self.check_true(
                f"{label}: {ticker} does not belong there", ticker in expected_by_ticker
            )
        for ticker in expected_by_ticker.keys() - set(tickers):
            self.add_finding(f"{label}: {ticker} is missing")
        for entry in actual_entries:
            self._check_fields(
                f"{label}: {entry['ticker']}", entry, expected_by_ticker.get(entry["ticker"], entry)
            )
        # Compare the order of common members only: missing ones are findings of their own.
        expected_order = [ticker for ticker in expected_by_ticker if ticker in tickers]
        actual_order = [ticker for ticker in dict.fromkeys(tickers) if ticker in expected_by_ticker]
        for position, (ticker, expected_ticker) in enumerate(
            zip(actual_order, expected_order, strict=True), 1
        ):
            if ticker != expected_ticker:
                self.check_equal(f"{label}: place {position}", ticker, expected_ticker)
                break

    def _check_fields(self, label: str, actual: Json, expected: Json) -> None:
        for name in expected | actual:
            self.check_equal(f"{label}: {name}", actual.get(name), expected.get(name))

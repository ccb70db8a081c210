"""Reads the commits of a store for an audit: checks the chain and splits them by block."""

from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from compute.audit.asset_check import AssetCheck
from compute.audit.blocks import AuditedAssets
from compute.audit.feed_rows import FeedReader, FeedRows, PartRows
from compute.audit.recompute import CommitPart, find_first_hour
from compute.audit.report import Report
from compute.audit.row_audit import StoredRows
from compute.audit.source_check import SourceCheck
from compute.bars import HOUR_S, Times
from compute.schedule import find_last_run
from compute.state_loader import build_funding
from store.digest import (
    GENESIS,
    digest_alerts,
    digest_bars,
    digest_change_columns,
    digest_commit,
)
from store.errors import DamagedError
from store.market_rows import CommitContent, CommitRow
from store.sql.market_store import MarketStore

# Commits are read, and stepped, in groups of about as many bars as one batch of a first start has.
BARS_PER_READ = 250_000


class LoadedCommit(NamedTuple):
    """A commit's stored rows, and each block's part of it.

    `places` has the indexes of each part's rows in the stored rows. `stray_places` has those of
    cells that no block has, which are in no part.
    """

    stored: StoredRows
    parts: list[CommitPart]
    places: list[Times]
    stray_places: Times


class CommitReader:
    """Reads commits in order, with the stored rows of both tiers; iterate `read_commits` once.

    If the iteration ended early, `damage` is the error.
    """

    def __init__(
        self,
        store: MarketStore,
        commits: Sequence[CommitRow],
        assets: AuditedAssets,
        report: Report,
        checks: tuple[SourceCheck, AssetCheck],
    ) -> None:
        """`assets` has the blocks by which commits are split.

        `checks` take note of the content of each commit.
        """
        self._store: Final = store
        self._commits: Final = commits
        self._block_by_ticker: Final = assets.block_by_ticker
        self._block_count: Final = len(assets.blocks)
        self._cell_numbers: Final = assets.cell_numbers
        self._report: Final = report
        self._sources, self._assets = checks
        self._feed: Final = FeedReader(store)
        self._revisions: Final[dict[str, int]] = {}
        self.damage: DamagedError | None = None

    async def read_commits(self) -> AsyncIterator[list[LoadedCommit]]:
        """Yield the commits, some at a time, up to the first damaged one; check their digests."""
        commits: list[LoadedCommit] = []
        previous_digest, previous_run, bars = GENESIS, -HOUR_S, 0
        try:
            for commit in self._commits:
                # Rows do not name their commit: all up to its last `created_at` count as its own.
                rows = await self._feed.take(commit.last_created_at or -1)
                content = await self._store.commit_inputs(commit.number)
                self._check_chain(previous_digest, commit, content)
                self._sources.add_commit(commit.number, content.bars)
                start = find_first_hour(previous_run, find_last_run(commit.market_time))
                self._assets.add_commit(commit.number, start, content)
                commits.append(await self._load_commit(previous_run, commit, content, rows))
                previous_digest, previous_run = commit.digest, find_last_run(commit.market_time)
                bars += 1 + sum(map(len, content.bars))
                if bars >= BARS_PER_READ:
                    yield commits
                    commits, bars = [], 0
        except DamagedError as error:
            self.damage = error
        yield commits

    async def read_unreferenced_rows(self) -> FeedRows:
        """Return the stored rows that belong to no commit."""
        return await self._feed.take_rest()

    def _check_chain(
        self, previous_digest: bytes, commit: CommitRow, content: CommitContent
    ) -> None:
        bars = sum(map(len, content.bars))
        self._report.checked.update(commits=1, bars=bars, settlements=len(content.funding))
        found = digest_bars(content.bars, content.funding, content.watermarks, content.sources)
        if found != commit.bars_digest:
            self._report.add_finding(
                f"bars: commit {commit.number} does not hold the bars it was committed with"
            )
        parts = (
            *(commit.bars_digest, commit.changes_digest, commit.alerts_digest),
            commit.context_digest,
        )
        link = digest_commit(previous_digest, commit.market_time, *parts)
        if link != commit.digest:
            self._report.add_finding(
                f"chain: commit {commit.number} does not follow from its predecessor"
            )

    async def _load_commit(
        self, previous_run: int, commit: CommitRow, content: CommitContent, rows: FeedRows
    ) -> LoadedCommit:
        """Split a commit's bars, settlements and stored rows by block."""
        parts = self._split_content(previous_run, commit, content)
        for part in parts:
            await self._add_restated_funding(part)
        places, stray_places = self._split_rows(parts, rows)
        digests = digest_change_columns(rows.changes, rows.tickers), digest_alerts(rows.alerts)
        return LoadedCommit(StoredRows(commit, rows, *digests), parts, places, stray_places)

    def _split_rows(self, parts: Sequence[CommitPart], rows: FeedRows) -> tuple[list[Times], Times]:
        """Add the rows to the parts; return the places of each part's rows, and of the others."""
        block, cell = self._cell_numbers.find(rows.changes, rows.tickers)
        alert_blocks = [self._block_by_ticker.get(row.ticker, -1) for row in rows.alerts]
        alert_block = np.array(alert_blocks, dtype=np.int64)
        places: list[Times] = []
        for number in (*range(len(parts)), -1):
            own, own_alerts = np.flatnonzero(block == number), np.flatnonzero(alert_block == number)
            places.append(np.concatenate([rows.change_places[own], rows.alert_places[own_alerts]]))
            if number >= 0:
                alerts = [rows.alerts[at] for at in own_alerts.tolist()]
                parts[number].rows = PartRows(rows.changes.select(own), cell[own], alerts)
        return places[:-1], np.sort(places[-1])

    def _split_content(
        self, previous_run: int, commit: CommitRow, content: CommitContent
    ) -> list[CommitPart]:
        """Return each block's part of a commit's bars, settlements and watermarks."""
        run = find_last_run(commit.market_time)
        times = previous_run, run, commit.written_at
        parts = [CommitPart(*times) for _ in range(self._block_count)]
        part_by_ticker = {ticker: parts[at] for ticker, at in self._block_by_ticker.items()}
        for bars in content.bars:
            if bars.ticker in part_by_ticker:
                part_by_ticker[bars.ticker].bars.setdefault(bars.ticker, []).append(bars)
            else:
                self._report.not_verifiable[f"{bars.ticker}: not in the universe"] += len(bars)
        for ticker, settlements in groupby(content.funding, key=attrgetter("ticker")):
            if ticker in part_by_ticker:
                part_by_ticker[ticker].funding[ticker] = build_funding(list(settlements))
        for watermark in content.watermarks:
            if watermark.ticker in part_by_ticker:
                part = part_by_ticker[watermark.ticker]
                part.lagging[watermark.ticker] = watermark.watermark
                if watermark.history != "followed":
                    part.building[watermark.ticker] = watermark.get_built_hour(run)
        return parts

    async def _add_restated_funding(self, part: CommitPart) -> None:
        """Add all settlements of the assets whose bars the commit restates."""
        # A rebuild steps from the first bar on, so it needs settlements of earlier commits too.
        for ticker, (bars, *_) in part.bars.items():
            if bars.revision != self._revisions.get(ticker, 0):
                self._revisions[ticker] = bars.revision
                settlements = await self._store.funding(ticker)
                part.restated_funding[ticker] = build_funding(settlements)

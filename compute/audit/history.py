"""Reads the commits of a store for an audit: checks the chain and splits them by block."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from compute.audit.recompute import CommitPart
from compute.audit.report import Report
from compute.audit.row_audit import StoredRows, split_by_tier
from compute.audit.source_check import SourceCheck
from compute.bars import HOUR_S
from compute.schedule import find_last_run
from store.digest import GENESIS, digest_alerts, digest_bars, digest_changes, digest_commit
from store.errors import DamagedError
from store.market_rows import CommitContent, CommitRow, FeedRow
from store.sql.market_store import MarketStore

# Commits are read, and stepped, in groups of about as many bars as one batch of a first start has.
BARS_PER_READ = 250_000


class LoadedCommit(NamedTuple):
    """A commit's stored rows, and each block's part of it.

    `places` has the indexes of each part's rows in the stored rows. `stray_places` has those of
    assets that are not in the universe, which are in no part.
    """

    stored: StoredRows
    parts: list[CommitPart]
    places: list[list[int]]
    stray_places: list[int]


class CommitReader:
    """Reads commits in order, with the stored rows of both tiers; iterate `read_commits` once.

    If the iteration ended early, `damage` is the error.
    """

    def __init__(
        self,
        store: MarketStore,
        commits: Sequence[CommitRow],
        block_by_ticker: Mapping[str, int],
        block_count: int,
        report: Report,
        sources: SourceCheck,
    ) -> None:
        """`block_by_ticker` has the index of the block, out of `block_count`, of each asset.

        `sources` takes note of the bars of each commit.
        """
        self._store: Final = store
        self._commits: Final = commits
        self._block_by_ticker: Final = block_by_ticker
        self._block_count: Final = block_count
        self._report: Final = report
        self._sources: Final = sources
        self._feed_rows: Final = _merge_feed_rows(store)
        self._next_row: FeedRow | None = None
        self._revisions: Final[dict[str, int]] = {}
        self.damage: DamagedError | None = None

    async def read_commits(self) -> AsyncIterator[list[LoadedCommit]]:
        """Yield the commits, some at a time, up to the first damaged one; check their digests."""
        commits: list[LoadedCommit] = []
        previous_digest, previous_run, bars = GENESIS, -HOUR_S, 0
        try:
            self._next_row = await anext(self._feed_rows, None)
            for commit in self._commits:
                rows = await self._take_rows(commit)
                content = await self._store.commit_content(commit.number)
                self._check_chain(previous_digest, commit, content)
                self._sources.add_commit(commit.number, content.bars)
                commits.append(await self._load_commit(previous_run, commit, content, rows))
                previous_digest, previous_run = commit.digest, find_last_run(commit.market_time)
                bars += 1 + sum(map(len, content.bars))
                if bars >= BARS_PER_READ:
                    yield commits
                    commits, bars = [], 0
        except DamagedError as error:
            self.damage = error
        yield commits

    async def read_unreferenced_rows(self) -> list[FeedRow]:
        """Return the stored rows that belong to no commit."""
        first = [] if self._next_row is None else [self._next_row]
        return [*first, *[row async for row in self._feed_rows]]

    async def _take_rows(self, commit: CommitRow) -> list[FeedRow]:
        """Return the stored rows that a commit wrote."""
        # Rows do not name their commit: all up to its last `created_at` count as its own.
        rows: list[FeedRow] = []
        while self._next_row is not None and self._next_row.created_at <= (
            commit.last_created_at or -1
        ):
            rows.append(self._next_row)
            self._next_row = await anext(self._feed_rows, None)
        return rows

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
        parts = commit.bars_digest, commit.changes_digest, commit.alerts_digest
        link = digest_commit(previous_digest, commit.market_time, *parts)
        if link != commit.digest:
            self._report.add_finding(
                f"chain: commit {commit.number} does not follow from its predecessor"
            )

    async def _load_commit(
        self, previous_run: int, commit: CommitRow, content: CommitContent, rows: list[FeedRow]
    ) -> LoadedCommit:
        """Split a commit's bars, settlements and stored rows by block."""
        parts = self._split_content(previous_run, find_last_run(commit.market_time), content)
        for part in parts:
            await self._add_restated_funding(part)
        places: list[list[int]] = [[] for _ in parts]
        stray_places: list[int] = []
        for place, row in enumerate(rows):
            block = self._block_by_ticker.get(row.ticker)
            (stray_places if block is None else places[block]).append(place)
        for part, own in zip(parts, places, strict=True):
            # Plain tuples are pickled three times as fast as named ones (measured).
            part.rows = [tuple(rows[place]) for place in own]
        changes, alerts = split_by_tier(rows)
        stored = StoredRows(commit, rows, digest_changes(changes), digest_alerts(alerts))
        return LoadedCommit(stored, parts, places, stray_places)

    def _split_content(
        self, previous_run: int, run: int, content: CommitContent
    ) -> list[CommitPart]:
        """Return each block's part of a commit's bars, settlements and watermarks."""
        parts = [CommitPart(previous_run, run) for _ in range(self._block_count)]
        part_by_ticker = {ticker: parts[at] for ticker, at in self._block_by_ticker.items()}
        for bars in content.bars:
            if bars.ticker in part_by_ticker:
                part_by_ticker[bars.ticker].bars.setdefault(bars.ticker, []).append(bars)
            else:
                self._report.not_verifiable[f"{bars.ticker}: not in the universe"] += len(bars)
        for settlement in content.funding:
            if settlement.ticker in part_by_ticker:
                settlements = part_by_ticker[settlement.ticker].funding
                settlements.setdefault(settlement.ticker, []).append(settlement)
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
                part.restated_funding[ticker] = await self._store.funding(ticker)


async def _merge_feed_rows(store: MarketStore) -> AsyncIterator[FeedRow]:
    """Yield the stored rows of both tiers, oldest first."""
    changes, alerts = store.changes(), store.alerts()
    change, alert = await anext(changes, None), await anext(alerts, None)
    while change is not None or alert is not None:
        if alert is None or (change is not None and change.created_at < alert.created_at):
            assert change is not None
            yield change
            change = await anext(changes, None)
        else:
            yield alert
            alert = await anext(alerts, None)

"""Runs all checks of one verification, and keeps the customer's record up to date."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from verifier.canonical import Row
from verifier.checkpoints import Checkpoint
from verifier.client import ServiceClient
from verifier.comparison import compare_rows
from verifier.errors import VerifyError
from verifier.feed import Feed, OnProgress, read_feed
from verifier.head_check import TrustedKeys, check_signatures, check_tree, choose_key, read_head
from verifier.leaf_search import LeafSearch
from verifier.notes import VerifierKey
from verifier.policy import Policy
from verifier.record import Record, RecordedRow
from verifier.report import VERIFIED, Report
from verifier.row_check import RowCheck
from verifier.tiles import TILE_WIDTH, TileTree, TreeMismatchError

DEFAULT_DAYS = 30


@dataclass(frozen=True)
class Request:
    """What to verify: the rows of a file, and the feed after a time unless `reads_feed` is false.

    Without `since`, the feed is read from `days` before its newest row.
    """

    given_rows: tuple[Row, ...] = ()
    reads_feed: bool = True
    since: datetime | None = None
    days: int = DEFAULT_DAYS
    key: VerifierKey | None = None
    policy: Policy | None = None


class Verification:
    """Verifies a service against its log, and against the record of earlier verifications."""

    def __init__(
        self,
        client: ServiceClient,
        record: Record,
        clock: Callable[[], datetime],
        on_progress: OnProgress,
    ) -> None:
        self._client = client
        self._record = record
        self._clock = clock
        self._on_progress = on_progress
        self.report = Report()
        self.feed: Feed | None = None

    async def run(self, request: Request) -> Report:
        """Run the checks; save what was verified only if everything was.

        If the service does not answer as its documentation says, the report names it as obstacle.
        """
        try:
            await self._run_checks(request)
        except VerifyError as error:
            self.report.obstacles.append(str(error))
        return self.report

    async def _run_checks(self, request: Request) -> None:
        saved = self._record.load_checkpoint()
        recorded = self._record.load_rows()
        keys = TrustedKeys(self._record.load_key(), request.key, request.policy)
        key = await choose_key(self._client, keys, self.report)
        checkpoint = await read_head(self._client, self.report)
        self._add_evidence(saved, checkpoint)
        tree = await self._check_head(checkpoint, saved, key, request.policy)
        if request.reads_feed:
            self.feed = await read_feed(
                self._client, request.since, request.days, self._on_progress
            )
        changed = self._compare(recorded.values())
        verified = await self._check_rows(tree, request, changed)
        if checkpoint is not None and verified is None:
            await self._find_replaced_leaves(checkpoint, recorded.values())
        elif checkpoint is not None and verified is not None and self.report.status == VERIFIED:
            self._record.save(key, checkpoint, (one for one in verified if one.id not in recorded))

    async def _check_head(
        self,
        checkpoint: Checkpoint | None,
        saved: Checkpoint | None,
        key: VerifierKey,
        policy: Policy | None,
    ) -> TileTree | None:
        if checkpoint is None or not check_signatures(checkpoint, key, policy, self.report):
            return None
        tree = await check_tree(self._client, checkpoint, saved, self.report)
        if tree is not None:
            self.report.checked["signed checkpoint"] += 1
        return tree

    def _add_evidence(self, saved: Checkpoint | None, served: Checkpoint | None) -> None:
        if saved is not None:
            saved_at = self._record.describe_checkpoint_age()
            self.report.evidence.append(
                (f"the checkpoint that was verified at {saved_at}", saved.source)
            )
        if served is not None:
            self.report.evidence.append(("the checkpoint that is served now", served.source))

    def _compare(self, recorded: Iterable[RecordedRow]) -> list[RecordedRow]:
        """Compare the record with the served rows; return the rows that have changed."""
        if self.feed is None:
            return []
        since, served = self.feed.since, self.feed.index_by_id()
        in_range = [one for one in recorded if one.created_at > since]
        changes = list(compare_rows(in_range, served, self._get_now(self.feed)))
        self.report.findings += (text for _, text in changes)
        if in_range:
            self.report.checked["rows as verified before"] += len(in_range) - len(changes)
        return [one for one, _ in changes]

    def _get_now(self, feed: Feed) -> datetime:
        """Return when the service last computed, but never a time in the future."""
        return min(feed.as_of, self._clock())

    async def _find_replaced_leaves(
        self, checkpoint: Checkpoint, recorded: Iterable[RecordedRow]
    ) -> None:
        """Report the first recorded row whose leaf is another one in the tiles served now."""
        by_tile = _group_by_tile(one for one in recorded if one.leaf < checkpoint.size)
        replaced: list[RecordedRow] = []
        for number, rows in sorted(by_tile.items()):
            width = min(TILE_WIDTH, checkpoint.size - number * TILE_WIDTH)
            hashes = await self._client.fetch_tile(0, number, width)
            replaced += (one for one in rows if one.hash() != hashes[one.leaf % TILE_WIDTH])
        if replaced:
            first = min(replaced, key=lambda one: one.leaf)
            self.report.findings.append(
                f"leaf {first.leaf} is no longer that of {first.id} of {first.created_at}: "
                f"{len(replaced)} of {sum(map(len, by_tile.values()))} verified rows have lost "
                "their leaf"
            )

    async def _check_rows(
        self, tree: TileTree | None, request: Request, changed: list[RecordedRow]
    ) -> list[RecordedRow] | None:
        """Check given and served rows; return the verified ones, None if the tree is not valid."""
        if tree is None:
            return None
        rows = RowCheck(
            tree,
            LeafSearch(tree.size, self._client.read_leaves),
            self.report,
            explained_rows={one.id for one in changed},
            explained_leaves={one.leaf for one in changed},
        )
        try:
            await rows.check_given(request.given_rows)
            if self.feed is not None:
                await rows.check_feed(self.feed, self._get_now(self.feed))
        except TreeMismatchError as error:
            self.report.findings.append(f"the log contradicts itself: {error}")
            return None
        return rows.verified


def _group_by_tile(rows: Iterable[RecordedRow]) -> dict[int, list[RecordedRow]]:
    groups: dict[int, list[RecordedRow]] = {}
    for one in rows:
        groups.setdefault(one.leaf // TILE_WIDTH, []).append(one)
    return groups

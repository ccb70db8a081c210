"""Runs all checks of one verification, and keeps the customer's record up to date."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise, takewhile

from verifier.client import API_PATH, ServiceClient, ServiceError, parse_served_time
from verifier.notes import (
    LOG_KEY,
    Checkpoint,
    InclusionProof,
    NoteError,
    Policy,
    VerifierKey,
    decode_base64,
)
from verifier.record import SHORTEST_RETENTION, Record, RecordedRow, compare_rows, is_kept
from verifier.report import VERIFIED, Report, VerifyError
from verifier.rows import Feed, OnProgress, Row, hash_row, pick_covered, read_feed
from verifier.tree import (
    HASH_BYTES,
    TILE_WIDTH,
    Hashes,
    TileTree,
    TreeMismatchError,
    format_tile_path,
    split_tile,
)

LOG_PATH = API_PATH + "/log"
PARALLEL_TILES = 8
MAX_LEAVES = 1000


@dataclass(frozen=True)
class Leaf:
    """A leaf of the log as the service lists it; its time and salt are checked by its hash."""

    index: int
    created_at: str
    salt: bytes


class LogReader:
    """Reads the log of one service, unchecked; every failure is a VerifyError."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._tile_slots = asyncio.Semaphore(PARALLEL_TILES)

    async def read_text(self, name: str) -> str:
        """Return the signed `checkpoint`, or the `key` that the service states for its log."""
        path = f"{LOG_PATH}/{name}"
        content = (await self._client.read(path, is_open=True)).content
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise self._build_error(f"answered {path} without text") from None

    async def fetch_tile(self, level: int, number: int, width: int) -> Hashes:
        """Return the first `width` hashes of a tile."""
        async with self._tile_slots:
            try:
                content = await self._read_tile(level, number, width)
            except ServiceError as error:
                # A log may drop a partial tile once it has the whole one.
                if error.status != 404:
                    raise
                content = await self._read_tile(level, number, TILE_WIDTH)
        hashes = split_tile(content)
        if len(hashes) < width or len(content) % HASH_BYTES:
            path = format_tile_path(level, number, width)
            raise self._build_error(f"sent {len(content)} bytes as {path}")
        return hashes[:width]

    async def _read_tile(self, level: int, number: int, width: int) -> bytes:
        path = f"{LOG_PATH}/{format_tile_path(level, number, width)}"
        return (await self._client.read(path, is_open=True)).content

    async def read_leaves(self, start: int, count: int) -> list[Leaf]:
        """Return `count` leaves from an index on, at most 1000."""
        answer = await self._client.read_view("log/leaves", {"start": start, "limit": count})
        try:
            leaves = [
                Leaf(one["index"], one["created_at"], decode_base64(one["salt"]))
                for one in answer.body["leaves"]
            ]
            for leaf in leaves:
                parse_served_time(leaf.created_at)
                if type(leaf.index) is not int:
                    raise ValueError("the index of a leaf is not an integer")
        except (KeyError, TypeError, ValueError, NoteError) as error:
            raise self._build_error(f"sent malformed leaves ({error!r})") from None
        if [leaf.index for leaf in leaves] != list(range(start, start + count)):
            last = start + count - 1
            raise self._build_error(f"did not list the leaves {start} to {last}")
        return leaves

    def _build_error(self, text: str) -> VerifyError:
        return VerifyError(self._client.format_line(f"{self._client.address} {text}"))


class LeafSearch:
    """Finds leaves of a tree by the times of their rows, in pages that are read once."""

    def __init__(self, size: int, log: LogReader) -> None:
        self._size = size
        self._log = log
        self._page_count = -(-size // MAX_LEAVES)
        self._pages: dict[int, list[Leaf]] = {}

    async def find(self, created_at: str) -> Leaf | None:
        """Return the leaf of a time, None if there is none."""
        page = await self._read_page(await self._find_page(created_at))
        return next((leaf for leaf in page if leaf.created_at == created_at), None)

    async def iterate_after(self, created_at: str) -> AsyncIterator[Leaf]:
        """Yield the leaves after a time."""
        first = await self._find_page(created_at)
        for number in range(first, self._page_count):
            page = await self._read_page(number)
            # Later pages are whole, so that the leaves have no gap whatever times are stated.
            before = takewhile(lambda leaf: leaf.created_at <= created_at, page)
            for leaf in page[len(list(before)) if number == first else 0 :]:
                yield leaf

    async def _find_page(self, created_at: str) -> int:
        """Return the last page that begins at or before a time, 0 if none does."""
        low, high = 0, max(self._page_count, 1)
        while high - low > 1:
            middle = (low + high) // 2
            page = await self._read_page(middle)
            if page[0].created_at <= created_at:
                low = middle
            else:
                high = middle
        return low

    async def _read_page(self, number: int) -> list[Leaf]:
        if number not in self._pages:
            start = number * MAX_LEAVES
            count = min(MAX_LEAVES, self._size - start)
            self._pages[number] = await self._log.read_leaves(start, count) if count > 0 else []
        return self._pages[number]


DEFAULT_DAYS = 30
# A run signs the rows of the one before it at the latest.
SIGNED_WITHIN = timedelta(hours=2)


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


def check_proof(
    proof: InclusionProof, rows: list[Row], key: VerifierKey, policy: Policy | None
) -> Report:
    """Check without a network that a row is the leaf of a proof, and that the log signed its tree.

    It is enough that one of the rows is that leaf.
    """
    report = Report(evidence=[("the checkpoint of the proof", proof.checkpoint.source)])
    _check_signatures(proof.checkpoint, key, policy, report)
    proven = [row for row in rows if proof.includes(hash_row(row, proof.salt))]
    report.checked["rows in the log"] += len(proven)
    report.notes += (f"{row['id']} is leaf {proof.index} of {key.name}" for row in proven)
    if not proven:
        report.findings.append(f"leaf {proof.index} of the proof is none of the given rows")
    return report


def _check_signatures(
    checkpoint: Checkpoint, key: VerifierKey, policy: Policy | None, report: Report
) -> bool:
    """Check the signature of the log, and the quorum; return whether the log signed it."""
    if not checkpoint.is_signed_by(key):
        report.findings.append(
            f"the checkpoint of {checkpoint.origin} is not signed by the key of {key.name}"
        )
        return False
    if policy is not None:
        cosigners = policy.list_cosigners(checkpoint)
        report.checked["cosignatures"] += len(cosigners)
        if not policy.is_met_by(cosigners):
            names = ", ".join(cosigners) or "none"
            report.obstacles.append(
                f"the policy requires the quorum {policy.quorum}; cosigned by: {names}"
            )
    return True


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
        self._log = LogReader(client)
        self._record = record
        self._clock = clock
        self._on_progress = on_progress
        self.report = Report()
        # The rows that were read, for further checks of the caller.
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
        key = await self._choose_key(request)
        checkpoint = await self._read_head()
        if saved is not None:
            saved_at = self._record.describe_checkpoint_age()
            caption = f"the checkpoint that was verified at {saved_at}"
            self.report.evidence.append((caption, saved.source))
        tree = None
        if checkpoint is not None:
            caption = "the checkpoint that is served now"
            self.report.evidence.append((caption, checkpoint.source))
            if _check_signatures(checkpoint, key, request.policy, self.report):
                tree = await self._check_tree(checkpoint, saved)
        if tree is not None:
            self.report.checked["signed checkpoint"] += 1
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

    async def _choose_key(self, request: Request) -> VerifierKey:
        """Return the key that must have signed; at the first use the one that the service states.

        A served key that differs from it is a finding. VerifyError if there is no key, or if the
        policy lists other logs.
        """
        key = request.key or self._record.load_key()
        try:
            served = VerifierKey.parse(await self._log.read_text("key"), LOG_KEY)
        except (VerifyError, NoteError) as error:
            if isinstance(error, NoteError):
                error = VerifyError(f"{self._client.address} stated a key that is none: {error}")
            # The record can still be compared with the rows.
            if key is None:
                raise error from None
            self.report.obstacles.append(str(error))
        else:
            if key is None:
                self.report.notes.append(f"the key of the log is trusted from now on: {served}")
            elif key != served:
                self.report.findings.append(
                    f"the key of the log has changed: it was {key}, and the service states {served}"
                )
            key = key or served
        logs = request.policy.logs if request.policy else []
        if logs and key not in logs:
            raise VerifyError(f"the policy does not list the key of the log, {key}")
        return key

    async def _read_head(self) -> Checkpoint | None:
        """Return the served checkpoint, unverified; None and an obstacle if there is none."""
        try:
            return Checkpoint.parse(await self._log.read_text("checkpoint"))
        except ServiceError as error:
            # 404 and 503 say that the service has none now.
            if error.status not in (404, 503):
                raise
            self.report.obstacles.append(str(error))
        except NoteError as error:
            text = f"{self._client.address} sent a checkpoint that is none: {error}"
            self.report.obstacles.append(text)
        return None

    async def _check_tree(
        self, checkpoint: Checkpoint, saved: Checkpoint | None
    ) -> TileTree | None:
        """Check the tiles against the root, and the tree against the one seen before.

        Return the tree, None if it contradicts either of them.
        """
        tree = TileTree(checkpoint.size, checkpoint.root, self._log.fetch_tile)
        try:
            await tree.check_root()
            if saved is None:
                return tree
            if saved.size > checkpoint.size:
                await self._check_shrunk(checkpoint, saved)
            elif await tree.compute_root(saved.size) == saved.root:
                self.report.checked["earlier checkpoint"] += 1
                return tree
            else:
                self.report.findings.append(
                    f"the log does not extend the one seen before: its first {saved.size} leaves "
                    "have changed"
                )
        except TreeMismatchError as error:
            self.report.findings.append(f"the log contradicts itself: {error}")
        return None

    async def _check_shrunk(self, checkpoint: Checkpoint, saved: Checkpoint) -> None:
        """Add a finding if the log lost leaves, an obstacle if only an old copy was served."""
        earlier = TileTree(saved.size, saved.root, self._log.fetch_tile)
        try:
            await earlier.check_root()
            is_copy = await earlier.compute_root(checkpoint.size) == checkpoint.root
        except TreeMismatchError:
            is_copy = False
        except ServiceError as error:
            if error.status != 404:
                raise
            is_copy = False
        sizes = f"it had {saved.size} leaves, and now has {checkpoint.size}"
        if is_copy:
            self.report.obstacles.append(
                f"an old copy of the checkpoint was served: {sizes}; try again"
            )
        else:
            self.report.findings.append(f"the log has shrunk: {sizes}")

    def _compare(self, recorded: Iterable[RecordedRow]) -> list[RecordedRow]:
        """Compare the record with the served rows; return the rows that have changed."""
        if self.feed is None:
            return []
        in_range = [one for one in recorded if one.created_at > self.feed.since]
        changes = list(compare_rows(in_range, self.feed.index_by("id"), self._get_now(self.feed)))
        self.report.findings += (text for _, text in changes)
        if in_range:
            self.report.checked["rows as verified before"] += len(in_range) - len(changes)
        return [one for one, _ in changes]

    def _get_now(self, feed: Feed) -> datetime:
        """Return when the service last computed, but never a time in the future."""
        return min(feed.as_of, self._clock())

    async def _check_rows(
        self, tree: TileTree | None, request: Request, changed: list[RecordedRow]
    ) -> list[RecordedRow] | None:
        """Check given and served rows; return the verified ones, None if the tree is not valid."""
        if tree is None:
            return None
        rows = _RowCheck(tree, LeafSearch(tree.size, self._log), self.report, changed)
        try:
            await rows.check_given(request.given_rows)
            if self.feed is not None:
                await rows.check_feed(self.feed, self._get_now(self.feed))
        except TreeMismatchError as error:
            self.report.findings.append(f"the log contradicts itself: {error}")
            return None
        return rows.verified

    async def _find_replaced_leaves(
        self, checkpoint: Checkpoint, recorded: Iterable[RecordedRow]
    ) -> None:
        """Report the first recorded row whose leaf is another one in the tiles served now."""
        rows = sorted(
            (one for one in recorded if one.leaf < checkpoint.size), key=lambda one: one.leaf
        )
        replaced: list[RecordedRow] = []
        for number, in_tile in groupby(rows, key=lambda one: one.leaf // TILE_WIDTH):
            width = min(TILE_WIDTH, checkpoint.size - number * TILE_WIDTH)
            hashes = await self._log.fetch_tile(0, number, width)
            replaced += (one for one in in_tile if one.hash() != hashes[one.leaf % TILE_WIDTH])
        if replaced:
            first = replaced[0]
            self.report.findings.append(
                f"leaf {first.leaf} is no longer that of {first.id} of {first.created_at}: "
                f"{len(replaced)} of {len(rows)} verified rows have lost their leaf"
            )


class _RowCheck:
    """Checks rows against the leaves of a signed tree, each leaf against its row.

    `verified` collects the rows whose leaf is in the tree. What `changed` since it was recorded
    already has a finding.
    """

    def __init__(
        self, tree: TileTree, leaves: LeafSearch, report: Report, changed: list[RecordedRow]
    ) -> None:
        self._tree = tree
        self._leaves = leaves
        self._report = report
        self._explained_rows = {one.id for one in changed}
        self._explained_leaves = {one.leaf for one in changed}
        self.verified: list[RecordedRow] = []

    async def check_given(self, rows: Iterable[Row]) -> None:
        """Check the inclusion of single rows."""
        for row in sorted(rows, key=lambda row: str(row["created_at"])):
            leaf = await self._leaves.find(row["created_at"])
            if leaf is None:
                self._report_row(row, "is in no leaf of the log")
            else:
                hashes = await self._tree.read_leaf_hashes(leaf.index, leaf.index + 1)
                self._check_pair(row, leaf, hashes[0])

    async def check_feed(self, feed: Feed, now: datetime) -> None:
        """Check every served row against its leaf, and that every leaf has its row."""
        leaves = [leaf async for leaf in self._leaves.iterate_after(feed.since)]
        # A wrong time could let a missing row pass as aged.
        self._report.findings += (
            f"leaf {later.index} is listed at {later.created_at}, but the one before it at "
            f"{earlier.created_at}"
            for earlier, later in pairwise(leaves)
            if later.created_at <= earlier.created_at
        )
        hashes = (
            await self._tree.read_leaf_hashes(leaves[0].index, leaves[-1].index + 1)
            if leaves
            else []
        )
        unmatched = feed.index_by("created_at")
        aged = 0
        for leaf, leaf_hash in zip(leaves, hashes, strict=True):
            row = unmatched.pop(leaf.created_at, None)
            if row is not None:
                self._check_pair(row, leaf, leaf_hash)
            elif not is_kept(leaf.created_at, None, now):
                aged += 1
            elif leaf.index not in self._explained_leaves:
                self._report.findings.append(
                    f"leaf {leaf.index} of {leaf.created_at} has no row in the feed: it was "
                    "deleted, or moved to another time"
                )
        if aged:
            self._report.notes.append(
                f"{aged} leaves without a row are older than {SHORTEST_RETENTION.days} days: "
                "alerts are not served longer"
            )
        last = leaves[-1].created_at if leaves else ""
        self._report_unmatched(list(unmatched.values()), last, feed)

    def _check_pair(self, row: Row, leaf: Leaf, leaf_hash: bytes) -> None:
        if hash_row(row, leaf.salt) == leaf_hash:
            self.verified.append(RecordedRow(leaf.index, leaf.salt, pick_covered(row)))
            self._report.checked["rows in the log"] += 1
        else:
            self._report_row(row, f"differs from what leaf {leaf.index} of the log commits to")

    def _report_row(self, row: Row, fault: str) -> None:
        if row["id"] not in self._explained_rows:
            self._report.findings.append(f"{row['id']} of {row['created_at']} {fault}")

    def _report_unmatched(self, rows: list[Row], last: str, feed: Feed) -> None:
        """Report rows without a leaf: those after the last leaf may only be too new."""
        for row in rows:
            if row["created_at"] <= last:
                self._report_row(row, "is in no leaf of the log: it was added or moved later")
        pending = [row for row in rows if row["created_at"] > last]
        if pending:
            first = pending[0]["created_at"]
            text = f"{len(pending)} rows since {first} are in no signed checkpoint yet"
            is_overdue = parse_served_time(first) < feed.as_of - SIGNED_WITHIN
            (self._report.obstacles if is_overdue else self._report.notes).append(text)

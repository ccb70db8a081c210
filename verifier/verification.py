"""Runs all checks of one verification, and keeps the customer's record up to date."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from random import SystemRandom

from verifier.client import (
    API_PATH,
    Json,
    ServiceClient,
    ServiceError,
    format_time,
    parse_served_time,
)
from verifier.notes import (
    CLOCK_SKEW,
    LOG_KEY,
    Checkpoint,
    InclusionProof,
    NoteError,
    Policy,
    VerifierKey,
    decode_base64,
)
from verifier.record import SHORTEST_RETENTION, Record, RecordedRow, Run, compare_rows, is_kept
from verifier.report import VERIFIED, Report, VerifyError
from verifier.served_rows import (
    DEFAULT_DAYS,
    Cell,
    Feed,
    OnProgress,
    Row,
    encode_canonical,
    find_close,
    find_fault,
    get_cell,
    hash_row,
    limit_calls,
    pick_covered,
    read_feed,
    walk_rows,
)
from verifier.tree import (
    HASH_BYTES,
    TILE_WIDTH,
    Hashes,
    TileTree,
    TreeMismatchError,
    format_tile_path,
    hash_leaf,
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
        limit_calls(self._client, "log")
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

    async def read_start(self) -> tuple[bytes, Json | None]:
        """Return the salt and the content of the first leaf, None if it is that of a row."""
        body = (await self._client.read_view("log/leaves", {"start": 0, "limit": 1})).body
        try:
            start = body.get("start")
            if start is not None:
                parse_served_time(start["started_at"])
                if not isinstance(start["source"], str):
                    raise TypeError("the source of the first leaf is not a text")
            return decode_base64(body["leaves"][0]["salt"]), start
        except (LookupError, TypeError, ValueError, NoteError) as error:
            raise self._build_error(f"sent malformed leaves ({error!r})") from None

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

    async def iterate_after(self, created_at: str, known: int | None) -> AsyncIterator[Leaf]:
        """Yield the leaves after a time, and all from the index `known` on, whatever their time."""
        first = await self._find_page(created_at)
        if known is not None:
            first = min(first, known // MAX_LEAVES)
        has_begun = False
        for number in range(first, self._page_count):
            for leaf in await self._read_page(number):
                # Once one is after the time, all are, so that the leaves have no gap.
                has_begun |= leaf.created_at > created_at or leaf.index == known
                if has_begun:
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


# A run signs the rows of the one before it at the latest, and signs again if there are none.
SIGNED_WITHIN, FRESH_WITHIN = timedelta(hours=2), timedelta(hours=3)
# A customer who comes as seldom as this compares all recorded rows, others some old pages.
SELDOM, OLD_PAGES = timedelta(days=20), 10
# The share of old leaves without a row that may exceed the share of alerts among new ones.
MAX_AGED_RATIO, MAX_AGED_SURPLUS = 3, 50
RECORDED_DATA, UNIVERSE = "recorded", "universe"


@dataclass(frozen=True)
class Request:
    """What to verify: the rows of a file, and the feed after a time unless `reads_feed` is false.

    Without `since`, the clock and the record decide from when on the feed is read. `other` is the
    checkpoint of another customer, `own_rows` come from bars of its own.
    """

    given_rows: tuple[Row, ...] = ()
    reads_feed: bool = True
    since: datetime | None = None
    key: VerifierKey | None = None
    policy: Policy | None = None
    other: Checkpoint | None = None
    own_rows: tuple[Row, ...] = ()


def check_proof(
    proof: InclusionProof, rows: list[Row], key: VerifierKey, policy: Policy | None
) -> Report:
    """Check without a network that a row is the leaf of a proof, and that the log signed its tree.

    It is enough that one of the rows is that leaf. Cosignatures may be of any time.
    """
    report = Report(evidence=[("the checkpoint of the proof", proof.checkpoint.source)])
    if _check_signature(proof.checkpoint, key, report):
        _check_quorum(proof.checkpoint, policy, None, report)
    proven = [row for row in rows if proof.includes(hash_row(row, proof.salt))]
    report.checked["rows in the log"] += len(proven)
    report.notes += (f"{row['id']} is leaf {proof.index} of {key.name}" for row in proven)
    if not proven:
        report.findings.append(f"leaf {proof.index} of the proof is none of the given rows")
    return report


def _check_signature(checkpoint: Checkpoint, key: VerifierKey, report: Report) -> bool:
    """Check the signature of the log; return whether it is there."""
    if checkpoint.is_signed_by(key):
        return True
    report.findings.append(
        f"the checkpoint of {checkpoint.origin} is not signed by the key of {key.name}"
    )
    return False


def _check_quorum(
    checkpoint: Checkpoint, policy: Policy | None, now: datetime | None, report: Report
) -> bool:
    """Check the cosignatures of a policy, which may be of any time without `now`."""
    if policy is None:
        return True
    cosigners = policy.list_cosigners(checkpoint, now)
    report.checked["cosignatures"] += len(cosigners)
    if policy.is_met_by(cosigners):
        return True
    within = "" if now is None else " within a day"
    names = ", ".join(cosigners) or "none"
    report.obstacles.append(
        f"the policy requires the quorum {policy.quorum}; cosigned{within} by: {names}"
    )
    return False


def check_sequence(
    rows: Iterable[Row],
    latest: datetime,
    report: Report,
    before: Iterable[Row] = (),
    changed: Container[Cell] = (),
) -> None:
    """Report rows that no honest service can have written, and gaps in the changes of a cell.

    `before` are earlier rows without a gap. Cells that `changed` already have a finding.
    """
    readings = {get_cell(row): row for row in before if row["tier"] == UNIVERSE}
    times: dict[str, str] = {}
    late: Counter[str] = Counter()
    for row in rows:
        cell, label = get_cell(row), f"{row['id']} of {row['created_at']}"
        fault = find_fault(row, latest)
        if fault is not None:
            report.findings.append(f"{label} {fault}")
        if (first := times.setdefault(row["id"], row["created_at"])) != row["created_at"]:
            report.findings.append(f"{label} has the id of a row of {first}")
        if fault is not None:
            # The next row of the cell would only repeat it.
            readings.pop(cell, None)
            continue
        if row["tier"] != UNIVERSE:
            continue
        earlier = readings.get(cell)
        is_gap = earlier and earlier["transition"]["to"] != row["transition"]["from"]
        if earlier and is_gap and cell not in changed:
            report.findings.append(
                f"{label} does not continue {earlier['id']}: a row between them is missing"
            )
        readings[cell] = row
        close = find_close(row)
        if close and parse_served_time(row["created_at"]) - close > SIGNED_WITHIN:
            late[row["direction"]] += 1
    if late:
        counts = ", ".join(f"{late[name]} {name}" for name in sorted(late))
        report.notes.append(
            f"{late.total()} rows were written more than 2 hours after their candle closed: "
            f"{counts}"
        )


# Venues differ in price by less than this, and rows from the same bars in nothing else.
PRICE_TOLERANCE, MIN_EQUAL_RATIO = 0.005, 0.95


def compare_own(own: Iterable[Row], feed: Feed, report: Report) -> None:
    """Compare the changes of the feed with those that the customer computed from other bars.

    Compared are the customer's cells of assets that the feed has, from the first to the last candle
    of both. A row with another price is doubted by itself.
    """
    theirs, ours = (
        {
            (get_cell(row), close): row
            for row in rows
            if row["tier"] == UNIVERSE and (close := find_close(row)) is not None
        }
        for rows in (feed.rows, own)
    )
    tickers = {cell[0] for cell, _ in theirs} & {cell[0] for cell, _ in ours}
    # Also those that the feed withholds as a whole.
    cells = {cell for cell, _ in ours if cell[0] in tickers}
    closes = [
        sorted({close for cell, close in rows if cell[0] in tickers}) for rows in (theirs, ours)
    ]
    if not cells:
        report.obstacles.append("none of your own rows is of an asset and a time of the feed")
        return
    first, last = max(one[0] for one in closes), min(one[-1] for one in closes)
    places = [
        (cell, close)
        for cell, close in sorted(theirs.keys() | ours.keys())
        if cell in cells and first <= close <= last
    ]
    differing, doubted = [], 0
    for place in places:
        row, wanted = theirs.get(place), ours.get(place)
        if row is None or wanted is None or row["transition"] != wanted["transition"]:
            differing.append(f"{'.'.join(place[0])} of the candle of {format_time(place[1])}")
        elif (price := row["price"]) != (own_price := wanted["price"]) and (
            price is None
            or own_price is None
            or abs(price - own_price) > PRICE_TOLERANCE * abs(own_price)
        ):
            doubted += 1
    equal = len(places) - len(differing) - doubted
    text = f"your own bars: content equal {equal} of {len(places)}, {doubted} with another price"
    if places and equal >= MIN_EQUAL_RATIO * len(places):
        report.notes.append(text)
    else:
        report.findings.append(f"{text}; the first that differ: {', '.join(differing[:5])}")


def format_age(age: timedelta) -> str:
    """Return an age in the largest whole unit, such as `12 minutes`."""
    minutes = int(age.total_seconds() // 60)
    for unit, size in (("days", 2880), ("hours", 120)):
        if minutes >= size:
            return f"{2 * minutes // size} {unit}"
    return f"{minutes} minutes"


class Verification:
    """Verifies a service against its log, and against the record of earlier verifications.

    The clock and the record of the customer decide which rows are compared, never the service.
    """

    def __init__(
        self,
        client: ServiceClient,
        record: Record,
        now: datetime,
        on_progress: OnProgress,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the customer's time at the start, `monotonic` a clock in seconds."""
        self._client = client
        self._log = LogReader(client)
        self._record = record
        self._now = now
        self._on_progress = on_progress
        self._monotonic = monotonic
        self._started = monotonic()
        self.report = Report()
        # The rows that were read, for further checks of the caller.
        self.feed: Feed | None = None
        self._runs: list[Run] = []
        self._recorded: dict[str, RecordedRow] = {}
        self._changed: list[RecordedRow] = []
        self._has_start = False

    async def run(self, request: Request) -> Report:
        """Run the checks; save the verified rows only if nothing contradicts them.

        If the service does not answer as its documentation says, the report names it as obstacle.
        """
        try:
            await self._run_checks(request)
        except VerifyError as error:
            self.report.obstacles.append(str(error))
        if self.report.findings:
            try:
                self._write_evidence()
            except VerifyError as error:
                self.report.obstacles.append(str(error))
        return self.report

    async def _run_checks(self, request: Request) -> None:
        saved = self._record.load_checkpoint()
        self._recorded, self._runs = self._record.load_rows(), self._record.load_runs()
        key = await self._choose_key(request)
        checkpoint = await self._read_head()
        if saved is not None:
            caption = (
                f"the checkpoint that was verified at {self._record.describe_checkpoint_age()}"
            )
            self.report.evidence.append((caption, saved.source))
        tree, is_signed = None, False
        if checkpoint is not None:
            self.report.evidence.append(("the checkpoint that is served now", checkpoint.source))
            is_signed = _check_signature(checkpoint, key, self.report)
            if is_signed:
                tree = await self._check_tree(checkpoint, saved)
        if tree is not None:
            self.report.checked["signed checkpoint"] += 1
        if request.other is not None:
            await self._compare_checkpoint(request.other, key, tree)
        source = ""
        if request.reads_feed:
            self.feed = await self._read_feed(request)
            source = self.feed.source
            await self._compare_record(self.feed)
            self._check_cells(self.feed)
            if request.own_rows:
                compare_own(request.own_rows, self.feed, self.report)
            if source != RECORDED_DATA:
                self._check_ages(self.feed, checkpoint if is_signed else None, key)
        # The times of a recording are those of its bars, so they say nothing about its publication.
        now = None if source == RECORDED_DATA else self._now
        is_trusted = (
            checkpoint is not None
            and is_signed
            and _check_quorum(checkpoint, request.policy, now, self.report)
        )
        verified = await self._check_rows(tree, request, saved, key)
        if checkpoint is not None and verified is None:
            await self._find_replaced_leaves(checkpoint)
        if not self.report.findings:
            trusted_tree = tree if is_trusted else None
            if saved is not None or trusted_tree is not None:
                self._save(key, checkpoint, trusted_tree, verified or [], request)

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

    async def _read_feed(self, request: Request) -> Feed:
        """Read the feed from the time on that the customer's clock and record demand."""
        since = request.since
        if since is None and self._recorded:
            times = sorted(one.created_at for one in self._recorded.values())
            last = min(self._now, parse_served_time(times[-1]))
            since = last - timedelta(days=DEFAULT_DAYS)
            if self._runs and self._now - self._runs[-1].at > SELDOM:
                since = min(since, parse_served_time(times[0]) - timedelta(milliseconds=1))
        feed = await read_feed(self._client, since, self._now, self._on_progress)
        before = self._runs[-1].source if self._runs else feed.source
        if feed.source == RECORDED_DATA:
            self.report.notes.append(
                "the service says that its data are a recording, so the times of its rows do not "
                "say when they were published"
            )
            if before != RECORDED_DATA:
                self.report.findings.append(f"the data are said to be recorded; they were {before}")
        return feed

    async def _compare_record(self, feed: Feed) -> None:
        """Compare the record with the served rows: those of the feed read, and some older pages."""
        now = min(feed.as_of, self._now)
        parts = [([*feed.rows], feed.since, "")]
        older = sorted(
            (one for one in self._recorded.values() if one.created_at <= feed.since),
            key=lambda one: one.created_at,
        )
        for one in SystemRandom().sample(older, min(OLD_PAGES, len(older))):
            start = format_time(parse_served_time(one.created_at) - timedelta(milliseconds=1))
            page = await anext(walk_rows(self._client, start))
            rows, has_more = page["signals"], page["pagination"]["has_more"]
            parts.append((rows, start, rows[-1]["created_at"] if rows and has_more else ""))
        compared: dict[str, str | None] = {}
        for rows, start, end in parts:
            in_range = [
                one
                for one in self._recorded.values()
                if start < one.created_at
                and (not end or one.created_at <= end)
                and one.id not in compared
            ]
            changes = [*compare_rows(in_range, {row["id"]: row for row in rows}, now)]
            compared |= dict.fromkeys(one.id for one in in_range) | {
                one.id: text for one, text in changes
            }
            self._changed += (one for one, _ in changes)
        self.report.findings += filter(None, compared.values())
        if compared:
            same = sum(text is None for text in compared.values())
            self.report.checked["rows as verified before"] += same
        last = feed.rows[-1]["created_at"] if feed.rows else "no row"
        text = f"read the feed from {feed.since} to {last}, {len(feed.rows)} rows"
        if self._recorded:
            text += f"; compared {len(compared)} of the {len(self._recorded)} rows of the record"
        self.report.notes.append(text)

    @property
    def _latest(self) -> datetime:
        """The latest time of what an honest service has sent; rows come while others are read."""
        return self._now + CLOCK_SKEW + timedelta(seconds=self._monotonic() - self._started)

    def _check_cells(self, feed: Feed) -> None:
        """Check the rows of the feed by themselves, after those that were recorded before it."""
        recorded = sorted(self._recorded.values(), key=lambda one: one.created_at)
        is_continued = bool(recorded) and recorded[-1].created_at > feed.since
        # They continue into the feed only after their last gap: --rows leaves some, and so did
        # earlier versions.
        gaps = (
            later.created_at
            for one, later in pairwise(recorded)
            if one.created_at <= feed.since and (one.leaf is None or later.leaf != one.leaf + 1)
        )
        begin = max(gaps, default="")
        before = [
            one.row for one in recorded if is_continued and begin <= one.created_at <= feed.since
        ]
        changed = {get_cell(one.row) for one in self._changed}
        check_sequence(feed.rows, self._latest, self.report, before, changed)

    def _check_ages(self, feed: Feed, checkpoint: Checkpoint | None, key: VerifierKey) -> None:
        """Report how old the newest row and the checkpoint are, and whether that is too old."""
        ages = []
        times = [parse_served_time(row["created_at"]) for row in feed.rows]
        if times:
            # A small universe is quiet for hours or each weekend, which comes four times in the
            # days: rarer pauses are outages, after which a freeze as long must be seen.
            recent = [at for at in times if at >= times[-1] - timedelta(days=DEFAULT_DAYS)]
            pauses = sorted(later - earlier for earlier, later in pairwise(recent))
            ages.append(("newest row", times[-1], max([FRESH_WITHIN, *pauses[-4:-3]])))
        if checkpoint is not None:
            signed_at = checkpoint.find_signed_time(key)
            if signed_at is None:
                self.report.obstacles.append("the checkpoint has no signed time")
            else:
                ages.append(("signed checkpoint", signed_at, FRESH_WITHIN))
        for name, at, limit in ages:
            age = max(self._now - at, timedelta(0))
            text = f"the {name} is {format_age(age)} old"
            if at > self._latest:
                self.report.obstacles.append(
                    f"the {name} is of {format_time(at)}, which is in the future: is your clock "
                    "right?"
                )
            elif age > limit:
                self.report.obstacles.append(f"{text}, more than {format_age(limit)}")
            else:
                self.report.notes.append(text)

    async def _compare_checkpoint(
        self, other: Checkpoint, key: VerifierKey, tree: TileTree | None
    ) -> None:
        """Check that the checkpoint of another customer is of the same tree."""
        caption = "the checkpoint of the other customer"
        self.report.evidence.append((caption, other.source))
        if not other.is_signed_by(key):
            raise VerifyError(f"{caption} is not signed by the key of {key.name}")
        if tree is None:
            self.report.obstacles.append(f"{caption} cannot be compared: no valid tree is served")
            return
        if other.size > tree.size:
            self.report.obstacles.append(f"{caption} has {other.size} leaves, more than are served")
            return
        try:
            is_same = await tree.compute_root(other.size) == other.root
        except TreeMismatchError:
            is_same = False
        if is_same:
            self.report.checked["checkpoint of another customer"] += 1
        else:
            self.report.findings.append(
                f"the log shows customers different histories: the first {other.size} leaves are "
                "not those that another customer was shown"
            )

    async def _check_rows(
        self, tree: TileTree | None, request: Request, saved: Checkpoint | None, key: VerifierKey
    ) -> list[RecordedRow] | None:
        """Check given and served rows; return the verified ones, None if the tree is not valid."""
        if tree is None:
            if self.feed is not None:
                known = (self._recorded.get(row["id"]) for row in self.feed.rows)
                pairs = zip(self.feed.rows, known, strict=True)
                pending = [row for row, one in pairs if one is None or one.leaf is None]
                self._check_unsigned(pending, self.feed)
            return None
        leaves = LeafSearch(tree.size, self._log)
        try:
            verified = await self._check_given(request.given_rows, tree, leaves)
            if self.feed is not None:
                verified += await self._check_feed(self.feed, tree, leaves, request, saved, key)
                await self._check_start(self.feed, tree)
        except TreeMismatchError as error:
            self.report.findings.append(f"the log contradicts itself: {error}")
            return None
        return verified

    async def _check_given(
        self, rows: Iterable[Row], tree: TileTree, leaves: LeafSearch
    ) -> list[RecordedRow]:
        """Check the inclusion of single rows; return those that are."""
        verified = []
        for row in sorted(rows, key=lambda row: str(row["created_at"])):
            leaf = await leaves.find(row["created_at"])
            if leaf is not None:
                hashes = await tree.read_leaf_hashes(leaf.index, leaf.index + 1)
                verified += self._check_pair(row, leaf, hashes[0])
                continue
            at = parse_served_time(row["created_at"])
            is_young = self._now - SIGNED_WITHIN < at <= self._latest
            later = leaves.iterate_after(row["created_at"], None)
            if is_young and await anext(later, None) is None:
                self.report.obstacles.append(
                    f"{row['id']} of {row['created_at']} is in no signed checkpoint yet"
                )
            else:
                self._report_row(row, "is in no leaf of the log")
        return verified

    async def _check_feed(
        self,
        feed: Feed,
        tree: TileTree,
        search: LeafSearch,
        request: Request,
        saved: Checkpoint | None,
        key: VerifierKey,
    ) -> list[RecordedRow]:
        """Check every served row against its leaf, and that every leaf has its row."""
        now = min(feed.as_of, self._now)
        known = None if saved is None or request.since is not None else saved.size
        leaves = [leaf async for leaf in search.iterate_after(feed.since, known)]
        # A wrong time could let a missing row pass as aged.
        self.report.findings += (
            f"leaf {later.index} is listed at {later.created_at}, but the one before it at "
            f"{earlier.created_at}"
            for earlier, later in pairwise(leaves)
            if later.created_at <= earlier.created_at
        )
        hashes = (
            await tree.read_leaf_hashes(leaves[0].index, leaves[-1].index + 1) if leaves else []
        )
        late_before, known_size = self._find_last_signed(feed, key)
        explained = {one.leaf for one in self._changed}
        unmatched = feed.index_by("created_at")
        verified: list[RecordedRow] = []
        aged, old, newer = 0, 0, 0
        for leaf, leaf_hash in zip(leaves, hashes, strict=True):
            row = unmatched.pop(leaf.created_at, None)
            is_old = not is_kept(leaf.created_at, None, now)
            if row is None and not is_kept(leaf.created_at, UNIVERSE, now):
                continue
            old += is_old
            newer += not is_old
            if row is not None:
                verified += self._check_pair(row, leaf, leaf_hash)
                if leaf.index >= known_size and row["id"] not in self._recorded:
                    age = late_before - parse_served_time(row["created_at"])
                    if age > SIGNED_WITHIN:
                        self._report_row(
                            row,
                            f"was published later than {format_time(late_before)}, when the log "
                            f"had {known_size} leaves without it",
                        )
            elif is_old:
                aged += 1
            elif leaf.index not in explained:
                self.report.findings.append(
                    f"leaf {leaf.index} of {leaf.created_at} has no row in the feed: it was "
                    "deleted, or moved to another time"
                )
        if aged:
            self._check_aged(aged, old, newer, feed)
        last = leaves[-1].created_at if leaves else ""
        for row in unmatched.values():
            if row["created_at"] <= last:
                self._report_row(row, "is in no leaf of the log: it was added or moved later")
        pending = [row for row in unmatched.values() if row["created_at"] > last]
        self._check_unsigned(pending, feed)
        return verified

    async def _check_start(self, feed: Feed, tree: TileTree) -> None:
        """Check what the first leaf says of the data, and report the rows from before the start."""
        salt, start = await self._log.read_start() if tree.size else (b"", None)
        if start is None:
            if any(run.has_start for run in self._runs):
                self.report.findings.append("the log no longer states its first start")
            else:
                self.report.notes.append("the log states no first start")
            return
        self._has_start = True
        hashes = await tree.read_leaf_hashes(0, 1)
        source, started_at = start["source"], start["started_at"]
        if hash_leaf(salt + encode_canonical(start)) != hashes[0]:
            self.report.findings.append("the first leaf is not the start that the service states")
        elif source != feed.source:
            self.report.findings.append(
                f"the data are said to be {feed.source}, but the first leaf says {source}"
            )
        elif source != RECORDED_DATA:
            early = sum(row["created_at"] < started_at for row in feed.rows)
            self.report.notes += [
                f"{early} rows before {started_at} were computed at the first start"
            ] * bool(early)

    def _find_last_signed(self, feed: Feed, key: VerifierKey) -> tuple[datetime, int]:
        """Return when the last checkpoint that a run verified was the log's, and its size."""
        if feed.source == RECORDED_DATA or not self._runs:
            return datetime.min.replace(tzinfo=UTC), 0
        last = self._runs[-1]
        # The log may have signed long before the run. With the hour, rows count as late that were
        # three hours old at the run, as old as its checkpoint could be.
        latest = last.at - (FRESH_WITHIN - SIGNED_WITHIN)
        signed_at = last.checkpoint.find_signed_time(key)
        return max(signed_at or latest, latest), last.checkpoint.size

    def _check_aged(self, aged: int, old: int, newer: int, feed: Feed) -> None:
        """Report old leaves without a row, which must be those of alerts, the rarer tier."""
        days = SHORTEST_RETENTION.days
        text = (
            f"{aged} leaves without a row are older than {days} days: alerts are not served longer"
        )
        alerts = sum(row["tier"] == "alerts" for row in feed.rows)
        if aged > MAX_AGED_RATIO * alerts * old / max(newer, 1) + MAX_AGED_SURPLUS:
            self.report.obstacles.append(
                f"{text}, but {aged} of {old} are too many: of the newer rows {alerts} of {newer} "
                "are alerts"
            )
        else:
            self.report.notes.append(text)

    def _check_unsigned(self, rows: Sequence[Row], feed: Feed) -> None:
        """Report rows that are in no signed checkpoint, and whether they should be."""
        if not rows:
            return
        text = f"{len(rows)} rows since {rows[0]['created_at']} are in no signed checkpoint yet"
        recorded = (self._recorded.get(row["id"]) for row in rows)
        seen_at = [one.seen_at for one in recorded if one is not None and one.seen_at]
        first = min([self._now, *map(parse_served_time, seen_at)])
        if feed.source != RECORDED_DATA:
            first = min(first, parse_served_time(rows[0]["created_at"]))
        is_overdue = first < self._now - SIGNED_WITHIN
        (self.report.obstacles if is_overdue else self.report.notes).append(text)

    def _check_pair(self, row: Row, leaf: Leaf, leaf_hash: bytes) -> list[RecordedRow]:
        """Check a row against a leaf; return it as verified if they match."""
        if hash_row(row, leaf.salt) != leaf_hash:
            self._report_row(row, f"differs from what leaf {leaf.index} of the log commits to")
            return []
        self.report.checked["rows in the log"] += 1
        return [RecordedRow(leaf.index, leaf.salt, pick_covered(row))]

    def _report_row(self, row: Row, fault: str) -> None:
        # What changed since it was recorded already has a finding.
        if row["id"] not in {one.id for one in self._changed}:
            self.report.findings.append(f"{row['id']} of {row['created_at']} {fault}")

    async def _find_replaced_leaves(self, checkpoint: Checkpoint) -> None:
        """Report the first recorded row whose leaf is another one in the tiles served now."""
        leaves = {
            one.leaf: one
            for one in self._recorded.values()
            if one.leaf is not None and one.leaf < checkpoint.size
        }
        replaced: list[RecordedRow] = []
        for number, in_tile in groupby(sorted(leaves), key=lambda leaf: leaf // TILE_WIDTH):
            width = min(TILE_WIDTH, checkpoint.size - number * TILE_WIDTH)
            hashes = await self._log.fetch_tile(0, number, width)
            replaced += (
                leaves[leaf]
                for leaf in in_tile
                if hash_row(leaves[leaf].row, leaves[leaf].salt) != hashes[leaf % TILE_WIDTH]
            )
        if replaced:
            first = replaced[0]
            self.report.findings.append(
                f"leaf {first.leaf} is no longer that of {first.id} of {first.created_at}: "
                f"{len(replaced)} of {len(leaves)} verified rows have lost their leaf"
            )

    def _save(
        self,
        key: VerifierKey,
        checkpoint: Checkpoint | None,
        tree: TileTree | None,
        verified: Sequence[RecordedRow],
        request: Request,
    ) -> None:
        """Record the checkpoint with its rows, and the rows that no checkpoint has yet."""
        if self.feed is None and self._recorded:
            return
        if request.since is not None and self._recorded:
            newest = max(one.created_at for one in self._recorded.values())
            if format_time(request.since) > newest:
                self.report.notes.append(
                    "the record stays as it is: --since leaves out rows that it does not have"
                )
                return
        if checkpoint is not None and tree is not None:
            source = self.feed.source if self.feed is not None else ""
            is_whole = self.report.status == VERIFIED and self.feed is not None
            run = Run(self._now, source, checkpoint, self._has_start) if is_whole else None
            self._record.save(key, checkpoint, tree.tiles, run)
        known = {one.id: one.leaf for one in self._recorded.values()}
        new = [one for one in verified if tree is not None and known.get(one.id) is None]
        signed = {one.id for one in verified} if tree is not None else set()
        new += (
            RecordedRow(None, b"", pick_covered(row), format_time(self._now))
            for row in (self.feed.rows if self.feed is not None else ())
            if row["id"] not in known and row["id"] not in signed
        )
        self._record.append_rows(new)

    def _write_evidence(self) -> None:
        """Write the findings with the signed notes, and the rows as they were with their proofs."""
        rows = []
        for one in self._changed:
            entry: dict[str, object] = {"row": one.row, "seen_at": one.seen_at}
            with suppress(VerifyError):
                entry["proof"] = self._record.prove(one.id)
            rows.append(entry)
        served = self.feed.index_by("id") if self.feed is not None else {}
        content = {
            "service": self._client.address,
            "at": format_time(self._now),
            "findings": self.report.findings,
            "checkpoints": [{"what": what, "note": note} for what, note in self.report.evidence],
            "recorded_rows": rows,
            "served_rows": [served[one.id] for one in self._changed if one.id in served],
        }
        name = f"evidence-{self._now:%Y%m%dT%H%M%SZ}.json"
        path = self._record.write_evidence(name, content)
        self.report.notes.append(f"the evidence is in {path}")

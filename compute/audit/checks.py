"""Checks what no replay gives: the chain and context of commits, facts, clock, coverage, the log.

Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final

import numpy as np
from pydantic import ValidationError

from compute.batch_assembler import find_publish_from
from compute.engine_state import REPLACES
from compute.signing.log_signer import LogKey
from schemas.coverage import Coverage
from schemas.longer_bars import compute_close_time
from schemas.vocabulary import (
    ALERTS_RETENTION_MS,
    TIMEFRAME_DURATIONS_S,
    UNIVERSE_RETENTION_MS,
)
from store.digest import GENESIS, digest_commit, digest_context, digest_coverage
from store.log_tree import (
    EMPTY_ROOT,
    HASH_BYTES,
    SALT_BYTES,
    START_AT,
    LogStart,
    Range,
    Tiles,
    TreeError,
    extend_tiles,
    hash_leaf,
    hash_ranges,
    hash_row,
)
from store.market_rows import CommitInputs, EpochRow, FeedRow
from store.sql.audit_reads import StoredLog, StoredMarket
from verifier.notes import LOG_KEY, Checkpoint, NoteError, VerifierKey

# Those that are not hashed: each has a check of its own, or says nothing about the market data.
KNOWN_FACTS: Final = {
    "source",
    "started_at",
    "pruned_before",
    "alerts_pruned_before",
    "access_store_id",
    "moving_from",
    "outage",
}


def check_commits(market: StoredMarket) -> Iterator[str]:
    """Yield faults of the order, chain and context of commits."""
    commits = market.commits
    for place, commit in enumerate(commits, 1):
        if commit.number != place:
            yield f"commits: the number {commit.number} is not {place}"
            break
    for before, commit in pairwise(commits):
        if commit.market_time < before.market_time:
            yield f"commits: {commit.number} is at an earlier time than the one before"
    previous_digest = GENESIS
    for commit in commits:
        parts = commit.bars_digest, commit.changes_digest, commit.alerts_digest
        link = digest_commit(previous_digest, commit.market_time, *parts, commit.context_digest)
        if link != commit.digest:
            yield f"chain: commit {commit.number} does not follow from its predecessor"
        previous_digest = commit.digest
    # The first commit also covers the facts that never change.
    covered = defaultdict(list)
    for row in market.context:
        covered[1 if row[0] == "fact" else int(row[1] or 0)].append(row)
    for commit in commits:
        if digest_context(covered[commit.number]) != commit.context_digest:
            facts = ", facts" if commit.number == 1 else ""
            yield (
                f"context: commit {commit.number} does not hold the times, assets, epochs, "
                f"sources{facts} and missing bars it was committed with"
            )


def check_beside_chain(market: StoredMarket) -> Iterator[str]:
    """Yield faults of clock, facts and coverage, which no commit covers, and rows of no commit."""
    last = [(1, commit.market_time) for commit in market.commits[-1:]]
    if [*market.clock] != last:
        found, expected = (
            ", ".join(f"{at} in row {id_}" for id_, at in clock) or "missing"
            for clock in (market.clock, last)
        )
        yield f"clock: is {found}, but the last commit says {expected}"
    for key in sorted(market.facts.keys() - KNOWN_FACTS):
        yield f"facts: {key!r} is unknown"
    times = {0, *(commit.market_time for commit in market.commits)}
    retentions = UNIVERSE_RETENTION_MS, ALERTS_RETENTION_MS
    pruned_before = market.pruned_before
    for table, before, retention in zip(
        ("changes", "alerts"), pruned_before, retentions, strict=True
    ):
        if before > max(max(times) - retention, 0):
            yield f"facts: {table} were pruned before {before}, within the retention"
    missing = {"pruned_before", "alerts_pruned_before"} - market.facts.keys()
    if len(missing) == 1:
        yield f"facts: {missing.pop()} is missing"
    # Both are written at once, by the market time of the last commit.
    pruned_at = {sum(pair) for pair in zip(pruned_before, retentions, strict=True)}
    if any(pruned_before) and (len(pruned_at) > 1 or pruned_at - times):
        yield f"facts: no commit has the time of pruning {sorted(pruned_at)}"
    yield from _check_coverage(market)
    if market.unreferenced:
        yield (
            f"bars: {market.unreferenced} bars, settlements, sources, assets or epochs belong to "
            "no commit"
        )


def parse_coverage(market: StoredMarket) -> Coverage | None:
    """Return the published coverage, None if there is no valid one."""
    try:
        return Coverage.model_validate_json(market.coverage[0].document)
    except (IndexError, ValidationError):
        return None


def check_epochs(epochs: Sequence[EpochRow]) -> Iterator[str]:
    """Yield the cells whose epochs do not follow each other."""
    key = attrgetter("ticker", "timeframe", "indicator")
    # Sorted by cell alone, so that the epochs of each stay in the order in which they were stored.
    for cell, group in groupby(sorted(epochs, key=key), key):
        rows, name = list(group), f"epochs: {'.'.join(cell)}:"
        if [row.epoch for row in rows] != [*range(len(rows))]:
            yield f"{name} the epochs are numbered {', '.join(str(row.epoch) for row in rows)}"
        for before, row in pairwise(rows):
            if row.from_close_time < before.from_close_time:
                yield f"{name} epoch {row.epoch} begins before the one that it follows"
            if row.reason.startswith(REPLACES) and row.reason != f"{REPLACES} {before.version}":
                replaced = f"{row.reason}, but the one before has {before.version}"
                yield f"{name} epoch {row.epoch} {replaced}"


class InputsCheck:
    """Compares the assets and sources of each commit with its bars; commits come in order."""

    def __init__(self, market: StoredMarket, *, is_recorded: bool) -> None:
        self._assets: Final = defaultdict[int, dict[str, int]](dict)
        for _, number, ticker, publish_from in market.assets:
            self._assets[int(number or 0)][str(ticker)] = int(publish_from or 0)
        # Unless the bars are recorded, the first start chose from when on its assets publish.
        first = Counter(self._assets[1].values()).most_common(1)
        self._feed_from: Final = 0 if is_recorded or not first else first[0][0]
        self._known: Final[set[str | tuple[str, int]]] = set()

    def check_commit(self, number: int, start: int, content: CommitInputs) -> Iterator[str]:
        """Yield the wrong names of a commit; `start` is the first hour (epoch s) of its runs."""
        # The last one of an asset's rows wins: those of a history that is built are the watermarks.
        backlogs = {row.ticker: False for row in content.funding}
        # Only assets that are new are asked for; finding each close would take most of an audit.
        for block in content.bars:
            if block.ticker not in self._known:
                period_s = TIMEFRAME_DURATIONS_S[block.timeframe]
                first_close = compute_close_time(block.open_time[:1], period_s)
                backlogs[block.ticker] = bool(first_close[0] < start)
        backlogs |= {row.ticker: True for row in content.watermarks if row.history == "building"}
        stored = self._assets[number]
        begun = {ticker: backlogs[ticker] for ticker in sorted(backlogs.keys() - self._known)}
        for ticker, has_backlog in begun.items():
            expected = find_publish_from(start, self._feed_from, has_backlog=has_backlog)
            if (found := stored.get(ticker)) != expected:
                yield f"assets: {ticker} publishes from {found}, but its bars say {expected}"
        for ticker in sorted(stored.keys() - begun.keys()):
            yield f"assets: {ticker} does not begin in commit {number}"
        revisions = {(block.ticker, block.revision) for block in content.bars} - self._known
        named = [(row.ticker, row.revision) for row in content.sources]
        for ticker, revision in sorted(revisions ^ set(named)):
            fault = "no source" if (ticker, revision) in revisions else "a source but no bars"
            yield f"sources: revision {revision} of {ticker} has {fault} in commit {number}"
        if len(set(named)) < len(named):
            yield f"sources: commit {number} names two sources of a revision"
        self._known.update(begun, revisions)


def _check_coverage(market: StoredMarket) -> Iterator[str]:
    if not market.coverage:
        if market.commits and "source" in market.facts:
            yield "coverage: is missing"
        return
    row = market.coverage[0]
    if len(market.coverage) > 1 or row.id != 1:
        yield "coverage: has another row than 1"
    if parse_coverage(market) is None:
        yield "coverage: is not valid"
    ends = (*(commit.digest for commit in reversed(market.commits)), GENESIS)
    if row.digest not in digest_coverage(row.document, ends):
        yield "coverage: is not the document that was published"


def check_leaves(
    log: StoredLog, start: LogStart | None, rows: Sequence[FeedRow], known: tuple[int, int]
) -> Iterator[str]:
    """Yield the start, the published rows and the leaves that do not match.

    Outside of the times `known` (epoch ms) the replay gave no rows.
    """
    hashes = b"".join(log.tiles[tile] for tile in sorted(log.tiles) if tile.level == 0)
    created_at = np.array([row.created_at for row in rows], dtype=np.int64)
    leaves = np.searchsorted(log.created_at, created_at)
    is_found = np.append(log.created_at, -1)[leaves] == created_at
    has_row = (log.created_at < known[0]) | (log.created_at > known[1])
    has_row[leaves[is_found]] = True
    if START_AT in log.created_at[:1]:
        entry = log.salts[:SALT_BYTES] + (start.render() if start else b"")
        if hash_leaf(entry) != hashes[:HASH_BYTES]:
            yield "log: the first leaf is not the source and the first start of the store"
        has_row[0] = True
    for row, leaf, has_leaf in zip(rows, leaves.tolist(), is_found.tolist(), strict=True):
        salt = log.salts[SALT_BYTES * leaf : SALT_BYTES * (leaf + 1)]
        if not has_leaf:
            yield f"log: {row.id} has no leaf"
        elif hash_row(row, salt) != hashes[HASH_BYTES * leaf : HASH_BYTES * (leaf + 1)]:
            yield f"log: {row.id} is not the row of its leaf"
    yield from (f"log: leaf {leaf} has no row" for leaf in np.flatnonzero(~has_row).tolist())
    size = len(log.created_at)
    if not np.array_equal(log.leaf, np.arange(size)):
        yield "log: the leaves are not numbered in the order of their rows"
    if len(hashes) != HASH_BYTES * size:
        yield f"log: has {size} leaves, but tiles of {len(hashes) // HASH_BYTES} hashes"
    computed = extend_tiles({}, 0, hashes)
    for tile in sorted(computed.keys() | log.tiles.keys()):
        if computed.get(tile) != log.tiles.get(tile):
            yield f"log: tile {tile.level}/{tile.number} does not follow from the leaves"


def check_checkpoint(log: StoredLog, key: LogKey | None) -> Iterator[str]:
    """Yield the faults of the newest checkpoint; `key` is that of the key file, if any."""
    row, size = log.checkpoint, len(log.created_at)
    if row.refusal is not None:
        yield f"log: is not signed any more: {row.refusal}"
    signed = [] if key is None else [(key.size, key.root)]
    if row.note is not None:
        try:
            note = Checkpoint.parse(row.note)
            vkey = VerifierKey.parse(row.vkey or "", LOG_KEY)
            if note.size != row.size or not note.is_signed_by(vkey):
                raise NoteError(f"it is of {note.origin}, size {note.size}, or not signed")
            signed.append((note.size, note.root))
        except NoteError as error:
            yield f"log: the checkpoint is not valid: {error}"
    elif key is not None and key.size:
        yield "log: the checkpoint is missing, although the key file has signed one"
    if key is not None and row.vkey not in (None, str(key.vkey)):
        yield "log: the checkpoint is of another key than the key file"
    for signed_size, root in dict.fromkeys(signed):
        if signed_size > size:
            yield f"log: has {size} leaves, but {signed_size} were signed"
        elif _find_root(log.tiles, signed_size) != root:
            yield f"log: the first {signed_size} leaves are not those signed"


def _find_root(tiles: Tiles, size: int) -> bytes | None:
    """Return the root of the tree of the first leaves, None if a tile is missing."""
    try:
        return hash_ranges([Range(0, size)], tiles)[0] if size else EMPTY_ROOT
    except TreeError:
        return None

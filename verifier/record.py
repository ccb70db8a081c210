"""The customer's own record, in a folder: the log's key, its checkpoints, rows and tiles."""

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from verifier.client import format_time, parse_served_time
from verifier.notes import (
    LOG_KEY,
    Checkpoint,
    InclusionProof,
    NoteError,
    VerifierKey,
    decode_base64,
)
from verifier.report import VerifyError
from verifier.served_rows import COVERED, Row, hash_row, pick_covered
from verifier.tree import (
    TILE_WIDTH,
    Hashes,
    Tiles,
    format_tile_path,
    is_included,
    list_proof,
    split_tile,
)

# The service may serve rows this long after it last computed, so their age is uncertain by it.
AGE_MARGIN = timedelta(days=1)
RETENTION = {"universe": timedelta(days=365), "alerts": timedelta(days=90)}
SHORTEST_RETENTION = min(RETENTION.values())


@dataclass(frozen=True)
class RecordedRow:
    """A row (the members that its leaf covers), its leaf, and when this record first had it.

    A row that was in no signed checkpoint has no leaf and no salt.
    """

    leaf: int | None
    salt: bytes
    row: Row
    seen_at: str = ""

    @property
    def id(self) -> str:
        """The id of the row, which includes the tier."""
        return str(self.row["id"])

    @property
    def created_at(self) -> str:
        """When the service says it wrote the row."""
        return str(self.row["created_at"])


@dataclass(frozen=True)
class Run:
    """A verification that verified everything: its time, the data's source, the checkpoint.

    `has_start` is whether the first leaf was proven to be the first start.
    """

    at: datetime
    source: str
    checkpoint: Checkpoint
    has_start: bool = False


def is_kept(created_at: str, tier: str | None, now: datetime) -> bool:
    """Return whether a row must still be served, by the retention of its tier.

    Without a tier, return whether a row of either tier must.
    """
    retention = RETENTION.get(tier or "", SHORTEST_RETENTION)
    return parse_served_time(created_at) > now - retention + AGE_MARGIN


def _format(value: object) -> str:
    """Return a value as JSON, equal for numbers that are equal as JSON numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return json.dumps(value, sort_keys=True)


def compare_rows(
    recorded: Iterable[RecordedRow], served: Mapping[str, Row], now: datetime
) -> Iterator[tuple[RecordedRow, str]]:
    """Yield each recorded row that is no longer served as it was, and the difference.

    `served` are the rows by id. Rows that may have aged out are not expected.
    """
    for one in recorded:
        row = served.get(one.id)
        if row is None:
            if is_kept(one.created_at, str(one.row["tier"]), now):
                yield one, f"{one.id} of {one.created_at} was deleted: the feed no longer has it"
        # Most rows are equal, and comparing their texts would take most of the time.
        elif pick_covered(row) != one.row:
            values = [(name, _format(one.row[name]), _format(row[name])) for name in COVERED]
            changes = [f"{name} was {old}, is {new}" for name, old, new in values if old != new]
            if changes:
                yield one, f"{one.id}: {'; '.join(changes)}"


class Record:
    """Files of one service in a folder, which is created when something is saved.

    Rows and runs are only ever appended, and the checkpoint is replaced as a whole. A record that
    is altered or incomplete raises VerifyError: it proves nothing, neither for nor against a
    service.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load_key(self) -> VerifierKey | None:
        """Return the saved key of the log, None at the first use."""
        text = self._read("vkey")
        try:
            key = None if text is None else VerifierKey.parse(text, LOG_KEY)
        except NoteError as error:
            raise self._build_damage("vkey", str(error)) from None
        if key is None and (self._read("checkpoint") or self._read("rows.jsonl")):
            raise self._build_damage("vkey", "it is missing")
        return key

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint, None at the first use."""
        key, text = self.load_key(), self._read("checkpoint")
        if text is None:
            if self._read("rows.jsonl"):
                raise self._build_damage("checkpoint", "it is missing")
            return None
        if self._read("rows.jsonl") is None:
            raise self._build_damage("rows.jsonl", "it is missing")
        return self._parse_checkpoint("checkpoint", text, key)

    def load_runs(self) -> list[Run]:
        """Return the runs that verified everything, oldest first; other logs' are left out."""
        key, runs = self.load_key(), []
        for number, line in enumerate(self._read_lines("runs.jsonl"), 1):
            try:
                entry = json.loads(line)
                at, source, note = parse_served_time(entry["at"]), entry["source"], entry["note"]
                is_of_log = note.startswith(f"{key and key.name}\n")
                has_start = bool(entry.get("has_start"))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise self._build_damage("runs.jsonl", f"line {number}: remove it") from None
            if is_of_log:
                checkpoint = self._parse_checkpoint("runs.jsonl", note, key)
                runs.append(Run(at, source, checkpoint, has_start))
        return runs

    def load_rows(self) -> dict[str, RecordedRow]:
        """Return the recorded rows by id."""
        rows = {}
        for number, line in enumerate(self._read_lines("rows.jsonl"), 1):
            try:
                entry = json.loads(line)
                salt = decode_base64(entry["salt"])
                one = RecordedRow(entry["leaf"], salt, entry["row"], entry.get("seen_at", ""))
                parse_served_time(one.created_at)
                # A row that was in no checkpoint comes again with its leaf.
                rows[one.id] = one
            except (ValueError, KeyError, TypeError, NoteError):
                reason = f"line {number} is damaged: remove it"
                raise self._build_damage("rows.jsonl", reason) from None
        return rows

    def describe_checkpoint_age(self) -> str:
        """Return when the checkpoint was saved, as a date and time in UTC."""
        saved_at = (self.folder / "checkpoint").stat().st_mtime
        return f"{datetime.fromtimestamp(saved_at, UTC):%Y-%m-%d %H:%M} UTC"

    def append_rows(self, rows: Iterable[RecordedRow]) -> None:
        """Append rows; VerifyError if the folder is not writable."""
        with self._raise_verify_errors():
            self._append(
                "rows.jsonl",
                (
                    {
                        "leaf": one.leaf,
                        "salt": base64.b64encode(one.salt).decode(),
                        "row": one.row,
                        **({"seen_at": one.seen_at} if one.seen_at else {}),
                    }
                    for one in rows
                ),
            )

    def save(
        self, key: VerifierKey, checkpoint: Checkpoint, tiles: Tiles, run: Run | None = None
    ) -> None:
        """Replace key and checkpoint, and add tiles and a run that verified everything.

        VerifyError if the folder is not writable.
        """
        with self._raise_verify_errors():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # In this order, because a record that lacks a file is damaged, and a kill leaves none.
            self._append("rows.jsonl", ())
            for (level, number), hashes in tiles.items():
                name = format_tile_path(level, number, TILE_WIDTH)
                path, content = self.folder / name, b"".join(hashes)
                if not path.exists() or path.stat().st_size < len(content):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._replace(name, content)
            self._replace("vkey", f"{key}\n".encode())
            self._replace("checkpoint", checkpoint.source.encode())
            if run is not None:
                entry = {"at": format_time(run.at), "source": run.source, "note": checkpoint.source}
                self._append("runs.jsonl", [entry | {"has_start": run.has_start}])

    def prove(self, row_id: str) -> str:
        """Return the proof of a recorded row in the first kept checkpoint that has it.

        VerifyError if the record has no such proof. No service is needed.
        """
        one = self.load_rows().get(row_id)
        saved = self.load_checkpoint()
        if one is None or one.leaf is None or saved is None:
            raise VerifyError(f"{self.folder} has no verified row with the id {row_id}")
        for checkpoint in (*(run.checkpoint for run in self.load_runs()), saved):
            if checkpoint.size <= one.leaf:
                continue
            try:
                path = list_proof(self._load_tile, one.leaf, checkpoint.size)
            except (OSError, LookupError):
                continue
            if is_included(
                hash_row(one.row, one.salt), one.leaf, checkpoint.size, path, checkpoint.root
            ):
                return InclusionProof(one.salt, one.leaf, tuple(path), checkpoint).format()
        raise VerifyError(f"{self.folder} has too few tiles to prove {row_id}")

    def write_evidence(self, name: str, content: object) -> Path:
        """Write the evidence of findings to a file and return its path; may raise VerifyError."""
        with self._raise_verify_errors():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps(content, indent=1, ensure_ascii=False)
            self._replace(name, f"{text}\n".encode())
        return self.folder / name

    def _load_tile(self, level: int, number: int) -> Hashes:
        return split_tile((self.folder / format_tile_path(level, number, TILE_WIDTH)).read_bytes())

    def _parse_checkpoint(self, name: str, text: str, key: VerifierKey | None) -> Checkpoint:
        try:
            checkpoint = Checkpoint.parse(text)
        except NoteError as error:
            raise self._build_damage(name, str(error)) from None
        # Its signature was checked before it was saved, so another one is not the service's doing.
        if key is None or not checkpoint.is_signed_by(key):
            raise self._build_damage(name, "it is not signed by the key in vkey")
        return checkpoint

    def _build_damage(self, name: str, reason: str) -> VerifyError:
        return VerifyError(f"record damaged: {self.folder / name}: {reason}")

    @contextmanager
    def _raise_verify_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise VerifyError(f"{self.folder} cannot be written: {error.strerror}") from None

    def _append(self, name: str, entries: Iterable[object]) -> None:
        with open(self.folder / name, "ab+") as file:
            # Cut off the end after the last newline, which a process left that was killed.
            content = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
            os.ftruncate(file.fileno(), content.rfind(b"\n") + 1)
            for entry in entries:
                file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.folder / f"{name}.new"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / name)

    def _read_lines(self, name: str) -> list[str]:
        # The last line of a process that was killed while it wrote has no end.
        return (self._read(name) or "").split("\n")[:-1]

    def _read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VerifyError(f"{self.folder / name} cannot be read: {error}") from None

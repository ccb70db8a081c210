"""The customer's own record, in a folder: the log's key, the last checkpoint, the verified rows."""

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from verifier.client import parse_served_time
from verifier.notes import LOG_KEY, Checkpoint, NoteError, VerifierKey, decode_base64
from verifier.report import VerifyError
from verifier.rows import COVERED, Row, hash_row, pick_covered

# The service may serve rows this long after it last computed, so their age is uncertain by it.
AGE_MARGIN = timedelta(days=1)
RETENTION = {"universe": timedelta(days=365), "alerts": timedelta(days=90)}
SHORTEST_RETENTION = min(RETENTION.values())


@dataclass(frozen=True)
class RecordedRow:
    """A verified row (the members that its leaf covers), and its leaf."""

    leaf: int
    salt: bytes
    row: Row

    @property
    def id(self) -> str:
        """The id of the row, which includes the tier."""
        return str(self.row["id"])

    @property
    def created_at(self) -> str:
        """When the service says it wrote the row."""
        return str(self.row["created_at"])

    def hash(self) -> bytes:
        """Return the hash of its leaf."""
        return hash_row(self.row, self.salt)


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

    Rows are only ever appended, and the checkpoint is replaced as a whole. A record that is
    altered or incomplete raises VerifyError: it proves nothing, neither for nor against a service.
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
        """Return the last verified checkpoint, None at the first use."""
        key, text = self.load_key(), self._read("checkpoint")
        if text is None:
            if self._read("rows.jsonl"):
                raise self._build_damage("checkpoint", "it is missing")
            return None
        try:
            checkpoint = Checkpoint.parse(text)
        except NoteError as error:
            raise self._build_damage("checkpoint", str(error)) from None
        if self._read("rows.jsonl") is None:
            raise self._build_damage("rows.jsonl", "it is missing")
        # Its signature was checked before it was saved, so another one is not the service's doing.
        if key is None or not checkpoint.is_signed_by(key):
            raise self._build_damage("checkpoint", "it is not signed by the key in vkey")
        return checkpoint

    def load_rows(self) -> dict[str, RecordedRow]:
        """Return the verified rows by id."""
        return {one.id: one for one in self._parse_rows()}

    def describe_checkpoint_age(self) -> str:
        """Return when the checkpoint was saved, as a date and time in UTC."""
        saved_at = (self.folder / "checkpoint").stat().st_mtime
        return f"{datetime.fromtimestamp(saved_at, UTC):%Y-%m-%d %H:%M} UTC"

    def save(self, key: VerifierKey, checkpoint: Checkpoint, rows: Iterable[RecordedRow]) -> None:
        """Replace key and checkpoint and append rows; VerifyError if the folder is not writable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # In this order, because a record that lacks a file is damaged, and a kill leaves none.
            self._append_rows(())
            self._replace("vkey", f"{key}\n")
            self._replace("checkpoint", checkpoint.source)
            self._append_rows(rows)
        except OSError as error:
            raise VerifyError(f"{self.folder} cannot be written: {error.strerror}") from None

    def _parse_rows(self) -> Iterator[RecordedRow]:
        # The last line of a process that was killed while it wrote has no end.
        lines = (self._read("rows.jsonl") or "").split("\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                yield RecordedRow(entry["leaf"], decode_base64(entry["salt"]), entry["row"])
            except (ValueError, KeyError, TypeError, NoteError):
                reason = f"line {number} is damaged: remove it"
                raise self._build_damage("rows.jsonl", reason) from None

    def _build_damage(self, name: str, reason: str) -> VerifyError:
        return VerifyError(f"record damaged: {self.folder / name}: {reason}")

    def _append_rows(self, rows: Iterable[RecordedRow]) -> None:
        with open(self.folder / "rows.jsonl", "ab+") as file:
            # Cut off the end after the last newline, which a process left that was killed.
            content = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
            os.ftruncate(file.fileno(), content.rfind(b"\n") + 1)
            for one in rows:
                salt = base64.b64encode(one.salt).decode()
                entry = {"leaf": one.leaf, "salt": salt, "row": one.row}
                file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _replace(self, name: str, text: str) -> None:
        temporary = self.folder / f"{name}.new"
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / name)

    def _read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VerifyError(f"{self.folder / name} cannot be read: {error}") from None

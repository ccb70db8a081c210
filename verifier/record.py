"""The customer's own record, in a folder: the log's key, the last checkpoint, the verified rows."""

import base64
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from verifier.canonical import Row, hash_row
from verifier.checkpoints import Checkpoint
from verifier.errors import VerifyError
from verifier.notes import LOG_KEY, NoteError, VerifierKey, decode_base64


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


class Record:
    """Files of one service in a folder, which is created when something is saved.

    Rows are only ever appended, and the checkpoint is replaced as a whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load_key(self) -> VerifierKey | None:
        """Return the saved key of the log, None at the first use."""
        text = self._read("vkey")
        try:
            return None if text is None else VerifierKey.parse(text, LOG_KEY)
        except NoteError as error:
            raise VerifyError(f"{self.folder / 'vkey'}: {error}") from None

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the last verified checkpoint, None at the first use."""
        text = self._read("checkpoint")
        try:
            return None if text is None else Checkpoint.parse(text)
        except NoteError as error:
            raise VerifyError(f"{self.folder / 'checkpoint'}: {error}") from None

    def load_rows(self) -> dict[str, RecordedRow]:
        """Return the verified rows by id."""
        return {one.id: one for one in self._parse_rows()}

    def describe_checkpoint_age(self) -> str:
        """Return when the checkpoint was saved, as a date and time in UTC."""
        saved_at = (self.folder / "checkpoint").stat().st_mtime
        return f"{datetime.fromtimestamp(saved_at, UTC):%Y-%m-%d %H:%M} UTC"

    def save(self, key: VerifierKey, checkpoint: Checkpoint, rows: Iterable[RecordedRow]) -> None:
        """Append rows and replace checkpoint and key; VerifyError if the folder is not writable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._append_rows(rows)
            self._replace("vkey", f"{key}\n")
            self._replace("checkpoint", checkpoint.source)
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
                path = self.folder / "rows.jsonl"
                raise VerifyError(f"{path}: line {number} is damaged: remove it") from None

    def _append_rows(self, rows: Iterable[RecordedRow]) -> None:
        with open(self.folder / "rows.jsonl", "ab+") as file:
            _drop_unfinished_line(file.fileno())
            file.write(b"".join(_format_entry(one) for one in rows))
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


def _drop_unfinished_line(descriptor: int) -> None:
    """Cut off the end of a file after its last newline."""
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def _format_entry(one: RecordedRow) -> bytes:
    salt = base64.b64encode(one.salt).decode()
    entry = {"leaf": one.leaf, "salt": salt, "row": one.row}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"

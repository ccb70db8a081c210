"""Keeps the time of the last row that was handed on, so that a restart continues after it."""

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from schemas.operator_error import OperatorError
from schemas.vocabulary import INSTANT_SCHEMA

INSTANT = re.compile(INSTANT_SCHEMA["pattern"])


class CursorError(OperatorError):
    """A cursor file that cannot be used, described in one line."""


class CursorFile:
    """A file with one line: the `created_at` of the last row that was handed on.

    In its block, no other command follows with it. The lock ends with the process, so the file of
    the lock is never removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new_path = path.with_name(path.name + ".new")

    def __enter__(self) -> Self:
        try:
            self._lock = self._path.with_name(self._path.name + ".lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise CursorError(
                f"another command follows with the cursor file {self._path}: stop it, or choose "
                "another --cursor"
            ) from None
        except OSError as error:
            raise CursorError(
                f"cannot lock the cursor file {self._path}: {error.strerror}"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def load(self) -> str | None:
        """Return the time in the file, None if there is no file yet."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CursorError(
                f"cannot read the cursor file {self._path}: {error.strerror}"
            ) from None
        if not INSTANT.match(text):
            raise CursorError(
                f"{self._path} is not a cursor file: it must hold one time such as "
                "2026-09-30T12:03:00.068Z. Choose another --cursor, or delete the file to begin "
                "with new rows"
            )
        return text

    def save(self, instant: str) -> None:
        """Replace the time in the file: a kill or a power cut leaves the old one or the new one."""
        try:
            with self._new_path.open("w", encoding="ascii") as file:
                file.write(f"{instant}\n")
                file.flush()
                os.fsync(file.fileno())
            self._new_path.replace(self._path)
        except OSError as error:
            raise CursorError(
                f"cannot write the cursor file {self._path}: {error.strerror}"
            ) from None

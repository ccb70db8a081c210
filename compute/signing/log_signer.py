"""Signs the tree of the log after each run, unless it contradicts what was signed before."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import structlog

from compute.signing.key_file import KeyFileError, LogKey, archive_key, load_key, save_key
from compute.signing.notes import Checkpoint, Vkey, sign_checkpoint
from store.errors import DamagedError
from store.log_tree import TreeError, verify_consistency
from store.market_rows import CheckpointRow, LogHead
from store.sql.feed_log import FeedLog

# Called with the outcome of each new checkpoint, signed or refused, and "cosigned" by a witness.
OnCheckpoint = Callable[[str], None]
Submit = Callable[[CheckpointRow], None]
Used = TypeVar("Used")

log = structlog.get_logger("compute")


class RefusalError(Exception):
    """The log must not sign; the message is public, and says why."""


class LogSigner:
    """Signs the log of a store with the key in a file, which it creates at the first start."""

    def __init__(
        self,
        feed_log: FeedLog,
        path: Path,
        origin: str,
        on_checkpoint: OnCheckpoint = lambda outcome: None,
        submit: Submit = lambda checkpoint: None,
    ) -> None:
        """Take the path of the key file; a new key gets the origin.

        `submit` is called with the newest checkpoint, for witnesses.
        """
        self._log: Final = feed_log
        self._path: Final = path
        self._origin: Final = origin
        self._on_checkpoint: Final = on_checkpoint
        self._submit: Final = submit

    async def sign(self) -> None:
        """Sign the tree that is stored now, and store the checkpoint.

        If that is refused, store the reason instead; the next call tries again. Raise StoreError if
        the database fails.
        """
        try:
            key, stored = await self._advance_key()
        except RefusalError as refusal:
            await self._refuse(str(refusal))
            return
        vkey = key.vkey.format()
        if stored != CheckpointRow(key.size, stored.note, vkey):
            stored = CheckpointRow(key.size, _sign_tree(key), vkey)
            await self._log.save_checkpoint(stored)
            self._on_checkpoint("signed")
        self._submit(stored)

    async def restart(self, now: datetime) -> tuple[Vkey, Path | None]:
        """Begin a new log of the same rows: archive the key file, and sign with another key.

        Return the new key, and the path of the archived file, None if there was none.
        """
        origin = await self._find_origin()
        archive = self._path.with_name(f"{self._path.name}.{now:%Y%m%dT%H%M%SZ}")
        has_file = await asyncio.to_thread(archive_key, self._path, archive)
        key = LogKey.create(self._origin if origin is None else name_next_origin(origin))
        await asyncio.to_thread(save_key, self._path, key)
        await self.sign()
        return key.vkey, archive if has_file else None

    async def _find_origin(self) -> str | None:
        """Return the origin of the log so far, None if there was none."""
        with suppress(KeyFileError):
            if (key := await asyncio.to_thread(load_key, self._path)) is not None:
                return key.origin
        vkey = (await self._log.checkpoint()).vkey
        return None if vkey is None else Vkey.parse(vkey).name

    async def _advance_key(self) -> tuple[LogKey, CheckpointRow]:
        """Return the key, once its file has the stored tree, and the last checkpoint."""
        key = await self._use_file(load_key, self._path)
        head = await self._load_head(0 if key is None else key.size)
        if key is None and head.checkpoint.note is not None:
            raise RefusalError("the key file of the log is missing")
        advanced = _advance_tree(key or LogKey.create(self._origin), head)
        # Before the checkpoint is served: another tree of this size is never signed from now on.
        if advanced != key:
            await self._use_file(save_key, self._path, advanced)
        return advanced, head.checkpoint

    async def _load_head(self, old: int) -> LogHead:
        try:
            return await self._log.head(old)
        except DamagedError as error:
            log.error("log_damaged", failure=str(error))
            raise RefusalError("the stored tree of the log is damaged") from error

    async def _use_file(self, use: Callable[..., Used], *arguments: object) -> Used:
        """Call a function of the key file in a thread; refuse if the file cannot be used."""
        try:
            return await asyncio.to_thread(use, *arguments)
        except KeyFileError as error:
            log.error("log_key_unusable", failure=str(error))
            raise RefusalError("the key file of the log cannot be used") from error

    async def _refuse(self, reason: str) -> None:
        stored = await self._log.checkpoint()
        if reason != stored.refusal:
            log.error("log_not_signed", reason=reason, remedy="run `signals doctor`")
            await self._log.save_checkpoint(stored._replace(refusal=reason))
        self._on_checkpoint("refused")


def name_next_origin(origin: str) -> str:
    """Return the origin of the log that follows one: /2 at its end, then /3 and so on."""
    numbered = re.fullmatch(r"(.+)/(\d+)", origin)
    return f"{origin}/2" if numbered is None else f"{numbered[1]}/{int(numbered[2]) + 1}"


def _advance_tree(key: LogKey, head: LogHead) -> LogKey:
    """Return the key with the stored tree; RefusalError unless that begins with the signed one."""
    if head.size < key.size:
        raise RefusalError(
            f"the store has fewer rows than the {key.size} that were signed: an older copy of it "
            "was restored"
        )
    try:
        if head.size > key.size > 0:
            verify_consistency(key.size, key.root, head.size, head.root, head.proof)
        elif key.size and head.root != key.root:
            raise TreeError
    except TreeError:
        raise RefusalError(f"the first {key.size} rows are not those that were signed") from None
    return key.with_tree(head.size, head.root)


def _sign_tree(key: LogKey) -> str:
    return sign_checkpoint(Checkpoint(key.origin, key.size, key.root), key.private_key)

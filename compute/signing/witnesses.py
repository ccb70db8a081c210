"""Asks witnesses to cosign the newest checkpoint, after C2SP's tlog-witness.

This happens beside the runs. A witness that does not answer is asked again until the next
checkpoint.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import chain, repeat
from typing import Final

import httpx2
import structlog

from compute.signing.cosignatures import find_cosignature
from compute.signing.notes import Checkpoint
from compute.signing.witness_policy import Witness
from store.errors import StoreError
from store.failure_log import FailureLog
from store.market_rows import CheckpointRow
from store.sql.feed_log import FeedLog

TIMEOUT_S = 10.0
# The last one repeats.
RETRY_DELAYS_S = (5, 15, 60, 300, 600)
MAX_ANSWER_BYTES = 64 * 1024
Sleep = Callable[[float], Awaitable[object]]

log = structlog.get_logger("compute")


class WitnessError(Exception):
    """A witness that did not cosign; the message says why."""


class Witnesses:
    """Collects the cosignatures of witnesses in the stored checkpoint."""

    def __init__(
        self,
        feed_log: FeedLog,
        witnesses: Sequence[Witness],
        on_cosigned: Callable[[], None] = lambda: None,
        sleep: Sleep = asyncio.sleep,
        failures: FailureLog | None = None,
    ) -> None:
        """`on_cosigned` is called for each cosignature; `sleep` waits for seconds."""
        self._log: Final = feed_log
        self._witnesses: Final = witnesses
        self._on_cosigned: Final = on_cosigned
        self._sleep: Final = sleep
        self._failures: Final = failures or FailureLog()
        self._http: Final = httpx2.AsyncClient(timeout=TIMEOUT_S)
        # The size that each witness cosigned last; 0 makes it say so.
        self._cosigned_sizes = dict.fromkeys(witnesses, 0)
        self._submitted: tuple[int, str | None] | None = None
        self._task: asyncio.Task[None] | None = None

    def submit(self, checkpoint: CheckpointRow) -> None:
        """Begin to ask for cosignatures of a checkpoint, instead of those of an older one."""
        if checkpoint.note is None or self._submitted == (checkpoint.size, checkpoint.vkey):
            return
        self._submitted = checkpoint.size, checkpoint.vkey
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._collect(checkpoint, checkpoint.note))

    async def settle(self) -> None:
        """Wait until the newest checkpoint is cosigned, as long as one attempt may take."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=TIMEOUT_S)

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._http.aclose()

    async def _collect(self, row: CheckpointRow, note: str) -> None:
        """Ask all witnesses at once, and those that failed again after each delay."""
        checkpoint = Checkpoint.parse(note)
        pending = [
            witness
            for witness in self._witnesses
            if find_cosignature(witness.vkey, checkpoint, note) is None
        ]
        delays_s = chain(RETRY_DELAYS_S, repeat(RETRY_DELAYS_S[-1]))
        while pending:
            lines = await asyncio.gather(*(self._ask(each, checkpoint, note) for each in pending))
            found = {each: line for each, line in zip(pending, lines, strict=True) if line}
            if await self._store(row, [*found.values()]):
                pending = [each for each in pending if each not in found]
            if pending:
                await self._sleep(next(delays_s))

    async def _store(self, row: CheckpointRow, lines: Sequence[str]) -> bool:
        """Add cosignatures to the stored checkpoint; return whether that succeeded."""
        try:
            await self._log.add_cosignatures(row, lines)
        except StoreError as error:
            self._failures.write(log.warning, "cosignatures_not_stored", {"reason": str(error)})
            return False
        for _ in lines:
            self._on_cosigned()
        return True

    async def _ask(self, witness: Witness, checkpoint: Checkpoint, note: str) -> str | None:
        """Return the line with a witness's cosignature, None if it did not cosign."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._fetch_cosignature(witness, checkpoint, note)
        except (WitnessError, StoreError) as error:
            reason = str(error)
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = type(error).__name__
        cause = {"witness": witness.name, "reason": reason}
        self._failures.write(log.warning, "witness_failed", cause)
        return None

    async def _fetch_cosignature(self, witness: Witness, checkpoint: Checkpoint, note: str) -> str:
        status, answer = await self._add_checkpoint(witness, checkpoint, note)
        if status == HTTPStatus.CONFLICT:
            self._cosigned_sizes[witness] = _parse_size(answer, checkpoint.size)
            status, answer = await self._add_checkpoint(witness, checkpoint, note)
        if status != HTTPStatus.OK:
            raise WitnessError(f"status {status}")
        line = find_cosignature(witness.vkey, checkpoint, answer)
        if line is None:
            raise WitnessError("its response has no valid cosignature")
        self._cosigned_sizes[witness] = checkpoint.size
        return line

    async def _add_checkpoint(
        self, witness: Witness, checkpoint: Checkpoint, note: str
    ) -> tuple[int, str]:
        """Submit a checkpoint with the proof from the size that the witness cosigned last."""
        old = self._cosigned_sizes[witness]
        proof = await self._log.prove_consistency(old, checkpoint.size)
        lines = [f"old {old}", *(b64encode(each).decode() for each in proof)]
        body = "\n".join(lines) + f"\n\n{note}"
        request = self._http.stream("POST", f"{witness.url}/add-checkpoint", content=body.encode())
        async with request as response:
            return response.status_code, await _read_text(response)


async def _read_text(response: httpx2.Response) -> str:
    answer = b""
    async for part in response.aiter_bytes():
        answer += part
        if len(answer) > MAX_ANSWER_BYTES:
            raise WitnessError("its response is too long")
    return answer.decode(errors="replace")


def _parse_size(answer: str, size: int) -> int:
    """Return the size that a witness cosigned last."""
    text = answer.removesuffix("\n")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise WitnessError("status 409 without a size")
    if int(text) > size:
        raise WitnessError(f"it has cosigned {text} rows, more than the {size} of this checkpoint")
    return int(text)

"""Logs failures that repeat: the first at once with its cause, then one line a minute."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from typing import Final

INTERVAL_S = 60.0
# Failures that are told apart at a time. Later ones share a line with others of the same event.
MAX_CAUSES = 100
KEY_CHARS = 200


# Schedules a call in a context of its own, as `asyncio.AbstractEventLoop.call_later` does.
CallLater = Callable[..., object]


class FailureLog:
    """Writes a line for a failure, then one a minute with the number of repetitions.

    A minute without repetitions ends a failure; if it was repeated before, that is logged too.
    """

    def __init__(self, call_later: CallLater | None = None) -> None:
        """Without `call_later`, that of the running event loop is used."""
        self._call_later: Final = call_later
        self._repeats: dict[tuple[str, ...], int] = {}

    def write(
        self,
        log_line: Callable[..., object],
        event: str,
        cause: Mapping[str, object],
        **details: object,
    ) -> None:
        """Log a failure by `log_line`, unless it has the event and cause of a recent one.

        `details` belong to this occurrence, so only the first line has them.
        """
        # An error that is raised again has a longer traceback, which ends as before.
        key = (event, *(str(value)[-KEY_CHARS:] for value in cause.values()))
        if key not in self._repeats and len(self._repeats) >= MAX_CAUSES:
            key = (event,)
        if key in self._repeats:
            self._repeats[key] += 1
            return
        self._repeats[key] = 0
        log_line(event, **cause, **details)
        call_later = self._call_later or asyncio.get_running_loop().call_later

        def report(*, was_repeated: bool) -> None:
            repeated, self._repeats[key] = self._repeats[key], 0
            if repeated:
                log_line(key[0], **cause, repeated=repeated)
                call_later(INTERVAL_S, partial(report, was_repeated=True), context=Context())
                return
            del self._repeats[key]
            if was_repeated:
                log_line(f"{key[0]}_ended", **cause)

        # A context of its own, because the line belongs to no single request.
        call_later(INTERVAL_S, partial(report, was_repeated=False), context=Context())

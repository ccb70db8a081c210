"""The listening socket, opened before any other work so that an occupied port fails first."""

import errno
import os
import time
from contextlib import suppress
from multiprocessing.reduction import DupFd
from socket import (
    AF_INET,
    IPPROTO_TCP,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    getaddrinfo,
    socket,
)
from typing import Any

import structlog

from service.config.settings import SettingsError

# Clients wait in this queue while the service starts or is busy.
LISTEN_BACKLOG = 1024
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
WARNING_INTERVAL_S = 60.0

log = structlog.get_logger("http")


class Listener(socket):
    """A socket that keeps its backlog when it listens again, in any process."""

    # asyncio uses its one `backlog` both for listen() and for how many connections it accepts per
    # turn. A server accepts few per turn, which would shorten the queue of the socket.

    def __init__(self, *arguments: Any) -> None:
        """Create the socket, and open a file that makes room for refusing a connection."""
        super().__init__(*arguments)
        self._spare_file = os.open(os.devnull, os.O_RDONLY)
        self._quiet_until = 0.0

    def accept(self) -> tuple[socket, Any]:
        """Accept a connection; if the process has no file left for it, close it at once."""
        # The limit on connections keeps files free, but stores and sources may need more of them
        # than are reserved. asyncio would then log a traceback for each attempt.
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            self._refuse(error)
            raise BlockingIOError from None

    def _refuse(self, reason: OSError) -> None:
        self._close_spare_file()
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare_file = os.open(os.devnull, os.O_RDONLY)
        if (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + WARNING_INTERVAL_S
            log.warning("connections_refused", why=reason.strerror)

    def close(self) -> None:
        """Close the socket and the spare file."""
        super().close()
        self._close_spare_file()

    def _close_spare_file(self) -> None:
        if self._spare_file >= 0:
            os.close(self._spare_file)
        self._spare_file = -1

    def listen(self, backlog: int = LISTEN_BACKLOG, /) -> None:
        """Listen with the fixed backlog, and ignore the caller's."""
        super().listen(LISTEN_BACKLOG)

    def __reduce__(self) -> Any:
        """Pickle the socket for a child process that is being started."""
        return _rebuild_listener, (self.family, self.type, self.proto, DupFd(self.fileno()))


def _rebuild_listener(family: int, kind: int, protocol: int, duplicated_fd: Any) -> Listener:
    return Listener(family, kind, protocol, duplicated_fd.detach())


def open_listener(host: str, port: int, setting_prefix: str = "SIGNALS_") -> Listener:
    """Bind and listen; SettingsError names the PORT and HOST settings with this prefix."""
    listener: Listener | None = None
    try:
        found = getaddrinfo(host, port, type=SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != AF_INET)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = Listener(family, SOCK_STREAM, IPPROTO_TCP)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            f"set {setting_prefix}PORT or {setting_prefix}HOST to another value"
        ) from None
    return listener

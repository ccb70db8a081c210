"""The listening socket, opened before any other work so that an occupied port fails first."""

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

from service.config.settings import SettingsError

# Clients wait in this queue while the service starts or is busy.
LISTEN_BACKLOG = 1024


class Listener(socket):
    """A socket that keeps its backlog when it listens again, in any process."""

    # asyncio uses its one `backlog` both for listen() and for how many connections it accepts per
    # turn. Workers must accept one per turn, which would shorten the queue of the shared socket.

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

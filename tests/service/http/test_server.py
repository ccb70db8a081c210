"""A restart cuts no call off: the socket stays, and open connections get one more response."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from service.http import server
from service.http.server import build_server_config, open_kept_listener, serve_in_background
from serving.http import read_body
from tests.support.signals_command import find_free_port

pytestmark = pytest.mark.clause("operation")

HOST = "127.0.0.1"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await read_body(scope, receive)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_an_open_connection_gets_one_more_response_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "LAST_REQUEST_STEPS", 3000)
    listener = server.open_listener(HOST, 0)
    port = listener.getsockname()[1]
    serving = serve_in_background(build_server_config(answer), listener)
    task = await serving.__aenter__()
    reader, writer = await asyncio.open_connection(HOST, port)

    async def exchange() -> bytes:
        writer.write(POST)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert await reader.readexactly(2) == b"ok"
        return head

    assert b"connection: close" not in await exchange()
    ending = asyncio.create_task(serving.__aexit__(None, None, None))
    while listener.fileno() >= 0 and not is_refused(port):
        await asyncio.sleep(0)
    assert b"connection: close" in await exchange()
    assert await reader.read() == b""
    await asyncio.wait_for(ending, 30)
    assert task.done()
    writer.close()


def is_refused(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) != 0


def test_a_connection_of_a_restart_waits_in_the_kept_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(find_free_port())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        open_kept_listener(HOST, port).close()
        assert manager.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=listener"
        message, [kept], _, _ = socket.recv_fds(manager, 100, 1)
        assert message == b"FDSTORE=1\nFDNAME=listener"
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setattr(server, "FIRST_PASSED_DESCRIPTOR", os.dup(kept))
        with (
            socket.create_connection((HOST, port), 30) as caller,
            open_kept_listener(HOST, port) as listener,
        ):
            accepted, address = listener.accept()
            accepted.close()
            assert address == caller.getsockname()
        # With other settings, systemd keeps another socket, although it still has this one.
        monkeypatch.setattr(server, "FIRST_PASSED_DESCRIPTOR", os.dup(kept))
        with open_kept_listener("0.0.0.0", port) as listener:
            assert listener.getsockname() == ("0.0.0.0", port)
        os.close(kept)


def test_a_manager_that_cannot_be_told_keeps_no_socket_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
    port = int(find_free_port())
    with open_kept_listener(HOST, port) as listener:
        assert listener.getsockname() == (HOST, port)

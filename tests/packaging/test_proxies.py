"""The shipped sites of Caddy and nginx pass every call on, after a pause and in a restart too."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.packaging.test_deploy_files import (
    DEPLOY,
    require_program,
    write_certificate,
    write_nginx_command,
)
from tests.support.signals_command import (
    COMMAND,
    RunningCommand,
    build_environment,
    create_key,
    find_free_port,
)

pytestmark = [pytest.mark.clause("operation"), pytest.mark.prove, pytest.mark.long]

CLIENTS = 6
# Longer than either proxy keeps a connection to the service, shorter than the service does.
IDLE_S = 60
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "signals_get_usage"}}


class Supervised:
    """A serving process, and its listening socket as systemd keeps it in a restart."""

    def __init__(self, folder: Path) -> None:
        self.port = find_free_port()
        self._folder, self._listener = folder, -1
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notices.bind(f"{folder}/notify-{self.port}")
        self.start()

    def start(self) -> None:
        env = build_environment(
            self._folder,
            database_url=f"sqlite:///{self._folder}/market.db",
            port=self.port,
            billing="off",
            base_url="https://localhost",
            daily_limit="1000000",
        )
        env["NOTIFY_SOCKET"] = self._notices.getsockname()
        command = [*COMMAND, "serve", "--no-compute"]
        kept = list[int]()
        if self._listener >= 0:
            kept.append(self._listener)
            export = f'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&{self._listener}'
            command = ["bash", "-c", export, "bash", *command]
        process = subprocess.Popen(
            command, env=env, cwd=self._folder, stderr=subprocess.PIPE, pass_fds=kept
        )
        self.running = RunningCommand(process, os.dup(process.stderr.fileno()))
        self.running.wait_for_line("Register with a client")
        while self._listener < 0:
            _, received, _, _ = socket.recv_fds(self._notices, 100, 1)
            self._listener = next(iter(received), -1)

    def restart(self) -> None:
        assert self.running.stop(signal.SIGTERM) == 0
        self.running.kill()
        self.start()

    def end(self) -> None:
        self.running.kill()
        os.close(self._listener)
        self._notices.close()


@contextmanager
def run_caddy(folder: Path, ports: list[str]) -> Iterator[tuple[str, str]]:
    """Run the shipped site with a certificate of Caddy's own; yield the ports of TLS and HTTP."""
    require_program("caddy")
    https, http = find_free_port(), find_free_port()
    options = f"{{\nadmin off\nskip_install_trust\nhttp_port {http}\nhttps_port {https}\n}}\n"
    (folder / "Caddyfile").write_text(options + (DEPLOY / "Caddyfile").read_text())
    # Caddy signs the certificate of this name itself.
    env = {
        "SIGNALS_SITE": "localhost",
        "SIGNALS_UPSTREAM": " ".join(f"127.0.0.1:{port}" for port in ports),
        **{name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")},
    }
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with run_proxy(folder, command, env):
        yield https, http


@contextmanager
def run_nginx(folder: Path, ports: list[str]) -> Iterator[tuple[str, str]]:
    """Run the two shipped sites with a certificate; yield the ports of TLS and HTTP."""
    https, http = find_free_port(), find_free_port()
    write_certificate(folder)
    site = (DEPLOY / "nginx.conf").read_text() + (DEPLOY / "nginx-tls.conf").read_text()
    server = "server 127.0.0.1:8000 max_fails=0;"
    for shipped, used in {
        server: "\n".join(server.replace("8000", port) for port in ports),
        "listen 80;": f"listen {http};",
        "listen 443 ssl;": f"listen {https} ssl;",
        "server_name signals.example.com;": "server_name localhost;",
        "/etc/letsencrypt/live/signals.example.com": str(folder),
        "/var/www/html": str(folder),
    }.items():
        assert shipped in site
        site = site.replace(shipped, used)
    site = re.sub(r"listen \[::\].*\n", "", site)
    with run_proxy(folder, write_nginx_command(folder, site, "daemon off;\nuser root;\n"), {}):
        yield https, http


PROXIES = {"caddy": run_caddy, "nginx": run_nginx}


@contextmanager
def run_proxy(folder: Path, command: list[str], env: dict[str, str]) -> Iterator[None]:
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@asynccontextmanager
async def open_client(https: str, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of a proxy that has begun to listen."""
    address, headers = f"https://localhost:{https}", {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(
        base_url=address, verify=False, timeout=60, headers=headers
    ) as client:
        async with asyncio.timeout(60):
            while True:
                with suppress(httpx.ConnectError):
                    await client.get("/api/v1")
                    break
        yield client


async def call(client: httpx.AsyncClient, number: int, counts: Counter[str]) -> None:
    """Read by REST, or call a tool, in turn."""
    try:
        if number % 2:
            response = await client.get("/api/v1/usage")
        else:
            response = await client.post("/api/v1/mcp", json=CALL)
        counts[str(response.status_code)] += 1
    except httpx.HTTPError as error:
        counts[type(error).__name__] += 1


@pytest.fixture
def api_key(tmp_path: Path, seeded: Path) -> str:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    return create_key(tmp_path, database_url=f"sqlite:///{tmp_path}/market.db")


# nginx repeats the calls that a stopping server refuses at another one. Caddy before 2.11.2 repeats
# no body, but a connection that systemd has kept is not refused.
@pytest.mark.parametrize(("proxy", "server_count"), [("caddy", 1), ("nginx", 1), ("nginx", 2)])
async def test_no_call_fails_after_a_pause_or_in_a_restart(
    proxy: str, server_count: int, tmp_path: Path, api_key: str
) -> None:
    (folder := tmp_path / "proxy").mkdir()
    (challenges := folder / ".well-known" / "acme-challenge").mkdir(parents=True)
    (challenges / "token").write_text("proof")
    with ExitStack() as stack:
        servers = []
        for _ in range(server_count):
            servers.append(Supervised(tmp_path))
            stack.callback(servers[-1].end)
        ports = [server.port for server in servers]
        https, http = stack.enter_context(PROXIES[proxy](folder, ports))
        async with open_client(https, api_key) as client:
            response = await client.get("/api/v1")
            assert response.headers["strict-transport-security"] == "max-age=31536000"
            moved = await client.post(f"http://localhost:{http}/api/v1/mcp", json=CALL)
            assert moved.status_code == 308
            assert re.fullmatch(r"https://localhost(:\d+)?/api/v1/mcp", moved.headers["location"])
            if proxy == "nginx":
                path = f"http://localhost:{http}/.well-known/acme-challenge/token"
                assert (await client.get(path)).text == "proof"
            counts = Counter[str]()
            for number in range(60):
                await call(client, number, counts)
            await asyncio.sleep(IDLE_S)
            for number in range(60):
                await call(client, number, counts)
            assert counts == {"200": 120}
            counts, is_over = Counter[str](), asyncio.Event()

            async def call_until_over() -> None:
                number = 0
                while not is_over.is_set():
                    await call(client, number, counts)
                    number += 1

            async with asyncio.TaskGroup() as tasks:
                for _ in range(CLIENTS):
                    tasks.create_task(call_until_over())
                for server in servers:
                    await asyncio.to_thread(server.restart)
                    await asyncio.sleep(1)
                is_over.set()
            assert counts.keys() == {"200"}

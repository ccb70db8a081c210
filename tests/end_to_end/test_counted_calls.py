"""The count of calls if a process is killed, and if two processes serve one store.

If a proxy serves everything below a path, every link, form and cookie still works.
"""

import asyncio
import json
import math
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from itertools import count, product
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.security.wire import open_raw_connection, parse_statuses
from tests.service.commands.test_cli import write_bars
from tests.support.bad_inputs import PATHS, STATE, USAGE, build_call
from tests.support.running_service import (
    RunningService,
    Transport,
    open_loopback_socket,
    run_app,
)
from tests.support.signals_command import (
    SAYS_WITHIN_S,
    RunningCommand,
    create_key,
    find_free_port,
    list_rows,
    run_signals,
    start_signals,
)
from tests.support.web_page import EMAIL, LINK, Page, buy_plan, check_page, run_second_service

CONNECTIONS = 64
FACES: tuple[Transport, Transport] = ("rest", "mcp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose recording has been played, so that serving it starts at once."""
    bars = write_bars(tmp_path / "bars")
    assert run_signals(tmp_path, "replay", "--bars", str(bars)).returncode == 0
    return tmp_path


@contextmanager
def serving(folder: Path, *options: str, **settings: str) -> Iterator[tuple[RunningCommand, str]]:
    """Serve a folder until the end of the block; yield the process and the address."""
    source, port = f"files:{folder / 'bars'}", find_free_port()
    with start_signals(folder, "serve", *options, port=port, source=source, **settings) as process:
        process.wait_for_line("--header")
        yield process, f"http://127.0.0.1:{port}"


@asynccontextmanager
async def connected(
    address: str, transport: Transport, api_key: str, tool: str
) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Yield a function that repeats a call on one kept-alive connection.

    It returns the HTTP status, over MCP the equivalent one. It mostly waits, so that the load falls
    on the server.
    """
    body = json.dumps(build_call(tool)) if transport == "mcp" else ""
    line = f"GET /api/v1{PATHS[tool]}" if transport == "rest" else "POST /api/v1/mcp"
    request = (
        f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api_key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    async with open_raw_connection(address) as (reader, writer):

        async def call() -> int:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)[1]
            refused = re.search(rb'"signals/status":(\d+)', await reader.readexactly(int(length)))
            return int(refused[1]) if refused else parse_statuses(head)[0]

        yield call


def stored(folder: Path) -> list[int]:
    """Return the stored counts of all keys and days, read as by another program."""
    with closing(sqlite3.connect(folder / "signals.db-access")) as db:
        return [used for (used,) in db.execute("SELECT used FROM usage")]


async def called_until_killed(
    process: RunningCommand, address: str, api_key: str, after: int
) -> tuple[int, int]:
    """Call over many connections and kill the process meanwhile; return answers and calls."""
    sent, answered = count(), count()

    async def call_on(transport: Transport) -> None:
        async with connected(address, transport, api_key, USAGE) as call:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    next(sent)
                    # A busy service refuses calls that wait for too long, and does not count them.
                    status = await call()
                    assert status in (200, 429)
                    if status == 200 and next(answered) == after:
                        process.process.kill()

    async with asyncio.timeout(SAYS_WITHIN_S):
        await asyncio.gather(*(call_on(FACES[n % 2]) for n in range(CONNECTIONS)))
    return next(answered), next(sent)


@pytest.mark.clause("access")
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.prove)])
@pytest.mark.prove
def test_no_received_answer_is_missing_from_the_count_if_a_process_is_killed_under_load(
    folder: Path, kills: int
) -> None:
    api_key, answered, sent = create_key(folder), 0, 0
    for kill in range(1, kills + 1):
        with serving(folder) as served:
            answers, calls = asyncio.run(called_until_killed(*served, api_key, 150 * kill))
        answered, sent = answered + answers, sent + calls
        assert answers > 150 * kill
        assert answered <= sum(stored(folder)) <= sent


async def called_together(api_key: str, addresses: Sequence[str], times: int) -> list[int]:
    """Call each address over both transports at once, several times; return the statuses."""

    async def call_on(address: str, transport: Transport) -> list[int]:
        async with connected(address, transport, api_key, STATE) as call:
            return [await call() for _ in range(times)]

    async with asyncio.timeout(SAYS_WITHIN_S):
        pending_calls = [call_on(*one) for one in [*product(addresses, FACES)] * 4]
        return [status for made in await asyncio.gather(*pending_calls) for status in made]


@pytest.mark.clause("access")
def test_two_processes_on_one_store_share_the_limit_and_a_revocation_to_the_call(
    folder: Path,
) -> None:
    limit = 150
    with (
        serving(folder, daily_limit=str(limit)) as (_, first),
        serving(folder, daily_limit=str(limit)) as (_, second),
    ):
        both = (first, second)
        statuses = asyncio.run(called_together(create_key(folder), both, 20))
        assert set(statuses) == {200, 429}
        # If midnight falls between, there are two days, each with its own limit.
        assert max(stored(folder)) == limit
        assert sum(stored(folder)) == statuses.count(200)

        fresh = create_key(folder)
        assert set(asyncio.run(called_together(fresh, both, 1))) == {200}
        assert run_signals(folder, "keys", "revoke", "2").returncode == 0
        assert set(asyncio.run(called_together(fresh, both, 1))) == {403}


@pytest.mark.clause("access", "5.33")
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.sampled(2)
@pytest.mark.prove
def test_the_last_calls_before_a_shutdown_are_in_the_log_of_every_process(
    folder: Path, workers: str
) -> None:
    api_key = create_key(folder)

    async def call_by_every_transport(address: str) -> None:
        for transport in FACES * 3:
            async with connected(address, transport, api_key, USAGE) as call:
                assert await call() == 200

    with serving(folder, "--workers", workers) as (process, address):
        asyncio.run(call_by_every_transport(address))
        assert process.stop() == 0
    calls = [(*call.values(),) for call in list_rows(folder, "keys", "requests", "1")]
    assert sorted(call[2:] for call in calls) == [
        (USAGE, transport, "ok", 200) for transport in sorted(FACES * 3)
    ]
    assert len({request_id for _, request_id, *_ in calls}) == 6


BELOW = "/below/this"


@asynccontextmanager
async def below(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service over the same stores that a proxy passes on only below a path."""
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with run_second_service(served, base_url=address + BELOW) as second:

            async def forward(scope: Any, receive: Any, send: Any) -> None:
                assert scope["path"].startswith(f"{BELOW}/"), scope["path"]
                path = scope["path"].removeprefix(BELOW)
                await second.app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

            async with (
                run_app(forward, bound),
                httpx.AsyncClient(base_url=address, follow_redirects=True) as client,
            ):
                yield client


async def signed_in(served: RunningService, client: httpx.AsyncClient) -> httpx.Response:
    answer = await client.post(f"{BELOW}/sign-in", data={"contact_email": EMAIL})
    check_page(answer, 200, "Check your inbox")
    (link,) = LINK.findall((await served.mailbox.wait_for_mail()).get_content())
    return await client.post(link)


def links_of(answer: httpx.Response) -> set[str]:
    """Return the addresses that a page links to or loads."""
    page = Page(answer)
    links = [one.get("href") for tag in ("a", "link") for one in page.find_all(tag)]
    links += [script["src"] for script in page.find_all("script")]
    return {urljoin(str(answer.url), link).partition("#")[0] for link in links if link}


async def crawl(
    get: Callable[[str], Awaitable[httpx.Response]],
    base_url: str,
    starts: Iterable[str],
    most: float = math.inf,
) -> dict[str, httpx.Response]:
    """Return the responses that links within a service lead to from some paths, by path."""
    waiting, seen = [urljoin(base_url, path) for path in starts], dict[str, httpx.Response]()
    while waiting and len(seen) < most:
        url = waiting.pop(0)
        path = urlsplit(url).path
        if path not in seen:
            seen[path] = await get(url)
            if "text/html" in seen[path].headers.get("content-type", ""):
                own = {link for link in links_of(seen[path]) if link.startswith(base_url)}
                waiting += sorted(own)
    return seen


@pytest.mark.clause("pages", "dashboard")
async def test_a_member_buys_signs_in_makes_a_key_and_signs_out(served: RunningService) -> None:
    async with below(served) as client:
        await buy_plan(served)
        check_page(await client.get(f"{BELOW}/settings"), 200, "Sign in")
        answer = await signed_in(served, client)
        assert answer.url.path == f"{BELOW}/settings/api-access"
        home = check_page(answer, 200, "API access")
        sent = {"form_token": home.fields["form_token"], "label": "laptop"}
        out, *_, create = [
            urljoin(str(answer.url), str(form["action"])) for form in home.find_all("form")
        ]
        check_page(await client.post(create, data=sent), 201, "Your new key")
        left = await client.post(out, data=sent)
        assert left.url.path == f"{BELOW}/sign-in"
        check_page(left, 200, "Sign in")


@pytest.mark.clause("pages", "dashboard")
@pytest.mark.prove
async def test_every_link_of_every_page_leads_somewhere_below_it(served: RunningService) -> None:
    async with below(served) as client:
        await buy_plan(served)
        await signed_in(served, client)
        start = f"{BELOW}/settings/api-access"
        seen = await crawl(client.get, str(client.base_url), [start], most=20)
        assert {answer.status_code for answer in seen.values()} == {200}
        assert {f"{BELOW}/", f"{BELOW}/docs", start} <= seen.keys()
        assert any("/assets/" in path for path in seen)

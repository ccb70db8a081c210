"""Only a program of the owner on the owner's machine is the owner, over real sockets."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from serving.http import respond
from tests.support.running_service import open_loopback_socket, run_app
from web.consent_pages import is_owner

pytestmark = pytest.mark.clause("consent")

OWN_UID = os.getuid()


@dataclass
class OwnerProbe:
    """An app that records whether the owner sent the last request, and its scope."""

    owner_uid: int | None = OWN_UID
    recognized: bool | None = None
    scope: dict[str, Any] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.recognized, self.scope = is_owner(scope, self.owner_uid), dict(scope)
        await respond(scope, send, 204, [])


@asynccontextmanager
async def open_client(probe: OwnerProbe) -> AsyncIterator[httpx.AsyncClient]:
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with run_app(probe, bound), httpx.AsyncClient(base_url=address) as client:
            yield client


async def ask(owner_uid: int | None = OWN_UID, **headers: str) -> bool | None:
    """Return whether a request of this process with these headers comes from the owner."""
    probe = OwnerProbe(owner_uid)
    async with open_client(probe) as client:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        await client.get("/", headers=sent)
    return probe.recognized


@pytest.mark.clause("12.12")
async def test_a_program_of_the_owner_on_this_machine_is_the_owner() -> None:
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST.:8000", "[::1]:80"):
        assert await ask(host=host) is True


@pytest.mark.clause("12.12")
async def test_a_program_of_another_user_of_this_machine_is_not() -> None:
    assert await ask(OWN_UID + 1) is False


async def test_a_service_that_others_can_reach_has_no_owner() -> None:
    assert await ask(None) is False


@pytest.mark.clause("12.13")
@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Forwarded", "Via"],
)
async def test_a_request_that_came_through_a_proxy_is_not_from_the_owner(header: str) -> None:
    assert await ask(**{header: "127.0.0.1"}) is False


@pytest.mark.clause("12.13")
async def test_a_page_under_a_foreign_name_is_not_the_owner() -> None:
    for host in ("signals.example", "127.0.0.1.evil.example", "evil.example:8000", "192.0.2.1"):
        assert await ask(host=host) is False


async def test_another_machine_is_not_the_owner() -> None:
    headers = [(b"host", b"localhost")]
    for client in (("192.0.2.7", 4711), ("::ffff:192.0.2.7", 4711), None):
        scope = {"type": "http", "headers": headers, "client": client, "server": ("192.0.2.1", 80)}
        assert is_owner(scope, OWN_UID) is False


async def test_a_closed_connection_belongs_to_no_user_not_even_to_root() -> None:
    probe = OwnerProbe()
    async with open_client(probe) as client:
        await client.get("/")
        assert is_owner(probe.scope, OWN_UID) is True
        await client.aclose()
        assert is_owner(probe.scope, OWN_UID) is False
        assert is_owner(probe.scope, 0) is False

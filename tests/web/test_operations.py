"""The operations page: who sees it, what it shows, its checks, and revoking keys.

Only a program of the owner on the owner's machine is the owner, over real sockets.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from schemas.version import VERSION
from service.commands.doctor import build_doctor
from service.config.settings import Settings
from serving.http import respond
from serving.snapshot import Snapshot
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_coverage, make_flips
from tests.support.running_service import RunningService, run_service, serve_app
from tests.support.store_homes import SqliteHome, StoreHome
from tests.support.web_page import (
    EMAIL,
    Page,
    buy_plan,
    check_page,
    get_usage_status,
    open_new_member,
    open_owner_browser,
    owner as owner,
    read_new_key,
    run_second_service,
)
from web.consent_pages import is_owner
from web.operations import Doctor, Finding

pytestmark = pytest.mark.clause("owner", "consent")


async def get_operations(client: httpx.AsyncClient, *texts: str) -> Page:
    return check_page(await client.get("/operations"), 200, "Operations", *texts)


def find_row(page: Page, name: str) -> list[str]:
    """Return the cells of the row that begins with a name, without spaces around them."""
    (row,) = [row for row in page.rows if row and " ".join(row[0].split()) == name]
    return [" ".join(cell.split()) for cell in row[1:]]


@pytest.mark.clause("13.6")
async def test_only_the_owner_sees_the_page_and_others_learn_how_to_sign_in(
    served: RunningService,
) -> None:
    page = check_page(
        await served.client.get("/operations"), 403, "Only for the owner", "signals sign-in"
    )
    async with open_new_member(served) as member:
        page = check_page(
            await member.client.get("/operations"),
            403,
            "Only for the owner",
            f"signed in as {EMAIL}",
        )
        token = page.fields["form_token"]
        for path in ("/operations/checks", "/operations/keys", "/operations/keys/1/revoke"):
            answer = await member.client.post(path, data={"form_token": token})
            check_page(answer, 403, "Only for the owner")
    assert await get_usage_status(served, served.api_key) == 200


@pytest.mark.clause("13.7")
@pytest.mark.prove
async def test_the_page_works_on_both_databases(home: StoreHome) -> None:
    is_sqlite = isinstance(home, SqliteHome)
    address = Path(home.address) if is_sqlite else home.address
    async with run_service(address, make_coverage()) as served:
        await served.market.commit(
            replace(make_batch(NOON + HOUR_MS, []), written_at=NOON + HOUR_MS + 4_300)
        )
        late = make_batch(NOON + HOUR_MS, make_flips(NOON + HOUR_MS + 62_000, 1))
        await served.market.commit(replace(late, written_at=NOON + HOUR_MS + 62_000))
        served.clock.now = NOON + HOUR_MS + 100_000
        await buy_plan(served)
        await served.get_api("/state?ticker=BTC")
        assert await served.call_log.flush()
        async with open_owner_browser(served) as client:
            page = await get_operations(
                client,
                "Source: simulated. For real prices: make live.",
                "Calls in the last 30 days: 1",
                f"Signals {VERSION}",
                "SQLite" if is_sqlite else "PostgreSQL",
            )
    # Runs: hours, time to the first and the last commit, changes, alerts.
    assert find_row(page, "2026-09-30 13:03 UTC") == ["1", "4.3 s", "1 min 2 s", "1", "0"]
    # The runs before were computed afterwards: they are one row.
    (folded,) = [row for row in page.rows if "to 2026-09-30 12:03 UTC" in row[0]]
    cells = [" ".join(cell.split()) for cell in folded[1:]]
    assert cells == ["9600 caught up in 3 runs", "–", "–", "8", "0"]
    # Sources: health, assets, late, building, missing bars. No asset is late any more.
    assert find_row(page, "simulated")[:5] == ["delivers", "4", "0", "0", "0"]
    # Keys: owner, created, last used, calls today, status, action.
    tests_key = find_row(page, "tests")
    assert (tests_key[0], tests_key[3:]) == ("operator", ["1 of 10,000", "active", "Revoke"])
    assert find_row(page, "key 2")[0] == "member 1"
    # Sales: active, new and ended; the newest member.
    assert find_row(page, "Premium, monthly Test mode") == ["1", "1", "0"]
    assert find_row(page, "1")[:3] == [EMAIL, "monthly (test)", "active"]
    size, rows = find_row(page, "Market data")
    assert re.fullmatch(r"[\d.]+ (KiB|MiB)", size)
    assert rows.startswith("changes ")
    assert rows.endswith("commits 5")
    assert find_row(page, "Keys and sales")[1].startswith("keys 2, memberships 1, ")


@pytest.mark.clause("13.7")
async def test_late_assets_are_listed_with_their_venue(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    page = await get_operations(
        owner, "1 of 4 assets are late, being built or lack bars", "assets without a source: 1"
    )
    assert find_row(page, "simulated")[:3] == ["partly late", "4", "1"]
    assert find_row(page, "ETH")[:2] == ["late", "simulated"]


async def test_the_page_is_shown_before_anything_is_computed(served_empty: RunningService) -> None:
    async with open_owner_browser(served_empty) as client:
        await get_operations(client, "Nothing has been computed yet.", "nothing computed")


@pytest.mark.clause("13.11")
async def test_the_owner_creates_a_key_which_is_shown_once(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    sent = {"label": "desk", "form_token": (await get_operations(owner)).fields["form_token"]}
    for bad, status in (({"form_token": "0"}, 403), ({"label": "a\nb"}, 400), ({"label": ""}, 400)):
        assert (await owner.post("/operations/keys", data=sent | bad)).status_code == status
    api_key = read_new_key(await owner.post("/operations/keys", data=sent))
    assert await get_usage_status(served, api_key) == 200
    again = await get_operations(owner)
    assert api_key not in again.text
    assert find_row(again, "desk")[0] == "operator"


@pytest.mark.clause("13.9")
@pytest.mark.prove
async def test_the_owner_revokes_a_key_after_confirming(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    (key,) = await served.keys.list()
    path = f"/operations/keys/{key.id}/revoke"
    page = check_page(await owner.get(path), 200, "Revoke this key?", links=["../../../operations"])
    for token in ("", "0" * 64):
        assert (await owner.post(path, data={"form_token": token})).status_code == 403
    assert await get_usage_status(served, served.api_key) == 200
    answer = await owner.post(path, data={"form_token": page.fields["form_token"]})
    assert (answer.status_code, answer.headers["location"]) == (303, "../../../operations#keys")
    assert await get_usage_status(served, served.api_key) == 403
    assert find_row(await get_operations(owner), "tests")[-2:] == ["revoked", ""]
    for unknown in (key.id, 99, "x", "9" * 19, "²"):
        answer = await owner.get(f"/operations/keys/{unknown}/revoke")
        check_page(answer, 404, "Not found")


class HeldChecks:
    """Checks that end when the test lets them."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.doctor = Doctor(self.run_quick_checks, self.run_all_checks)

    async def run_quick_checks(self, snapshot: Snapshot | None) -> Sequence[Finding]:
        return [("ok" if snapshot else "warn", "runs", "the last run was 3 minutes ago")]

    async def run_all_checks(self) -> Sequence[Finding]:
        self.begun += 1
        await self.may_end.wait()
        return [("warn", "runs", "outdated"), ("fix", "mail", "no <answer>")]


async def press_run_all(client: httpx.AsyncClient) -> None:
    token = (await get_operations(client)).fields["form_token"]
    answer = await client.post("/operations/checks", data={"form_token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "../operations#checks")


@pytest.mark.clause("13.8")
async def test_all_checks_run_in_the_background_and_every_process_shows_them(
    served: RunningService,
) -> None:
    held = HeldChecks()
    doctor = held.doctor
    async with (
        run_second_service(served, doctor=doctor) as one,
        run_second_service(served, doctor=doctor) as other,
        open_owner_browser(one) as client,
    ):
        await get_operations(client, "the last run was 3 minutes ago", "signals doctor")
        assert held.begun == 0
        await press_run_all(client)
        cookie = {"cookie": "; ".join(f"{k}={v}" for k, v in client.cookies.items())}
        for process in (one, other):
            answer = await process.client.get("/operations", headers=cookie)
            check_page(answer, 200, "Operations", "All checks are running")
            assert int(answer.headers["refresh"]) > 0
        await press_run_all(client)
        assert held.begun == 1
        served.clock.now += 1000
        held.may_end.set()
        for _ in range(100):
            if "All checks are running" not in (await get_operations(client)).text:
                break
        answer = await other.client.get("/operations", headers=cookie)
        told = ("no <answer>", "Last run at 2026-09-30 12:06 UTC")
        check_page(answer, 200, "Operations", *told, without=["outdated"])
        assert "refresh" not in answer.headers


@pytest.mark.clause("13.8")
async def test_checks_that_died_with_their_process_can_be_run_again(served: RunningService) -> None:
    held = HeldChecks()
    async with (
        run_second_service(served, doctor=held.doctor) as one,
        open_owner_browser(one) as client,
    ):
        await press_run_all(client)
        served.clock.now += 180_000
        assert "All checks are running" not in (await get_operations(client)).text
        held.may_end.set()
        await press_run_all(client)
        assert held.begun == 2


@pytest.mark.clause("13.8")
async def test_all_checks_are_those_of_the_command(
    served: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALS_DATABASE_URL", f"sqlite:///{tmp_path / 'market.db'}")
    doctor = build_doctor(Settings.read(), served.market, served.access, served.clock)
    assert [subject for _, subject, _ in await doctor.run_quick_checks(None)] == [
        *("settings", "prices", "disk", "runs", "log", "proxies", "backup")
    ]
    assert {subject for _, subject, _ in await doctor.run_all_checks()} == {
        *("settings", "store", "prices", "disk", "runs", "log", "source", "billing", "proxies"),
        *("mail", "backup"),
    }


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
    async with (
        serve_app(lambda _: probe) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        yield client


PROXY_HEADERS = ("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via")


@pytest.mark.clause("12.12", "12.13")
@pytest.mark.parametrize(
    ("owner_uid", "headers", "is_recognized"),
    [
        *(
            (OWN_UID, {"Host": host}, True)
            for host in ("127.0.0.1:8000", "localhost", "LOCALHOST.:8000", "[::1]:80")
        ),
        # A program of another user of this machine, and a service that others can reach.
        (OWN_UID + 1, {}, False),
        (None, {}, False),
        # A request that came through a proxy, and a page under a foreign name.
        *((OWN_UID, {header: "127.0.0.1"}, False) for header in (*PROXY_HEADERS, "Forwarded")),
        *(
            (OWN_UID, {"Host": host}, False)
            for host in ("signals.example", "127.0.0.1.evil.example", "evil.example", "192.0.2.1")
        ),
    ],
)
async def test_only_a_direct_program_of_the_owner_on_this_machine_is_the_owner(
    owner_uid: int | None, headers: dict[str, str], is_recognized: bool
) -> None:
    probe = OwnerProbe(owner_uid)
    async with open_client(probe) as client:
        await client.get("/", headers=headers)
    assert probe.recognized is is_recognized


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

"""The owner signs in by a link, and by no key, and sees what members see."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from access.billing.sandbox import NoBilling
from access.sign_in import LINK_MS, create_owner_link
from tests.support.example_market import make_coverage
from tests.support.pending_requests import add_request, build_path, read_redirect
from tests.support.running_service import RunningService, run_service
from tests.support.web_member import (
    HOME,
    buy_plan,
    open_member_browser,
    open_owner_browser,
    run_second_service,
)
from tests.support.web_page import Page, check_page

pytestmark = pytest.mark.clause("owner")

BOARD = "The board"


@pytest.fixture
async def owner(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in which the owner is signed in by a link."""
    async with open_owner_browser(served) as client:
        yield client


async def is_owner(client: httpx.AsyncClient) -> bool:
    """Return whether a browser is signed in as owner."""
    status = (await client.get("/operations")).status_code
    assert status in {200, 403}
    return status == 200


@pytest.mark.clause("13.2")
async def test_the_owners_link_works_once_and_opening_it_changes_nothing(
    served: RunningService,
) -> None:
    link = await create_owner_link(served.access, served.clock, served.base_url)
    for _ in range(2):
        answer = await served.client.get(link)
        check_page(answer, 200, "Sign in to Signals")
        assert "set-cookie" not in answer.headers
    assert not await is_owner(served.client)
    answer = await served.client.post(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "../")
    assert await is_owner(served.client)
    assert (await served.client.post(link)).status_code == 404


@pytest.mark.clause("13.2")
async def test_the_owners_link_lasts_15_minutes(served: RunningService) -> None:
    link = await create_owner_link(served.access, served.clock, served.base_url)
    assert LINK_MS == 15 * 60_000
    served.clock.now += LINK_MS
    assert (await served.client.post(link)).status_code == 404
    served.clock.now -= 1
    assert (await served.client.post(link)).status_code == 303


@pytest.mark.clause("13.5")
async def test_the_owner_sees_the_readings_that_members_see(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    await buy_plan(served)
    async with open_member_browser(served) as member:
        for path in ("/?timeframe=1h", "/assets/BTC"):
            theirs, ours = await member.client.get(path), await owner.get(path)
            assert Page(ours).rows == Page(theirs).rows != Page(await served.get_page(path)).rows


@pytest.mark.clause("13.5")
async def test_with_billing_off_the_owner_signs_in_and_sees_the_readings(tmp_path: Path) -> None:
    async with (
        run_service(tmp_path, make_coverage(), provider=NoBilling()) as unbilled,
        open_owner_browser(unbilled) as client,
    ):
        for path in ("/", "/assets/BTC", "/operations", HOME):
            assert (await client.get(path)).status_code == 200


@pytest.mark.clause("13.3")
async def test_no_key_opens_a_page_of_the_owner_or_of_members(served: RunningService) -> None:
    pending = await add_request(served)
    friends = await served.keys.create("a friend")
    for api_key in (served.api_key, friends, await buy_plan(served)):
        for form in (
            {"api_key": api_key},
            {"api_key": api_key, "action": "key"},
            {"api_key": api_key, "request": pending.id},
            {"contact_email": api_key},
        ):
            answer = await served.client.post("/sign-in", data=form)
            assert (answer.status_code, api_key in answer.text) == (400, "contact_email" in form)
            assert 'name="api_key"' not in answer.text
            assert "set-cookie" not in answer.headers
        for headers in (
            {"authorization": f"Bearer {api_key}"},
            {"x-api-key": api_key},
            {"cookie": f"signals_session={api_key}"},
        ):
            for path, status in (("/operations", 403), (HOME, 303)):
                answer = await served.client.get(path, headers=headers)
                assert answer.status_code == status
            sent = {"request": pending.id, "action": "allow"}
            answer = await served.client.post("/oauth/consent", data=sent, headers=headers)
            assert answer.headers["location"] == f"..{build_path(pending)}"


async def test_signing_out_ends_all_sessions_of_the_owner_and_no_members(
    served: RunningService, owner: httpx.AsyncClient
) -> None:
    await buy_plan(served)
    async with open_owner_browser(served) as other, open_member_browser(served) as member:
        token = Page(await owner.get("/operations")).fields["form_token"]
        assert (await owner.post("/sign-out", data={"form_token": token})).status_code == 303
        assert not await is_owner(owner)
        assert not await is_owner(other)
        await member.get_home()


async def test_the_page_of_keys_leads_the_owner_to_operations(owner: httpx.AsyncClient) -> None:
    page = check_page(await owner.get(HOME), 200, "API access")
    assert "../operations#keys" in page.links
    assert "There is no plan for" not in page.text
    check_page(await owner.get(f"{HOME}/requests"), 200, "Recent requests")


@pytest.mark.clause("13.10")
async def test_a_signed_in_owner_connects_a_program_with_the_token_of_the_session(
    served: RunningService,
) -> None:
    # On a service that others reach, where only the session shows who is the owner.
    async with run_second_service(served, base_url="https://signals.example") as public:
        pending = await add_request(public)
        own = {"host": "signals.example"}
        link = await create_owner_link(public.access, public.clock, "")
        signed_in = await public.client.post(link, headers=own)
        own["cookie"] = signed_in.headers["set-cookie"].partition(";")[0]
        shown = Page(await public.client.get(build_path(pending), headers=own))
        assert "signed in as the owner" in shown.text
        fields = {"request": pending.id, "action": "allow_as_owner"}
        for token in ("", "0" * 64):
            forged = await public.client.post(
                "/oauth/consent", data={**fields, "form_token": token}, headers=own
            )
            assert forged.status_code == 403
        token = shown.fields["form_token"]
        answer = await public.client.post(
            "/oauth/consent", data={**fields, "form_token": token}, headers=own
        )
        assert read_redirect(answer)["code"].startswith("ac_")

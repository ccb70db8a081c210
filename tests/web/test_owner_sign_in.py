"""The owner signs in by a link or by an operator's key, and sees what members see."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from access.billing.disabled import NoBilling
from access.sign_in import LINK_MS, create_owner_link
from access.throttle import Limit
from schemas.vocabulary import DAY_MS
from tests.support.pending_requests import add_request, build_path, read_redirect
from tests.support.running_service import RunningService, run_service
from tests.support.web_member import (
    EMAIL,
    HOME,
    buy_plan,
    open_member_browser,
    open_owner_browser,
    run_second_service,
)
from tests.support.web_page import Page, check_page
from tools.example_market import make_coverage

pytestmark = pytest.mark.clause("owner")

BOARD = "The board"


@pytest.fixture
async def owner(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in which the owner is signed in by a link."""
    async with open_owner_browser(served) as client:
        yield client


async def enter_key(served: RunningService, api_key: str) -> httpx.Response:
    """Send the form with an operator's key."""
    return await served.client.post("/sign-in", data={"api_key": api_key, "action": "key"})


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
    async with run_service(tmp_path, make_coverage(), provider=NoBilling()) as unbilled:
        assert (await enter_key(unbilled, unbilled.api_key)).status_code == 303
        for path in ("/", "/assets/BTC", "/operations", HOME):
            assert (await unbilled.client.get(path)).status_code == 200
        async with open_owner_browser(unbilled) as client:
            assert await is_owner(client)


@pytest.mark.clause("13.3")
async def test_an_operators_key_signs_the_owner_in(served: RunningService) -> None:
    answer = await enter_key(served, f"  {served.api_key}\n")
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert served.api_key not in str(answer.headers)
    assert await is_owner(served.client)
    again = await served.client.get("/sign-in")
    assert (again.status_code, again.headers["location"]) == (303, "./")


@pytest.mark.clause("13.3")
async def test_other_keys_are_refused_at_the_field_and_not_shown(served: RunningService) -> None:
    members_key, revoked = await buy_plan(served), await served.keys.create("revoked")
    (key,) = [one for one in await served.keys.list() if one.label == "revoked"]
    await served.keys.revoke(key.id)
    expired = await served.keys.create("expired", served.clock() + 1)
    served.clock.now += 1
    reasons = {
        members_key: "Sign in with your e-mail address instead",
        revoked: "revoked or has expired",
        expired: "revoked or has expired",
        f"ek_{'A' * 43}": "not a key of this service",
        "": "not a key of this service",
        "<b>": "not a key of this service",
    }
    for api_key, reason in reasons.items():
        answer = await enter_key(served, api_key)
        page = check_page(answer, 400, "Sign in")
        assert reason in page.text
        assert "set-cookie" not in answer.headers
        assert not api_key.startswith("ek_") or api_key not in answer.text
        (field,) = [one for one in page.find_all("input") if one["name"] == "api_key"]
        assert (field["aria-invalid"], field["aria-describedby"]) == ("true", "api_key-error")
        assert "api_key-error" in page.ids
    assert not await is_owner(served.client)


@pytest.mark.clause("13.3")
async def test_attempts_with_a_key_count_as_other_sign_ins(tmp_path: Path) -> None:
    async with run_service(tmp_path, make_coverage(), attempt_limit=Limit(2, 600)) as served:
        assert (await enter_key(served, "ek_wrong")).status_code == 400
        await served.client.post("/sign-in", data={"contact_email": EMAIL})
        refused = await enter_key(served, served.api_key)
        check_page(refused, 429, "Too many attempts")
        assert refused.headers["retry-after"] == "600"


@pytest.mark.clause("13.4")
async def test_a_session_ends_with_the_key_that_opened_it(served: RunningService) -> None:
    api_key = await served.keys.create("laptop", served.clock() + DAY_MS)
    (key,) = [one for one in await served.keys.list() if one.label == "laptop"]
    assert (await enter_key(served, api_key)).status_code == 303
    async with open_owner_browser(served) as other:
        served.clock.now += DAY_MS - 1
        assert await is_owner(served.client)
        served.clock.now += 1
        assert not await is_owner(served.client)
        served.clock.now -= 1
        assert await is_owner(served.client)
        await served.keys.revoke(key.id)
        assert not await is_owner(served.client)
        assert await is_owner(other)


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


async def test_an_operators_key_leads_on_to_the_connection(served: RunningService) -> None:
    pending = await add_request(served)
    sent = {"api_key": "ek_wrong", "request": pending.id}
    refused = await served.client.post("/sign-in", data=sent)
    page = check_page(refused, 400, "Sign in", form_action="'self' https: https:")
    assert page.fields["request"] == pending.id
    answer = await served.client.post("/sign-in", data={**sent, "api_key": served.api_key})
    assert answer.headers["location"] == f".{build_path(pending)}"

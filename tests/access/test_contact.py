"""Contact addresses are checked, and access requests are stored once per address."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from access.billing.sandbox import SandboxBilling
from access.contact import MAX_REQUESTS, parse_contact_email
from schemas.errors import ApiError
from schemas.purchase import AccessRequestBody
from store.access_rows import AccessRequestRow
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock
from tests.support.sandbox_shop import BASE_URL, SandboxShop, open_counting_store

pytestmark = pytest.mark.clause("sales")

ADDRESS = "192.0.2.7"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[SandboxShop]:
    clock = ManualClock(NOON)
    async with open_counting_store(tmp_path / "access.db") as store:
        yield SandboxShop(store, clock, SandboxBilling(store, clock, BASE_URL))


async def put(desk: SandboxShop, **body: str) -> str:
    given = AccessRequestBody.model_validate({"contact_email": "Ann@example.com", **body})
    answer = await desk.requests.submit_request(given, ADDRESS)
    assert "a human replies by e-mail" in answer.message
    return answer.status


@pytest.mark.clause("4.13.3", "4.13.4", "4.13.5", "4.13.6")
async def test_a_request_is_stored_as_it_was_sent(desk: SandboxShop) -> None:
    fields = {
        "agent_name": "Trader",
        "operator": "ACME",
        "use_case": "A newsletter,\nweekly.",
        "expected_volume": "50 users",
    }
    assert await put(desk, **fields) == "received"
    row = AccessRequestRow("ann@example.com", *fields.values(), created_at=NOON, updated_at=NOON)
    assert await desk.store.list_access_requests() == [row]


@pytest.mark.clause("4.13.8")
async def test_the_next_request_of_an_address_replaces_the_first_whole(desk: SandboxShop) -> None:
    await put(desk, operator="ACME", use_case="One thing")
    desk.clock.now += 5000
    assert await put(desk, contact_email="ANN@EXAMPLE.COM", use_case="Another") == "updated"
    row = AccessRequestRow(
        "ann@example.com", None, None, "Another", None, created_at=NOON, updated_at=NOON + 5000
    )
    assert await desk.store.list_access_requests() == [row]


@pytest.mark.clause("4.13.1")
async def test_requests_are_listed_oldest_first(desk: SandboxShop) -> None:
    for name in ("b", "a"):
        assert await put(desk, contact_email=f"{name}@example.com") == "received"
        desk.clock.now += 1
    rows = await desk.store.list_access_requests()
    assert [row.contact_email for row in rows] == ["b@example.com", "a@example.com"]


async def test_blank_texts_count_as_left_out(desk: SandboxShop) -> None:
    await put(desk, agent_name="", operator="   ", use_case="\n", expected_volume=" 5 ")
    (row,) = await desk.store.list_access_requests()
    assert (row.agent_name, row.operator, row.use_case) == (None, None, None)
    assert row.expected_volume == "5"


@pytest.mark.clause("4.13.12")
async def test_requests_are_refused_while_too_many_wait_for_an_answer(desk: SandboxShop) -> None:
    await put(desk)
    async with desk.store._engine.begin_write() as db:
        columns = "contact_email, created_at, updated_at"
        others = [(f"{number}@example.com", NOON, NOON) for number in range(MAX_REQUESTS - 1)]
        await db.insert("access_requests", columns, others)
    with pytest.raises(ApiError) as refused:
        await put(desk, contact_email="new@example.com")
    error = refused.value
    assert (error.code, error.status, error.retry_after_s) == ("unavailable", 503, 86_400)
    assert "not stored" in error.message
    assert await put(desk, use_case="Another") == "updated"
    assert len(await desk.store.list_access_requests()) == MAX_REQUESTS


@pytest.mark.clause("4.13.2", "4.13.10", "7.14")
async def test_a_bad_address_is_refused_before_the_attempt_is_counted(desk: SandboxShop) -> None:
    for _ in range(30):
        with pytest.raises(ApiError) as refused:
            await put(desk, contact_email="nobody")
        assert refused.value.status == 400
    for _ in range(30):
        await put(desk)
    with pytest.raises(ApiError) as refused:
        await put(desk)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 600)


@pytest.mark.clause("4.11.2")
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("agent@example.com", "agent@example.com"),
        ("Agent.Smith+signals@Mail.Example.COM", "Agent.Smith+signals@mail.example.com"),
        ("jos\u0065\u0301@example.com", "jos\u00e9@example.com"),
        ("agent@b\u00fccher.example.com", "agent@b\u00fccher.example.com"),
    ],
)
@pytest.mark.parametrize("takes_special_use", [True, False])
def test_an_address_is_normalized(given: str, taken: str, takes_special_use: bool) -> None:
    assert parse_contact_email(given, accepts_special_use=takes_special_use) == taken


@pytest.mark.clause("4.11.2", "4.13.9", "7.14")
@pytest.mark.parametrize(
    "given",
    [
        "",
        " ",
        "agent",
        "@example.com",
        "agent@",
        "a@b@example.com",
        "agent@example..com",
        "agent@-example.com",
        "agent@example.com\n",
        " agent@example.com",
        "agent@example.com, other@example.com",
        "Agent <agent@example.com>",
        "agent\x00@example.com",
        "agent@exam\u202eple.com",
        "agent@[192.0.2.1]",
        "agent@[IPv6:2001:db8::1]",
        "agent@192.0.2.1",
        "agent@localhost",
        "agent@test",
        "a@b",
        "agent@example.c",
        "agent@example.1",
        "x" * 65 + "@example.com",
        "a@" + "b." * 126 + "com",
        "ct_" + "A" * 43,
    ],
)
@pytest.mark.parametrize("takes_special_use", [True, False])
def test_an_invalid_address_is_refused_without_being_quoted(
    given: str, takes_special_use: bool
) -> None:
    with pytest.raises(ApiError) as refused:
        parse_contact_email(given, accepts_special_use=takes_special_use)
    error = refused.value
    assert (error.code, error.status) == ("invalid_parameter", 400)
    assert error.message.startswith("contact_email: is not a valid e-mail address")
    assert error.message.endswith("accepted: one address such as agent@example.com.")
    assert error.message.isprintable()
    assert len(given) < 40 or given not in error.message


@pytest.mark.parametrize(
    "given",
    ["agent@shop.localhost", "agent@shop.test", "agent@x.invalid", "agent@Host.LOCAL", "a@b.onion"],
)
def test_a_special_use_address_is_accepted_without_real_money(given: str) -> None:
    local, _, domain = given.partition("@")
    assert parse_contact_email(given, accepts_special_use=True) == f"{local}@{domain.lower()}"
    with pytest.raises(ApiError) as refused:
        parse_contact_email(given, accepts_special_use=False)
    assert refused.value.status == 400


@pytest.mark.parametrize("given", ["agent@", "a b@shop.test", "agent@.test", "a@-.localhost"])
def test_a_special_domain_excuses_nothing_else(given: str) -> None:
    with pytest.raises(ApiError):
        parse_contact_email(given, accepts_special_use=True)

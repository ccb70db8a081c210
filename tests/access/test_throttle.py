"""Attempts per client address in an exact sliding window, across processes and restarts.

Contact addresses are checked, and access requests are stored once per address.
"""

import asyncio
from contextlib import AsyncExitStack, nullcontext

import pytest

from access.contact import MAX_REQUESTS, parse_contact_email, submit_access_request
from access.throttle import DEFAULT_LIMIT, TOTAL_FACTOR, Limit, Throttle, list_limits
from schemas.errors import ApiError
from schemas.purchase import AccessRequestBody
from store.access_rows import AccessRequestRow
from store.sql.access_store import AccessStore
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock
from tests.support.sandbox_shop import SandboxShop
from tests.support.store_homes import StoreHome, open_and_close

pytestmark = pytest.mark.clause("access", "sales")

TWO_IN_TEN_S = Limit(2, 10)


async def attempt(
    throttle: Throttle, address: str = "192.0.2.1", source: str = "this address"
) -> int | None:
    """Attempt once; return the Retry-After seconds, None if it was accepted.

    The refusal names the source of the attempts that exhausted the limit.
    """
    try:
        await throttle.take_attempt(address)
    except ApiError as error:
        refusal = error
    else:
        return None
    assert (refusal.code, refusal.status) == ("rate_limited", 429)
    assert f"Retry after {refusal.retry_after_s} seconds" in refusal.message
    assert f" from {source}: at most " in refusal.message
    return refusal.retry_after_s


async def test_the_window_slides_with_each_attempt_and_is_exact_to_the_millisecond(
    store: AccessStore, clock: ManualClock
) -> None:
    throttle = Throttle(store, clock, "checkout", TWO_IN_TEN_S)
    for at_ms, retry_after_s in (
        (0, None),
        (6000, None),
        (9999, 1),
        (10_000, None),  # the first is out
        (10_000, 6),
        (10_500, 6),  # 5.5 s, rounded up
        (16_000, None),
    ):
        clock.now = NOON + at_ms
        assert await attempt(throttle) == retry_after_s


@pytest.mark.clause("7.27")
async def test_addresses_and_kinds_are_counted_separately(
    store: AccessStore, clock: ManualClock
) -> None:
    checkout = Throttle(store, clock, "checkout", Limit(1, 10))
    for throttle in (checkout, Throttle(store, clock, "access-request", Limit(1, 10))):
        for address in ("192.0.2.1", "192.0.2.2"):
            assert await attempt(throttle, address) is None
            assert await attempt(throttle, address) == 10


async def test_concurrent_attempts_of_several_processes_are_counted_exactly(
    clock: ManualClock, home: StoreHome
) -> None:
    async with AsyncExitStack() as stores:
        throttles = [
            Throttle(
                await stores.enter_async_context(open_and_close(home.open_access())),
                *(clock, "checkout", Limit(5, 10)),
            )
            for _ in range(3)
        ]
        answers = await asyncio.gather(*map(attempt, throttles * 10))
    assert answers.count(None) == 5


async def test_a_smaller_limit_holds_for_attempts_made_before(
    store: AccessStore, clock: ManualClock
) -> None:
    before = Throttle(store, clock, "checkout", Limit(3, 10))
    for _ in range(3):
        assert await attempt(before) is None
        clock.now += 1000
    # The newest, at 2 s, has to leave the window; it is 3 s now.
    assert await attempt(Throttle(store, clock, "checkout", Limit(1, 10))) == 9


@pytest.mark.clause("4.11.9", "7.27", "8.50")
@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:0DB8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
    ],
)
def test_one_client_is_an_ipv4_address_or_the_network_of_an_ipv6_one(
    address: str, counted_as: str
) -> None:
    assert list_limits(address, 20)[0] == (counted_as, 20)


@pytest.mark.clause("8.50")
@pytest.mark.parametrize(
    ("address", "wider"),
    [
        ("192.0.2.77", [("192.0.2.0/24", 160), ("*", 1000)]),
        ("::ffff:192.0.2.77", [("192.0.2.0/24", 160), ("*", 1000)]),
        (
            "2001:db8:1:2fe:3:4:5:6",
            [("2001:db8:1:200::/56", 80), ("2001:db8:1::/48", 320), ("*", 1000)],
        ),
        ("unknown", [("*", 1000)]),
    ],
)
def test_networks_and_all_clients_together_have_larger_limits(
    address: str, wider: list[tuple[str, int]]
) -> None:
    assert list_limits(address, 20)[1:] == wider


@pytest.mark.clause("7.27", "8.50")
@pytest.mark.parametrize(
    ("pattern", "accepted", "source"),
    [
        ("192.0.2.{}", 16, "the network 192.0.2.0/24"),
        ("2001:db8:0:{:x}::1", 8, "the network 2001:db8::/56"),
        ("2001:db8:0:{:x}00::1", 32, "the network 2001:db8::/48"),
        ("2001:db8:{:x}::1", 100, "all clients together"),
    ],
)
async def test_many_addresses_of_a_network_share_its_limit(
    store: AccessStore, clock: ManualClock, pattern: str, accepted: int, source: str
) -> None:
    throttle = Throttle(store, clock, "checkout", TWO_IN_TEN_S)
    for number in range(accepted):
        assert await attempt(throttle, pattern.format(number)) is None
    clock.now += 3000
    assert [await attempt(throttle, pattern.format(accepted), source) for _ in range(2)] == [7] * 2
    clock.now += 7000
    assert await attempt(throttle, pattern.format(accepted)) is None


async def test_an_exhausted_network_does_not_lock_out_other_networks(
    store: AccessStore, clock: ManualClock
) -> None:
    throttle = Throttle(store, clock, "checkout", TWO_IN_TEN_S)
    assert [await attempt(throttle, f"192.0.2.{number}") for number in range(16)] == [None] * 16
    # Refused attempts of one network count for no limit, so they do not use up that of all clients.
    for _ in range(100):
        assert await attempt(throttle, "192.0.2.99", "the network 192.0.2.0/24") == 10
    assert await attempt(throttle, "198.51.100.1") is None


async def test_mailboxes_are_counted_each_on_its_own(
    store: AccessStore, clock: ManualClock
) -> None:
    throttle = Throttle(store, clock, "sign-in-mail", Limit(1, 10))
    for number in range(TOTAL_FACTOR + 1):
        await throttle.take_attempt(f"{number}@example.com", is_mailbox=True)
    with pytest.raises(ApiError):
        await throttle.take_attempt("0@example.com", is_mailbox=True)


@pytest.mark.parametrize(
    ("text", "limit"), [("20/600", Limit(20, 600)), (" 1/86400 ", Limit(1, 86_400))]
)
def test_a_limit_is_attempts_and_seconds(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit


@pytest.mark.parametrize(
    "text", ["", "20", "20/", "/600", "0/600", "20/0", "20/86401", "-1/5", "1.5/5", "a/b", "1/2/3"]
)
def test_an_invalid_limit_is_refused_with_the_accepted_form(text: str) -> None:
    with pytest.raises(ValueError, match="ATTEMPTS/SECONDS, such as 20/600"):
        Limit.parse(text)


async def test_a_refusal_is_repeated_without_the_store(home: StoreHome, clock: ManualClock) -> None:
    async with open_and_close(home.open_access()) as store:
        throttle = Throttle(store, clock, "checkout", TWO_IN_TEN_S)
        answers = [await attempt(throttle) for _ in range(3)]
    # A closed store answers nothing.
    clock.now += 1000
    assert [*answers, await attempt(throttle)] == [None, None, 10, 9]


ADDRESS = "192.0.2.7"


async def put(held_shop: SandboxShop, **body: str) -> str:
    given = AccessRequestBody.model_validate({"contact_email": "Ann@example.com", **body})
    throttle = Throttle(held_shop.store, held_shop.clock, "access-request", DEFAULT_LIMIT)
    answer = await submit_access_request(
        held_shop.store, throttle, held_shop.clock, False, given, ADDRESS
    )
    assert "a human replies by e-mail" in answer.message
    return answer.status


@pytest.mark.clause("4.13.1", "4.13.3", "4.13.4", "4.13.5", "4.13.6")
async def test_requests_are_stored_as_sent_and_listed_oldest_first(held_shop: SandboxShop) -> None:
    fields = {
        "agent_name": "Trader",
        "operator": "ACME",
        "use_case": "A newsletter,\nweekly.",
        "expected_volume": "50 users",
    }
    assert await put(held_shop, **fields) == "received"
    held_shop.clock.now += 1
    # Blank texts count as left out.
    blank = {"agent_name": "", "operator": "   ", "use_case": "\n", "expected_volume": " 5 "}
    assert await put(held_shop, contact_email="a@example.com", **blank) == "received"
    assert await held_shop.store.list_access_requests() == [
        AccessRequestRow("ann@example.com", *fields.values(), NOON, NOON),
        AccessRequestRow("a@example.com", None, None, None, "5", NOON + 1, NOON + 1),
    ]


@pytest.mark.clause("4.13.12")
async def test_requests_are_refused_while_too_many_wait_for_an_answer(
    held_shop: SandboxShop,
) -> None:
    await put(held_shop)
    async with held_shop.store._engine.begin_write() as db:
        others = [(f"{number}@example.com", NOON, NOON) for number in range(MAX_REQUESTS - 1)]
        await db.insert("access_requests", "contact_email, created_at, updated_at", others)
    with pytest.raises(ApiError) as refused:
        await put(held_shop, contact_email="new@example.com")
    error = refused.value
    assert (error.code, error.status, error.retry_after_s) == ("unavailable", 503, 86_400)
    assert "not stored" in error.message
    assert await put(held_shop, use_case="Another") == "updated"
    assert len(await held_shop.store.list_access_requests()) == MAX_REQUESTS


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
        # A special domain excuses nothing else.
        *("a b@shop.test", "agent@.test", "a@-.localhost"),
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
    with pytest.raises(ApiError):
        parse_contact_email(given, accepts_special_use=False)


@pytest.mark.clause("4.13.2", "4.13.10", "7.14")
async def test_a_bad_address_is_refused_before_the_attempt_is_counted(
    held_shop: SandboxShop,
) -> None:
    for expected in [400] * 30 + [None] * 30 + [429]:
        address = {"contact_email": "nobody"} if expected == 400 else {}
        with pytest.raises(ApiError) if expected else nullcontext() as refused:
            await put(held_shop, **address)
        assert expected is None or refused.value.status == expected

"""Keys over a real store: made, checked, refused with what to do next, revoked."""

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from access.keys import Keys, hash_key, how_to_get_access
from schemas.errors import ApiError
from store.sqlite_access import SqliteAccessStore

WELL_FORMED = "ek_" + "A" * 43


class Clock:
    """Epoch milliseconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_780_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def keys(tmp_path: Path, clock: Clock) -> AsyncIterator[Keys]:
    store = await SqliteAccessStore.open(tmp_path / "access.db")
    yield Keys(store, clock)
    await store.close()


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def refusal(keys: Keys, authorization: str | None, x_api_key: str | None = None) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await keys.authenticate(authorization, x_api_key)
    error = refused.value
    assert "\n" not in error.message
    assert "ek_A" not in error.message
    return error


async def test_a_key_is_32_random_bytes_that_the_store_never_sees(
    keys: Keys, tmp_path: Path
) -> None:
    made = {await keys.create("agent") for _ in range(20)}
    assert len(made) == 20
    assert all(re.fullmatch(r"ek_[A-Za-z0-9_-]{43}", key) for key in made)
    on_disk = everything_in(tmp_path)
    assert not any(key.encode() in on_disk for key in made)
    assert all(sha256(key.encode()).digest() in on_disk for key in made)


def test_a_key_is_stored_as_its_sha256() -> None:
    assert hash_key("abc").hex() == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        ("Bearer {}", None),
        ("bearer {}", None),
        ("BEARER   {} ", None),
        (None, "{}"),
        (None, " {} "),
        ("Bearer {}", "{}"),
    ],
)
async def test_a_live_key_is_accepted_in_either_header(
    keys: Keys, clock: Clock, authorization: str | None, x_api_key: str | None
) -> None:
    key = await keys.create("agent")
    row = await keys.authenticate(
        authorization and authorization.format(key), x_api_key and x_api_key.format(key)
    )
    assert (row.label, row.created_at, row.revoked_at) == ("agent", clock.now, None)


async def test_no_header_is_a_missing_key(keys: Keys) -> None:
    error = await refusal(keys, None)
    assert (error.code, error.status) == ("missing_key", 401)
    assert "/api/v1/access/checkout" in error.message


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {WELL_FORMED}",
        WELL_FORMED,
        f"Bearer {WELL_FORMED}A",
        f"Bearer {WELL_FORMED[:-1]}",
        f"Bearer {WELL_FORMED[:-1]}é",
        f"Bearer {WELL_FORMED[:-1]}\n",
        f"Bearer {WELL_FORMED} {WELL_FORMED}",
        f"Bearer EK_{WELL_FORMED[3:]}",
        f"Bearer\t{WELL_FORMED}",
        f"Bearer {WELL_FORMED}",
    ],
)
async def test_a_header_without_a_known_key_is_an_invalid_key(
    keys: Keys, authorization: str
) -> None:
    await keys.create("agent")
    error = await refusal(keys, authorization)
    assert (error.code, error.status) == ("invalid_key", 401)
    assert "/api/v1/access/checkout" in error.message


@pytest.mark.parametrize("sent", [f"{WELL_FORMED}A", WELL_FORMED[:-1], "ek_" + "é" * 43, "x"])
async def test_a_malformed_key_is_told_from_an_unknown_one(keys: Keys, sent: str) -> None:
    assert "malformed" in (await refusal(keys, f"Bearer {sent}")).message
    assert "malformed" in (await refusal(keys, None, sent)).message
    assert "unknown" in (await refusal(keys, f"Bearer {WELL_FORMED}")).message


async def test_an_empty_second_header_is_an_invalid_key(keys: Keys) -> None:
    assert (await refusal(keys, None, "")).code == "invalid_key"
    assert (await refusal(keys, f"Bearer {await keys.create('agent')}", "")).code == "invalid_key"


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        ("Bearer ${SIGNALS_API_KEY}", None),
        ("${SIGNALS_API_KEY}", None),
        (None, "${SIGNALS_API_KEY}"),
        ("Bearer ${MY_KEY:-}", None),
    ],
)
async def test_an_unexpanded_variable_is_named(
    keys: Keys, authorization: str | None, x_api_key: str | None
) -> None:
    error = await refusal(keys, authorization, x_api_key)
    assert error.code == "invalid_key"
    assert "${SIGNALS_API_KEY}" in error.message
    assert "set the environment variable" in error.message


async def test_two_headers_that_differ_are_refused_although_both_keys_live(keys: Keys) -> None:
    one, other = await keys.create("one"), await keys.create("other")
    error = await refusal(keys, f"Bearer {one}", other)
    assert error.code == "invalid_key"
    assert one not in error.message
    assert other not in error.message


async def test_a_revoked_key_is_refused_from_then_on(keys: Keys, clock: Clock) -> None:
    key = await keys.create("agent")
    row = await keys.authenticate(f"Bearer {key}", None)
    clock.now += 5
    assert await keys.revoke(row.id)
    assert not await keys.revoke(row.id + 1)
    error = await refusal(keys, f"Bearer {key}")
    assert (error.code, error.status) == ("revoked_key", 403)
    assert key not in error.message
    assert [(kept.id, kept.revoked_at) for kept in await keys.list()] == [(row.id, clock.now)]


@pytest.mark.parametrize("label", ["", "x" * 121, "two\nlines", "bell\x07"])
async def test_a_bad_label_is_refused_in_one_line(keys: Keys, label: str) -> None:
    with pytest.raises(ValueError, match=r"^a label has 1 to 120 printable characters$"):
        await keys.create(label)
    assert await keys.list() == []


async def test_a_label_of_full_length_is_kept(keys: Keys) -> None:
    await keys.create("é" * 120)
    assert [key.label for key in await keys.list()] == ["é" * 120]


def test_the_purchase_flow_names_absolute_addresses_and_prices() -> None:
    flow = how_to_get_access("https://signals.example/")
    assert flow.plan == "premium"
    assert flow.price_usd == {"monthly": 129, "yearly": 1199}
    checkout, pay, claim = flow.steps
    assert checkout.startswith("POST https://signals.example/api/v1/access/checkout")
    assert "checkout_url" in pay
    assert claim.startswith("POST https://signals.example/api/v1/access/claim")

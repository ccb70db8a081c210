"""Clients: registered as hosts do it, bounded, and found again."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

import access.oauth.clients
from access.keys import is_valid_label
from access.oauth.clients import ClientDocuments, ClientRegistry, describe_registration
from access.oauth.parameters import MAX_NAME_CHARS, OAuthClientError, clean_name
from schemas.errors import ApiError
from store.access_rows import OAuthClient, PendingAuthorization
from store.sql.access_store import AccessStore
from tests.doubles.document_host import HOST, build_response, open_document_host
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome, open_and_close

pytestmark = pytest.mark.clause("access")

ADDRESS = "192.0.2.7"
HOUR_MS = 3_600_000
CURSOR = "cursor://anysphere.cursor-mcp/oauth/callback"
METADATA = {"client_name": "A client", "redirect_uris": ["http://localhost/callback"]}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def store(home: StoreHome) -> AsyncIterator[AccessStore]:
    async with open_and_close(home.open_access()) as opened:
        yield opened


@pytest.fixture
def registry(store: AccessStore, clock: ManualClock) -> ClientRegistry:
    return ClientRegistry(store, ClientDocuments(clock), clock)


async def refuse(registry: ClientRegistry, metadata: object) -> OAuthClientError:
    with pytest.raises(OAuthClientError) as refused:
        await registry.register(metadata, ADDRESS)
    return refused.value


async def test_a_registered_client_is_found(registry: ClientRegistry) -> None:
    client = await registry.register(METADATA, ADDRESS)
    assert client == OAuthClient(client.client_id, "A client", ("http://localhost/callback",), NOON)
    assert await registry.find(client.client_id) == client
    other = await registry.register(METADATA, ADDRESS)
    assert other.client_id != client.client_id


async def test_unknown_ids_are_not_found(registry: ClientRegistry) -> None:
    for client_id in (
        "",
        "http://client.example/c",
        "\x00",
        "\ud800",
        "oc_" + "x" * 32,
        "é" * 9000,
    ):
        assert await registry.find(client_id) is None


@pytest.mark.clause("11.3")
async def test_a_client_with_a_document_is_found_without_registration(
    store: AccessStore, clock: ManualClock
) -> None:
    client_id = f"https://{HOST}/client.json"
    async with open_document_host() as host:
        host.responses["/client.json"] = build_response(METADATA | {"client_id": client_id})
        documents = ClientDocuments(clock, host.transport, host.resolve)
        client = await ClientRegistry(store, documents, clock).find(client_id)
        await documents.close()
    assert client == OAuthClient(client_id, "A client", ("http://localhost/callback",))
    assert await store.oauth.find_client(client_id) is None


@pytest.mark.clause("11.8")
async def test_a_response_has_integers_and_no_nulls(registry: ClientRegistry) -> None:
    client = await registry.register({"redirect_uris": [CURSOR]}, ADDRESS)
    assert json.loads(json.dumps(describe_registration(client))) == {
        "client_id": client.client_id,
        "client_id_issued_at": NOON // 1000,
        "client_name": "Unnamed program",
        "redirect_uris": [CURSOR],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


@pytest.mark.clause("11.8")
@pytest.mark.parametrize(
    "fields",
    [
        {"token_endpoint_auth_method": "none"},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"token_endpoint_auth_method": "client_secret_basic"},
        {"token_endpoint_auth_method": None, "client_name": None, "grant_types": None},
        {"token_endpoint_auth_method": "", "client_name": "", "scope": ""},
        {"client_id": 5, "software_id": [], "unknown": {"a": [1]}, "jwks": None},
        {"grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]},
        {"grant_types": [], "response_types": []},
        {"redirect_uris": ["https://vscode.dev/redirect", "http://127.0.0.1:33418/"]},
    ],
)
async def test_metadata_as_hosts_send_it_registers_a_public_client(
    registry: ClientRegistry, fields: Mapping[str, object]
) -> None:
    client = await registry.register(METADATA | fields, ADDRESS)
    response = describe_registration(client)
    assert response["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in response
    assert response["redirect_uris"] == (METADATA | fields)["redirect_uris"]


@pytest.mark.clause("11.1", "11.8")
@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ([METADATA], "invalid_client_metadata"),
        (None, "invalid_client_metadata"),
        ({}, "invalid_redirect_uri"),
        (METADATA | {"redirect_uris": []}, "invalid_redirect_uri"),
        (METADATA | {"redirect_uris": ["http://localhost/"] * 11}, "invalid_redirect_uri"),
        (METADATA | {"redirect_uris": ["http://app.example/"]}, "invalid_redirect_uri"),
        (METADATA | {"redirect_uris": ["data:text/html,x"]}, "invalid_redirect_uri"),
        (METADATA | {"redirect_uris": {}}, "invalid_client_metadata"),
        (METADATA | {"redirect_uris": [None]}, "invalid_client_metadata"),
        (METADATA | {"client_name": 5}, "invalid_client_metadata"),
        (METADATA | {"grant_types": ["password"]}, "invalid_client_metadata"),
        (METADATA | {"grant_types": "authorization_code"}, "invalid_client_metadata"),
        (METADATA | {"response_types": ["token"]}, "invalid_client_metadata"),
        (
            METADATA | {"token_endpoint_auth_method": "private_key_jwt"},
            "invalid_client_metadata",
        ),
    ],
)
async def test_other_metadata_is_refused(
    registry: ClientRegistry, metadata: object, error: str
) -> None:
    refusal = await refuse(registry, metadata)
    assert refusal.error == error
    assert not set(refusal.message) & set('"\\\n')


async def test_repeated_redirect_uris_are_stored_once(registry: ClientRegistry) -> None:
    client = await registry.register(
        {"redirect_uris": ["app.x:/a", "app.x:/b", "app.x:/a"]}, ADDRESS
    )
    assert client.redirect_uris == ("app.x:/a", "app.x:/b")


@pytest.mark.clause("11.9")
async def test_only_accepted_registrations_count_against_the_limit(
    registry: ClientRegistry, clock: ManualClock
) -> None:
    for _ in range(40):
        await refuse(registry, {})
    for _ in range(30):
        await registry.register(METADATA, ADDRESS)
    with pytest.raises(ApiError) as refused:
        await registry.register(METADATA, ADDRESS)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 600)
    await registry.register(METADATA, "198.51.100.7")
    clock.now += 600_000
    await registry.register(METADATA, ADDRESS)


async def use(store: AccessStore, client: OAuthClient, at: int) -> None:
    """Store a request of a client for access, as /oauth/authorize does."""
    uri = client.redirect_uris[0]
    request = PendingAuthorization("id", client.client_id, "", uri, None, "", "", at)
    await store.oauth.add_request(request, client.client_id.encode()[:32].ljust(32), 0)


@pytest.mark.clause("11.10")
async def test_a_full_store_makes_room_by_dropping_unused_clients(
    registry: ClientRegistry,
    store: AccessStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access.oauth.clients, "MAX_CLIENTS", 3)
    unused, used, late = [await registry.register(METADATA, ADDRESS) for _ in range(3)]
    clock.now += HOUR_MS
    await use(store, used, clock.now)
    await use(store, late, clock.now)
    # At exactly an hour all are kept.
    with pytest.raises(ApiError) as refused:
        await registry.register(METADATA, ADDRESS)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 600)
    clock.now += 1
    new = await registry.register(METADATA, ADDRESS)
    found = [await registry.find(each.client_id) for each in (unused, used, late, new)]
    assert found == [None, used, late, new]


@pytest.mark.clause("11.10")
async def test_the_limit_holds_if_clients_register_at_once(store: AccessStore) -> None:
    rows = [OAuthClient(f"oc_{number}", "", ("app:/",), NOON) for number in range(8)]
    added = await asyncio.gather(*(store.oauth.add_client(row, 3, NOON) for row in rows))
    assert sum(added) == 3


@pytest.mark.clause("11.11")
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("  A \t client\n", "A client"),
        ("A\u202eclient\u2066\u200b\ufeff", "A client"),
        ("A\x00\x1b[31mclient", "A [31mclient"),
        ("A\ud800client", "A client"),
        ("A\u2028client\u00a0", "A client"),
        ("<b>A & client</b>", "<b>A & client</b>"),
        ("Cafe\u0301", "Café"),
        ("日本語", "日本語"),
        ("", "Unnamed program"),
        ("\u200b \n", "Unnamed program"),
        ("a" * 100_000, "a" * MAX_NAME_CHARS),
        ("a" * 79 + " b", "a" * 79),
    ],
)
def test_a_name_is_one_line_of_visible_text(text: str, name: str) -> None:
    assert clean_name(text) == name


@pytest.mark.clause("11.11")
@given(st.text())
def test_every_name_is_a_valid_label_of_a_key(text: str) -> None:
    assert is_valid_label(clean_name(text))
    assert clean_name(clean_name(text)) == clean_name(text)

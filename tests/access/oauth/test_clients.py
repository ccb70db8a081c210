"""Clients: registered as hosts do it, bounded, and found again."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given, strategies as st
from structlog.testing import capture_logs

from access.keys_and_quota import is_valid_label
from access.oauth.clients import (
    KNOWN_CLIENTS,
    ClientDocuments,
    ClientRegistry,
    describe_registration,
)
from access.oauth.parameters import (
    MAX_NAME_CHARS,
    MAX_REDIRECT_URI_CHARS,
    OAuthClientError,
    UnreachableDocumentError,
    clean_name,
    is_redirect_uri,
    matches_redirect_uri,
)
from schemas.errors import ApiError
from store.access_rows import OAuthClient, PendingAuthorization
from store.sql.access_store import AccessStore
from tests.doubles.document_host import (
    HOST,
    PUBLIC_ADDRESSES,
    DocumentHost,
    build_response,
    open_document_host,
)
from tests.support.example_market import NOON
from tests.support.running_service import ManualClock

ADDRESS = "192.0.2.7"
CLIENT_ID = f"https://{HOST}/client.json"
HOUR_MS = 3_600_000
CURSOR = "cursor://anysphere.cursor-mcp/oauth/callback"
METADATA = {"client_name": "A client", "redirect_uris": ["http://localhost/callback"]}


@pytest.fixture
def registry(store: AccessStore, clock: ManualClock) -> ClientRegistry:
    return ClientRegistry(store, ClientDocuments(clock), clock)


@pytest.mark.clause("access")
async def test_a_registered_client_is_found(registry: ClientRegistry) -> None:
    client = await registry.register(METADATA, ADDRESS)
    assert client == OAuthClient(client.client_id, "A client", ("http://localhost/callback",), NOON)
    assert await registry.find(client.client_id) == client
    assert (await registry.register(METADATA, ADDRESS)).client_id != client.client_id
    for unknown in ("", "http://client.example/c", "\x00", "\ud800", f"oc_{'x' * 32}", "é" * 9000):
        assert await registry.find(unknown) is None


class Visits:
    """Looks clients up, each time in a new process, whose request for a document is answered."""

    def __init__(self, store: AccessStore, host: DocumentHost, clock: ManualClock) -> None:
        self.store, self.host, self.clock = store, host, clock
        host.addresses |= {
            urlsplit(each).hostname or "": PUBLIC_ADDRESSES for each in KNOWN_CLIENTS
        }

    async def find(self, response: bytes, client_id: str = CLIENT_ID) -> OAuthClient | None:
        self.host.responses[urlsplit(client_id).path] = response
        documents = ClientDocuments(self.clock, self.host.transport, self.host.resolve)
        try:
            return await ClientRegistry(self.store, documents, self.clock).find(client_id)
        finally:
            await documents.close()


@pytest.fixture
async def visits(store: AccessStore, clock: ManualClock) -> AsyncIterator[Visits]:
    hosts = {HOST, *(urlsplit(each).hostname or "" for each in KNOWN_CLIENTS)}
    async with open_document_host(sorted(hosts)) as host:
        yield Visits(store, host, clock)


CHALLENGE = build_response(
    b"<title>Just a moment...</title>",
    status=403,
    headers={"Content-Type": "text/html; charset=UTF-8", "cf-mitigated": "challenge"},
)


@pytest.mark.clause("access", "11.3", "11.12")
async def test_the_last_good_document_is_used_while_it_cannot_be_fetched(visits: Visits) -> None:
    with pytest.raises(UnreachableDocumentError), capture_logs() as lines:
        await visits.find(CHALLENGE)
    assert lines[0]["event"] == "client_document_unreachable"
    assert lines[0]["why"] == "its server answers with status 403 and a page for browsers"
    assert "cf-mitigated: 'challenge'" in lines[0]["facts"]
    for uris in (["https://client.example/a"], ["https://client.example/b"]):
        good = build_response({"client_id": CLIENT_ID, "redirect_uris": uris})
        expected = OAuthClient(CLIENT_ID, "Unnamed program", tuple(uris), NOON)
        for response in (good, CHALLENGE, build_response({}, status=503), b""):
            assert await visits.find(response) == expected
    # A document that is gone, or was changed to one that is refused, is not replaced by an old one.
    for response in (build_response({}, status=404), build_response({"client_id": CLIENT_ID})):
        with pytest.raises(OAuthClientError):
            await visits.find(response)


@pytest.mark.clause("11.12")
@pytest.mark.parametrize("client_id", KNOWN_CLIENTS)
async def test_documents_of_large_hosts_ship_with_the_service(
    visits: Visits, client_id: str
) -> None:
    client = await visits.find(CHALLENGE, client_id)
    assert client is KNOWN_CLIENTS[client_id]
    assert all(map(is_redirect_uri, client.redirect_uris))
    changed = {"client_id": client_id, "redirect_uris": ["https://client.example/new"]}
    for response in (build_response(changed), CHALLENGE):
        assert (await visits.find(response, client_id)).redirect_uris == (
            "https://client.example/new",
        )


@pytest.mark.clause("access", "11.8")
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


@pytest.mark.clause("access", "11.8")
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
        {"redirect_uris": ["app.x:/a", "app.x:/b", "app.x:/a"]},
    ],
)
async def test_metadata_as_hosts_send_it_registers_a_public_client(
    registry: ClientRegistry, fields: Mapping[str, object]
) -> None:
    response = describe_registration(await registry.register(METADATA | fields, ADDRESS))
    assert response["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in response
    # Repeated ones are stored once.
    assert response["redirect_uris"] == list(dict.fromkeys((METADATA | fields)["redirect_uris"]))


@pytest.mark.clause("access", "11.1", "11.8")
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
    with pytest.raises(OAuthClientError) as refused:
        await registry.register(metadata, ADDRESS)
    assert refused.value.error == error
    assert not set(refused.value.message) & set('"\\\n')


@pytest.mark.clause("access", "11.9")
async def test_only_accepted_registrations_count_against_the_limit(
    registry: ClientRegistry, clock: ManualClock
) -> None:
    for _ in range(40):
        with pytest.raises(OAuthClientError):
            await registry.register({}, ADDRESS)
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


@pytest.mark.clause("access", "11.10")
async def test_a_full_store_makes_room_by_dropping_unused_clients(
    registry: ClientRegistry,
    store: AccessStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("access.oauth.clients.MAX_CLIENTS", 3)
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


@pytest.mark.clause("access", "11.10")
async def test_the_limit_holds_if_clients_register_at_once(store: AccessStore) -> None:
    rows = [OAuthClient(f"oc_{number}", "", ("app:/",), NOON) for number in range(8)]
    assert sum(await asyncio.gather(*(store.oauth.add_client(row, 3, NOON) for row in rows))) == 3


@pytest.mark.clause("access", "11.11")
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


@pytest.mark.clause("access", "11.11")
@given(st.text())
@pytest.mark.prove
def test_every_name_is_a_valid_label_of_a_key(text: str) -> None:
    assert is_valid_label(clean_name(text))
    assert clean_name(clean_name(text)) == clean_name(text)


# As hosts register them.
SEEN_CALLBACKS = [
    "https://claude.ai/api/mcp/auth_callback",
    "https://claude.com/api/mcp/auth_callback",
    "http://localhost/callback",
    "http://127.0.0.1/callback",
    "https://chatgpt.com/connector_platform_oauth_redirect",
    "https://chatgpt.com/connector/oauth/kDmjx77UnKOM",
    "https://vscode.dev/redirect",
    "http://127.0.0.1:33418/",
    "http://localhost:8787/callback",
    "cursor://anysphere.cursor-mcp/oauth/callback",
]


@pytest.mark.clause("11.1")
@pytest.mark.parametrize(
    "uri",
    [
        *SEEN_CALLBACKS,
        "http://[::1]:1234/callback",
        "http://localhost:3334/oauth/callback?from=here",
        "com.example.app:/oauth/callback",
        "vscode://publisher.extension/callback",
        "vscode-insiders://publisher.extension/callback",
        "windsurf://publisher.extension/callback",
        "https://app.example/callback?codes=1&State=2",
        "https://app.example:8443/callback?tenant=a%20b",
        "https://xn--mnchen-3ya.example/callback",
    ],
)
def test_a_client_may_register_and_use_an_address(uri: str) -> None:
    assert is_redirect_uri(uri)
    assert matches_redirect_uri(uri, uri)


@pytest.mark.clause("11.1")
@pytest.mark.parametrize(
    "uri",
    [
        "",
        "callback",
        "//app.example/callback",
        "https:app.example",
        "https:///callback",
        "https://",
        "http://app.example/callback",
        "http://127.0.0.2/callback",
        "http://0.0.0.0/callback",
        "http://192.168.1.2/callback",
        "http://localhost.app.example/callback",
        "http://127.0.0.1.app.example/callback",
        "http://localhost:0/callback",
        "http://localhost:65536/callback",
        "http://localhost:/callback",
        "http://localhost:80:80/callback",
        "http://user@localhost/callback",
        "http://localhost@app.example/callback",
        "https://user:secret@app.example/callback",
        "https://app.example/callback#",
        "https://app.example/callback#part",
        "cursor://user@host/callback",
        "com.example.app:/callback#part",
        "com.example.app:/callback?code=1",
        # Without a dot, a scheme may be a browser's, an office program's or the system's.
        "microsoft-edge:http://app.example/",
        "googlechrome://navigate?url=app.example",
        "ms-word:ofe|u|https://app.example/a.docx",
        "ms-word:ofe/u/https://app.example/a.docx",
        "jscript:alert(1)",
        "steam://run/1",
        "app:/callback",
        "app.:/callback",
        "app..x:/callback",
        "view-source+app.example:https://app.example/",
        "cursor://anysphere.cursor-deeplink/mcp/install?name=a",
        "cursor:anysphere.cursor-mcp/",
        "vscode://file/etc/passwd",
        "vscode://publisher.extension@app.example/callback",
        "vscode:mcp/install",
        "https://app.example/callback?code=1",
        "https://app.example/callback?a=1&state=1",
        "https://app.example/callback?%63ode=1",
        "https://app.example/callback?iss=https://other.example",
        "https://app.example/callback?iss",
        "https://app.example/callback?error=access_denied",
        "http://localhost/callback?state",
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "data:text/html,hello",
        "file:///etc/passwd",
        "about:blank",
        "blob:https://app.example/1",
        "vbscript:msgbox(1)",
        "view-source:https://app.example/",
        "mailto:ann@example.com",
        "ftp://app.example/callback",
        "ws://localhost/callback",
        "urn:ietf:wg:oauth:2.0:oob",
        "https://app.example\\@localhost/callback",
        "https://app.example/call back",
        " https://app.example/callback",
        "https://app.example/callback\n",
        "https://app.example/\tcallback",
        "https://app.example/<script>",
        'https://app.example/"',
        "https://münchen.example/callback",
        "https://app.example%2f/callback",
        "https://[::1/callback",
        "https://[::::]/callback",
        "https://app.example/" + "a" * MAX_REDIRECT_URI_CHARS,
    ],
)
def test_no_client_may_register_or_use_an_address(uri: str) -> None:
    assert not is_redirect_uri(uri)
    assert not any(matches_redirect_uri(each, uri) for each in ("http://localhost/callback", uri))


@pytest.mark.clause("11.1", "11.2")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("registered_port", ["", ":33418"])
def test_a_program_on_this_computer_may_use_any_port(host: str, registered_port: str) -> None:
    registered = f"http://{host}{registered_port}/callback?a=1"
    for port in ("", ":80", ":1", ":65535", ":33418"):
        assert matches_redirect_uri(registered, f"http://{host}{port}/callback?a=1")
    for port in (":0", ":65536", ":999999", ":", ":1:2", ":a", ":-1", ":1@app.example", ":1\\"):
        assert not matches_redirect_uri(registered, f"http://{host}{port}/callback?a=1")


@pytest.mark.clause("11.2")
@pytest.mark.parametrize("registered", ["http://localhost", "http://localhost/"])
@pytest.mark.parametrize("requested", ["http://localhost:1", "http://localhost:1/"])
def test_a_loopback_address_without_a_path_has_the_path_slash(
    registered: str, requested: str
) -> None:
    assert matches_redirect_uri(registered, requested)
    assert matches_redirect_uri(f"{registered}?a=1", f"{requested}?a=1")
    assert not matches_redirect_uri("https://app.example", "https://app.example/")


@pytest.mark.clause("11.1", "11.2")
@pytest.mark.parametrize(
    ("registered", "requested"),
    [
        ("http://localhost/callback", "http://127.0.0.1/callback"),
        ("http://localhost/callback", "http://localhost/callback/"),
        ("http://localhost/callback", "http://localhost/callback?"),
        ("http://localhost/callback", "http://localhost/callback?a=1"),
        ("http://localhost/callback", "http://localhost/Callback"),
        ("http://localhost/callback", "https://localhost/callback"),
        ("http://localhost/callback", "http://localhost/callback#part"),
        ("http://localhost/callback", "http://localhost/x/../callback"),
        ("http://localhost/?to=http://localhost:1/", "http://localhost/?to=http://localhost:2/"),
        ("https://app.example/callback", "https://app.example:443/callback"),
        ("https://app.example/callback", "https://app.example:8443/callback"),
        ("https://app.example/callback", "https://app.example/callback/"),
        ("https://app.example/callback", "https://app.example/callback?a=1"),
        ("https://app.example/callback", "https://www.app.example/callback"),
        ("https://app.example/callback", "https://app.example.evil.example/callback"),
        ("https://localhost:1/callback", "https://localhost:2/callback"),
        ("https://app.example/?http://localhost/", "https://app.example/?http://localhost:1/"),
        ("cursor://anysphere.cursor-mcp/callback", "cursor://evil.example/callback"),
        ("app.example:/callback", "app.example:/callback?a=1"),
    ],
)
def test_all_else_has_to_be_the_same(registered: str, requested: str) -> None:
    assert is_redirect_uri(registered)
    assert not matches_redirect_uri(registered, requested)


URIS = st.builds(
    "{}:{}{}{}".format,
    st.sampled_from(["http", "https", "HTTPS", "cursor"]),
    st.sampled_from(["//", "/", "", "///", "/\\"]),
    st.text("ab1.:@[]%/\\?#localhost", max_size=20),
    st.sampled_from(["", "/callback", ":1/callback", "@localhost/callback"]),
)


@pytest.mark.clause("11.1")
@given(URIS)
def test_parsers_agree_about_the_host_of_an_accepted_address(uri: str) -> None:
    if is_redirect_uri(uri) and uri.lower().startswith("http"):
        assert urlsplit(uri).hostname == httpx2.URL(uri).host
        assert httpx2.URL(uri).host
        assert not httpx2.URL(uri).userinfo

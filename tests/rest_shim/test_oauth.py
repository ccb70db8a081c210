"""OAuth over HTTP, with a client written by hand: metadata, authorization, tokens, revocation."""

import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

import httpx
import pytest

from access.members import MAX_LIVE_KEYS, MemberPlan
from access.oauth.clients import ClientDocuments
from access.oauth.tokens import CODE_GRACE_MS, MAX_LIVE_ACCESS_TOKENS, REFRESH_GRACE_MS
from access.throttle import Limit
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS, HOUR_MS
from serving.http import MAX_FORM_BYTES
from tests.support.oauth_client import (
    CHALLENGE,
    REDIRECT_URI,
    VERIFIER,
    HandClient,
    buy_plan,
    make_challenge,
    read_answer,
    register,
)
from tests.support.running_service import RunningService, fetch, run_service
from tests.support.web_page import run_second_service

pytestmark = pytest.mark.clause("oauth")

TOKENS = ("access_token", "refresh_token")


@pytest.fixture
async def host(served_alone: RunningService) -> HandClient:
    return await register(served_alone)


@pytest.fixture
async def plan(host: HandClient) -> MemberPlan:
    return await buy_plan(host.served.access, host.served.clock)


@pytest.fixture
async def tokens(host: HandClient) -> dict[str, Any]:
    return await host.connect()


def check_refused(response: httpx.Response, status: int, error: str) -> str:
    """Assert the error of RFC 6749, and return its description."""
    assert (response.status_code, response.json()["error"]) == (status, error), response.text
    assert response.headers["cache-control"] == "no-store"
    description: str = response.json()["error_description"]
    assert description.isascii()
    assert '"' not in description
    return description


async def is_connected(host: HandClient, tokens: dict[str, Any]) -> bool:
    return (await host.call(tokens["access_token"])).status_code == 200


def test_the_challenge_is_that_of_rfc_7636() -> None:
    assert make_challenge(VERIFIER) == CHALLENGE


@pytest.mark.clause("10.1")
async def test_a_client_finds_every_address_from_the_401(served: RunningService) -> None:
    metadata_url = f"{served.base_url}/.well-known/oauth-protected-resource/mcp"
    for slash in ("/", ""):
        challenge = (await served.client.post(f"/mcp{slash}", json={})).headers["www-authenticate"]
        assert challenge == f'Bearer resource_metadata="{metadata_url}{slash}", scope="read"'
        resource = (await served.client.get(metadata_url + slash)).json()
        assert resource["resource"] == f"{served.base_url}/mcp{slash}"
    assert resource == (await served.client.get("/.well-known/oauth-protected-resource")).json()
    (issuer,) = resource["authorization_servers"]
    assert issuer == served.base_url
    server = (await served.client.get("/.well-known/oauth-authorization-server")).json()
    assert server == server | {
        "issuer": served.base_url,
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
    }
    assert "none" in server["token_endpoint_auth_methods_supported"]
    assert "offline_access" not in server["scopes_supported"]
    addresses = [value for name, value in server.items() if name.endswith("_endpoint")]
    assert len(addresses) == 4
    for address in addresses:
        assert address.startswith(f"{served.base_url}/")
        assert (await served.client.options(address)).status_code != 404


@pytest.mark.clause("11.12")
async def test_a_service_that_accepts_no_documents_says_so(tmp_path: Path) -> None:
    async with run_service(tmp_path, accepts_documents=False) as served:
        server = (await served.client.get("/.well-known/oauth-authorization-server")).json()
        assert server["client_id_metadata_document_supported"] is False
        host = await register(served)
        documented = "https://claude.ai/oauth/claude-code-client-metadata"
        refused = await host.authorize(client_id=documented)
        assert (refused.status_code, "register itself" in refused.text) == (400, True)
        check_refused(await host.exchange("wrong", client_id=documented), 401, "invalid_client")
        assert (await host.authorize()).status_code == 303


@pytest.mark.clause("10.2")
async def test_an_unknown_grant_makes_the_service_fetch_no_document(tmp_path: Path) -> None:
    looked_up = list[str]()

    async def resolve(name: str) -> list[str]:
        looked_up.append(name)
        return []

    documents = ClientDocuments(lambda: 0, resolve=resolve)
    async with run_service(tmp_path, client_documents=documents) as served:
        host = await register(served)
        for grant in ({"grant_type": "refresh_token", "refresh_token": "x"}, {"code": "x"}):
            form = {"grant_type": "authorization_code", **grant, "client_id": "https://a.example/b"}
            check_refused(await host.post("/oauth/token", form), 400, "invalid_grant")
        assert looked_up == []
        await host.authorize(client_id="https://a.example/b")
        assert looked_up == ["a.example"]


@pytest.mark.clause("10.2")
async def test_a_connection_is_a_key_that_its_member_sees(
    host: HandClient, plan: MemberPlan
) -> None:
    pending = await host.begin()
    assert (pending.client_name, pending.redirect_host) == ("Hand", "127.0.0.1")
    answer = read_answer(await host.authorizations.approve(pending, plan))
    assert (answer["state"], answer["iss"]) == ("a state", host.served.base_url)
    response = await host.exchange(answer["code"])
    assert response.headers["cache-control"] == "no-store"
    tokens = response.json()
    assert (tokens["token_type"], tokens["expires_in"], tokens["scope"]) == ("Bearer", 3600, "read")
    for used in (1, 2):
        result = (await host.call(tokens["access_token"])).json()["result"]
        assert result["structuredContent"]["quota"]["used_today"] == used
    (held,) = (await host.find_plan()).live_keys
    assert (held.label, held.client_id, held.used) == ("Hand", host.client_id, 2)
    await host.served.call_log.flush()
    assert len(await host.served.access.list_calls(held.id, 10)) == 2


@pytest.mark.clause("10.7", "10.9")
@pytest.mark.parametrize("named", ["/mcp", "/mcp/", "", "/"])
async def test_hosts_name_the_resource_in_several_ways(host: HandClient, named: str) -> None:
    resource = f"{host.served.base_url}{named}"
    tokens = (await host.exchange(await host.get_code(resource=resource), resource=resource)).json()
    assert await is_connected(host, tokens)
    assert (await host.refresh(tokens["refresh_token"])).status_code == 200


@pytest.mark.clause("10.7")
async def test_a_state_of_eight_kilobytes_comes_back(host: HandClient) -> None:
    state = "s" * 8192
    answer = read_answer(await host.authorizations.approve(await host.begin(state=state), None))
    assert answer["state"] == state
    assert (await host.authorize(state="s" * 12_288)).status_code == 414


@pytest.mark.clause("10.3")
async def test_revoking_the_key_ends_its_tokens_at_once(host: HandClient, plan: MemberPlan) -> None:
    tokens = await host.connect(plan)
    assert await is_connected(host, tokens)
    (held,) = (await host.find_plan()).live_keys
    await host.served.access.revoke_member_key(plan.membership.id, held.id, host.served.clock())
    for method in ("initialize", "ping", "tools/list", "tools/call"):
        params = {"name": "signals_get_state"} if method == "tools/call" else {}
        refused = await host.send(tokens["access_token"], method, params)
        assert refused.status_code == 401, method
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
    assert (await host.call(tokens["access_token"], "signals_get_catalog")).status_code == 401
    check_refused(await host.refresh(tokens["refresh_token"]), 400, "invalid_grant")


@pytest.mark.clause("10.3")
async def test_the_end_of_the_membership_ends_its_connections(
    host: HandClient, plan: MemberPlan
) -> None:
    tokens = await host.connect(plan)
    code = await host.get_code(plan)
    await host.served.access.end_membership(plan.membership, host.served.clock(), "refunded")
    assert not await is_connected(host, tokens)
    check_refused(await host.exchange(code), 400, "invalid_grant")


@pytest.mark.clause("10.4")
async def test_a_code_used_again_later_revokes_what_it_gave(host: HandClient) -> None:
    code = await host.get_code()
    tokens = (await host.exchange(code)).json()
    assert await is_connected(host, tokens)
    host.served.clock.now += CODE_GRACE_MS + 1
    check_refused(await host.exchange(code), 400, "invalid_grant")
    assert not await is_connected(host, tokens)


@pytest.mark.clause("10.4")
@pytest.mark.parametrize(
    ("changed", "status", "error"),
    [
        ({"code_verifier": "A" * 43}, 400, "invalid_grant"),
        ({"code_verifier": CHALLENGE}, 400, "invalid_grant"),
        ({"code_verifier": None}, 400, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:33419/callback"}, 400, "invalid_grant"),
        ({"redirect_uri": "https://elsewhere.example/callback"}, 400, "invalid_grant"),
        ({"resource": "https://elsewhere.example/mcp"}, 400, "invalid_target"),
        ({"code": "ac_" + "A" * 43}, 400, "invalid_grant"),
        ({"code": None}, 400, "invalid_grant"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": None}, 400, "unsupported_grant_type"),
        ({"client_id": "unknown"}, 401, "invalid_client"),
        ({"client_id": None}, 401, "invalid_client"),
    ],
)
async def test_a_bad_exchange_is_refused_and_spends_no_code(
    host: HandClient, changed: dict[str, str | None], status: int, error: str
) -> None:
    code = await host.get_code()
    check_refused(await host.exchange(**{"code": code, **changed}), status, error)
    other = await register(host.served, name="Other")
    check_refused(await other.exchange(code), 400, "invalid_grant")
    assert (await host.exchange(code)).status_code == 200


@pytest.mark.clause("10.10")
async def test_a_long_form_is_refused(host: HandClient) -> None:
    for path in ("/oauth/token", "/oauth/revoke"):
        refused = await host.post(path, {"token": "a" * MAX_FORM_BYTES})
        check_refused(refused, 413, "invalid_request")


@pytest.mark.clause("10.4")
async def test_a_code_is_valid_for_a_minute(host: HandClient, plan: MemberPlan) -> None:
    code, late = await host.get_code(plan), await host.get_code(plan)
    host.served.clock.now += 59_999
    assert (await host.exchange(code)).status_code == 200
    host.served.clock.now += 1
    check_refused(await host.exchange(late), 400, "invalid_grant")


@pytest.mark.clause("10.5")
async def test_an_access_token_expires_and_is_refreshed(host: HandClient) -> None:
    served = host.served
    tokens = await host.connect(await buy_plan(served.access, served.clock))
    served.clock.now += HOUR_MS - 1
    assert await is_connected(host, tokens)
    renewed = (await host.refresh(tokens["refresh_token"])).json()
    served.clock.now += 1
    assert not await is_connected(host, tokens)
    assert await is_connected(host, renewed)
    assert renewed["refresh_token"] != tokens["refresh_token"]
    # It is the same key, so the quota goes on.
    (held,) = (await host.find_plan()).live_keys
    assert held.used == 2


@pytest.mark.clause("10.5")
async def test_a_replayed_refresh_token_revokes_its_family(
    host: HandClient, tokens: dict[str, Any]
) -> None:
    second = (await host.refresh(tokens["refresh_token"])).json()
    third = (await host.refresh(second["refresh_token"])).json()
    assert await is_connected(host, third)
    host.served.clock.now += REFRESH_GRACE_MS + 1
    check_refused(await host.refresh(tokens["refresh_token"]), 400, "invalid_grant")
    for each in (tokens, second, third):
        assert not await is_connected(host, each)
        check_refused(await host.refresh(each["refresh_token"]), 400, "invalid_grant")


@pytest.mark.clause("10.5")
@pytest.mark.parametrize(
    ("changed", "status", "error"),
    [
        ({"client_id": "unknown"}, 401, "invalid_client"),
        ({"client_id": None}, 401, "invalid_client"),
        ({"refresh_token": "rt_" + "A" * 43 + "." + "A" * 43}, 400, "invalid_grant"),
        ({"refresh_token": None}, 400, "invalid_grant"),
        ({"resource": "https://elsewhere.example/mcp"}, 400, "invalid_target"),
    ],
)
async def test_a_bad_refresh_is_refused_and_ends_nothing(
    host: HandClient,
    tokens: dict[str, Any],
    changed: dict[str, str | None],
    status: int,
    error: str,
) -> None:
    sent = {"refresh_token": tokens["refresh_token"], **changed}
    check_refused(await host.refresh(**sent), status, error)
    other = await register(host.served, name="Other")
    check_refused(await other.refresh(tokens["refresh_token"]), 400, "invalid_grant")
    assert (await host.refresh(tokens["refresh_token"])).status_code == 200


@pytest.mark.clause("10.5")
async def test_a_connection_ends_when_it_is_not_refreshed_for_90_days(
    host: HandClient, plan: MemberPlan
) -> None:
    kept, left = await host.connect(plan), await host.connect(plan)
    host.served.clock.now += 60 * DAY_MS
    kept = (await host.refresh(kept["refresh_token"])).json()
    host.served.clock.now += 30 * DAY_MS
    check_refused(await host.refresh(left["refresh_token"]), 400, "invalid_grant")
    assert len((await host.find_plan()).live_keys) == 1
    assert (await host.refresh(kept["refresh_token"])).status_code == 200


@pytest.mark.clause("10.5")
async def test_refreshing_in_a_loop_is_bounded(host: HandClient, tokens: dict[str, Any]) -> None:
    for _ in range(MAX_LIVE_ACCESS_TOKENS - 1):
        tokens = (await host.refresh(tokens["refresh_token"])).json()
    refused = await host.refresh(tokens["refresh_token"])
    check_refused(refused, 429, "temporarily_unavailable")
    assert refused.headers["retry-after"] == "3600"
    host.served.clock.now += HOUR_MS
    assert (await host.refresh(tokens["refresh_token"])).status_code == 200


@pytest.mark.clause("10.6")
@pytest.mark.parametrize("kind", TOKENS)
async def test_a_client_revokes_its_connection(
    host: HandClient, tokens: dict[str, Any], kind: str
) -> None:
    other = await register(host.served, name="Other")
    form = {"token": tokens[kind], "client_id": other.client_id}
    check_refused(await host.post("/oauth/revoke", {**form}), 401, "invalid_client")
    assert await is_connected(host, tokens)
    form["client_id"] = host.client_id
    assert [(await host.post("/oauth/revoke", {**form})).status_code for _ in range(2)] == [200] * 2
    assert not await is_connected(host, tokens)
    unknown: dict[str, str | None] = {"token": "unknown", "client_id": host.client_id}
    assert (await host.post("/oauth/revoke", unknown)).status_code == 200
    check_refused(await host.post("/oauth/revoke", {}), 400, "invalid_request")


@pytest.mark.clause("10.7")
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "too short"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"resource": "https://elsewhere.example/mcp"}, "invalid_target"),
        ({"resource": "http://user@127.0.0.1/mcp"}, "invalid_target"),
        ({"resource": "not an address"}, "invalid_target"),
        ({"state": "x" * 8193}, "invalid_request"),
        ({"state": "tab\t"}, "invalid_request"),
    ],
)
async def test_a_bad_request_goes_back_to_the_client(
    host: HandClient, changed: dict[str, str | None], error: str
) -> None:
    response = await host.authorize(**changed)
    assert response.status_code == 303
    target = response.headers["location"]
    assert target.startswith(f"{REDIRECT_URI}?")
    answer = read_answer(target)
    assert (answer["error"], answer["iss"]) == (error, host.served.base_url)
    assert answer.get("state") == (None if "state" in changed else "a state")
    assert "code" not in answer


@pytest.mark.clause("10.7")
@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "unknown"},
        {"client_id": None},
        {"redirect_uri": None},
        {"redirect_uri": "http://127.0.0.1:33418/elsewhere"},
        {"redirect_uri": "http://127.0.0.1.attacker.example/callback"},
        {"redirect_uri": "https://attacker.example/callback"},
    ],
)
async def test_a_browser_is_never_sent_to_an_unregistered_address(
    host: HandClient, changed: dict[str, str | None]
) -> None:
    response = await host.authorize(**changed)
    assert (response.status_code, "location" in response.headers) == (400, False)
    assert response.headers["content-type"].startswith("text/html")
    assert "Start again" in response.text


@pytest.mark.clause("4.0.8")
@pytest.mark.parametrize("path", ["/oauth/register", "/oauth/token", "/oauth/revoke"])
async def test_a_client_in_a_browser_can_read_every_answer(served: RunningService, path: str):
    sent = {"Origin": "https://host.example", "Access-Control-Request-Method": "POST"}
    preflight = await served.client.options(path, headers=sent)
    refused = await served.client.post(path, json={}, headers={"Origin": "https://host.example"})
    assert preflight.status_code == 204
    assert 400 <= refused.status_code < 500
    for response in (preflight, refused):
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers
    page = await served.client.get("/oauth/consent", headers={"Origin": "https://host.example"})
    assert (page.status_code, "access-control-allow-origin" in page.headers) == (403, False)


@pytest.mark.clause("10.5")
async def test_a_client_may_send_its_id_by_basic_authentication(
    host: HandClient, tokens: dict[str, Any]
) -> None:
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
    basic = b64encode(f"{quote_plus(host.client_id)}:no secret".encode()).decode()
    for sent in ("Basic !", "Basic /w==", f"Bearer {basic}"):
        headers = {"Authorization": sent}
        refused = await host.served.client.post("/oauth/token", data=form, headers=headers)
        assert "client_id in the body" in check_refused(refused, 401, "invalid_client")
    headers = {"Authorization": f"basic {basic}"}
    renewed = await fetch(
        host.served.client, "POST", "/oauth/token", 200, data=form, headers=headers
    )
    assert await is_connected(host, renewed.json())


@pytest.mark.clause("10.7")
async def test_a_repeated_parameter_is_refused(host: HandClient) -> None:
    pairs = [*host.build_request().items()]
    for name in ("client_id", "redirect_uri"):
        repeated = [*pairs, (name, host.build_request()[name])]
        await fetch(host.served.client, "GET", "/oauth/authorize", 400, params=repeated)
    response = await host.served.client.get("/oauth/authorize", params=[*pairs, ("scope", "a")])
    assert urlsplit(response.headers["location"]).path == "/oauth/consent"
    doubled = [*pairs, ("scope", "a"), ("scope", "b")]
    response = await host.served.client.get("/oauth/authorize", params=doubled)
    assert read_answer(response.headers["location"])["error"] == "invalid_request"
    form = f"grant_type=refresh_token&client_id={host.client_id}&client_id=other"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    sent = await host.served.client.post("/oauth/token", content=form, headers=headers)
    check_refused(sent, 400, "invalid_request")


@pytest.mark.clause("10.7")
async def test_a_request_is_decided_once_and_expires_after_an_hour(host: HandClient) -> None:
    authorizations = host.authorizations
    approved, denied, expired = [await host.begin() for _ in range(3)]
    await authorizations.approve(approved, None)
    answer = read_answer(await authorizations.deny(denied))
    assert (answer["error"], answer["state"]) == ("access_denied", "a state")
    host.served.clock.now += HOUR_MS
    for request_id in (approved.id, denied.id, expired.id, "unknown"):
        assert await authorizations.find_pending(request_id) is None
    for late in (
        *(authorizations.approve(each, None) for each in (approved, denied, expired)),
        *(authorizations.deny(each) for each in (approved, denied, expired)),
    ):
        with pytest.raises(ApiError) as refused:
            await late
        assert refused.value.status == 404


@pytest.mark.clause("10.8")
async def test_connections_count_towards_the_live_keys_of_the_plan(
    host: HandClient, plan: MemberPlan
) -> None:
    codes = [await host.get_code(plan) for _ in range(MAX_LIVE_KEYS + 1)]
    answers = [await host.exchange(code) for code in codes]
    assert [answer.status_code for answer in answers] == [200] * MAX_LIVE_KEYS + [400]
    check_refused(answers[-1], 400, "invalid_grant")
    plan = await host.find_plan()
    assert (len(plan.live_keys), plan.has_room) == (MAX_LIVE_KEYS, False)
    pending = await host.begin()
    with pytest.raises(ApiError) as refused:
        await host.authorizations.approve(pending, plan)
    assert refused.value.status == 409
    # The member revokes a key and goes on with the same request.
    await host.served.access.revoke_key(plan.live_keys[0].id, host.served.clock())
    plan = await host.find_plan()
    answer = read_answer(await host.authorizations.approve(pending, plan))
    assert (await host.exchange(answer["code"])).status_code == 200


@pytest.mark.clause("10.9")
async def test_a_token_works_only_at_its_resource(host: HandClient) -> None:
    token = (await host.connect())["access_token"]
    # What the service remembers of a header that was live there opens no other address.
    assert [(await host.call(token)).status_code for _ in range(2)] == [200] * 2
    over_rest = await host.served.client.get(
        "/api/v1/usage", headers={"Authorization": f"Bearer {token}"}
    )
    assert (over_rest.status_code, over_rest.json()["error"]) == (401, "invalid_key")
    assert "/mcp" in over_rest.json()["message"]
    over_mcp = await host.call(token, path="/api/v1/mcp")
    assert (over_mcp.status_code, over_mcp.json()["result"]["isError"]) == (200, True)
    with_key = await host.call(host.served.api_key)
    assert with_key.json()["result"]["structuredContent"]["quota"]["used_today"] == 1


@pytest.mark.clause("10.9")
@pytest.mark.parametrize("token", ["at_" + "A" * 43, "ek_" + "A" * 43, "garbage", "${KEY}"])
async def test_an_unknown_token_gets_401(served: RunningService, token: str) -> None:
    for method in ("initialize", "tools/list", "tools/call"):
        params = {"name": "signals_get_usage"} if method == "tools/call" else {}
        refused = await HandClient(served, "").send(token, method, params)
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert token not in refused.text or token == "${KEY}"


@pytest.mark.clause("10.3")
async def test_a_revoked_key_gets_401_before_its_body_is_read(served: RunningService) -> None:
    async def fail() -> AsyncIterator[bytes]:
        yield b""
        pytest.fail("the body was read")

    api_key = await served.keys.create("revoked")
    await served.access.revoke_key((await served.keys.list())[-1].id, served.clock())
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url=served.base_url) as client:
        headers = {"Authorization": f"Bearer {api_key}"}
        refused = await client.post("/mcp", content=fail(), headers=headers)
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_key")


async def test_no_secret_is_stored_in_clear(host: HandClient) -> None:
    pending = await host.begin()
    code = read_answer(await host.authorizations.approve(pending, None))["code"]
    first = (await host.exchange(code)).json()
    tokens = (await host.refresh(first["refresh_token"])).json()
    folder = host.served.access._engine.path.parent
    stored = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    assert host.client_id.encode() in stored
    for secret in (pending.id, code, *(each[name] for each in (first, tokens) for name in TOKENS)):
        assert secret.encode() not in stored


@pytest.mark.clause("10.10")
async def test_requests_and_refusals_of_an_address_are_limited(
    tmp_path: Path, seeded: Path
) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path, attempt_limit=Limit(2, 600)) as served:
        host = await register(served)
        codes = [await host.get_code(), await host.get_code()]
        refused = await host.authorize()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "600")
        for _ in range(2):
            check_refused(await host.exchange("wrong"), 400, "invalid_grant")
        limited = await host.exchange("wrong")
        check_refused(limited, 429, "temporarily_unavailable")
        assert limited.headers["retry-after"] == "600"
        # A host that serves many members refreshes from one address.
        assert [(await host.exchange(code)).status_code for code in codes] == [200, 200]


@pytest.mark.clause("10.11")
@pytest.mark.parametrize(
    ("base_url", "status"), [("http://signals.example", 404), ("https://signals.example", 401)]
)
async def test_tokens_do_not_cross_a_network_unencrypted(
    served: RunningService, base_url: str, status: int
) -> None:
    async with run_second_service(served, base_url=base_url) as other:
        assert (await other.client.post("/mcp", json={})).status_code == status
        metadata = await fetch(
            other.client,
            "GET",
            "/.well-known/oauth-authorization-server",
            200 if status == 401 else 404,
        )
        assert metadata.json().get("issuer") == (base_url if status == 401 else None)


@pytest.mark.clause("10.1")
@pytest.mark.prove
async def test_both_addresses_give_the_same_results(
    host: HandClient, tokens: dict[str, Any]
) -> None:
    for method, params in (
        ("initialize", {}),
        ("ping", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "signals_get_catalog"}),
        ("tools/call", {"name": "signals_get_state", "arguments": {"ticker": "BTC"}}),
        ("tools/call", {"name": "signals_get_state", "arguments": {"bad": 1}}),
        ("unknown", {}),
    ):
        ours = await host.send(tokens["access_token"], method, params)
        theirs = await host.send(host.served.api_key, method, params, "/api/v1/mcp")
        assert ours.status_code == theirs.status_code
        results = [each.json() for each in (ours, theirs)]
        for result in results:
            result.get("result", {}).pop("_meta", None)
        assert results[0] == results[1], method

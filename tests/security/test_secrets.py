"""No key, claim token, query or e-mail address is logged, and no secret is stored in clear."""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import get_args

import httpx
import pytest

from service.config.logs import LogFormat
from tests.end_to_end.test_stripe_purchase import assert_nowhere, stored
from tests.security.wire import HOST, LAST, exchange_bytes
from tests.service.commands.test_cli import write_bars
from tests.support.running_service import RunningService
from tests.support.signals_command import (
    RunningCommand,
    find_free_port,
    run_signals,
    start_signals,
)
from tests.support.web_page import API_KEY

pytestmark = pytest.mark.clause("access")

MARK = "zq7mark"
FORGED = f"\n\r\x1b[31m{MARK}\x00\u2028level=info event=forged {MARK}@example.com"
UNKNOWN_KEY = "ek_" + "B" * 43
FORM_TOKEN = r'name="form_token" value="([0-9a-f]{64})"'
KEYS_FORM = r'action="\.\.(/settings/api-access/[0-9]+/keys)"'
TEXT_LINE = re.compile(r"[0-9-]{10}T[0-9:.]+Z \[[a-z]+ *\] ([a-z_]+) ")
WRONG_TOKEN = "ct_" + "C" * 43


@pytest.fixture(params=get_args(LogFormat)[1:])
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[RunningCommand, str]]:
    """`signals serve` in a separate process, which logs all that it can, and its URL."""
    port, source = find_free_port(), f"files:{write_bars(tmp_path / 'bars')}"
    log = {"log_level": "debug", "log_format": request.param}
    with start_signals(tmp_path, "serve", port=port, source=source, **log) as process:
        process.wait_for_line("--header")
        process.wait_for_line("history is complete")
        yield process, f"http://127.0.0.1:{port}"


def bought(client: httpx.Client) -> list[str]:
    """Buy a key; return the claim token and the key."""
    body = {"contact_email": f"{MARK}@example.com", "agent_name": MARK}
    begun = client.post("/api/v1/access/checkout", json=body).json()
    client.post(begun["checkout_url"], data={"action": "pay"})
    token = begun["claim_token"]
    active = client.post("/api/v1/access/claim", json={"claim_token": token}).json()
    return [token, active["api_key"]]


def mailed(client: httpx.Client, outbox: Path) -> str:
    """Wait for the first mail in an outbox while the service handles other requests."""
    for _ in range(20_000):  # it is sent some seconds after the request
        mails = [mail.read_text() for mail in outbox.glob("*.eml")]
        if any(mails):
            return "".join(mails)
        client.get("/sign-in")
    raise AssertionError("no mail came")


def signed_in(client: httpx.Client, outbox: Path) -> list[str]:
    """Sign in by mail and create a key; return the link, session and form tokens, and the key."""
    requested = client.post("/sign-in", data={"contact_email": f"{MARK}@example.com"})
    assert str(outbox) in requested.text
    token = mailed(client, outbox).partition("/sign-in/")[2].split()[0]
    shutil.rmtree(outbox)
    client.get(f"/sign-in/{token}")
    home = client.post(f"/sign-in/{token}", follow_redirects=True).text
    form_token, path = (re.search(pattern, home)[1] for pattern in (FORM_TOKEN, KEYS_FORM))
    made = client.post(path, data={"form_token": form_token, "label": MARK}).text
    return [token, client.cookies["signals_session"], form_token, API_KEY.search(made)[0]]


def send_everywhere(client: httpx.Client, secret: str) -> None:
    """Put a forged log line and a secret into everything that a client may choose."""
    text = FORGED + secret
    for headers in ({"Authorization": f"Bearer {secret}"}, {"X-Api-Key": secret}, {}):
        sent = headers | {
            "User-Agent": f"{MARK} level=info",
            "X-Forwarded-For": f"{MARK}, {secret}",
        }
        client.get("/api/v1/state", params={"ticker": text}, headers=sent)
        client.get("/api/v1/state", headers=sent)
        client.get(f"/{MARK}%0d%0aevent=forged{secret}", headers=sent)
        client.request("MARK", "/api/v1/mcp", headers=sent)
        for method, params in (
            (text, None),
            ("tools/call", {"name": text}),
            ("tools/call", {"name": "signals_get_state", "arguments": {text: text}}),
            ("tools/call", {"name": "signals_get_state", "arguments": {"ticker": text}}),
        ):
            body = {"jsonrpc": "2.0", "id": text, "method": method, "params": params}
            client.post("/api/v1/mcp", json=body, headers=sent)
        for path in ("access/checkout", "access/claim", "access-request"):
            for name in ("contact_email", "agent_name", "claim_token", text):
                client.post(f"/api/v1/{path}", json={name: text}, headers=sent)


@pytest.mark.sampled(2)
@pytest.mark.prove
def test_the_log_has_one_line_per_event_and_no_text_of_clients(
    process: tuple[RunningCommand, str], tmp_path: Path
):
    service, address = process
    own_key = run_signals(tmp_path, "keys", "create", "--label", "me").stdout.strip()
    with httpx.Client(base_url=address, headers={"Host": "localhost"}) as client:
        secrets = [own_key, UNKNOWN_KEY, WRONG_TOKEN, *bought(client)]
        secrets += signed_in(client, tmp_path / "signals.db-outbox")
        for secret in secrets:
            send_everywhere(client, secret)
        for raw in (b"\x1b[31mforged\r\n\r\n", upgrade(own_key)):
            asyncio.run(exchange_bytes(address, raw + LAST))
        assert_nowhere(secrets, [stored(tmp_path)])
        with closing(sqlite3.connect(tmp_path / "signals.db-access")) as db:
            db.execute("ALTER TABLE keys RENAME TO mislaid")
        send_everywhere(client, own_key)
    assert service.stop() == 0
    lines = service.printed
    assert_nowhere([*secrets, MARK, "forged"], ["".join(lines).encode()])
    (started,) = (place for place, line in enumerate(lines) if "history is complete" in line)
    after = lines[started + 1 :]
    assert all(line[:-1].isprintable() for line in after)
    if lines[-1].startswith("{"):
        names = [event["event"] for event in map(json.loads, after)]
    else:
        names = [TEXT_LINE.match(line)[1] for line in after]
    assert names.count("request") > 500
    assert 10 <= names.count("refused") < 100  # of the first in a minute, the others are counted
    assert "store_failed" in names


def upgrade(secret: str) -> bytes:
    return (
        b"GET /api/v1/mcp HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Protocol: %s\r\n%s\r\n" % (secret.encode(), HOST)
    )


async def test_the_store_is_queried_only_by_hashes(served: RunningService):
    """Hashes are looked up, so timing cannot reveal how much of a key or token was right."""
    begun = await served.client.post(
        "/api/v1/access/checkout", json={"contact_email": "agent@example.com"}
    )
    secrets = [served.api_key, UNKNOWN_KEY, WRONG_TOKEN, begun.json()["claim_token"]]
    statements: list[str] = []
    connections = served.access._engine
    for connection in (connections._reader, connections._writer):
        await connection.connection.set_trace_callback(statements.append)
    connections._direct.set_trace_callback(statements.append)
    for secret in secrets:
        await served.get_api("/usage", x_api_key=secret)
        await served.call("signals_get_usage", headers={"Authorization": f"Bearer {secret}"})
        await served.client.post("/api/v1/access/claim", json={"claim_token": secret})
    requested = "\n".join(statements)
    for secret in secrets:
        assert sha256(secret.encode()).hexdigest().upper() in requested.upper()
        assert secret not in requested
        assert secret.encode().hex().upper() not in requested.upper()


async def test_a_key_with_one_wrong_character_is_as_unknown_as_any(
    served: RunningService,
):
    answers = set()
    for place in (3, 20, 45):
        other = "A" if served.api_key[place] != "A" else "B"
        near = served.api_key[:place] + other + served.api_key[place + 1 :]
        answer = await served.get_api("/state", x_api_key=near)
        answers.add((answer.status_code, json.dumps(answer.json())))
    answer = await served.get_api("/state", x_api_key=UNKNOWN_KEY)
    assert answers == {(401, json.dumps(answer.json()))}
    assert (await served.get_api("/state", x_api_key=served.api_key)).status_code == 200


async def test_no_response_names_the_server_software(served: RunningService):
    for method, path in (("GET", "/api/v1"), ("GET", "/nothing"), ("PUT", "/api/v1/mcp")):
        answer = await served.client.request(method, path)
        assert not {"server", "x-powered-by", "via"} & set(answer.headers)
        assert "uvicorn" not in answer.text.lower()
    assert b"uvicorn" not in (await exchange_bytes(served.base_url, b"nonsense\r\n\r\n")).lower()

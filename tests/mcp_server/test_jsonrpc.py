"""Request bodies are parsed to exactly the values that the client wrote."""

import json
from random import Random
from typing import Any

import pytest

from mcp_server.jsonrpc import parse_message

pytestmark = pytest.mark.clause("endpoint")

ATOMS = (0, -1, 10**30, 0.1, -2.5e-7, 1e300, True, False, None, "", "a", "\x00\n", "ü", "😀", '"\\')


def made_up(random: Random, depth: int) -> Any:
    kind = random.randrange(5) if depth else 0
    if kind == 1:
        return [made_up(random, depth - 1) for _ in range(random.randrange(4))]
    if kind > 1:
        names = random.sample(["a", "b", "ü", "c d", "\x7f"], random.randrange(4))
        return {name: made_up(random, depth - 1) for name in names}
    return random.choice(ATOMS)


@pytest.mark.parametrize("is_ascii", [True, False])
def test_values_are_parsed_as_they_were_written(is_ascii: bool) -> None:
    random = Random(8)
    for number in range(300):
        params = {"name": "x", "arguments": made_up(random, 4)}
        for note in ("plain", "with: colons", "\ud800"):
            call = {"jsonrpc": "2.0", "id": note, "method": "tools/call", "params": params}
            body = json.dumps(call, ensure_ascii=is_ascii or note == "\ud800").encode()
            message = parse_message(body)
            assert message.request_id == note, number
            # repr() distinguishes 1, 1.0 and True, which are equal.
            assert repr(message.params) == repr(params), number

"""How many calls a second does the service answer, next to fixed bytes and other MCP servers?"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.calls import STATE, STATE_OF_ONE, Case, fetch, read_result
from bench.load import Side, compare_rates
from bench.served import TREE, copy_store, create_key, run_server, serve_store
from bench.table import Row
from tools.client_environments import get_node_environment, get_python_environment

# The usual call and the largest response.
CASES = (STATE_OF_ONE, STATE)
SDK, MIN_SDK_RATIO = "SDK", 10.0


def find_peers() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and command of each peer that is installed or can be installed."""
    yield SDK, [sys.executable, "-m", "bench.peers", "sdk"]
    try:
        python = get_python_environment("fastmcp_server")
        yield "fastmcp", [str(python), "-m", "bench.peers", "fastmcp"]
        folder = get_node_environment()
        node, script = folder / "node_modules" / ".bin" / "node", "bench/typescript_peer.mjs"
        yield "TypeScript SDK", [str(node), str(TREE / script), str(folder)]
    except (pytest.skip.Exception, RuntimeError) as why:
        print(f"not installed: {why}", file=sys.stderr)


def start_fixed(stack: ExitStack) -> str:
    fixed = stack.enter_context(
        run_server([sys.executable, "-m", "bench.peers", "fixed", os.devnull])
    )
    fixed.wait_for("/1")
    return fixed.url


def start_peers(stack: ExitStack, results: dict[str, Any]) -> dict[str, str]:
    """Run the peers with our results until the stack is closed, and return their URLs by name."""
    file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "results.json"
    file.write_text(json.dumps(results))
    peers = {
        name: stack.enter_context(run_server([*command, str(file)]))
        for name, command in find_peers()
    }
    for peer in peers.values():
        peer.wait_for("/mcp")
    return {name: peer.url for name, peer in peers.items()}


def compare_with_fixed(
    case: Case, transport: str, key: Mapping[str, str], url: str, fixed: str, *others: Side
) -> Iterator[Row]:
    """Yield the rows of a case of the service at `url`, next to fixed bytes and other sides."""
    list_calls = partial(case.list_calls, transport, key)
    size = len(fetch(url, *list_calls(number=1)))
    ours = Side("ours", url, list_calls, size)
    calls_of_fixed = partial(list_calls, path=f"/{size}")
    limit = Side("fixed bytes", fixed, calls_of_fixed, size, case.limit_ratio)
    yield from compare_rates(f"{transport} {case.name}", ours, [limit, *others])


def rows() -> Iterator[Row]:
    with copy_store() as file, serve_store(file) as ours, ExitStack() as stack:
        key, fixed = create_key(file), start_fixed(stack)
        results = {
            case.name: read_result(fetch(ours.url, *case.list_calls("MCP", key, number=1)))
            for case in CASES
        }
        peers = start_peers(stack, results)
        for case in CASES:
            list_calls, others = partial(case.list_calls, "MCP", key, "/mcp"), list[Side]()
            for name, url in peers.items():
                body = fetch(url, *list_calls(number=1))
                if read_result(body) != results[case.name]:
                    raise SystemExit(f"{name}: the results differ, so rates cannot be compared")
                target = {SDK: MIN_SDK_RATIO}.get(name)
                others.append(Side(name, url, list_calls, len(body), target))
            yield from compare_with_fixed(case, "MCP", key, ours.url, fixed, *others)
            yield from compare_with_fixed(case, "REST", key, ours.url, fixed)

"""Starts the limit, and the peers whose environments are installed or can be installed."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.served import TREE, free_port, run_process, wait_until_answering
from tools.client_environments import get_node_environment, get_python_environment

SDK, LOW_LEVEL = "SDK, MCPServer", "SDK, low level"
FASTMCP, TYPESCRIPT = "fastmcp", "TypeScript SDK"
AS_OURS, DEFAULT = "fixed bytes, uvicorn as ours", "fixed bytes, uvicorn's defaults"


def _find_module_command(name: str, python: Callable[[], Path]) -> tuple[list[str], Path]:
    return [str(python()), "-m", f"bench.peers.{name}"], TREE


def _find_script_command() -> tuple[list[str], Path]:
    """Return the command of the TypeScript peer, and the folder with its packages."""
    folder = get_node_environment()
    node = str(folder / "node_modules" / ".bin" / "node")
    return [node, str(TREE / "bench" / "peers" / "typescript.mjs")], folder


def _get_own_python() -> Path:
    return Path(sys.executable)


PEERS: Mapping[str, Callable[[], tuple[list[str], Path]]] = {
    SDK: lambda: _find_module_command("sdk", _get_own_python),
    LOW_LEVEL: lambda: _find_module_command("sdk_lowlevel", _get_own_python),
    FASTMCP: lambda: _find_module_command(
        "fastmcp", lambda: get_python_environment("fastmcp_server")
    ),
    TYPESCRIPT: _find_script_command,
}


@contextmanager
def start_peers(folder: Path, answers: Mapping[str, Any]) -> Iterator[dict[str, str | None]]:
    """Run the peers with the given results; yield the URL of each, None if it is not installed."""
    answers_file = folder / "answers.json"
    answers_file.write_text(json.dumps(answers))
    with ExitStack() as stack:
        yield {name: _start_peer(stack, PEERS[name], str(answers_file)) for name in PEERS}


def _start_peer(
    stack: ExitStack, find_command: Callable[[], tuple[list[str], Path]], answers: str
) -> str | None:
    try:
        command, folder = find_command()
    except (pytest.skip.Exception, RuntimeError) as why:
        print(f"not installed: {why}", file=sys.stderr)
        return None
    return _start_listener(stack, command, folder, answers)


@contextmanager
def start_limits() -> Iterator[dict[str, str]]:
    """Run the servers of fixed bytes; yield their URLs by the settings of uvicorn."""
    command, _ = _find_module_command("fixed", _get_own_python)
    with ExitStack() as stack:
        yield {
            name: _start_listener(stack, command, TREE, kind)
            for name, kind in ((AS_OURS, "ours"), (DEFAULT, "default"))
        }


def _start_listener(stack: ExitStack, command: list[str], folder: Path, *arguments: str) -> str:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    running = stack.enter_context(run_process([*command, str(port), *arguments], folder=folder))
    wait_until_answering(running, url)
    return url

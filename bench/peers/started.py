"""Starts the peers and the limit, each where its environment is or can be had."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.served import TREE, free_port, process, until_answers
from tests.interop.environments import node_environment, python_environment

SDK, LOW_LEVEL = "SDK, MCPServer", "SDK, low level"
FASTMCP, TYPESCRIPT = "fastmcp", "TypeScript SDK"
AS_OURS, DEFAULT = "fixed bytes, uvicorn as ours", "fixed bytes, uvicorn's defaults"


def _module(name: str, python: Callable[[], Path]) -> tuple[list[str], Path]:
    return [str(python()), "-m", f"bench.peers.{name}"], TREE


def _script() -> tuple[list[str], Path]:
    """Return what runs the TypeScript peer, in the folder that has its packages."""
    folder = node_environment()
    node = str(folder / "node_modules" / ".bin" / "node")
    return [node, str(TREE / "bench" / "peers" / "typescript.mjs")], folder


def _own() -> Path:
    return Path(sys.executable)


PEERS: Mapping[str, Callable[[], tuple[list[str], Path]]] = {
    SDK: lambda: _module("sdk", _own),
    LOW_LEVEL: lambda: _module("sdk_lowlevel", _own),
    FASTMCP: lambda: _module("fastmcp", lambda: python_environment("fastmcp_server")),
    TYPESCRIPT: _script,
}


@contextmanager
def peers(folder: Path, answers: Mapping[str, Any]) -> Iterator[dict[str, str | None]]:
    """Yield the address of each peer serving the answers, None for one that is not installed."""
    written = folder / "answers.json"
    written.write_text(json.dumps(answers))
    with ExitStack() as opened:
        yield {name: _started(opened, PEERS[name], str(written)) for name in PEERS}


def _started(
    opened: ExitStack, found: Callable[[], tuple[list[str], Path]], answers: str
) -> str | None:
    try:
        command, folder = found()
    except (pytest.skip.Exception, RuntimeError) as why:
        print(f"not installed: {why}", file=sys.stderr)
        return None
    return _listening(opened, command, folder, answers)


@contextmanager
def limits() -> Iterator[dict[str, str]]:
    """Yield the addresses that serve `/BYTES`, by how uvicorn is set."""
    command, _ = _module("fixed", _own)
    with ExitStack() as opened:
        yield {
            name: _listening(opened, command, TREE, kind)
            for name, kind in ((AS_OURS, "ours"), (DEFAULT, "default"))
        }


def _listening(opened: ExitStack, command: list[str], folder: Path, *arguments: str) -> str:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    running = opened.enter_context(process([*command, str(port), *arguments], folder=folder))
    until_answers(running, url)
    return url

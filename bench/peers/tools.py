"""The tools that peers serve: the names and arguments of ours, with ready-made results.

No peer reads a store, checks a key or counts calls, which is in the peers' favour. This module
imports only the standard library, because it also runs in the environments of the peers.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Tool = Callable[..., Awaitable[dict[str, Any]]]


def create_tools(path: Path) -> list[Tool]:
    answers: dict[str, dict[str, Any]] = json.loads(path.read_text())

    async def signals_get_usage() -> dict[str, Any]:
        return answers["usage"]

    async def signals_get_state(ticker: str | None = None) -> dict[str, Any]:
        return answers["state"] if ticker is None else answers["state of one"]

    async def signals_get_signals(limit: int) -> dict[str, Any]:
        return answers["signals"]

    return [signals_get_usage, signals_get_state, signals_get_signals]

"""The recipes on the page of the command run as they stand, against a service."""

import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.example_market import HOUR_MS, NOON, make_batch, make_flips
from tests.support.running_service import RunningService
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("documents")

PAGE = (ROOT / "docs" / "commands.md").read_text()
FRAMES, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


async def run_recipe(
    recipe: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run the recipe with the address and a key of a service; return its variables."""
    monkeypatch.setenv("SIGNALS_API_KEY", service.api_key)
    assert ADDRESS in recipe
    names: dict[str, Any] = {}
    # The service needs this thread to answer.
    await asyncio.to_thread(exec, recipe.replace(ADDRESS, service.base_url), names)
    return names


async def test_the_frames_have_every_change_once_in_order(
    served_alone: RunningService, monkeypatch: pytest.MonkeyPatch
):
    flips = make_flips(NOON + HOUR_MS, 450)
    await served_alone.market.commit(make_batch(NOON + HOUR_MS, flips))
    names = await run_recipe(FRAMES, served_alone, monkeypatch)
    in_pandas, in_polars = names["in_pandas"], names["in_polars"]
    ids = in_pandas["id"].tolist()
    # Before them are the changes of BTC that the store was seeded with.
    assert ids[-225:] == [flip.id for flip in flips if flip.ticker == "BTC"]
    assert len(ids) == len(set(ids)) == 225 + 4
    assert in_polars["id"].to_list() == ids
    assert in_pandas["created_at"].is_monotonic_increasing
    assert str(in_pandas["created_at"].dt.tz) == in_polars["created_at"].dtype.time_zone == "UTC"
    assert in_polars.select("from", "to").rows() == [
        (row["transition.from"], row["transition.to"]) for _, row in in_pandas.iterrows()
    ]
    assert len(FRAMES.splitlines()) <= 12


async def test_a_client_from_the_openapi_document_reads_the_service(
    served_alone: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [line] = re.findall(r"^openapi-python-client .*$", PAGE, re.MULTILINE)
    folder = Path(sys.executable).parent
    process = await asyncio.create_subprocess_exec(
        *shlex.split(f"{folder}/{line.replace(ADDRESS, served_alone.base_url)}"),
        cwd=tmp_path,
        # It formats what it writes.
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    )
    assert await process.wait() == 0
    monkeypatch.syspath_prepend(tmp_path)
    names = await run_recipe(CLIENT, served_alone, monkeypatch)
    answer = await served_alone.fetch_answer("mcp", "signals_get_confluence", min_agree=5)
    assert names["agreeing"] == {one["ticker"]: one["agree"] for one in answer["results"]}
    assert names["agreeing"]

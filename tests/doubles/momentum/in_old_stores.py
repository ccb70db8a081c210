"""The added indicator Momentum on a store that was written without it."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from compute.universe import Universe
from schemas.vocabulary import STORED_KEYS
from tests.store.conftest import OpenMarket
from tests.store.test_old_stores import (
    assert_clean,
    bars,
    find_old_access,
    old_home,
    universe,
)
from tests.support.old_stores import Rows, build_database_url, load_rows
from tests.support.signals_command import find_free_port, run_signals, start_signals
from tests.support.small_market import END, open_pipeline, write_universe
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("store")

PAGES = ("", "assets/BTC", "feed", "flips", "confluence", "assets", "docs/indicators")

__all__ = ["bars", "old_home", "universe"]


def find_last_closes(rows: Rows) -> dict[tuple[str, str], int]:
    """Return ticker and timeframe of each sequence, and the close of its last bar."""
    return {
        (ticker, timeframe): close
        for ticker, timeframe, key, _, _, _, close, _ in rows["carries"]
        if key == "enzo"
    }


async def test_it_has_its_own_readings_engines_and_rows(
    old_home: StoreHome, open_market: OpenMarket, universe: Universe, bars: Path
):
    store = await open_market()
    before = await load_rows(store)
    await (await open_pipeline(store, bars, universe)).run_until(END)
    await assert_clean(store, universe)
    rows = await load_rows(store)
    own = {name: [row for row in table if "momentum" in row] for name, table in rows.items()}
    assert {name for name, table in before.items() for row in table if "momentum" in row} == set()
    stepped = find_last_closes(rows).items() - find_last_closes(before).items()
    read = {(ticker, timeframe) for ticker, timeframe, key, _ in rows["readings"] if key == "enzo"}
    assert {tuple(row[:2]) for row in own["readings"]} == read & {cell for cell, _ in stepped}
    firsts = {(row[1], row[3]): row for row in reversed(own["changes"])}
    assert {(row[6], row[9]) for row in firsts.values()} == {(None, False)}
    assert any(row[9] for row in own["changes"])
    assert {row[-1] for row in own["epochs"]} == {"new to this store"}
    for ticker, timeframe, _, reading in own["readings"]:
        if timeframe == "1h":
            (block,) = await store.bars(ticker)
            closes = block.values[:, 3]
            assert reading == np.sign(closes[-1] - closes[-11])
    assert {code for (code,) in await run_sql(old_home, "SELECT indicator FROM carries")} == {
        *range(7),
        *range(8, 17),
    }


def test_it_is_served_with_the_others(old_home: StoreHome, tmp_path: Path, bars: Path):
    url = build_database_url(old_home)
    settings = {"database_url": url, "universe": str(write_universe(tmp_path))}
    assert run_signals(tmp_path, "replay", "--bars", str(bars), **settings).returncode == 0
    audited = run_signals(tmp_path, "audit", **settings)
    # The daily bars of XAU were others then, so their readings are another version's.
    assert audited.returncode == 2
    assert audited.stdout.splitlines()[-1].startswith("no findings, but ")
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, **settings) as process:
        process.wait_for_line("Listening on ")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1/",
            headers={"X-Api-Key": find_old_access(old_home)["operator"]},
        ) as client:
            (asset,) = client.get("state?ticker=BTC").json()["assets"]
            rows = client.get("signals?indicator=momentum&limit=200").json()["signals"]
            manifest, stats = client.get("").text, client.get("stats").json()
            pages = {path: client.get(f"http://127.0.0.1:{port}/{path}") for path in PAGES}
        assert process.stop() == 0
    assert tuple(asset["signals"]) == STORED_KEYS
    assert {(row["indicator"], row["indicator_name"]) for row in rows} == {("momentum", "Momentum")}
    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(PAGES, 200)
    assert "eight trading indicators" in manifest
    assert {"momentum"} < {row["indicator"] for row in stats["universe_tier"]["by_indicator"]}

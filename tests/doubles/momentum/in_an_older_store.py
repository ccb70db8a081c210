"""The added indicator Momentum on a store that was written without it."""

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest

from compute.audit.audit import audit_market
from compute.indicators.registry import INDICATORS
from schemas.vocabulary import STORED_KEYS
from tests.store.conftest import OpenMarket
from tests.support.signals_command import find_free_port, run_signals, start_signals
from tests.support.small_market import (
    END,
    Content,
    load_content,
    load_small_universe,
    open_pipeline,
    write_small_market,
)
from tests.support.store_homes import (
    HomeFactory,
    StoreHome,
    build_database_url,
    open_and_close,
    run_sql,
)

pytestmark = pytest.mark.clause("store")

PAGES = ("", "assets/BTC", "feed", "flips", "confluence", "assets", "docs/indicators")
WITHOUT = [indicator for indicator in INDICATORS if indicator.id != "momentum"]
UNTIL = END - 7 * 86_400


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    return write_small_market(tmp_path)


async def write_store(home: StoreHome, bars: Path, until: int) -> Content:
    """Compute a store up to an hour without the indicator, and return its content."""
    async with open_and_close(home.open_market()) as store:
        universe = load_small_universe(bars.parent)
        await (await open_pipeline(store, bars, universe, WITHOUT)).run_until(until)
        return await load_content(store)


def drop_momentum(content: Content) -> Content:
    """Return the rows of the other indicators, without the times that its own rows may move."""
    tables = ("changes", "alerts", "readings", "carries", "epochs")
    rest = Content(
        (name, [tuple(row) for row in content[name] if "momentum" not in str(row)])
        for name in tables
    )
    for tier in ("changes", "alerts"):
        rest[tier] = [row[1:] for row in rest[tier]]
    return rest


async def test_it_has_its_own_readings_engines_and_rows(
    home: StoreHome, open_market: OpenMarket, tmp_path: Path, bars: Path
):
    before = await write_store(home, bars, UNTIL)
    assert "momentum" not in str(before["carries"])
    universe = load_small_universe(tmp_path)
    store = await open_market()
    await (await open_pipeline(store, bars, universe)).run_until(END)
    report = await audit_market(store, universe, INDICATORS)
    assert (report.findings, report.not_verifiable) == ([], {})
    after = await load_content(store)
    for tier in ("changes", "alerts"):
        assert after[tier][: len(before[tier])] == before[tier]
    own = {
        name: [row for row in after[name] if "momentum" in row]
        for name in ("changes", "readings", "epochs")
    }
    assert {row[-1] for row in own["epochs"]} == {"new to this store"}
    firsts = {(row[1], row[3]): row for row in reversed(own["changes"])}
    assert {(row[6], row[9]) for row in firsts.values()} == {(None, False)}
    assert any(row[9] for row in own["changes"])
    for ticker, timeframe, _, reading in own["readings"]:
        if timeframe == "1h":
            blocks = await store.bars(ticker)
            closes = np.concatenate([block.values[:, 3] for block in blocks])
            assert reading == np.sign(closes[-1] - closes[-11])
    codes = {code for (code,) in await run_sql(home, "SELECT indicator FROM carries")}
    assert codes == {*range(7), *range(8, 17)}


async def test_the_others_continue_as_without_it(
    home: StoreHome,
    new_home: HomeFactory,
    open_market: OpenMarket,
    tmp_path: Path,
    bars: Path,
):
    await write_store(home, bars, UNTIL)
    store = await open_market()
    await (await open_pipeline(store, bars, load_small_universe(tmp_path))).run_until(END)
    async with new_home() as other_home:
        alone = await write_store(other_home, bars, END)
    assert drop_momentum(await load_content(store)) == drop_momentum(alone)


def test_it_is_served_with_the_others(home: StoreHome, tmp_path: Path, bars: Path):
    settings = {
        "database_url": build_database_url(home),
        "universe": str(tmp_path / "universe.toml"),
    }
    asyncio.run(write_store(home, bars, UNTIL))
    assert run_signals(tmp_path, "keys", "adopt", **settings).returncode == 0
    api_key = run_signals(tmp_path, "keys", "create", "--label", "me", **settings).stdout.strip()
    assert run_signals(tmp_path, "replay", "--bars", str(bars), **settings).returncode == 0
    audited = run_signals(tmp_path, "audit", **settings)
    assert audited.returncode == 0, audited.stdout
    port = find_free_port()
    with start_signals(tmp_path, "serve", "--no-compute", port=port, **settings) as process:
        process.wait_for_line("Listening on ")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1/", headers={"X-Api-Key": api_key}
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

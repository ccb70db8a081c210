"""A small store with rows in every table, as live runs write them, and its audit."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from compute.audit.audit import Report, audit_market
from compute.bars import DAY_S, HOUR_S, Funding
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import to_market_ms
from compute.signing.log_signer import LogSigner, load_key
from compute.sources.source import FetchResult
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ScriptedSource,
    march_s,
)
from tests.support.store_homes import StoreHome, open_and_close

STARTS = march_s("06:00")
BEGINS = STARTS - 5 * DAY_S
SPLIT, LATE, MISSING = (STARTS + n * HOUR_S for n in (2, 3, 5))
HOURS = [STARTS + n * HOUR_S for n in range(10)]


class Market(ScriptedSource):
    """Two assets with alert engines and funding: one splits, the other is late and skips a bar."""

    def __init__(self) -> None:
        self.time = AcceleratedClock(to_market_ms(STARTS) // 1000)
        super().__init__(self.time, dict.fromkeys(("BTC", "ETH"), "24x7"), BEGINS)
        assets = tuple(a.model_copy(update={"alerts": True}) for a in self.universe.assets)
        self.universe = self.universe.model_copy(update={"assets": assets})
        self.splits["BTC"] = [(SPLIT, 4)]
        self.delays |= {("ETH", LATE): HOUR_S // 2, ("ETH", MISSING): None}

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        fetched = await super().fetch(ticker, after, until)
        since, last = max(after, self.begins_at) // HOUR_S, fetched.watermark // HOUR_S
        rates = [(n * HOUR_S, (n * 7919 % 100 - 50) / 1e5) for n in range(since + 1, last + 1)]
        is_skipped = ticker == "ETH" and after < MISSING < fetched.watermark
        missing = np.array([MISSING] if is_skipped else [], dtype=np.int64)
        return replace(fetched, funding=Funding.from_pairs(rates), missing=missing)


async def fill_store(home: StoreHome, key_file: Path) -> None:
    """Write the store: a first start, hourly runs and late ones, a checkpoint, and a pruning."""
    source = Market()
    async with open_and_close(home.open_market()) as store:
        pipeline = await open_pipeline(store, source)
        for hour in HOURS:
            source.time.now = to_market_ms(hour) + 4321
            await pipeline.run_until(hour)
            if hour == LATE:
                source.time.now += 1_900_000
                await pipeline.run_late()
        await sign_log(store, key_file)
        await store.record_access_id("0" * 32)
        assert await store.prune() == 0


async def continue_store(home: StoreHome, key_file: Path | None = None) -> None:
    """Run one more hour, after a restart; sign the log if there is a key."""
    source = Market()
    source.time.now = to_market_ms(HOURS[-1] + HOUR_S)
    async with open_and_close(home.open_market()) as store:
        pipeline = await open_pipeline(store, source)
        await pipeline.run_until(HOURS[-1] + HOUR_S)
        if key_file is not None:
            await sign_log(store, key_file)


async def sign_log(store: MarketStore, key_file: Path) -> None:
    await LogSigner(store.feed_log, key_file, "signals.example/api/v1/log").sign()


async def open_pipeline(store: MarketStore, source: Market) -> HourlyPipeline:
    return await HourlyPipeline.open(store, source, source.universe, ALTERNATING, source.time)


async def audit_home(home: StoreHome, key_file: Path | None = None) -> Report:
    """Audit the store of a home, with the key of its log if that is at hand."""
    async with open_and_close(home.open_market()) as store:
        key = None if key_file is None else load_key(key_file)
        return await audit_market(store, Market().universe, ALTERNATING, log_key=key)

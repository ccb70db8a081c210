"""Spreads a long catch-up over processes, of which this one commits what the others compute."""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, nullcontext
from typing import NamedTuple

from compute.executor import ExecutorFactory
from compute.sources.source import Source, SpreadableSource


class Spread(NamedTuple):
    """An open executor, and the number of tasks, and so of blocks, that it runs at a time."""

    executor: Executor
    parallelism: int


@asynccontextmanager
async def open_spread(
    executors: ExecutorFactory, source: Source, asset_count: int
) -> AsyncIterator[Spread | None]:
    """Open an executor for the block if the assets and the source are worth one, else yield None.

    A source that can compute its bars in tasks does so during the block.
    """
    # Live venues answer so slowly that waiting processes would only take memory.
    is_fast = source.ends_at is not None or isinstance(source, SpreadableSource)
    parallelism = executors.choose_parallelism(asset_count) if is_fast else 1
    if parallelism == 1:
        yield None
        return
    async with executors.open(parallelism) as executor:
        with (
            source.spread_over(executor, parallelism)
            if isinstance(source, SpreadableSource)
            else nullcontext()
        ):
            yield Spread(executor, parallelism)

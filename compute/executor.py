"""Who computes blocks of assets: this process, or others. Imports neither.

What is handed out is a function of a module and a block, both to be pickled. Nobody but the
process that hands out reads or writes the store.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Protocol, TypeVar

Block = TypeVar("Block")
Result = TypeVar("Result")
Item = TypeVar("Item")


class Crew(Protocol):
    """Computes blocks, `hands` of them at a time."""

    hands: int

    def map(
        self, work: Callable[[Block], Result], blocks: AsyncIterable[Block]
    ) -> AsyncIterator[Result]:
        """Yield the results in the order of the blocks, which are drawn as they are needed.

        A block may be computed more than once, so that `work` keeps nothing but its result.
        """


Crews = Callable[[], AbstractAsyncContextManager[Crew]]


class Here:
    """Computes block by block in a thread of this process."""

    hands = 1

    async def map(
        self, work: Callable[[Block], Result], blocks: AsyncIterable[Block]
    ) -> AsyncIterator[Result]:
        """Yield the results in the order of the blocks."""
        async for block in blocks:
            yield await asyncio.to_thread(work, block)


@asynccontextmanager
async def here() -> AsyncIterator[Crew]:
    """Yield the crew that is always there."""
    yield Here()


def in_blocks(items: Sequence[Item], most: int, hands: int = 1) -> list[Sequence[Item]]:
    """Split items into blocks of about one size, at most so many each and at least one a hand."""
    count = min(max(hands, -(-len(items) // most)), len(items))
    edges = [len(items) * number // count for number in range(count + 1)] if count else []
    return [items[first:last] for first, last in pairwise(edges)]


async def each(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield what is at hand as what is drawn."""
    for item in items:
        yield item

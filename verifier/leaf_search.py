"""Finds leaves by the time of their rows, in pages that are read once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import takewhile

from verifier.client import MAX_LEAVES, Leaf

# Takes the first index and the count.
ReadLeaves = Callable[[int, int], Awaitable[list[Leaf]]]


class LeafSearch:
    """The leaves of a tree of `size` leaves, which are in the order of their times."""

    def __init__(self, size: int, read_leaves: ReadLeaves) -> None:
        self._size = size
        self._read_leaves = read_leaves
        self._pages: dict[int, list[Leaf]] = {}

    async def find(self, created_at: str) -> Leaf | None:
        """Return the leaf of a time, None if there is none."""
        page = await self._read_page(await self._find_page(created_at))
        return next((leaf for leaf in page if leaf.created_at == created_at), None)

    async def iterate_after(self, created_at: str) -> AsyncIterator[Leaf]:
        """Yield the leaves after a time."""
        first = await self._find_page(created_at)
        for number in range(first, self._count_pages()):
            page = await self._read_page(number)
            # Later pages are whole, so that the leaves have no gap whatever times are stated.
            skipped = _count_until(page, created_at) if number == first else 0
            for leaf in page[skipped:]:
                yield leaf

    async def _find_page(self, created_at: str) -> int:
        """Return the last page that begins at or before a time, 0 if none does."""
        low, high = 0, max(self._count_pages(), 1)
        while high - low > 1:
            middle = (low + high) // 2
            page = await self._read_page(middle)
            if page[0].created_at <= created_at:
                low = middle
            else:
                high = middle
        return low

    def _count_pages(self) -> int:
        return -(-self._size // MAX_LEAVES)

    async def _read_page(self, number: int) -> list[Leaf]:
        if number not in self._pages:
            start = number * MAX_LEAVES
            count = min(MAX_LEAVES, self._size - start)
            self._pages[number] = await self._read_leaves(start, count) if count > 0 else []
        return self._pages[number]


def _count_until(page: list[Leaf], created_at: str) -> int:
    """Return how many leaves a page begins with that are not after a time."""
    return sum(1 for _ in takewhile(lambda leaf: leaf.created_at <= created_at, page))

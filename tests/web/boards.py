"""The board as tests read it: its page, and the cells of its heat map."""

from urllib.parse import urlencode

from tests.serving import Served
from tests.web.page import Page, is_page

TITLE = "Board of readings"


async def board(served: Served, *, is_member: bool = True, **filters: str) -> Page:
    answer = await served.page(f"/?{urlencode(filters)}", is_member=is_member)
    return is_page(answer, 200, TITLE)


def heat(page: Page) -> dict[str, dict[str, str]]:
    """Return the readings that a heat map shows, by ticker and heading of the column."""
    head, *rows = page.rows
    return {row[0].split()[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if row[1:]}

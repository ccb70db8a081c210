"""Parses the board page and the cells of its heat map."""

from urllib.parse import urlencode

from schemas.vocabulary import INDICATOR_IDS
from tests.support.example_market import NAMES
from tests.support.running_service import RunningService
from tests.support.web_page import Page, check_page

TITLE = "Board of readings"
TRACKED = ("ETH", "BTC", "NVDA", "XAU", "DARK")


async def get_board(served: RunningService, *, is_member: bool = True, **filters: str) -> Page:
    answer = await served.get_page(f"/?{urlencode(filters)}", is_member=is_member)
    return check_page(answer, 200, TITLE)


def parse_board(page: Page) -> dict[str, dict[str, str]]:
    """Return all cells of the board, by ticker and column heading, in the page's order."""
    head, *rows = page.rows
    return {row[0].split()[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def parse_heat_map(page: Page) -> dict[str, dict[str, str]]:
    """Return the readings of the board, by ticker and column heading."""
    return {
        ticker: {name: cells[name] for name in NAMES.values() if name in cells}
        for ticker, cells in parse_board(page).items()
    }


async def fetch_readings(served: RunningService, timeframe: str) -> dict[str, dict[str, str]]:
    """Return the readings of signals_get_state in the form of `parse_heat_map`."""
    answer = await served.fetch_answer("rest", "signals_get_state", timeframe=timeframe)
    readings = {
        asset["ticker"]: {
            NAMES[id_]: asset["signals"].get(id_, {}).get(timeframe, "no reading")
            for id_ in INDICATOR_IDS
        }
        for asset in answer["assets"]
    }
    unread = dict.fromkeys(NAMES.values(), "no reading")
    return dict.fromkeys(TRACKED, unread) | readings

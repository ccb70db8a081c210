"""Which listing an asset uses, by the answers of the venues and the source of its stored bars."""

import pytest

from compute.sources.live import VenueStatus, choose_listings
from compute.sources.venue import VenueError
from compute.universe import Listing
from tests.support.live_service import make_asset

pytestmark = pytest.mark.clause("live")

ASSET = make_asset(
    "BTC",
    "a",
    "BTC/USDT",
    fallbacks=(Listing(venue="b", symbol="BTC/USDT"), Listing(venue="c", symbol="BTC/USDC")),
)
A, B, C = "a BTC/USDT", "b BTC/USDT", "c BTC/USDC"
LISTS = VenueStatus(frozenset({"BTC/USDT", "BTC/USDC"}))
LACKS = VenueStatus(frozenset())
SILENT = VenueStatus(frozenset(), VenueError("down"))
REFUSES = VenueStatus(frozenset(), VenueError("451", is_permanent=True))


def choose(source: str | None, *statuses: VenueStatus) -> str | None:
    """Return the listing chosen with the statuses of the venues a, b and c, in this order."""
    sources = {} if source is None else {"BTC": source}
    chosen = choose_listings([ASSET], dict(zip("abc", statuses, strict=False)), sources, now=0)
    return str(chosen["BTC"]) if chosen else None


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((LISTS, LISTS, LISTS), A),
        ((LACKS, LISTS, LISTS), B),
        ((REFUSES, LISTS, LISTS), B),
        ((SILENT, LISTS, LISTS), B),
        ((SILENT, LACKS, LISTS), C),
        ((REFUSES, SILENT, LACKS), B),
        ((SILENT, SILENT, REFUSES), A),
        ((REFUSES, LACKS, REFUSES), None),
        ((LACKS, LACKS, LACKS), None),
        ((LACKS,), None),
        ((LACKS, LISTS), B),
    ],
)
def test_an_asset_without_bars_takes_the_first_venue_that_answers(
    statuses: tuple[VenueStatus, ...], expected: str | None
) -> None:
    assert choose(None, *statuses) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((LISTS, LISTS, LISTS), B),
        ((LISTS, SILENT, LISTS), B),
        ((LISTS, REFUSES, LISTS), A),
        ((LISTS, LACKS, LISTS), A),
        ((REFUSES, REFUSES, LISTS), C),
        ((SILENT, REFUSES, LISTS), C),
        ((SILENT, REFUSES, REFUSES), B),
        ((SILENT, LACKS, SILENT), B),
        ((REFUSES, REFUSES, REFUSES), B),
    ],
)
def test_stored_bars_are_left_only_for_a_venue_that_answers_if_theirs_refuses_or_lacks_them(
    statuses: tuple[VenueStatus, ...], expected: str
) -> None:
    assert choose(B, *statuses) == expected


def test_a_source_that_is_no_listing_of_the_asset_is_left_but_not_its_venue() -> None:
    assert choose("b OTHER/USDT", LISTS, LISTS, LISTS) == B
    assert choose("b OTHER/USDT", LISTS, SILENT, LISTS) == B
    assert choose("b OTHER/USDT", LISTS, REFUSES, LISTS) == A
    assert choose("unknown", LISTS, LISTS, LISTS) == A

"""The guide to the indicators, for people new to trading: pictures and plain words.

The pictures are fragments of SVG in web/diagrams, docs/indicators.md has the measured changes.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from markupsafe import Markup

from schemas.coverage import Coverage
from schemas.vocabulary import INDICATOR_IDS, IndicatorId
from web.markdown import Heading, read_text

DAYS_PER_MONTH = 30
# The columns of the measured changes that the guide shows, with their places in the table.
CHANGE_COLUMNS = (("crypto", (0, 1, 2)), ("stocks", (4, 5, 6)))
CHANGES_PATTERN = re.compile(r"^## Changes of readings\n.*?^(\|.*?)\n\n", re.DOTALL | re.MULTILINE)


class Guide(NamedTuple):
    """An indicator in plain words."""

    name: str
    question: str
    how: str
    bullish: str
    bearish: str
    neutral: str
    good_for: str
    beware: str


GUIDES: dict[IndicatorId, Guide] = {
    "trend_oracle": Guide(
        "Trend Oracle",
        "Is there a trend, and in which direction?",
        "It compares the average price of recent bars with that of older bars, at three speeds. "
        "The score is the difference, measured by how much the price usually moves.",
        "Recent prices are clearly above older ones.",
        "Recent prices are clearly below older ones.",
        "There is no clear trend, or it has gone so far that it counts no more.",
        "Staying with a trend that lasts.",
        "It turns late, because averages lag behind the price.",
    ),
    "bayesian_trend": Guide(
        "Bayesian Trend",
        "How certain is it that the price is rising?",
        "A filter separates the trend from the noise and gives the chance, in percent, that the "
        "trend is rising.",
        "The chance reached 80 % and has stayed at 55 % or above.",
        "The chance fell to 20 % and has stayed at 45 % or below.",
        "The trend is too uncertain.",
        "Ignoring moves that are mere noise. It says neutral more often than not.",
        "A sudden turn needs several bars until the filter believes it.",
    ),
    "reversals": Guide(
        "Reversals",
        "Has a move gone too far and begun to turn?",
        "It looks for a price that leaves its usual band (the two lines) after a one-sided run, "
        "and then comes back into the band.",
        "After an extreme fall, the price came back into the band from below.",
        "After an extreme rise, the price came back into the band from above.",
        "No turn has happened lately, or the last one failed.",
        "Finding turning points. It reads against the trend, unlike the other six.",
        "In a strong trend it turns too early, again and again, as on the left of the picture.",
    ),
    "ceres": Guide(
        "Ceres",
        "Has the price broken out of its range?",
        "The two lines are the highest and the lowest price of the last 40 bars. It follows a "
        "close beyond one of them.",
        "The price broke its high of 40 bars, and has not broken its low of 20 bars since.",
        "The price broke its low of 40 bars, and has not broken its high of 20 bars since.",
        "The last breakout is over.",
        "Catching the long moves that begin with a breakout.",
        "Many breakouts fail, above all while prices move sideways.",
    ),
    "enzo": Guide(
        "Enzo",
        "Is the price moving quickly in one direction?",
        "Its average (the thin line) follows a straight move closely and hardly moves when prices "
        "go back and forth. The score is the slope of that line.",
        "The average is climbing fast.",
        "The average is falling fast.",
        "The average is nearly flat.",
        "Noticing the start and the end of a fast move early.",
        "It changes more often than most of the others.",
    ),
    "llnr": Guide(
        "LLNR",
        "Which way does a line through the last bars point?",
        "It lays a line through the last 64 bars, in which newer bars count more, and compares "
        "its slope with the noise.",
        "The line climbs clearly more than noise explains.",
        "The line falls clearly more than noise explains.",
        "The slope could be noise.",
        "A calm view of the direction. It changes least of the seven.",
        "It needs a long move before it changes.",
    ),
    "perpkit": Guide(
        "PerpKit",
        "Is the trend still on its side of the stop?",
        "The thin line is a stop that follows the price at a distance and never moves back. The "
        "trend turns when the price crosses it.",
        "The price is above its stop, and not close to it.",
        "The price is below its stop, and not close to it.",
        "The price is close to its stop, or funding makes this side expensive to hold.",
        "Seeing where a trend would end. It looks at the funding of perpetual futures, too.",
        "It nearly always takes a side, even while prices move sideways.",
    ),
}


def build_guide_values(coverage: Coverage | None) -> dict[str, Any]:
    """Return the values of the page: the indicators that the deployment covers and GUIDES has."""
    covered = INDICATOR_IDS if coverage is None else [one.id for one in coverage.indicators]
    parts: list[dict[str, Any]] = [
        {
            "anchor": id_.replace("_", "-"),
            "guide": guide,
            "picture": load_picture(id_),
            "changes": [
                (name, [_format_monthly(load_changes()[id_][place]) for place in places])
                for name, places in CHANGE_COLUMNS
            ],
        }
        for id_, guide in GUIDES.items()
        if id_ in covered
    ]
    return {
        "parts": parts,
        "headings": [
            Heading(2, "readings", "What a reading is"),
            *(
                Heading(2, id_.replace("_", "-"), GUIDES[id_].name)
                for id_ in GUIDES
                if id_ in covered
            ),
        ],
    }


def load_picture(id_: IndicatorId) -> Markup:
    """Return the picture of an indicator as inline SVG."""
    return Markup(files("web").joinpath("diagrams", f"{id_}.svg").read_text(encoding="utf-8"))


@cache
def load_changes() -> dict[str, list[float]]:
    """Return the measured changes per asset and day by indicator, in the table's columns."""
    match = CHANGES_PATTERN.search(read_text("indicators"))
    assert match is not None
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in match[1].splitlines()]
    return {name: [float(cell) for cell in cells] for name, *cells in rows if name in INDICATOR_IDS}


def _format_monthly(daily: float) -> str:
    monthly = DAYS_PER_MONTH * daily
    return f"{monthly:.0f}" if monthly >= 2 else f"{monthly:.1f}"

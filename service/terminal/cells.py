"""Styled cells of tables: readings, changes, times, prices, and marks of data that are not live.

Colours only repeat what the words and letters say.
"""

from collections.abc import Iterable
from types import NoneType

from rich.text import Text

from service.terminal.service_client import Json
from verifier.errors import escape_unprintable
from verifier.times import parse_served_time

STYLES = {
    "bullish": "green",
    "bearish": "red",
    "neutral": "dim",
    "mixed": "yellow",
    "exit": "yellow",
    "U": "green",
    "D": "red",
    "N": "dim",
    ".": "dim",
}
LETTERS = {"bullish": "U", "bearish": "D", "neutral": "N"}
NONE = "-"


def check_cell(value: object) -> str | int | float | None:
    """Return a value, as text that cannot control the terminal; TypeError if it is no plain one."""
    if not isinstance(value, (str, int, float, NoneType)):
        raise TypeError("a list or an object stands where a plain value belongs")
    return escape_unprintable(value) if isinstance(value, str) else value


def make_cell(value: object, style: str = "") -> Text:
    """Return a plain value as text; None as a dash."""
    cell = check_cell(value)
    return Text(NONE if cell is None else str(cell), style=style)


def make_reading(reading: str | None) -> Text:
    """Return a reading or direction in its colour."""
    return make_cell(reading, STYLES.get(reading or "", "dim"))


def make_letters(letters: Iterable[str]) -> Text:
    """Return letters of readings, each in its colour."""
    return Text(" ").join(make_cell(letter, STYLES.get(letter, "")) for letter in letters)


def make_time(instant: str | None) -> Text:
    """Return an instant to the minute, in UTC; None as a dash."""
    return make_cell(None if instant is None else format_minute(instant))


def make_price(price: float | None) -> Text:
    """Return a price with up to ten digits."""
    return make_cell(None if price is None else f"{price:.10g}")


def make_change(before: str, after: str) -> Text:
    """Return a change of a reading."""
    return Text(" > ").join((make_reading(before), make_reading(after)))


def format_minute(instant: str) -> str:
    """Return an instant to the minute, without its zone; ValueError if it is none."""
    return f"{parse_served_time(instant):%Y-%m-%d %H:%M}"


def list_marks(meta: Json) -> list[Text]:
    """Return what makes data differ from live ones, for the line above a table."""
    marks = []
    if meta.get("simulated"):
        marks.append(Text("SIMULATED", style="bold yellow"))
    if meta.get("source") == "recorded":
        marks.append(Text("RECORDED", style="bold yellow"))
    if meta.get("stale"):
        marks.append(Text("STALE", style="bold red"))
    return marks

"""The one type of clock; parts take a clock as an argument, and nothing else tells the time."""

from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns the time in epoch milliseconds: the wall clock, unless its parameter says otherwise."""

"""The type of clocks: code that needs the time takes one as an argument, so tests can set it."""

from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds: the wall clock's, unless the parameter's name says otherwise."""

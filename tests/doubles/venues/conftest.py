"""Fixtures of the venues' double, for its own tests."""

from tests.doubles.venues.server import clock as clock
from tests.doubles.venues.server import double as double

"""Fixtures of the venues' double, for its own tests."""

from tests.doubles.venues.fixtures import clock as clock
from tests.doubles.venues.fixtures import double as double

"""Fixtures of the venues' double, for the tests of the clients."""

from tests.doubles.venues.fixtures import clock as clock
from tests.doubles.venues.fixtures import double as double

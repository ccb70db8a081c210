"""The double of venues, for the clients that are tested on it."""

from tests.doubles.venues.fixtures import clock as clock
from tests.doubles.venues.fixtures import double as double

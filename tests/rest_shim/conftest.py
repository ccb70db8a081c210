"""Fixtures of the REST tests."""

from tests.stripe_double.shop import shop as shop

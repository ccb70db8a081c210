"""Fixtures of the access tests."""

from tests.stripe_double.shop import shop as shop

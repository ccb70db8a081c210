"""Fixtures of the access tests."""

from tests.support.stripe_shop import shop as shop

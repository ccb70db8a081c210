"""Fixtures of the REST tests."""

from tests.support.stripe_shop import shop as shop

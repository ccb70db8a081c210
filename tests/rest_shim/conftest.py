"""Fixtures of the REST tests."""

from tests.support.sandbox_shop import shop as shop

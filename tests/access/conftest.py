"""Fixtures of the access tests."""

from tests.support.sandbox_shop import shop as shop

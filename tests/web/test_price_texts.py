"""Prices as pages show them."""

import pytest

from web.price_texts import format_price


@pytest.mark.clause("pages")
@pytest.mark.parametrize(
    ("price", "text"),
    [
        (1_234_567.891, "1,234,567.89"),
        (97_412.5, "97,412.50"),
        (45.666, "45.67"),
        (2.48312, "2.4831"),
        (0.99999, "1.0000"),
        (0.5, "0.5000"),
        (0.0312, "0.03120"),
        (0.000012344, "0.00001234"),
        (0.00000068, "0.0000006800"),
    ],
)
def test_a_price_keeps_four_digits_and_has_thousands_separators(price: float, text: str):
    assert format_price(price) == text

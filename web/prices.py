"""Prices as pages show them."""


def format_price(value: float) -> str:
    """Return a price with thousands separators and four or more significant digits.

    Such as 97,412.50, 45.67, 2.4831 and 0.00001234.
    """
    if value >= 10:
        return f"{value:,.2f}"
    # The exponent comes from the decimal text, so that 0.99999 counts as 1.
    exponent = int(f"{value:.3e}".partition("e")[2]) if value else 0
    return f"{value:.{max(4, 3 - exponent)}f}"

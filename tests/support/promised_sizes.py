"""The response sizes that tool descriptions promise."""

import re


def parse_size(description: str) -> int:
    """Return the promised number of characters in a description."""
    (number,) = re.findall(r"about ([\d,]+) characters", description)
    return int(number.replace(",", ""))


def parse_largest_size(description: str) -> int:
    """Return the largest response size that a description names."""
    (number,) = re.findall(r"the largest about\s+([\d,]+)", description)
    return int(number.replace(",", ""))

"""The sizes of answers that the descriptions of tools promise."""

import re


def parse_size(description: str) -> int:
    """Return the number of characters that a description promises."""
    (number,) = re.findall(r"about ([\d,]+) characters", description)
    return int(number.replace(",", ""))


def parse_largest_size(description: str) -> int:
    """Return the size of the largest answer that a description names."""
    (number,) = re.findall(r"the largest about\s+([\d,]+)", description)
    return int(number.replace(",", ""))

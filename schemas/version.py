"""The version of this release, which every other place reads from here."""

from typing import Final

VERSION: Final = "0.1.0"

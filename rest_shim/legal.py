"""The page of terms, served as the Markdown it is written in."""

from functools import cache
from importlib.resources import files


@cache
def load_legal_text() -> str:
    """Return the page."""
    return files("rest_shim").joinpath("legal.md").read_text(encoding="utf-8")

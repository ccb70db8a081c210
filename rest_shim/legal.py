"""Loads the page of terms, privacy and licence, which is served as Markdown."""

from functools import cache
from importlib.resources import files


@cache
def load_legal_text() -> str:
    """Return the page's Markdown, read once from the package."""
    return files("rest_shim").joinpath("legal.md").read_text(encoding="utf-8")

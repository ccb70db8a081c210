"""Renders the page of terms, privacy and licence, which is served as Markdown."""

import re
from functools import cache
from importlib.resources import files

from schemas.operator import Operator

OPERATOR_HEADING = "## Operator\n\n"


@cache
def render_legal(operator: Operator) -> str:
    """Return the page's Markdown, with the operator's name, contact and policies if set."""
    text = files("rest_shim").joinpath("legal.md").read_text(encoding="utf-8")
    if not operator.is_known:
        return text
    values = {
        "Name": operator.name and _escape(operator.name),
        "Contact": operator.contact and _format_link(operator.contact),
        "Terms": operator.terms_url and _format_link(operator.terms_url),
        "Privacy policy": operator.privacy_url and _format_link(operator.privacy_url),
    }
    items = "".join(f"- {label}: {value}\n" for label, value in values.items() if value)
    return text.replace(OPERATOR_HEADING, f"{OPERATOR_HEADING}{items}\n")


def _format_link(target: str) -> str:
    # Markdown makes no link of an address with other characters.
    return f"<{target}>" if target.isascii() else _escape(target)


def _escape(text: str) -> str:
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)

"""Corrects the text of a universe file entry by entry, so that comments and order stay."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, NamedTuple

from compute.universe import Asset, Listing

_ENTRY = re.compile(r"^(?=\s*\[\[\s*asset\s*\]\])", re.MULTILINE)
_INLINE_TABLE = re.compile(r"\{[^{}]*\}")
_FIRST_CHOICE_LINE = re.compile(
    r"^[ \t]*(?:symbol|venue|perpetual|since)\s*=[^\r\n]*", re.MULTILINE
)
_PERPETUAL_LINE = re.compile(r"^[ \t]*perpetual\s*=[^\r\n]*", re.MULTILINE)
_PERPETUAL_KEY = re.compile(
    r"""perpetual\s*=\s*(?:"[^"]*"|'[^']*')\s*,\s*|,\s*perpetual\s*=[^,}]*"""
)
_UNTIL = re.compile(r"\buntil\s*=\s*\d{4}-\d{2}-\d{2}")


class Correction(NamedTuple):
    """A listing that a venue no longer has, or, if `is_perpetual`, only its perpetual."""

    asset: Asset
    listing: Listing
    is_perpetual: bool = False


class CorrectedFile(NamedTuple):
    """The whole text, its changed entries, and the corrections that no edit could make."""

    text: str
    entries: list[str]
    refused: list[Correction]


def correct_universe_text(text: str, corrections: Iterable[Correction], day: date) -> CorrectedFile:
    """Date the ended listings with `day`, and comment out the perpetuals that are gone.

    An entry changes only if it then says exactly that; other spellings of TOML are refused.
    """
    by_ticker: dict[str, list[Correction]] = {}
    for correction in corrections:
        by_ticker.setdefault(correction.asset.ticker, []).append(correction)
    parts, changed = _ENTRY.split(text), list[str]()
    for number, part in enumerate(parts):
        remaining = list[Correction]()
        for correction in by_ticker.pop(_read_ticker(part), []):
            edited = _correct_entry(parts[number], correction, day)
            if edited is None:
                remaining.append(correction)
            else:
                parts[number] = edited
        if remaining:
            by_ticker[remaining[0].asset.ticker] = remaining
        if parts[number] != part:
            changed.append(parts[number].strip())
    refused = [one for several in by_ticker.values() for one in several]
    return CorrectedFile("".join(parts), changed, refused)


def _read_ticker(entry: str) -> str:
    parsed = _parse(entry)
    return "" if parsed is None else str(_get_asset(parsed).get("ticker", ""))


def _correct_entry(entry: str, correction: Correction, day: date) -> str | None:
    """Return the corrected entry, None if its spelling does not allow a safe edit."""
    listing, wanted = correction.listing, _parse(entry)
    if wanted is None or listing.since == day:
        return None
    fields, is_first = _find_fields(_get_asset(wanted), correction)
    if fields is None:
        return None
    before = dict(fields)
    fields.pop("perpetual") if correction.is_perpetual else fields.update(until=day)
    edit = _edit_first_choice if is_first else _edit_fallback
    edited = edit(entry, before, correction, day)
    # The edits look at text, so only the parsed result shows whether they did what they should.
    return edited if _parse(edited) == wanted else None


def _find_fields(
    asset: dict[str, Any], correction: Correction
) -> tuple[dict[str, Any] | None, bool]:
    """Return the fields of a listing in a parsed entry, and whether it is the first choice."""
    listing = correction.listing
    for number, fields in enumerate([asset, *asset.get("fallbacks", [])]):
        names = ("venue", "symbol", "perpetual", "since", "until")
        if all(fields.get(name) == getattr(listing, name) for name in names):
            return fields, number == 0
    return None, False


def _edit_first_choice(
    entry: str, before: Mapping[str, Any], correction: Correction, day: date
) -> str:
    if correction.is_perpetual:
        return _PERPETUAL_LINE.sub(lambda _: _describe(correction, day), entry, count=1)
    if "until" in before:
        return re.sub(rf"(?m)^[ \t]*{_UNTIL.pattern}", f"until = {day}", entry, count=1)
    end = max(found.end() for found in _FIRST_CHOICE_LINE.finditer(entry))
    return f"{entry[:end]}{_get_newline(entry)}until = {day}{entry[end:]}"


def _edit_fallback(entry: str, before: Mapping[str, Any], correction: Correction, day: date) -> str:
    for found in _INLINE_TABLE.finditer(entry):
        table = found[0]
        if _parse(f"x = {table}") != {"x": before}:
            continue
        if correction.is_perpetual:
            line = entry.rfind("\n", 0, found.start()) + 1
            indent = entry[line : len(entry) - len(entry[line:].lstrip(" \t"))]
            comment = f"{indent}{_describe(correction, day)}{_get_newline(entry)}"
            table = _PERPETUAL_KEY.sub("", table, count=1)
            return (
                entry[:line] + comment + entry[line : found.start()] + table + entry[found.end() :]
            )
        if "until" in before:
            table = _UNTIL.sub(f"until = {day}", table)
        else:
            table = f"{table[:-1].rstrip()}, until = {day}}}"
        return entry[: found.start()] + table + entry[found.end() :]
    return entry


def _describe(correction: Correction, day: date) -> str:
    listing = correction.listing
    return f"# {day}: {listing.venue} does not list the perpetual {listing.perpetual}."


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _get_asset(parsed: dict[str, Any]) -> dict[str, Any]:
    entries = parsed.get("asset")
    return entries[0] if isinstance(entries, list) and isinstance(entries[0], dict) else {}


def _get_newline(entry: str) -> str:
    return "\r\n" if "\r\n" in entry else "\n"

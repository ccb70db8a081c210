"""Lists of markets in which some entries are unlike the others. Pure functions over JSON."""

from collections import Counter
from typing import Any, Final

# An entry needs the texts that all entries have but one in twenty, or one.
_ODD_SHARE: Final = 20


def drop_odd_entries(answer: Any) -> Any:
    """Return a venue's answer without the entries that lack texts which nearly all others have.

    A list is an array or an object, most of whose values are objects.
    """
    if not isinstance(answer, dict | list):
        return answer
    items = list(answer.items() if isinstance(answer, dict) else enumerate(answer))
    entries = [value for _, value in items if isinstance(value, dict)]
    if len(entries) < 2 or 2 * len(entries) <= len(items):
        kept = [(key, drop_odd_entries(value)) for key, value in items]
    else:
        texts = Counter(name for entry in entries for name in entry if _has_text(entry, name))
        least = len(items) - max(1, len(items) // _ODD_SHARE)
        usual = [name for name, count in texts.items() if count >= least]
        kept = [(key, entry) for key, entry in items if all(_has_text(entry, n) for n in usual)]
    return dict(kept) if isinstance(answer, dict) else [value for _, value in kept]


def _has_text(entry: Any, name: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(name), str)

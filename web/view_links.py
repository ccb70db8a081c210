"""Addresses of views: their files, the pages of a feed, and the same view for programs."""

import json
import shlex
from typing import Any
from urllib.parse import urlencode

from schemas.query import Query
from web.filter_form import PAGING_ARGUMENT


def change_query(query: Query, **changes: Any) -> Query:
    """Return a query with some arguments changed, on its first page unless that is among them."""
    kept = query.model_dump(exclude_defaults=True, exclude={PAGING_ARGUMENT}) | changes
    return type(query).model_validate({n: value for n, value in kept.items() if value is not None})


def to_query_string(query: Query) -> str:
    """Return the arguments of a query that are not defaults."""
    return urlencode(query.model_dump(exclude_defaults=True))


def build_paging(query: Any, result: Any) -> dict[str, Any]:
    """Return the addresses of the newer and older pages, None for none, and the rows shown."""
    pagination = getattr(result, "pagination", None)
    if pagination is None:
        return {"newer": None, "older": None, "shown": None, "has_more": False}
    first, limit = pagination.offset, pagination.limit
    before = to_query_string(change_query(query, offset=max(first - limit, 0))) if first else None
    after = (
        to_query_string(change_query(query, offset=first + limit)) if pagination.has_more else None
    )
    newer, older = (before, after) if query.order == "newest" else (after, before)
    return {
        "newer": newer,
        "older": older,
        "shown": (first + 1, first + pagination.returned),
        "has_more": pagination.has_more,
    }


def describe_call(tool_name: str, query: Query) -> str:
    """Return the call of a tool that gives a view."""
    return f"{tool_name} {json.dumps(query.model_dump(exclude_defaults=True))}"


def describe_request(base_url: str, path: str, query: Query) -> str:
    """Return the shell command that requests a view over REST."""
    address = f"{base_url}{path}?{to_query_string(query)}".rstrip("?")
    return f'curl -H "Authorization: Bearer $SIGNALS_API_KEY" {shlex.quote(address)}'

"""The API access page, on which members see their plans and manage their keys.

Only POST requests change anything. The id of another member's plan or key is 404, like an id that
does not exist.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import ASK_OPERATOR_HINT, PRICES_USD
from access.keys_and_quota import MAX_LABEL_CHARS, generate_key
from access.maintenance import CALL_RETENTION_DAYS
from access.members import (
    DEFAULT_OVERLAP_HOURS,
    EXPIRY_CHOICES_DAYS,
    MAX_LIVE_KEYS,
    MAX_NEW_KEYS_PER_DAY,
    OVERLAP_CHOICES_HOURS,
    MemberKeys,
)
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from schemas.errors import ApiError, invalid_parameter_error
from schemas.vocabulary import DAY_MS, format_instant
from serving.arguments import quote_value
from serving.tool_runner import ToolRunner
from store.access_rows import DayUsage
from web.buy_pages import build_key_values
from web.pages import build_page_route, redirect_to, render_page
from web.sessions import HOME_PATH, MAX_CHOICE_CHARS, Form, FormResponder, Sessions, Viewer

CHART_DAYS = 30
# In units of the SVG, whose width is the page's.
DAY_WIDTH, BAR_WIDTH, CHART_HEIGHT = 20, 15, 120
# Each tool has a number, and so a colour of its own, whichever others were used.
TOOL_NUMBERS = {tool: number for number, tool in enumerate(TOOLS_BY_NAME)}


def build_usage_chart(rows: Iterable[DayUsage], at: int) -> dict[str, Any]:
    """Return the chart of the CHART_DAYS days that end at a time (epoch ms), oldest first.

    The bar of a day is stacked by tool: the parts have the tool's number, their top and height.
    """
    last_day = at // DAY_MS
    by_day: dict[int, Counter[str]] = {}
    for row in rows:
        by_day.setdefault(row.day, Counter())[row.tool] += row.used
    totals = sum(by_day.values(), Counter[str]())
    highest = max((counts.total() for counts in by_day.values()), default=0)
    days: list[dict[str, Any]] = []
    for day in range(last_day - CHART_DAYS + 1, last_day + 1):
        counts, top = by_day.get(day, Counter[str]()), float(CHART_HEIGHT)
        parts = []
        for number, _, calls in _list_tools(counts):
            height = round(calls / highest * CHART_HEIGHT, 1)
            top = round(top - height, 1)
            parts.append((number, max(top, 0.0), height))
        days.append(
            {
                "date": format_instant(day * DAY_MS)[:10],
                "calls": counts.total(),
                "x": len(days) * DAY_WIDTH,
                "parts": parts,
                "tools": _list_tools(counts),
            }
        )
    return {
        "days": days,
        "tools": _list_tools(totals),
        "calls": totals.total(),
        "busiest": max(days, key=itemgetter("calls")),
        "width": DAY_WIDTH * CHART_DAYS,
        "height": CHART_HEIGHT,
        "bar_width": BAR_WIDTH,
    }


def _list_tools(counts: Counter[str]) -> list[tuple[int, str, int]]:
    """Return the number, name and calls of each tool, by number."""
    return sorted(
        (TOOL_NUMBERS.get(tool, len(TOOL_NUMBERS)), tool, calls) for tool, calls in counts.items()
    )


KEYS_PATH = f"/{HOME_PATH}/{{membership}}/keys"
KEY_PATH = f"{KEYS_PATH}/{{key}}"
MAX_CALLS_SHOWN = 100
KEY_FIELDS = {"label": MAX_LABEL_CHARS, "expires": MAX_CHOICE_CHARS, "overlap": MAX_CHOICE_CHARS}
# By the value of a form's field: days until a new key expires, hours until a rotated key does.
EXPIRY_DAYS: dict[str, int | None] = {
    "never": None,
    **{str(days): days for days in EXPIRY_CHOICES_DAYS},
}
OVERLAP_HOURS = {str(hours): hours for hours in OVERLAP_CHOICES_HOURS}
ChoiceT = TypeVar("ChoiceT", int, int | None)


def build_api_access_routes(
    members: MemberKeys, sessions: Sessions, runner: ToolRunner
) -> list[Route]:
    """Return the routes of the page and its forms."""
    pages, require_viewer = _ApiAccessPages(members, runner), sessions.require_viewer

    def build_form_route(path: str, respond: FormResponder, *methods: str) -> Route:
        responder = sessions.require_form(pages.show_errors(respond), KEY_FIELDS)
        return build_page_route(path, runner, responder, *methods or ("GET", "POST"))

    async def redirect_home(request: Request) -> Response:
        return redirect_to(request, HOME_PATH)

    return [
        build_page_route("/settings", runner, redirect_home),
        build_page_route(f"/{HOME_PATH}", runner, require_viewer(pages.show_plans)),
        build_page_route(f"/{HOME_PATH}/requests", runner, require_viewer(pages.show_requests)),
        build_form_route(KEYS_PATH, pages.create_key),
        build_form_route(f"{KEY_PATH}/label", pages.relabel_key),
        build_form_route(f"{KEY_PATH}/rotate", pages.rotate_key),
        build_page_route(f"{KEY_PATH}/revoke", runner, require_viewer(pages.confirm_revoke)),
        build_form_route(f"{KEY_PATH}/revoke", pages.revoke_key, "POST"),
        build_form_route(f"/{HOME_PATH}/{{membership}}/billing", pages.redirect_to_portal),
        build_form_route(f"/{HOME_PATH}/payments/{{payment}}", pages.claim_key),
    ]


@dataclass(frozen=True, slots=True)
class _ApiAccessPages:
    members: MemberKeys
    runner: ToolRunner

    def show_errors(self, respond: FormResponder) -> FormResponder:
        """Wrap the responder to a form; what the viewer can correct is shown with the form."""

        async def respond_or_show(request: Request, viewer: Viewer, form: Form) -> Response:
            try:
                return await respond(request, viewer, form)
            except ApiError as error:
                if error.status not in {400, 409}:
                    raise
                errors, ids = {"": error.message}, request.path_params
                if error.message.startswith("label:"):
                    # The form is that of a key, or of a new key.
                    field = f"label-{ids['key']}" if "key" in ids else f"new-{ids['membership']}"
                    errors = {
                        field: f"Enter 1 to {MAX_LABEL_CHARS} characters, such as where you use "
                        "the key."
                    }
                return await self.show_plans(request, viewer, form, errors, error.status)

        return respond_or_show

    async def show_plans(
        self,
        request: Request,
        viewer: Viewer,
        form: Form | None = None,
        errors: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        """Show the viewer's plans with their status and keys, and payments without a key.

        `errors` are by field; the error of no field is at the top of the page.
        """
        plans = await self.members.list_plans(viewer.email)
        charts = []
        for plan in plans:
            rows = await self.members.list_usage(plan, CHART_DAYS)
            charts.append(build_usage_chart(rows, plan.at))
        unclaimed, *statuses = await asyncio.gather(
            self.members.list_unclaimed(viewer.email),
            *(self.members.fetch_status(plan.membership) for plan in plans),
        )
        # The processor must report a status for every plan that may still change.
        is_all_known = unclaimed is not None and all(
            status is not None for plan, status in zip(plans, statuses, strict=True) if plan.is_live
        )
        return _render_page(
            request,
            "api_access.html",
            "API access",
            viewer,
            status=status,
            form=form or {},
            errors=errors or {},
            plans=list(zip(plans, statuses, charts, strict=True)),
            unclaimed=unclaimed or [],
            is_all_known=is_all_known,
            manages=self.members.is_manageable,
            daily_limit=self.runner.context.daily_limit,
            prices=PRICES_USD,
            ask_operator=ASK_OPERATOR_HINT,
            max_keys=MAX_LIVE_KEYS,
            max_new_keys=MAX_NEW_KEYS_PER_DAY,
            max_label_chars=MAX_LABEL_CHARS,
            expiry_days=EXPIRY_CHOICES_DAYS,
            overlap_hours=OVERLAP_CHOICES_HOURS,
            default_overlap_hours=DEFAULT_OVERLAP_HOURS,
        )

    async def show_requests(self, request: Request, viewer: Viewer) -> Response:
        """Show the latest calls of the viewer's keys."""
        calls = await self.members.list_calls(viewer.email, MAX_CALLS_SHOWN)
        return _render_page(
            request,
            "requests.html",
            "Recent requests",
            viewer,
            calls=calls,
            max_calls=MAX_CALLS_SHOWN,
            retention_days=CALL_RETENTION_DAYS,
        )

    async def create_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Create a key and show it in the response to the form."""
        # A redirect to a page that shows the key would need the key to be stored in clear.
        api_key = await self.members.create(
            viewer.email,
            parse_id(request, "membership"),
            form.get("label", ""),
            _parse_choice(form, "expires", EXPIRY_DAYS, "never"),
        )
        return self._show_key_once(request, viewer, api_key)

    async def claim_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Create the key of a payment that no agent has claimed, and show it."""
        api_key = generate_key()
        await self.members.redeem(viewer.email, request.path_params["payment"], api_key)
        return self._show_key_once(request, viewer, api_key)

    async def relabel_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Change the label of a key."""
        await self.members.relabel(viewer.email, *_parse_key_ids(request), form.get("label", ""))
        return redirect_to(request, HOME_PATH)

    async def rotate_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Replace a key and show the new one; the old one works for the chosen overlap."""
        overlap = _parse_choice(form, "overlap", OVERLAP_HOURS, str(DEFAULT_OVERLAP_HOURS))
        api_key = await self.members.rotate(viewer.email, *_parse_key_ids(request), overlap)
        return self._show_key_once(request, viewer, api_key)

    async def confirm_revoke(self, request: Request, viewer: Viewer) -> Response:
        """Ask the viewer to confirm that a key is to be revoked."""
        live_key = await self.members.get_live_key(viewer.email, *_parse_key_ids(request))
        return _render_page(
            request, "revoke_key.html", "Revoke this key?", viewer, live_key=live_key
        )

    async def revoke_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Revoke a key and return to the page."""
        await self.members.revoke(viewer.email, *_parse_key_ids(request))
        return redirect_to(request, HOME_PATH)

    async def redirect_to_portal(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Send the viewer to the payment processor's customer portal."""
        portal = await self.members.create_portal_url(
            viewer.email,
            parse_id(request, "membership"),
            f"{self.runner.context.base_url}/{HOME_PATH}",
        )
        return _render_page(request, "billing.html", "Your billing", viewer, leads_to=portal)

    def _show_key_once(self, request: Request, viewer: Viewer, api_key: str) -> Response:
        return _render_page(
            request,
            "new_key.html",
            "Your new key",
            viewer,
            status=201,
            back="API access",
            **build_key_values(api_key, self.runner.context.base_url),
        )


def _render_page(
    request: Request, template: str, title: str, viewer: Viewer, **values: Any
) -> Response:
    return render_page(
        request, template, title=title, here=HOME_PATH, is_wide=True, viewer=viewer, **values
    )


def _parse_choice(form: Form, name: str, choices: Mapping[str, ChoiceT], default: str) -> ChoiceT:
    """Return the value of a form's choice; ApiError 400 if the page does not offer it."""
    chosen = form.get(name, default)
    if chosen not in choices:
        raise invalid_parameter_error(
            f"{name}: {quote_value(chosen)} is not a choice; accepted: {', '.join(choices)}."
        )
    return choices[chosen]


def _parse_key_ids(request: Request) -> tuple[int, int]:
    return parse_id(request, "membership"), parse_id(request, "key")


def parse_id(request: Request, name: str) -> int:
    """Return an id from the request's path; ApiError 404 if it is not an id."""
    text: str = request.path_params[name]
    # At most 18 digits, so that every id fits the 64-bit integers of the stores.
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ApiError(
            "invalid_parameter",
            f"There is no {name} at this address. Open API access or Operations to see yours.",
            404,
        )
    return int(text)

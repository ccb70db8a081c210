"""Settings, API access: what a member has bought, and its keys. All that changes anything is POST.

Ids in addresses are of the viewer's own; those of others are unknown here, as those of nobody.
"""

import asyncio
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import SubscriptionStatus
from access.keys import MAX_LABEL_CHARS
from access.member_billing import MemberBilling
from access.member_keys import MAX_LIVE_KEYS, MAX_NEW_KEYS_PER_DAY, MemberKeys, MemberPlan
from mcp_server.client_registration import CLIENTS, KEY_VARIABLE
from schemas.errors import ApiError
from serving.tool_runner import ToolRunner
from web.pages import build_page_route, redirect_to, render_page
from web.sessions import HOME_PATH, Sessions, Viewer

KEYS_PATH = f"/{HOME_PATH}/{{membership}}/keys"
KEY_PATH = f"{KEYS_PATH}/{{key}}"
BILLING_PATH = f"/{HOME_PATH}/{{membership}}/billing"
PAYMENT_PATH = f"/{HOME_PATH}/payments/{{payment}}"
ID_PATTERN = re.compile(r"[0-9]{1,18}")
Form = dict[str, str]


def build_api_access_routes(
    members: MemberKeys, billing: MemberBilling, sessions: Sessions, runner: ToolRunner
) -> list[Route]:
    """Return the routes of the page and of each of its forms."""
    pages, require_viewer, require_form = (
        _ApiAccessPages(members, billing, runner),
        sessions.require_viewer,
        sessions.require_form,
    )
    return [
        build_page_route("/settings", runner, require_viewer(pages.redirect_home)),
        build_page_route(f"/{HOME_PATH}", runner, require_viewer(pages.show_plans)),
        build_page_route(KEYS_PATH, runner, require_form(pages.create_key), "GET", "POST"),
        build_page_route(
            f"{KEY_PATH}/label", runner, require_form(pages.relabel_key), "GET", "POST"
        ),
        build_page_route(f"{KEY_PATH}/revoke", runner, require_viewer(pages.confirm_revoke)),
        build_page_route(f"{KEY_PATH}/revoke", runner, require_form(pages.revoke_key), "POST"),
        build_page_route(
            BILLING_PATH, runner, require_form(pages.redirect_to_portal), "GET", "POST"
        ),
        build_page_route(PAYMENT_PATH, runner, require_form(pages.claim_key), "GET", "POST"),
    ]


class _ApiAccessPages:
    def __init__(self, members: MemberKeys, billing: MemberBilling, runner: ToolRunner) -> None:
        self._members = members
        self._billing = billing
        self._base_url = runner.context.base_url
        self._daily_limit = runner.context.daily_limit

    async def redirect_home(self, request: Request, viewer: Viewer) -> Response:
        """Lead to the one page of the settings."""
        return redirect_to(request, HOME_PATH)

    async def show_plans(self, request: Request, viewer: Viewer) -> Response:
        """Show what a viewer has bought, how billing sees it, and its keys."""
        plans = await self._members.list_plans(viewer.email)
        statuses, unclaimed = await asyncio.gather(
            self._billing.fetch_statuses(plans), self._billing.list_unclaimed(viewer.email)
        )
        return _render_page(
            request,
            "api_access.html",
            "API access",
            viewer,
            plans=list(zip(plans, statuses, strict=True)),
            unclaimed=unclaimed or [],
            is_all_known=unclaimed is not None and _is_billing_known(plans, statuses),
            manages=self._billing.is_manageable,
            daily_limit=self._daily_limit,
            most_keys=MAX_LIVE_KEYS,
            most_new_keys=MAX_NEW_KEYS_PER_DAY,
            longest_label=MAX_LABEL_CHARS,
        )

    async def create_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Make a key and show it in this answer alone: no address leads to it."""
        membership = _parse_id(request, "membership")
        api_key = await self._members.create(viewer.email, membership, form.get("label", ""))
        return self._show_key_once(request, viewer, api_key)

    async def claim_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Make the key of a payment that no agent has claimed, and show it."""
        api_key = await self._members.claim(viewer.email, request.path_params["payment"])
        return self._show_key_once(request, viewer, api_key)

    async def relabel_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Name a key anew."""
        await self._members.relabel(viewer.email, *_parse_key_ids(request), form.get("label", ""))
        return redirect_to(request, HOME_PATH)

    async def confirm_revoke(self, request: Request, viewer: Viewer) -> Response:
        """Say what revoking a key does, with the button that does it."""
        live_key = await self._members.get_live_key(viewer.email, *_parse_key_ids(request))
        return _render_page(request, "revoke_key.html", "Revoke this key?", viewer, held=live_key)

    async def revoke_key(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Revoke a key."""
        await self._members.revoke(viewer.email, *_parse_key_ids(request))
        return redirect_to(request, HOME_PATH)

    async def redirect_to_portal(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Lead to the processor's own pages on a plan.

        By a page and not at once, as no form of ours may lead to another host.
        """
        home = f"{self._base_url}/{HOME_PATH}"
        portal = await self._billing.create_portal_url(
            viewer.email, _parse_id(request, "membership"), home
        )
        response = _render_page(request, "billing.html", "Your billing", viewer, portal=portal)
        response.headers["Refresh"] = f"0; url={portal}"
        return response

    def _show_key_once(self, request: Request, viewer: Viewer, api_key: str) -> Response:
        return _render_page(
            request,
            "new_key.html",
            "Your new key",
            viewer,
            status=201,
            api_key=api_key,
            variable=KEY_VARIABLE,
            clients=[(client, client.render_lines(self._base_url)) for client in CLIENTS],
        )


def _render_page(
    request: Request, template: str, title: str, viewer: Viewer, **values: Any
) -> Response:
    return render_page(
        request, template, title=title, here=HOME_PATH, is_wide=True, viewer=viewer, **values
    )


def _is_billing_known(plans: list[MemberPlan], statuses: list[SubscriptionStatus | None]) -> bool:
    """Tell whether billing had a word on all that may change."""
    pairs = zip(plans, statuses, strict=True)
    return all(status is not None for plan, status in pairs if plan.is_live)


def _parse_key_ids(request: Request) -> tuple[int, int]:
    """Return the ids of a membership and of a key of it."""
    return _parse_id(request, "membership"), _parse_id(request, "key")


def _parse_id(request: Request, name: str) -> int:
    """Return an id of a request's path; ApiError 404 for what cannot be one."""
    text: str = request.path_params[name]
    if not ID_PATTERN.fullmatch(text):
        raise ApiError("invalid_parameter", f"No {name} has this address.", 404)
    return int(text)

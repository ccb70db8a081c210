"""Settings, API access: what a member has bought, and its keys. All that changes anything is POST.

Ids in addresses are of the viewer's own; those of others are unknown here, as those of nobody.
"""

import asyncio
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import Standing
from access.keys import MAX_LABEL
from access.member_billing import MemberBilling
from access.member_keys import MOST_LIVE_KEYS, MOST_NEW_KEYS, MemberKeys, Plan
from mcp_server.client_registration import CLIENTS, KEY_VARIABLE
from schemas.errors import ApiError
from serving.tool_runner import Calls
from web.pages import page, page_route, see_other
from web.sessions import HOME, Sessions, Viewer

KEYS = f"/{HOME}/{{membership}}/keys"
KEY = f"{KEYS}/{{key}}"
BILLING = f"/{HOME}/{{membership}}/billing"
PAYMENT = f"/{HOME}/payments/{{payment}}"
ID = re.compile(r"[0-9]{1,18}")
Form = dict[str, str]


def api_access_routes(
    members: MemberKeys, billing: MemberBilling, sessions: Sessions, calls: Calls
) -> list[Route]:
    """Return the routes of the page and of each of its forms."""
    pages, viewed, sent = _ApiAccess(members, billing, calls), sessions.signed_in, sessions.sent
    return [
        page_route("/settings", calls, viewed(pages.lead_home)),
        page_route(f"/{HOME}", calls, viewed(pages.show)),
        page_route(KEYS, calls, sent(pages.create), "GET", "POST"),
        page_route(f"{KEY}/label", calls, sent(pages.relabel), "GET", "POST"),
        page_route(f"{KEY}/revoke", calls, viewed(pages.ask_before_revoking)),
        page_route(f"{KEY}/revoke", calls, sent(pages.revoke), "POST"),
        page_route(BILLING, calls, sent(pages.lead_away), "GET", "POST"),
        page_route(PAYMENT, calls, sent(pages.claim), "GET", "POST"),
    ]


class _ApiAccess:
    def __init__(self, members: MemberKeys, billing: MemberBilling, calls: Calls) -> None:
        self._members = members
        self._billing = billing
        self._base_url = calls.context.base_url
        self._daily_limit = calls.context.daily_limit

    async def lead_home(self, request: Request, viewer: Viewer) -> Response:
        """Lead to the one page of the settings."""
        return see_other(request, HOME)

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """Show what a viewer has bought, how billing sees it, and its keys."""
        plans = await self._members.plans(viewer.email)
        standings, unclaimed = await asyncio.gather(
            self._billing.standings(plans), self._billing.unclaimed(viewer.email)
        )
        return _page(
            request,
            "api_access.html",
            "API access",
            viewer,
            plans=list(zip(plans, standings, strict=True)),
            unclaimed=unclaimed or [],
            is_all_known=unclaimed is not None and _all_known(plans, standings),
            manages=self._billing.manages,
            daily_limit=self._daily_limit,
            most_keys=MOST_LIVE_KEYS,
            most_new_keys=MOST_NEW_KEYS,
            longest_label=MAX_LABEL,
        )

    async def create(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Make a key and show it in this answer alone: no address leads to it."""
        membership = _id(request, "membership")
        api_key = await self._members.create(viewer.email, membership, form.get("label", ""))
        return self._shown_once(request, viewer, api_key)

    async def claim(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Make the key of a payment that no agent has claimed, and show it."""
        api_key = await self._members.claim(viewer.email, request.path_params["payment"])
        return self._shown_once(request, viewer, api_key)

    async def relabel(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Name a key anew."""
        await self._members.relabel(viewer.email, *_key(request), form.get("label", ""))
        return see_other(request, HOME)

    async def ask_before_revoking(self, request: Request, viewer: Viewer) -> Response:
        """Say what revoking a key does, with the button that does it."""
        held = await self._members.live_key(viewer.email, *_key(request))
        return _page(request, "revoke_key.html", "Revoke this key?", viewer, held=held)

    async def revoke(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Revoke a key."""
        await self._members.revoke(viewer.email, *_key(request))
        return see_other(request, HOME)

    async def lead_away(self, request: Request, viewer: Viewer, form: Form) -> Response:
        """Lead to the processor's own pages on a plan.

        By a page and not at once, as no form of ours may lead to another host.
        """
        home = f"{self._base_url}/{HOME}"
        portal = await self._billing.portal(viewer.email, _id(request, "membership"), home)
        response = _page(request, "billing.html", "Your billing", viewer, portal=portal)
        response.headers["Refresh"] = f"0; url={portal}"
        return response

    def _shown_once(self, request: Request, viewer: Viewer, api_key: str) -> Response:
        return _page(
            request,
            "new_key.html",
            "Your new key",
            viewer,
            status=201,
            api_key=api_key,
            variable=KEY_VARIABLE,
            clients=[(client, client.lines(self._base_url)) for client in CLIENTS],
        )


def _page(request: Request, template: str, title: str, viewer: Viewer, **values: Any) -> Response:
    return page(request, template, title=title, here=HOME, is_wide=True, viewer=viewer, **values)


def _all_known(plans: list[Plan], standings: list[Standing | None]) -> bool:
    """Tell whether billing had a word on all that may change."""
    pairs = zip(plans, standings, strict=True)
    return all(standing is not None for plan, standing in pairs if plan.is_live)


def _key(request: Request) -> tuple[int, int]:
    """Return the ids of a membership and of a key of it."""
    return _id(request, "membership"), _id(request, "key")


def _id(request: Request, name: str) -> int:
    """Return an id of a request's path; ApiError 404 for what cannot be one."""
    text: str = request.path_params[name]
    if not ID.fullmatch(text):
        raise ApiError("invalid_parameter", f"No {name} has this address.", 404)
    return int(text)

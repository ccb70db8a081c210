"""What a person does next after paying or leaving a checkout, on the sandbox's page and Stripe's.

That depends on who opened it: the person here, the person on the way to connecting a program, or
an agent, which sent the person a link.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from access.billing.sandbox import SessionStatus
from web.buy_pages import BUY_PATH, KEY_PATH
from web.own_purchases import OwnPurchases
from web.pending_requests import PendingRequests, build_consent_path


@dataclass(frozen=True, slots=True)
class NextStep:
    """The sentence that a page adds, and the link that leads on, if there is one."""

    text: str = ""
    path: str | None = None
    label: str = ""


Steps = Mapping[SessionStatus, NextStep]
CHOOSE_PLAN = NextStep(path=BUY_PATH, label="Choose a plan")
OWN_STEPS: Steps = {
    "open": NextStep("After paying, you get your key."),
    "paid": NextStep(path=KEY_PATH, label="Show your key"),
    "cancelled": CHOOSE_PLAN,
    "expired": CHOOSE_PLAN,
}
NEW_LINK = NextStep(
    "Ask your agent for a new link, or buy access yourself.", BUY_PATH, "Buy access"
)
AGENT_STEPS: Steps = {
    "open": NextStep("If you pay here, your agent gets a key."),
    # Also for a person who has seen the key, and so is no longer recognized.
    "paid": NextStep("Go back to your agent, if one sent you here: it fetches its key by itself."),
    "cancelled": NEW_LINK,
    "expired": NEW_LINK,
}


@dataclass(frozen=True, slots=True)
class CheckoutSteps:
    """Finds the next step of the person whose browser shows a checkout."""

    own: OwnPurchases
    pending_requests: PendingRequests

    async def is_own(self, request: Request, session_id: str) -> bool:
        """Return whether this browser opened the processor's session on the page to buy access."""
        opened = await self.own.find(request)
        return opened is not None and opened.claim.session == session_id

    async def find(self, request: Request, session_id: str, status: SessionStatus) -> NextStep:
        """Return the step after a session, which has this status."""
        if await self.is_own(request, session_id):
            return OWN_STEPS[status]
        pending = await self.pending_requests.find_of_browser(request)
        continue_path = None if pending is None else build_consent_path(pending)
        if continue_path is None:
            return AGENT_STEPS[status]
        if status == "open":
            return NextStep()
        text = "Sign in with the e-mail address you paid with, then connect the program."
        return NextStep(
            text if status == "paid" else "", continue_path, "Continue to connect the program"
        )

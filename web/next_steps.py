"""The titles of error pages, and the links that lead on from them."""

from typing import NamedTuple

from serving.arguments import find_nearest

TITLES = {404: "Not found", 429: "Too many attempts", 503: "Temporarily unavailable"}
# No page repeats a longer text of its URL.
MAX_ECHOED_CHARS = 100
DEFAULT_TITLE = "Something went wrong"
NOT_BUILT_TITLE = "Not ready yet"
# The title and text in place of the message for programs, if the error is not one of a page.
ROUTING_TEXTS = {
    403: (
        "Not sent from here",
        "Another site sent this request, so nothing was changed. Open the page here instead:",
    ),
    404: (
        "Page not found",
        "There is no page at this address. Check the spelling, or continue here:",
    ),
    405: (
        "Not available this way",
        "This address does not accept such a request. Open the page instead:",
    ),
    421: (
        "Wrong address",
        "The service does not answer under this name. Open it at its own address:",
    ),
}


class Step(NamedTuple):
    """A link that leads on; `path` is relative to the service's root."""

    text: str
    path: str


BOARD = Step("Board", "")
BUY = Step("Buy access", "buy")
SIGN_IN = Step("Sign in", "sign-in")
# By the first part of the path. The shell of the page links to everything else.
STEPS: dict[str, tuple[Step, ...]] = {
    "assets": (Step("All assets", "assets"),),
    "buy": (BUY,),
    "checkout": (BUY,),
    "docs": (Step("All docs", "docs"),),
    "oauth": (Step("How to connect a program", "docs/connect"),),
    "operations": (Step("Operations", "operations"), SIGN_IN),
    "sandbox": (BUY,),
    "settings": (Step("API access", "settings/api-access"), SIGN_IN),
    "sign-in": (Step("Request a new link", "sign-in"),),
    "sign-out": (SIGN_IN,),
}
# The pages that a misspelled path may mean.
PAGES = {
    "feed": Step("Feed", "feed"),
    "flips": Step("Flips", "flips"),
    "confluence": Step("Confluence", "confluence"),
    "assets": Step("Assets", "assets"),
    "docs": Step("Docs", "docs"),
    "buy": BUY,
    "sign-in": SIGN_IN,
    "settings": Step("API access", "settings/api-access"),
    "operations": Step("Operations", "operations"),
}


def list_steps(path: str, status: int, method: str, *, sells_keys: bool) -> list[Step]:
    """Return the links for an error at a path, the best one first."""
    first = path.strip("/").partition("/")[0]
    steps = [*STEPS.get(first, ())]
    if status == 404 and not steps:
        nearest = find_nearest(first, {name: name for name in PAGES})
        steps = [PAGES[nearest]] if nearest else []
    is_repeatable = status == 400 or status in (405, 429, 503)
    if (
        is_repeatable
        and len(path) <= MAX_ECHOED_CHARS
        and (method in ("GET", "HEAD") or status == 405)
    ):
        text = "Open this page without its filters" if status == 400 else "Open this page again"
        steps = [Step(text, path.removeprefix("/")), *steps]
    offered = [step for step in steps if sells_keys or step != BUY]
    return offered if BOARD.path in (step.path for step in offered) else [*offered, BOARD]

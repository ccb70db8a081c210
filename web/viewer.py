"""Who looks at a page: nobody known, or a member who has signed in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Viewer:
    """A signed-in member; `form_token` is what each of their forms must carry."""

    email: str
    form_token: str


ViewerOf = Callable[[Request], Awaitable[Viewer | None]]


async def nobody(request: Request) -> Viewer | None:
    """Take everybody for a visitor, where nobody can sign in."""
    return None

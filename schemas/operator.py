"""The operator of a service as its users see it: name, contact and policies, each if it is set."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Operator:
    """Who runs this service; a field is None if its setting is not set.

    `contact` is an e-mail address or the https URL of a page; the policies are https URLs.
    """

    name: str | None = None
    contact: str | None = None
    terms_url: str | None = None
    privacy_url: str | None = None

    @property
    def contact_email(self) -> str | None:
        """The contact if it is an e-mail address."""
        return None if self.contact is None or self._has_page else self.contact

    @property
    def contact_url(self) -> str | None:
        """The contact as a link: the page itself, or a mailto address."""
        if self.contact is None or self._has_page:
            return self.contact
        return f"mailto:{quote(self.contact, safe='@')}"

    @property
    def introduction(self) -> str:
        """A sentence that ends a text about the operator; empty if neither name nor contact is set.

        The contact stands in parentheses, so that a link ends before the full stop.
        """
        if self.contact is not None:
            named = "" if self.name is None else f": {self.name}"
            return f"Contact the operator{named} ({self.contact})."
        return "" if self.name is None else f"The operator is {self.name}."

    @property
    def is_known(self) -> bool:
        """Whether any of the settings is set."""
        return self != UNNAMED_OPERATOR

    def complete(self, text: str) -> str:
        """Return a text that sends users to the operator, with the introduction at its end."""
        return f"{text} {self.introduction}".rstrip()

    @property
    def _has_page(self) -> bool:
        return self.contact is not None and self.contact.startswith("https://")


UNNAMED_OPERATOR = Operator()

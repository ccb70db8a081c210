"""Checks for every page."""

from html.parser import HTMLParser

import httpx

# The first page with its scripts and styles, before compression.
MAX_BYTES = 200_000


class Page(HTMLParser):
    """The parsed page: elements, texts, table cells and the buttons of its forms."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self._is_in_cell = False
        self.feed(answer.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_in_cell = self._is_in_cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_in_cell:
            self.rows[-1][-1] += data

    def find_all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def fields(self) -> dict[str | None, str]:
        """The current values of form fields, by name."""
        return {field.get("name"): field.get("value") or "" for field in self.find_all("input")}

    @property
    def links(self) -> list[str]:
        """The addresses of the links, in the page's order."""
        return [link.get("href") or "" for link in self.find_all("a")]

    @property
    def actions(self) -> list[str | None]:
        return [button.get("value") for button in self.find_all("button")]


def check_page(
    answer: httpx.Response,
    status: int,
    title: str,
    cache: str = "no-store",
    form_action: str = "'self'",
) -> Page:
    """Assert that a response is a valid page; return the parsed page."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == cache
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    if "rapidoc" in answer.text:
        assert policy.pop("style-src-attr") == "'unsafe-inline'"
        policy |= {"style-src": "'self'", "img-src": "'self'"}
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "style-src": "'self'",
        "form-action": form_action,
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }
    page = Page(answer)
    assert page.find_all("html") == [{"lang": "en"}]
    assert len(page.find_all("h1")) == len(page.find_all("main")) == 1
    # The parts of a chart have titles, too.
    assert answer.text.partition("</head>")[0].count("<title>") == 1
    assert page.text.count(title) >= 2  # in the heading and in the title
    assert not [script for script in page.find_all("script") if not script.get("src")]
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    return page

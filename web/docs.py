"""The documentation at /docs, public: an index, articles, pages made of code, the API viewer.

Articles are Markdown files of web/texts: HTML is escaped, every heading has an anchor. The files
are symbolic links into docs/, so each text exists once; a wheel contains their targets. Links
between the files become links between pages.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import PRICES_USD
from access.oauth.parameters import RESOURCE_PATH, can_serve_oauth
from mcp_server.registration import CLIENTS, KEY_VARIABLE
from mcp_server.tools.tool_table import TOOLS
from rest_shim.endpoints import CALL_MCP, CLAIM_KEY, CREATE_CHECKOUT, ENDPOINTS, Endpoint
from rest_shim.legal import render_legal
from rest_shim.manifest import PURCHASE_NOTES
from schemas.coverage import Coverage
from schemas.purchase import CLAIM_POLL_DURATION_S, CLAIM_POLL_INTERVAL_S
from schemas.vocabulary import INDICATOR_IDS, IndicatorId
from serving.context import Context
from serving.http import CACHE_ONE_MINUTE, JSON
from serving.json_schema import build_input_schema
from serving.tool import READ_ONLY
from serving.tool_runner import ToolRunner
from web.pages import (
    SECURITY_HEADERS,
    build_page_route,
    render_page,
    respond_with_page,
)
from web.sessions import FindViewer

# A heading that can be linked to: its level, id and text.
Heading = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Article:
    """A rendered Markdown file; `about` is its first sentence, without markup."""

    title: str
    about: str
    headings: tuple[Heading, ...]
    html: Markup


def parse_article(text: str, pages: Collection[str]) -> Article:
    """Parse Markdown that begins with its title; only links to `pages` are kept."""
    # What only those who change the code need stands between comments; pages leave it out. Comments
    # that mark generated blocks would be shown as text, because HTML is off.
    left_out = r"^<!-- developers -->\n.*?^<!-- end of developers -->\n|^<!--[^\n]*-->\n"
    parser = _create_parser()
    tokens = parser.parse(re.sub(left_out, "", text, flags=re.MULTILINE | re.DOTALL))
    headings: list[Heading] = []
    seen = Counter[str]()
    about = ""
    for token, after in pairwise(tokens):
        token.children = list(_resolve_links(token.children or (), pages)) or None
        # The Content-Security-Policy forbids the inline styles by which the parser aligns cells.
        if style := str(token.attrs.pop("style", "")):
            token.attrSet("class", style.removeprefix("text-align:"))
        if token.type == "heading_open":
            name = _extract_text(after)
            anchor = build_anchor(name)
            id_ = f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
            seen[anchor] += 1
            token.attrSet("id", id_)
            headings.append((int(token.tag[1:]), id_, name))
        elif token.type == "paragraph_open" and not about:
            about = _extract_text(after).split(". ")[0].rstrip(".:") + "."
    html = Markup(parser.renderer.render(tokens[3:], parser.options, {}))
    return Article(headings[0][2], about, tuple(headings[1:]), html)


@cache
def load_articles(other_pages: tuple[str, ...]) -> dict[str, Article]:
    """Return all articles by name; they can link to each other and to `other_pages`."""
    found = [file.name for file in files("web").joinpath("texts").iterdir()]
    names = [name.removesuffix(".md") for name in found if name.endswith(".md")]
    return {name: parse_article(read_text(name), [*other_pages, *names]) for name in names}


@cache
def load_examples() -> dict[str, tuple[str, str]]:
    """Return an example of each tool by name: a call and its result, both as JSON text."""
    # In examples.md, code blocks alternate between a call and its result.
    text = files("web").joinpath("examples.md").read_text(encoding="utf-8")
    blocks = [token.content for token in _create_parser().parse(text) if token.type == "fence"]
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return {json.loads(call)["name"]: (call, answer) for call, answer in pairs}


def read_text(name: str) -> str:
    """Return the Markdown of an article."""
    return files("web").joinpath("texts", f"{name}.md").read_text(encoding="utf-8")


def render_inline(text: str) -> Markup:
    """Return one line of Markdown as HTML, without a paragraph."""
    return Markup(_create_parser().renderInline(text))


def build_anchor(text: str) -> str:
    """Return the anchor of a heading, by the rule of GitHub."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _resolve_links(children: Sequence[Token], pages: Collection[str]) -> Iterator[Token]:
    """Point links between files to pages; replace links to other files with their text."""
    # A file that is not served would be a dead link, which is worse than none.
    is_kept = True
    for child in children:
        if child.type == "link_open":
            href = str(child.attrGet("href"))
            name, dot, rest = href.partition(".md")
            is_outside = href.startswith(("https://", "mailto:", "#"))
            is_kept = is_outside or bool(dot and name in pages)
            child.attrSet("href", href if is_outside else name + rest)
        if is_kept or child.type not in ("link_open", "link_close"):
            yield child


def _extract_text(token: Token) -> str:
    children = token.children or ()
    return "".join(" " if child.type == "softbreak" else child.content for child in children)


@cache
def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    rules: dict[str, Callable[[Token], str]] = {
        # A wide table scrolls inside its own box; `tabindex` lets the keyboard scroll it too.
        "table_open": lambda token: (
            '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table>\n'
        ),
        "table_close": lambda token: "</table></div>\n",
        "fence": lambda token: (
            f'<pre tabindex="0" data-copy><code>{escape(token.content)}</code></pre>\n'
        ),
    }
    for name, render in rules.items():
        parser.add_render_rule(
            name, lambda renderer, tokens, at, *rest, render=render: render(tokens[at])
        )
    return parser


# Of each indicator in plain words, as the page names them.
GUIDE_PARTS = ("name", "question", "how", "bullish", "bearish", "neutral", "good_for", "beware")
GUIDES: dict[IndicatorId, tuple[str, ...]] = {
    "trend_oracle": (
        "Trend Oracle",
        "Is there a trend, and in which direction?",
        "It compares the average price of recent bars with that of older bars, at three speeds. "
        "The score is the difference, measured by how much the price usually moves.",
        "Recent prices are clearly above older ones.",
        "Recent prices are clearly below older ones.",
        "There is no clear trend, or it has gone so far that it counts no more.",
        "Staying with a trend that lasts.",
        "It turns late, because averages lag behind the price.",
    ),
    "bayesian_trend": (
        "Bayesian Trend",
        "How certain is it that the price is rising?",
        "A filter separates the trend from the noise and gives the chance, in percent, that the "
        "trend is rising.",
        "The chance reached 80 % and has stayed at 55 % or above.",
        "The chance fell to 20 % and has stayed at 45 % or below.",
        "The trend is too uncertain.",
        "Ignoring moves that are mere noise. It says neutral more often than not.",
        "A sudden turn needs several bars until the filter believes it.",
    ),
    "reversals": (
        "Reversals",
        "Has a move gone too far and begun to turn?",
        "It looks for a price that leaves its usual band (the two lines) after a one-sided run, "
        "and then comes back into the band.",
        "After an extreme fall, the price came back into the band from below.",
        "After an extreme rise, the price came back into the band from above.",
        "No turn has happened lately, or the last one failed.",
        "Finding turning points. It reads against the trend, unlike the other six.",
        "In a strong trend it turns too early, again and again, as on the left of the picture.",
    ),
    "ceres": (
        "Ceres",
        "Has the price broken out of its range?",
        "The two lines are the highest and the lowest price of the last 40 bars. It follows a "
        "close beyond one of them.",
        "The price broke its high of 40 bars, and has not broken its low of 20 bars since.",
        "The price broke its low of 40 bars, and has not broken its high of 20 bars since.",
        "The last breakout is over.",
        "Catching the long moves that begin with a breakout.",
        "Many breakouts fail, above all while prices move sideways.",
    ),
    "enzo": (
        "Enzo",
        "Is the price moving quickly in one direction?",
        "Its average (the thin line) follows a straight move closely and hardly moves when prices "
        "go back and forth. The score is the slope of that line.",
        "The average is climbing fast.",
        "The average is falling fast.",
        "The average is nearly flat.",
        "Noticing the start and the end of a fast move early.",
        "It changes more often than most of the others.",
    ),
    "llnr": (
        "LLNR",
        "Which way does a line through the last bars point?",
        "It lays a line through the last 64 bars, in which newer bars count more, and compares "
        "its slope with the noise.",
        "The line climbs clearly more than noise explains.",
        "The line falls clearly more than noise explains.",
        "The slope could be noise.",
        "A calm view of the direction. It changes least of the seven.",
        "It needs a long move before it changes.",
    ),
    "perpkit": (
        "PerpKit",
        "Is the trend still on its side of the stop?",
        "The thin line is a stop that follows the price at a distance and never moves back. The "
        "trend turns when the price crosses it.",
        "The price is above its stop, and not close to it.",
        "The price is below its stop, and not close to it.",
        "The price is close to its stop, or funding makes this side expensive to hold.",
        "Seeing where a trend would end. It looks at the funding of perpetual futures, too.",
        "It nearly always takes a side, even while prices move sideways.",
    ),
}


def build_guide_values(coverage: Coverage | None) -> dict[str, Any]:
    """Return the values of the page: the indicators that the deployment covers and GUIDES has."""
    covered = INDICATOR_IDS if coverage is None else [one.id for one in coverage.indicators]
    parts: list[dict[str, Any]] = [
        {
            "anchor": id_.replace("_", "-"),
            "guide": dict(zip(GUIDE_PARTS, guide, strict=True)),
            "picture": Markup(
                files("web").joinpath("diagrams", f"{id_}.svg").read_text(encoding="utf-8")
            ),
            # In a month of 30 days, with the places of the columns in the measured table.
            "changes": [
                (name, [30 * load_changes()[id_][place] for place in places])
                for name, places in (("crypto", (0, 1, 2)), ("stocks", (4, 5, 6)))
            ],
        }
        for id_, guide in GUIDES.items()
        if id_ in covered
    ]
    own = [(2, part["anchor"], part["guide"]["name"]) for part in parts]
    return {"parts": parts, "headings": [(2, "readings", "What a reading is"), *own]}


@cache
def load_changes() -> dict[str, list[float]]:
    """Return the measured changes per asset and day by indicator, in the table's columns."""
    pattern = r"^## Changes of readings\n.*?^(\|.*?)\n\n"
    match = re.search(pattern, read_text("indicators"), re.DOTALL | re.MULTILINE)
    assert match is not None
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in match[1].splitlines()]
    return {name: [float(cell) for cell in cells] for name, *cells in rows if name in INDICATOR_IDS}


OPERATORS = "Operators"
# Pages by reader. A page has one place, so that previous and next are unambiguous.
PAGES_BY_READER: dict[str, tuple[str, ...]] = {
    "Everyone": (
        "getting-started",
        "indicator-guide",
        "indicators",
    ),
    "Agents and their builders": ("connect", "agents", "tools"),
    "Script authors": ("commands", "rest", "contract", "proof"),
    "Members": ("buy", "members", "legal"),
    OPERATORS: (
        "deployment",
        "settings",
        "sources",
        "selling",
        "recovery",
    ),
}
PAGE_ORDER = tuple(name for names in PAGES_BY_READER.values() for name in names)
# RapiDoc writes `style` attributes and one style sheet, of which this has the hash.
VIEWER_POLICY = (
    SECURITY_HEADERS["Content-Security-Policy"]
    .replace(
        "style-src 'self'",
        "style-src 'self' 'sha256-1n7zAaXyg5Nmm/NVb55rhtw8sE0GvWOM2FuLw5Ixw5c='; "
        "style-src-attr 'unsafe-inline'",
    )
    .replace("img-src 'self'", "img-src 'self' data:")
)
Values = dict[str, Any]


class PageLink(NamedTuple):
    """A link to a page, with its title and summary."""

    name: str
    title: str
    about: str


def list_page_links(*, sells_keys: bool) -> list[PageLink]:
    """Return links to all pages, in `PAGE_ORDER`."""
    generated = {name: (title, about) for name, (title, about, _) in GENERATED_PAGES.items()}
    if not sells_keys:
        generated["buy"] = ("API keys", "Who creates the keys of this deployment.")
    articles = {name: (one.title, one.about) for name, one in load_articles(GENERATED).items()}
    return [PageLink(name, *(articles | generated)[name]) for name in PAGE_ORDER]


def list_shown_links(*, sells_keys: bool) -> list[PageLink]:
    """Return the links that the index, the pages and llms.txt show."""
    # Other articles link to the page for members, so without sales it exists, but is not listed.
    links = list_page_links(sells_keys=sells_keys)
    return [link for link in links if sells_keys or link.name != "members"]


def build_docs_routes(runner: ToolRunner, find_viewer: FindViewer) -> list[Route]:
    """Return the routes of the index and the pages."""
    context = runner.context
    links = {link.name: link for link in list_page_links(sells_keys=context.sells_keys)}
    about = "How to get a key, connect an agent and use the tools, and how readings are computed."
    index = PageLink("", "Documentation", about)

    async def show_page(request: Request) -> Response:
        """Return a page. Only a visitor's may be cached, for a minute.

        A member's differs in its header, which contains a secret.
        """
        name, status = request.path_params.get("name"), 200
        link = index if name is None else links.get(name)
        if link is None:
            link, status = PageLink("", "Page not found", "These pages are available:"), 404
        viewer = await find_viewer(request)

        async def draw() -> Response:
            coverage = await context.snapshots.coverage()
            template, values = (
                build_page(link.name, context, coverage) if link.name else ("docs_index.html", {})
            )
            response = render_page(
                request,
                template,
                status=status,
                description=link.about,
                here="docs",
                is_wide=True,
                is_public=status == 200,
                viewer=viewer,
                **build_frame_values(link, sells_keys=context.sells_keys) | values,
            )
            if viewer is None and status == 200:
                response.headers["Cache-Control"] = CACHE_ONE_MINUTE
            if link.name == "rest":
                response.headers["Content-Security-Policy"] = VIEWER_POLICY
            return response

        key = request.url.path if status == 200 else None
        return await respond_with_page(request, context, viewer, key, draw)

    return [
        build_page_route("/docs", runner, show_page),
        build_page_route("/docs/{name:path}", runner, show_page),
    ]


def build_frame_values(link: PageLink, *, sells_keys: bool) -> Values:
    """Return the values that every page has: its title and its place among the others."""
    shown = list_shown_links(sells_keys=sells_keys)
    names = [one.name for one in shown]
    at = names.index(link.name) if link.name in names else None
    return {
        "title": link.title,
        "about": link.about,
        "name": link.name,
        "tree": [
            (reader, [one for one in shown if one.name in members])
            for reader, members in PAGES_BY_READER.items()
        ],
        "before": shown[at - 1] if at else None,
        "after": None if at is None or at + 1 == len(shown) else shown[at + 1],
        "headings": (),
    }


def build_page(name: str, context: Context, coverage: Coverage | None) -> tuple[str, Values]:
    """Return the template and values of a page; KeyError if there is no such page."""
    if name in GENERATED_PAGES:
        build_values = GENERATED_PAGES[name][2]
        return f"docs_{name.replace('-', '_')}.html", build_values(context, coverage)
    article = load_articles(GENERATED)[name]
    if name == "legal":
        article = parse_article(render_legal(context.operator), ())
    template = "docs_indicators.html" if name == "indicators" else "docs_text.html"
    return template, {"headings": article.headings, "html": article.html, "coverage": coverage}


def build_call_anchor(call: Endpoint) -> str:
    """Return the fragment by which the viewer opens a call."""
    return f"#{call.method.lower()}-{call.path}"


def _build_tools_values(context: Context, coverage: Coverage | None) -> Values:
    calls = {call.operation_id: call for call in ENDPOINTS}
    examples = load_examples()
    parts = [
        {
            "tool": tool,
            "call": calls[tool.name],
            "anchor": build_call_anchor(calls[tool.name]),
            "hints": {**READ_ONLY.model_dump(by_alias=True, exclude_none=True), **tool.meta},
            "arguments": build_input_schema(tool.query, coverage)["properties"],
            "example": examples[tool.name],
        }
        for tool in TOOLS
    ]
    return {"parts": parts, "headings": [(2, tool.name, tool.name) for tool in TOOLS]}


def _build_connect_values(context: Context, coverage: Coverage | None) -> Values:
    base_url = context.base_url
    has_sign_in = can_serve_oauth(base_url)
    parts: list[dict[str, Any]] = [
        {
            "client": client,
            "title": client.title.replace("`", ""),
            "instructions": render_inline(client.instructions),
            "lines": client.render_lines(base_url),
            "link": client.render_link(base_url),
        }
        for client in CLIENTS
        if has_sign_in or not client.signs_in
    ]
    return {
        "parts": parts,
        "sign_in_url": base_url + RESOURCE_PATH if has_sign_in else "",
        "key_url": base_url + CALL_MCP.path,
        "key_variable": KEY_VARIABLE,
        "base_url": base_url,
        "headings": [
            *([(2, "sign-in", "Connect by address")] if has_sign_in else []),
            *((2, part["client"].name, part["title"]) for part in parts),
            (2, "skill", "Instructions for the agent"),
        ],
    }


def _build_buy_values(context: Context, coverage: Coverage | None) -> Values:
    order = json.dumps({"contact_email": "agent@example.com", "billing": next(iter(PRICES_USD))})
    steps = [(2, "steps", "Three steps"), (2, "members", "For members")]
    return {
        "prices": PRICES_USD,
        "daily_limit": context.daily_limit,
        "mode": context.mode,
        "note": render_inline(PURCHASE_NOTES[context.mode]),
        "every_s": CLAIM_POLL_INTERVAL_S,
        "for_s": CLAIM_POLL_DURATION_S,
        "checkout": _format_curl(context.base_url + CREATE_CHECKOUT.path, order),
        "claim": _format_curl(context.base_url + CLAIM_KEY.path, '{"claim_token": "ct_..."}'),
        "anchor": build_call_anchor(CREATE_CHECKOUT),
        "headings": steps if context.mode else [],
    }


def _format_curl(url: str, body: str) -> str:
    return f"curl {shlex.quote(url)} \\\n  -H 'Content-Type: {JSON}' \\\n  -d {shlex.quote(body)}"


# Title, summary and values of the pages made of code; the template of each is docs_NAME.html.
GENERATED_PAGES: dict[str, tuple[str, str, Callable[[Context, Coverage | None], Values]]] = {
    "indicator-guide": (
        "The indicators in pictures",
        "What each indicator is good for and what its readings mean, for people new to trading.",
        lambda context, coverage: build_guide_values(coverage),
    ),
    "connect": (
        "Connect an agent",
        "Configuration for each client and framework, ready to copy.",
        _build_connect_values,
    ),
    "buy": ("Buy access", "What a key costs, and how an agent buys one.", _build_buy_values),
    "tools": (
        "MCP tools",
        "Every tool: when to use it, its arguments, and an example.",
        _build_tools_values,
    ),
    "rest": (
        "REST endpoints",
        "Every endpoint with its parameters, responses and schemas, and a form that calls it.",
        lambda context, coverage: {"daily_limit": context.daily_limit},
    ),
}
GENERATED = tuple(GENERATED_PAGES)

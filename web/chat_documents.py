"""The chart of an asset and the board as views in a chat, drawn by the templates of the pages."""

from importlib.resources import files

from markupsafe import Markup
from pydantic import BaseModel, Field
from starlette.requests import Request

from mcp_server.chat_views import DRAW_TOOL, ChatView, ChatViews
from mcp_server.tools.get_flips import GET_FLIPS
from mcp_server.tools.get_state import GET_STATE
from schemas.errors import ApiError
from schemas.query import MAX_LIST_CHARS, Query, TickerList
from serving.argument_values import find_asset
from serving.context import Context
from serving.tool import Tool
from web.asset_page import build_asset_values, load_asset_model
from web.board import (
    BADGES,
    AssetPageQuery,
    BoardQuery,
    list_row_values,
    load_board,
    parse_page_query,
    read_one_version,
)
from web.pages import render_template

# The styles of a view, each with the page that it is for, empty for both.
STYLES = {"page.css": "", "board.css": "board", "asset.css": "chart", "chat_view.css": ""}
SCRIPTS = ("asset_chart.js", "chat_view.js")
# What a view opens with, the tool whose results it shows, its title and description.
VIEWS = (
    (
        "chart",
        GET_STATE.name,
        "Chart of an asset",
        "Candles, lanes of readings, changes and alerts of an asset; the board of several.",
    ),
    ("board", GET_FLIPS.name, "Board", "The readings of assets as a table, which opens charts."),
)


class PageAddress(Query):
    """The page that a view draws."""

    address: str = Field(
        default="/",
        max_length=2 * MAX_LIST_CHARS,
        description="Path and query of a board or an asset's page, such as /assets/BTC.",
    )


class ResultBoardQuery(BoardQuery):
    """A board of the assets that a result names."""

    watch: TickerList = None


class DrawnPage(BaseModel):
    """The part of a page that a view shows."""

    html: str = Field(description="HTML with the picture and its data.")


async def draw_page(query: PageAddress, context: Context) -> DrawnPage:
    """Draw the page at an address; ApiError if there is no such page or asset."""
    path, _, arguments = query.address.partition("?")
    request = Request({"type": "http", "query_string": arguments.encode()})
    if path == "/":
        wanted = parse_page_query(request, ResultBoardQuery)
        tickers = [ticker.strip().upper() for ticker in (wanted.watch or "").split(",")]
        if wanted.watch:
            wanted = wanted.model_copy(update={"show": "watched"})
        board = await load_board(wanted, tickers, context)
        values = list_row_values(board)
        values |= {"badge": BADGES[board.state.meta.source], "is_member": False}
        return DrawnPage(html=render_template("chat_board.html", "/", **values))
    if not path.startswith("/assets/"):
        raise ApiError("invalid_parameter", "address: a view shows only / and /assets/TICKER.", 400)
    timeframe = parse_page_query(request, AssetPageQuery).timeframe
    asset = find_asset(path.removeprefix("/assets/"), (await context.snapshot()).assets)
    shown = await read_one_version(context, lambda: load_asset_model(asset, timeframe, context))
    values = build_asset_values(asset, timeframe, shown)
    return DrawnPage(html=render_template("chat_chart.html", "/", **values))


DRAW_PAGE = Tool(
    name=DRAW_TOOL,
    title="Page of a view",
    description="Draws a page for a chart in the chat. It is not for models: the other tools have "
    "its data.",
    query=PageAddress,
    result=DrawnPage,
    handler=draw_page,
    meta={"ui": {"visibility": ["app"]}},
)


def build_chat_views() -> ChatViews:
    """Return the views, each a document that contains its styles and scripts."""
    folder = files("web").joinpath("static")
    texts = {
        name: Markup(folder.joinpath(name).read_text(encoding="utf-8"))
        for name in (*STYLES, *SCRIPTS)
    }
    views = []
    for opens, tool, title, description in VIEWS:
        html = render_template(
            "chat_view.html",
            root="",
            title=title,
            opens=opens,
            styles=[(page, texts[name]) for name, page in STYLES.items()],
            scripts=[texts[name] for name in SCRIPTS],
        )
        views.append(ChatView(f"ui://signals/{opens}.html", title, description, tool, html))
    return ChatViews(views, DRAW_PAGE)

"""The list of all assets, public: what the service covers, with a filter in the URL."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.coverage import Coverage, CoveredAsset
from schemas.query import Query
from schemas.vocabulary import AssetClass
from serving.context import Context
from serving.http import CACHE_ONE_MINUTE
from serving.tool_runner import ToolRunner
from web.board_query import parse_page_query
from web.heat_map import CLASS_NAMES
from web.pages import build_page_route, compress_page, get_site, render_page
from web.sessions import FindViewer, Viewer

ABOUT = (
    "All assets that the service covers: crypto assets, stocks and metals, with their timeframes."
)


class AssetListQuery(Query):
    """The filters of the list; an asset must match both."""

    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")

    @property
    def is_unfiltered(self) -> bool:
        """Whether no filter is set."""
        return self == AssetListQuery()


class AssetGroup(NamedTuple):
    """The assets of one class that match the filter, and how many there are in all."""

    name: str
    asset_class: AssetClass
    assets: Sequence[CoveredAsset]
    total: int


def build_asset_list_routes(runner: ToolRunner, find_viewer: FindViewer) -> list[Route]:
    """Return the route of the list."""
    context = runner.context

    async def respond(request: Request) -> Response:
        query = parse_page_query(request, AssetListQuery)
        viewer = await find_viewer(request)
        if viewer is None and query.is_unfiltered:
            return await get_site(request).visitor_pages.respond(
                request, context, "assets", lambda: draw(request, query, None)
            )
        return await draw(request, query, viewer)

    async def draw(request: Request, query: AssetListQuery, viewer: Viewer | None) -> Response:
        groups = group_assets(await get_coverage(context), query)
        response = render_page(
            request,
            "asset_list.html",
            title="Assets",
            description=ABOUT,
            here="assets",
            is_wide=True,
            is_public=query.is_unfiltered,
            viewer=viewer,
            query=query,
            classes=CLASS_NAMES,
            groups=[group for group in groups if group.assets],
            shown=sum(len(group.assets) for group in groups),
            total=sum(group.total for group in groups),
        )
        if not query.is_unfiltered:
            # The page repeats the URL's text next to a member's form token: see `compress_page`.
            return response
        if viewer is None:
            response.headers["Cache-Control"] = CACHE_ONE_MINUTE
            return response
        response = compress_page(request, response)
        response.headers["Vary"] = "Accept-Encoding, Cookie"
        return response

    return [build_page_route("/assets", runner, respond)]


async def get_coverage(context: Context) -> Coverage:
    """Return the published coverage; ApiError `unavailable` before the first run."""
    return await context.snapshots.coverage() or (await context.snapshot()).coverage


def group_assets(coverage: Coverage, query: AssetListQuery) -> list[AssetGroup]:
    """Return the tracked assets by class, of which those that match the query are listed."""
    groups = []
    for asset_class, name in CLASS_NAMES.items():
        members = [asset for asset in coverage.tracked if asset.asset_class == asset_class]
        found = [asset for asset in members if _matches(asset, query)]
        groups.append(AssetGroup(name, asset_class, found, len(members)))
    return groups


def _matches(asset: CoveredAsset, query: AssetListQuery) -> bool:
    text = (query.text or "").casefold().strip()
    is_of_class = query.asset_class in (None, asset.asset_class)
    return is_of_class and text in f"{asset.ticker} {asset.name}".casefold()

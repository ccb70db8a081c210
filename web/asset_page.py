"""An asset's page: for members what is read of it and was, for visitors what is covered of it."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import ApiError
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, Timeframe
from serving.argument_values import one_ticker
from serving.context import Context
from serving.freshness import removed_note
from serving.tool_runner import Calls
from web.asset_model import DAYS, AssetViews, asset_views
from web.board import BADGES
from web.board_model import of_one_version
from web.board_query import AssetPageQuery, asked
from web.heat_map import CLASS_NAMES
from web.pages import page, page_route
from web.sessions import ViewerOf
from web.timeline import WIDTH

PATH = "/assets/{ticker}"


def asset_page_routes(calls: Calls, viewer_of: ViewerOf) -> list[Route]:
    """Return the route of the pages of all assets."""
    context = calls.context

    async def respond(request: Request) -> Response:
        timeframe = asked(request, AssetPageQuery).timeframe
        asset = _asset(request.path_params["ticker"], await _coverage(context))
        viewer = await viewer_of(request)
        is_member = viewer is not None and viewer.is_member
        views = await live(asset, timeframe) if is_member else None
        values = _values(asset, timeframe, views)
        return page(request, "asset.html", viewer=viewer, **values)

    async def live(asset: CoveredAsset, timeframe: Timeframe) -> AssetViews:
        return await of_one_version(context, lambda: asset_views(asset, timeframe, context))

    return [page_route(PATH, calls, respond)]


async def _coverage(context: Context) -> Coverage:
    """Return what is covered; ApiError `unavailable` before anything is."""
    return await context.boards.coverage() or (await context.board()).coverage


def _asset(ticker: str, coverage: Coverage) -> CoveredAsset:
    """Return the asset of a ticker in any case; ApiError 404 naming the nearest."""
    try:
        return one_ticker(ticker, {asset.ticker: asset for asset in coverage.assets})
    except ApiError as unknown:
        raise ApiError(unknown.code, unknown.message, 404) from None


def _values(asset: CoveredAsset, timeframe: Timeframe, views: AssetViews | None) -> dict[str, Any]:
    return {
        "title": f"{asset.name} ({asset.ticker})",
        "badge": BADGES[views.state.meta.source] if views else "",
        "is_wide": True,
        "is_public": views is None,
        "covered": asset,
        "kind": CLASS_NAMES[asset.asset_class],
        "removed": removed_note(asset) if asset.removed_on else None,
        "timeframe": timeframe,
        "timeframes": TIMEFRAMES,
        "addresses": [(timeframe, f"timeframe={timeframe}") for timeframe in TIMEFRAMES],
        "legacy": LEGACY_KEYS,
        "days": DAYS[timeframe],
        "width": WIDTH,
        "views": views,
    }

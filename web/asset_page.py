"""An asset's page: readings and changes for members, only its coverage for visitors."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import ApiError
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, Timeframe
from serving.argument_values import find_asset
from serving.context import Context
from serving.freshness import format_removed_note
from serving.tool_runner import ToolRunner
from web.asset_model import TIMELINE_DAYS, AssetModel, load_asset_model
from web.board import BADGES
from web.board_model import read_one_version
from web.board_query import AssetPageQuery, parse_page_query
from web.heat_map import CLASS_NAMES
from web.pages import build_page_route, render_page
from web.sessions import FindViewer
from web.timeline import WIDTH

ASSET_PATH = "/assets/{ticker}"


def build_asset_page_routes(runner: ToolRunner, find_viewer: FindViewer) -> list[Route]:
    """Return the route that serves the page of every asset."""
    context = runner.context

    async def respond(request: Request) -> Response:
        timeframe = parse_page_query(request, AssetPageQuery).timeframe
        asset = _find_asset(request.path_params["ticker"], await _get_coverage(context))
        viewer = await find_viewer(request)
        is_member = viewer is not None and viewer.is_member
        model = await load_model(asset, timeframe) if is_member else None
        values = _build_values(asset, timeframe, model)
        sells_keys = context.sells_keys
        return render_page(request, "asset.html", viewer=viewer, sells_keys=sells_keys, **values)

    async def load_model(asset: CoveredAsset, timeframe: Timeframe) -> AssetModel:
        return await read_one_version(context, lambda: load_asset_model(asset, timeframe, context))

    return [build_page_route(ASSET_PATH, runner, respond)]


async def _get_coverage(context: Context) -> Coverage:
    """Return the published coverage; ApiError `unavailable` before the first run."""
    return await context.snapshots.coverage() or (await context.snapshot()).coverage


def _find_asset(ticker: str, coverage: Coverage) -> CoveredAsset:
    """Return an asset by its ticker, ignoring case; ApiError 404 names the nearest ticker."""
    try:
        return find_asset(ticker, {asset.ticker: asset for asset in coverage.assets})
    except ApiError as unknown:
        # The tools answer 400 for a wrong argument; here the ticker is part of the path.
        raise ApiError(unknown.code, unknown.message, 404) from None


def _build_values(
    asset: CoveredAsset, timeframe: Timeframe, model: AssetModel | None
) -> dict[str, Any]:
    return {
        "title": f"{asset.name} ({asset.ticker})",
        "badge": BADGES[model.state.meta.source] if model else "",
        "is_wide": True,
        "is_public": model is None,
        "covered": asset,
        "kind": CLASS_NAMES[asset.asset_class],
        "removed": format_removed_note(asset) if asset.removed_on else None,
        "timeframe": timeframe,
        "timeframes": TIMEFRAMES,
        "addresses": [(timeframe, f"timeframe={timeframe}") for timeframe in TIMEFRAMES],
        "legacy": LEGACY_KEYS,
        "days": TIMELINE_DAYS[timeframe],
        "width": WIDTH,
        "model": model,
    }

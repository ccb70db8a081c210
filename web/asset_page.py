"""The list of all assets, and the page of each: live for members, else the sample or facts."""

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.coverage import Coverage, CoveredAsset
from schemas.errors import ApiError
from schemas.query import Query
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, AssetClass, Timeframe
from serving.argument_values import find_asset
from serving.context import Context
from serving.freshness import format_removed_note
from serving.http import CACHE_ONE_MINUTE
from serving.tool_runner import ToolRunner
from web.asset_chart import (
    BAR_WIDTH,
    CHART_DAYS,
    LANE_HEIGHT,
    LANE_STEP,
    AssetModel,
    load_asset_model,
)
from web.board import BADGES
from web.board_model import CLASS_NAMES, AssetPageQuery, parse_page_query, read_one_version
from web.pages import build_page_route, render_page, respond_with_page
from web.price_texts import format_age
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


def build_asset_routes(
    runner: ToolRunner, sample: ToolRunner, find_viewer: FindViewer
) -> list[Route]:
    """Return the routes of the list and of every asset's page; visitors see the sample."""
    page = AssetPage(runner.context, sample.context, find_viewer)
    return [
        build_page_route("/assets", runner, page.show_list),
        build_page_route("/assets/{ticker}", runner, page.respond),
    ]


class AssetPage:
    """Renders the page of an asset."""

    def __init__(self, context: Context, sample: Context, find_viewer: FindViewer) -> None:
        self._context = context
        self._sample = sample
        self._find_viewer = find_viewer

    async def respond(self, request: Request) -> Response:
        """Return the page; ApiError 404 for an unknown ticker."""
        timeframe = parse_page_query(request, AssetPageQuery).timeframe
        coverage = await get_coverage(self._context)
        asset = _find_asset(request.path_params["ticker"], coverage)
        viewer = await self._find_viewer(request)
        # The page contains no text from the URL but the names of its asset and timeframe.
        return await respond_with_page(
            request,
            self._context,
            viewer,
            f"assets/{asset.ticker}?{timeframe}",
            lambda: self._draw(request, asset, timeframe, coverage, viewer),
        )

    async def _draw(
        self,
        request: Request,
        asset: CoveredAsset,
        timeframe: Timeframe,
        coverage: Coverage,
        viewer: Viewer | None,
    ) -> Response:
        model = await self._load_model(asset, timeframe, viewer)
        values = build_asset_values(asset, timeframe, model)
        # In the order of the board.
        classes = [*CLASS_NAMES]
        assets = sorted(coverage.assets, key=lambda a: (classes.index(a.asset_class), a.ticker))
        shown = (await self._sample.snapshot()).assets if values["is_sample"] else None
        listed = [None, *(a for a in assets if shown is None or a.ticker in shown), None]
        place = next(i for i, each in enumerate(listed) if each and each.ticker == asset.ticker)
        return render_page(
            request,
            "asset.html",
            viewer=viewer,
            path=f"assets/{asset.ticker}",
            sells_keys=self._context.sells_keys,
            assets=assets,
            previous=listed[place - 1],
            next=listed[place + 1],
            **values,
        )

    async def show_list(self, request: Request) -> Response:
        """Return the list of all assets that match the filters."""
        query = parse_page_query(request, AssetListQuery)
        is_unfiltered = query == AssetListQuery()
        viewer = await self._find_viewer(request)

        async def draw() -> Response:
            tracked = (await get_coverage(self._context)).tracked
            text = (query.text or "").casefold().strip()
            found = [
                asset
                for asset in tracked
                if query.asset_class in (None, asset.asset_class)
                and text in f"{asset.ticker} {asset.name}".casefold()
            ]
            groups = [
                (kind, name, [asset for asset in found if asset.asset_class == kind])
                for kind, name in CLASS_NAMES.items()
            ]
            response = render_page(
                request,
                "asset_list.html",
                title="Assets",
                description=ABOUT,
                here="assets",
                is_wide=True,
                is_public=is_unfiltered,
                viewer=viewer,
                query=query,
                is_unfiltered=is_unfiltered,
                classes=CLASS_NAMES,
                groups=[group for group in groups if group[2]],
                shown=len(found),
                total=len(tracked),
            )
            if viewer is None and is_unfiltered:
                response.headers["Cache-Control"] = CACHE_ONE_MINUTE
            return response

        key = "assets" if is_unfiltered else None
        return await respond_with_page(request, self._context, viewer, key, draw)

    async def _load_model(
        self, asset: CoveredAsset, timeframe: Timeframe, viewer: Viewer | None
    ) -> AssetModel | None:
        """Return live data for members; for visitors the sample, None if it lacks the asset."""
        shown, context = asset, self._context
        if viewer is None or not viewer.is_member:
            context = self._sample
            if asset.ticker not in (sampled := (await context.snapshot()).assets):
                return None
            shown = sampled[asset.ticker]
        return await read_one_version(context, lambda: load_asset_model(shown, timeframe, context))


def _find_asset(ticker: str, coverage: Coverage) -> CoveredAsset:
    """Return an asset by its ticker, ignoring case; ApiError 404 names the nearest ticker."""
    try:
        return find_asset(ticker, {asset.ticker: asset for asset in coverage.assets})
    except ApiError as unknown:
        # The tools answer 400 for a wrong argument; here the ticker is part of the path.
        raise ApiError(unknown.code, unknown.message, 404) from None


def build_asset_values(
    asset: CoveredAsset, timeframe: Timeframe, model: AssetModel | None
) -> dict[str, Any]:
    """Return the values with which a template renders an asset."""
    return {
        "title": asset.name
        if f"({asset.ticker})" in asset.name
        else f"{asset.name} ({asset.ticker})",
        "description": f"Indicator readings of {asset.name} on 1h, 4h and 1d.",
        "badge": BADGES[model.state.meta.source] if model else "",
        "is_wide": True,
        "is_public": model is None or model.state.meta.source == "sample",
        "is_sample": model is not None and model.state.meta.source == "sample",
        "covered": asset,
        "kind": CLASS_NAMES[asset.asset_class],
        "removed": format_removed_note(asset) if asset.removed_on else None,
        "timeframe": timeframe,
        "timeframes": TIMEFRAMES,
        "addresses": [(timeframe, f"timeframe={timeframe}") for timeframe in TIMEFRAMES],
        "legacy": LEGACY_KEYS,
        "days": CHART_DAYS[timeframe],
        "bar_width": BAR_WIDTH,
        "lane_height": LANE_HEIGHT,
        "lane_step": LANE_STEP,
        "format_age": format_age,
        "model": model,
    }


async def get_coverage(context: Context) -> Coverage:
    """Return the published coverage; ApiError `unavailable` before the first run."""
    return await context.snapshots.coverage() or (await context.snapshot()).coverage

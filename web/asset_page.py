"""The list of all assets, and the page of each: live for members, else the sample or facts."""

from dataclasses import dataclass
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
    load_asset_model,
)
from web.board import BADGES
from web.board_model import CLASS_NAMES, AssetPageQuery, parse_page_query, read_one_version
from web.pages import build_page_route, render_page, respond_with_page
from web.price_texts import format_age
from web.sessions import FindViewer

ABOUT = (
    "All assets that the service covers: crypto assets, stocks and metals, with their timeframes."
)


class AssetListQuery(Query):
    """The filters of the list; an asset must match both."""

    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")


@dataclass(frozen=True, slots=True)
class AssetPages:
    """The list and the page of each asset; visitors see the `sample`."""

    context: Context
    sample: Context
    find_viewer: FindViewer

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        return [
            build_page_route("/assets", runner, self.show_list),
            build_page_route("/assets/{ticker}", runner, self.show_asset),
        ]

    async def show_asset(self, request: Request) -> Response:
        """Return the page of an asset; ApiError 404 for an unknown ticker."""
        timeframe = parse_page_query(request, AssetPageQuery).timeframe
        coverage = await self._get_coverage()
        try:
            asset = find_asset(
                request.path_params["ticker"], {asset.ticker: asset for asset in coverage.assets}
            )
        except ApiError as unknown:
            # The tools answer 400 for a wrong argument; here the ticker is part of the path.
            raise ApiError(unknown.code, unknown.message, 404) from None
        viewer = await self.find_viewer(request)

        async def draw() -> Response:
            is_member = viewer is not None and viewer.is_member
            context = self.context if is_member else self.sample
            # The sample lacks most assets.
            held = (await context.snapshot()).assets
            shown, model = asset if is_member else held.get(asset.ticker), None
            if shown is not None:
                model = await read_one_version(
                    context, lambda: load_asset_model(shown, timeframe, context)
                )
            values = build_asset_values(asset, timeframe, model)
            # In the order of the board.
            classes = [*CLASS_NAMES]
            assets = sorted(coverage.assets, key=lambda a: (classes.index(a.asset_class), a.ticker))
            is_sample = values["is_sample"]
            listed = [None, *(a for a in assets if not is_sample or a.ticker in held), None]
            place = next(i for i, each in enumerate(listed) if each and each.ticker == asset.ticker)
            return render_page(
                request,
                "asset.html",
                viewer=viewer,
                path=f"assets/{asset.ticker}",
                assets=assets,
                previous=listed[place - 1],
                next=listed[place + 1],
                **values,
            )

        # The page contains no text from the URL but the names of its asset and timeframe.
        key = f"assets/{asset.ticker}?{timeframe}"
        return await respond_with_page(request, self.context, viewer, key, draw)

    async def show_list(self, request: Request) -> Response:
        """Return the list of all assets that match the filters."""
        query = parse_page_query(request, AssetListQuery)
        is_unfiltered = query == AssetListQuery()
        viewer = await self.find_viewer(request)

        async def draw() -> Response:
            tracked = (await self._get_coverage()).tracked
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
        return await respond_with_page(request, self.context, viewer, key, draw)

    async def _get_coverage(self) -> Coverage:
        """Return the published coverage; ApiError `unavailable` before the first run."""
        snapshots = self.context.snapshots
        return await snapshots.coverage() or (await self.context.snapshot()).coverage


def build_asset_values(
    asset: CoveredAsset, timeframe: Timeframe, model: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the values with which a template renders an asset; `model` is None without data."""
    source = None if model is None else model["meta"].source
    title = asset.name if f"({asset.ticker})" in asset.name else f"{asset.name} ({asset.ticker})"
    return {
        "title": title,
        "description": f"Indicator readings of {asset.name} on 1h, 4h and 1d.",
        "badge": BADGES[source] if source else "",
        "is_wide": True,
        "is_public": source in (None, "sample"),
        "is_sample": source == "sample",
        "covered": asset,
        "kind": CLASS_NAMES[asset.asset_class],
        "removed": format_removed_note(asset) if asset.removed_on else None,
        "timeframe": timeframe,
        "timeframes": TIMEFRAMES,
        "addresses": [(each, f"timeframe={each}") for each in TIMEFRAMES],
        "legacy": LEGACY_KEYS,
        "days": CHART_DAYS[timeframe],
        "bar_width": BAR_WIDTH,
        "lane_height": LANE_HEIGHT,
        "lane_step": LANE_STEP,
        "format_age": format_age,
        "model": model,
    }

"""Builds the manifest, from which an agent learns to buy access, register, call and poll."""

from datetime import date
from functools import lru_cache

from access.billing.provider import describe_purchase
from mcp_server.dispatcher import PROTOCOL_VERSION
from mcp_server.registration import CLIENTS_BY_NAME, build_registration_file
from mcp_server.tools.get_usage import describe_counted_calls
from mcp_server.tools.tool_table import TOOLS
from rest_shim.endpoints import (
    CALL_MCP,
    GET_LEGAL,
    GET_LOG_CHECKPOINT,
    GET_LOG_KEY,
    GET_OPENAPI,
    REQUEST_ACCESS,
    list_endpoints,
)
from rest_shim.error_catalog import KEY_REFUSALS
from rest_shim.log import LOG_PATH
from schemas.coverage import Coverage, CoveredIndicator, merge_timeframes
from schemas.manifest_document import (
    AssetCounts,
    ChangelogEntry,
    Legal,
    Limits,
    Manifest,
    ManifestAuth,
    ManifestCoverage,
    ManifestEndpoint,
    ManifestLog,
    ManifestMcp,
    ManifestOperator,
    ManifestTool,
    PageSize,
    Polling,
    TierCoverage,
    TiersCoverage,
    Versioning,
)
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.signals import SignalsQuery
from schemas.vocabulary import (
    DAILY_LIMIT,
    DAY_MS,
    INDICATOR_COUNT_TEXT,
    POLL_INTERVAL_S,
    RETENTION_MS,
    Mode,
    Timeframe,
)
from serving.json_schema import build_input_schema

# The changes of the contract. Nothing is released yet, so no client has seen another one.
CHANGELOG = (
    ChangelogEntry(
        date=date(2026, 9, 27),
        additive=False,  # an asset was removed
        changes=[
            "One asset was removed from coverage because its readings had stopped updating; its "
            "coin continues under a ticker that was already covered. /state still has the last "
            "readings of the removed asset.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 9, 25),
        additive=True,
        changes=[
            "Added GET /api/v1/flips and its MCP tool.",
            "Added change_type to universe rows.",
            "Added mode to checkout, claim and usage responses.",
            "Extended the catalog: indicator status and appears_in, indicator_statuses, "
            "legacy_indicator_keys, state_indicators and state_readings of the universe tier, and "
            "coverage by asset.",
            "Documented perpkit in /state and /confluence, the timing of publication, the cooldown "
            "of alerts and the meaning of CLOSE.",
        ],
    ),
)
DESCRIPTION = (
    f"Readings of {INDICATOR_COUNT_TEXT} trading indicators over a fixed universe of crypto, "
    "stocks and metals on "
    "1h, 4h and 1d, recomputed hourly at minute :03 UTC: the current state, the feed of every "
    "change, recent flips and agreement between indicators, over MCP and REST."
)
DISCLAIMER = "Informational indicator readings, not investment advice."
VERSIONING_POLICY = (
    "Fields and endpoints may be added to v1; clients must ignore those they do not know."
)


# By billing mode; None is a deployment without billing.
PURCHASE_NOTES: dict[Mode | None, str] = {
    None: "This deployment sells no keys: its operator creates them with `signals keys create`.",
    "test": "Keys are bought self-serve in test mode: nothing is charged, and the key stops "
    "working once the server bills in live mode.",
    "live": "Keys are bought self-serve, without approval.",
}

POLLING_STEPS = [
    "Start with /api/v1/state and keep its as_of as the first since.",
    "Poll with since = the next_cursor of the previous first page. If it is null, nothing has "
    "changed: keep the old since.",
    "While has_more is true, raise offset by limit with since and all filters unchanged. Read "
    "every page before you set since to the next_cursor of the first one.",
    "Rows that arrive in the meantime shift pages. If that matters, use overlapping windows, "
    "deduplicate by tier and id, and reconcile with /api/v1/state.",
]


# Two entries: the coverage in use and the one that replaces it. Base URL and mode never change in
# a process.
@lru_cache(maxsize=2)
def render_manifest(
    base_url: str,
    coverage: Coverage | None,
    mode: Mode | None,
    daily_limit: int,
    operator: Operator,
) -> str:
    """Return the manifest as minified JSON, cached until another coverage is published."""
    return build_manifest(base_url, coverage, mode, daily_limit, operator).model_dump_json()


def build_manifest(
    base_url: str,
    coverage: Coverage | None,
    mode: Mode | None = None,
    daily_limit: int = DAILY_LIMIT,
    operator: Operator = UNNAMED_OPERATOR,
) -> Manifest:
    """Build the manifest; `base_url` has no trailing slash and starts every URL."""
    note, legal_page = PURCHASE_NOTES[mode], base_url + GET_LEGAL.path
    # Read from the query model, so that the manifest cannot state another page size.
    page = build_input_schema(SignalsQuery)["properties"]["limit"]
    return Manifest(
        name="signals",
        api_version="v1",
        description=DESCRIPTION,
        disclaimer=DISCLAIMER,
        source=None if coverage is None else coverage.source,
        simulated=coverage is not None and coverage.source == "simulated",
        endpoints=[
            ManifestEndpoint(
                method=endpoint.method,
                path=endpoint.path,
                url=base_url + endpoint.path,
                summary=endpoint.summary,
                auth=endpoint.auth,
                tool=endpoint.tool.name if endpoint.tool and endpoint.is_listed else None,
            )
            for endpoint in list_endpoints(sells_keys=mode is not None)
        ],
        auth=ManifestAuth(
            scheme="Bearer",
            header="Authorization: Bearer <API_KEY>",
            alternative_header="X-Api-Key: <API_KEY>",
            key_prefix="ek_",
            statuses={str(refusal.status): refusal.description for refusal in KEY_REFUSALS},
            note=operator.complete(note) if mode is None else note,
        ),
        mcp=ManifestMcp(
            url=base_url + CALL_MCP.path,
            transport="streamable-http",
            protocol_version=PROTOCOL_VERSION,
            tools=[
                ManifestTool(
                    name=tool.name,
                    title=tool.title,
                    auth="api_key" if tool.requires_key else "none",
                )
                for tool in TOOLS
            ],
            registration=CLIENTS_BY_NAME["claude-code"].render_lines(base_url).rstrip(),
            config=build_registration_file(base_url),
        ),
        how_to_buy=describe_purchase(base_url) if mode else None,
        coverage=_build_coverage(coverage, f"{base_url}/api/v1/catalog"),
        polling=Polling(
            recommended_interval_s=POLL_INTERVAL_S,
            call=f"GET {base_url}/api/v1/signals?since=<next_cursor>",
            how=POLLING_STEPS,
        ),
        limits=Limits(
            daily_quota=daily_limit,
            quota_resets="00:00 UTC",
            page_size=PageSize(default=page["default"], max=page["maximum"]),
            retention_days={tier: kept_ms // DAY_MS for tier, kept_ms in RETENTION_MS.items()},
            note=describe_counted_calls(daily_limit),
        ),
        log=ManifestLog(
            checkpoint=base_url + GET_LOG_CHECKPOINT.path,
            tiles=f"GET {LOG_PATH}/tile/<L>/<N>[.p/<W>]",
            key=base_url + GET_LOG_KEY.path,
            proof=f"GET {LOG_PATH}/proof?id=<ROW_ID>",
            how="Every published row is a leaf of an append-only tree, signed after each run. Keep "
            "the last checkpoint that you saw: a later one that is not consistent with it proves "
            "that history was changed.",
        ),
        versioning=Versioning(api_version="v1", policy=VERSIONING_POLICY),
        legal=Legal(
            terms=operator.terms_url or legal_page,
            privacy=operator.privacy_url or legal_page,
            disclaimer=DISCLAIMER,
            redistribution="Redistribution or resale of the raw feed needs a separate written "
            f"agreement: request one with POST {REQUEST_ACCESS.path}.",
            redistribution_request=base_url + REQUEST_ACCESS.path,
            service_level="No formal uptime SLA and no status page.",
            software_license="Apache-2.0",
        ),
        operator=(
            ManifestOperator(name=operator.name, contact=operator.contact)
            if operator.name is not None or operator.contact is not None
            else None
        ),
        changelog=list(CHANGELOG),
        docs=f"{base_url}/api/v1",
        openapi=base_url + GET_OPENAPI.path,
        reference=f"{base_url}/docs",
    )


def _build_coverage(coverage: Coverage | None, catalog_url: str) -> ManifestCoverage:
    if coverage is None:
        return ManifestCoverage(
            assets=None, timeframes=None, indicators=None, tiers=None, catalog=catalog_url
        )
    tracked = coverage.tracked
    classes = [asset.asset_class for asset in tracked]
    universe = _build_tier([asset.timeframes for asset in tracked], coverage.logged)
    return ManifestCoverage(
        assets=AssetCounts(
            total=len(tracked),
            crypto=classes.count("crypto"),
            stock=classes.count("stock"),
            metal=classes.count("metal"),
        ),
        timeframes=universe.timeframes,
        indicators=[indicator.id for indicator in coverage.indicators],
        tiers=TiersCoverage(
            universe=universe,
            alerts=_build_tier([asset.alerts for asset in tracked], coverage.indicators),
        ),
        catalog=catalog_url,
    )


def _build_tier(
    assets: list[tuple[Timeframe, ...]], indicators: tuple[CoveredIndicator, ...]
) -> TierCoverage:
    """Return the coverage of a tier, given the timeframes of each asset in it."""
    return TierCoverage(
        assets=sum(map(bool, assets)),
        timeframes=merge_timeframes(assets),
        indicators=[indicator.id for indicator in indicators],
    )

"""The manifest: what the API serves, how to reach it, how to buy it, and what has changed."""

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, Field

from schemas.errors import HowToGetAccess
from schemas.result import Count, Result
from schemas.signals import RetentionDays
from schemas.vocabulary import IndicatorId, SourceKind, Timeframe, Uri

Auth = Literal["none", "api_key"]


class ManifestEndpoint(Result):
    """One operation of the API."""

    method: Literal["GET", "POST"]
    path: str
    url: Uri
    summary: str
    auth: Auth
    tool: str | None = Field(description="The MCP tool that gives the same answer.")


class ManifestAuth(Result):
    """How a call carries its key."""

    scheme: Literal["Bearer"]
    header: str
    alternative_header: str
    key_prefix: Literal["ek_"]
    statuses: dict[str, str] = Field(description="HTTP status to what it says of the key.")
    note: str


class ManifestTool(Result):
    """One tool of the MCP server."""

    name: str
    title: str
    auth: Auth


class ManifestMcp(Result):
    """How an agent host registers the MCP server."""

    url: Uri
    transport: Literal["streamable-http"]
    protocol_version: str
    tools: list[ManifestTool]
    registration: str = Field(description="Command line that registers it in Claude Code.")
    config: dict[str, Any] = Field(description="Registration file that most hosts take.")


class AssetCounts(Result):
    """Tracked assets by class."""

    total: Count
    crypto: Count
    stock: Count
    metal: Count


class TierCoverage(Result):
    """What one tier covers."""

    assets: Count = Field(description="Tracked assets that it has data of.")
    timeframes: list[Timeframe]
    indicators: list[IndicatorId] = Field(description="Indicators whose events it logs.")


class TiersCoverage(Result):
    """What each tier covers."""

    universe: TierCoverage
    alerts: TierCoverage


class ManifestCoverage(Result):
    """What is covered; all but the catalog's address is null before coverage is published."""

    assets: AssetCounts | None
    timeframes: list[Timeframe] | None
    indicators: list[IndicatorId] | None
    tiers: TiersCoverage | None
    catalog: Uri


class Polling(Result):
    """How to follow the feed."""

    recommended_interval_s: Count
    call: str
    how: list[str]


class PageSize(Result):
    """Rows a page of the feed."""

    default: Count
    max: Count


class Limits(Result):
    """What a key may do."""

    daily_quota: Count = Field(description="Calls a key may make a day, MCP and REST together.")
    quota_resets: str
    page_size: PageSize
    retention_days: RetentionDays
    note: str


class Versioning(Result):
    """What the version promises."""

    api_version: Literal["v1"]
    policy: str


class Legal(Result):
    """Terms in short, and where they stand in full."""

    terms: Uri
    privacy: Uri
    disclaimer: str
    redistribution: str
    redistribution_request: Uri
    service_level: str
    software_license: str


class ChangelogEntry(Result):
    """What changed on one day."""

    date: date
    additive: bool = Field(description="False: something that clients rely on changed or went.")
    changes: list[str]


class Manifest(Result):
    """What the API serves, how to reach it, how to buy it, and what has changed."""

    name: str
    api_version: Literal["v1"]
    description: str
    disclaimer: str
    source: SourceKind | None = Field(description="Null before coverage is published.")
    simulated: bool = Field(description="True: prices and readings are not of a real market.")
    endpoints: list[ManifestEndpoint]
    auth: ManifestAuth
    mcp: ManifestMcp
    how_to_buy: HowToGetAccess
    coverage: ManifestCoverage
    polling: Polling
    limits: Limits
    versioning: Versioning
    legal: Legal
    changelog: list[ChangelogEntry] = Field(description="Newest first.")
    docs: Uri
    openapi: Uri
    reference: Uri = Field(description="Pages for people: tools, endpoints, indicators, clients.")


class OpenApiDocument(BaseModel):
    """An OpenAPI 3.1 document."""

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    servers: list[dict[str, str]]
    paths: dict[str, Any]
    components: dict[str, Any]

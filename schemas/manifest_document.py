"""Model of the manifest: endpoints, authentication, purchase, coverage, limits and changelog."""

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from schemas.errors import HowToGetAccess
from schemas.result import Count, Result, is_none
from schemas.vocabulary import IndicatorId, SourceKind, Tier, Timeframe, Uri

Auth = Literal["none", "api_key"]


class ManifestEndpoint(Result):
    """One operation of the API."""

    method: Literal["GET", "POST"]
    path: str
    url: Uri
    summary: str
    auth: Auth
    tool: str | None = Field(description="The MCP tool that returns the same result.")


class ManifestAuth(Result):
    """How to send an API key."""

    scheme: Literal["Bearer"]
    header: str
    alternative_header: str
    key_prefix: Literal["ek_"]
    statuses: dict[str, str] = Field(description="HTTP status of a refused key to its meaning.")
    note: str


class ManifestTool(Result):
    """One tool of the MCP server."""

    name: str
    title: str
    auth: Auth


class ManifestMcp(Result):
    """How to register the MCP server with an agent host."""

    url: Uri
    transport: Literal["streamable-http"]
    protocol_version: str
    tools: list[ManifestTool]
    registration: str = Field(description="Command that registers the server in Claude Code.")
    config: dict[str, Any] = Field(description="Registration file that most hosts accept.")


class AssetCounts(Result):
    """Tracked assets by class."""

    total: Count
    crypto: Count
    stock: Count
    metal: Count


class TierCoverage(Result):
    """Coverage of one tier."""

    assets: Count = Field(description="Tracked assets with data in this tier.")
    timeframes: list[Timeframe]
    indicators: list[IndicatorId] = Field(description="Indicators whose events the tier logs.")


class TiersCoverage(Result):
    """Coverage of both tiers."""

    universe: TierCoverage
    alerts: TierCoverage


class ManifestCoverage(Result):
    """Coverage in short; every field but `catalog` is null until coverage is published."""

    assets: AssetCounts | None
    timeframes: list[Timeframe] | None
    indicators: list[IndicatorId] | None
    tiers: TiersCoverage | None
    catalog: Uri


class Polling(Result):
    """How to poll the feed."""

    recommended_interval_s: Count
    call: str
    how: list[str]


class PageSize(Result):
    """Rows per page of the feed."""

    default: Count
    max: Count


class Limits(Result):
    """Limits of an API key and of the feed."""

    daily_quota: Count = Field(description="Calls per key and UTC day, MCP and REST together.")
    quota_resets: str
    page_size: PageSize
    retention_days: dict[Tier, int]
    note: str


class ManifestLog(Result):
    """The transparency log of the feed, in the formats of C2SP."""

    checkpoint: Uri = Field(description="The signed size and root (c2sp.org/tlog-checkpoint).")
    tiles: str = Field(description="Request for a tile (c2sp.org/tlog-tiles).")
    key: Uri = Field(description="The verifier key; keep it when you first fetch it.")
    proof: str = Field(description="Request for the proof of a row, which needs a key.")
    how: str


class Versioning(Result):
    """The API version and its compatibility policy."""

    api_version: Literal["v1"]
    policy: str


class Legal(Result):
    """The terms in short, and the address of the full page."""

    terms: Uri
    privacy: Uri
    disclaimer: str
    redistribution: str
    redistribution_request: Uri
    service_level: str
    software_license: str


class ManifestOperator(Result):
    """The operator of this deployment; a field is absent if the operator has not published it."""

    name: str | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="Name of the person or company."
    )
    contact: str | SkipJsonSchema[None] = Field(
        default=None, exclude_if=is_none, description="E-mail address, or https URL of a page."
    )


class ChangelogEntry(Result):
    """The changes of one day."""

    date: date
    additive: bool = Field(
        description="False: something that clients may rely on changed or was removed."
    )
    changes: list[str]


class Manifest(Result):
    """The manifest of the API: endpoints, authentication, purchase, coverage and changelog."""

    name: str
    api_version: Literal["v1"]
    description: str
    disclaimer: str
    source: SourceKind | None = Field(
        description="Source of the data; null until coverage is published."
    )
    simulated: bool = Field(description="True: prices and readings are not those of a real market.")
    endpoints: list[ManifestEndpoint]
    auth: ManifestAuth
    mcp: ManifestMcp
    how_to_buy: HowToGetAccess | None = Field(
        description="How to buy a key; null if this deployment sells none."
    )
    coverage: ManifestCoverage
    polling: Polling
    limits: Limits
    log: ManifestLog
    versioning: Versioning
    legal: Legal
    operator: ManifestOperator | SkipJsonSchema[None] = Field(
        default=None,
        exclude_if=is_none,
        description="Who runs this deployment; absent if the operator has not published it.",
    )
    changelog: list[ChangelogEntry] = Field(description="Newest first.")
    docs: Uri
    openapi: Uri
    reference: Uri = Field(
        description="Documentation pages: tools, endpoints, indicators, clients."
    )


class OpenApiDocument(BaseModel):
    """An OpenAPI 3.1 document."""

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    servers: list[dict[str, str]]
    tags: list[dict[str, str]]
    paths: dict[str, Any]
    components: dict[str, Any]

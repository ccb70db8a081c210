"""The pages `/feed`, `/flips` and `/confluence`, with the same view as CSV and as JSON.

Their query strings are the arguments of the tools, with the same defaults. Members see live data,
visitors the labelled sample.
"""

import json
import shlex
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.throttle import find_client
from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_flips import GET_FLIPS, WINDOW_HOURS
from mcp_server.tools.get_signals import GET_SIGNALS
from rest_shim.endpoints import ENDPOINTS, Endpoint, respond_with_body
from rest_shim.log import GET_LOG_PROOF, load_log_key, load_signed_note
from schemas.confluence import ConfluenceResponse
from schemas.coverage import Coverage
from schemas.errors import ApiError
from schemas.query import Query
from schemas.signals import Signal
from schemas.usage import QuotaUsage
from schemas.vocabulary import (
    HOUR_MS,
    INDICATOR_IDS,
    LEGACY_KEYS,
    Instant,
    find_latest_run,
    fold_name,
    format_instant,
)
from serving.argument_values import parse_instant_ms
from serving.arguments import (
    ArgumentError,
    Rejected,
    get_argument_schemas,
    parse_arguments,
)
from serving.error_responses import build_error_response, guard_route
from serving.freshness import NO_CALL
from serving.http import SENT_KEY_HASH, build_quota_headers, keep_error, read_headers
from serving.response_cache import ResponseBody
from serving.tool_runner import AnyTool, ToolRunner
from web.board import BADGES, CLASS_NAMES, read_page_arguments
from web.pages import (
    MAX_ECHOED_CHARS,
    PRIVATE_HEADERS,
    SECURITY_HEADERS,
    build_page_route,
    render_error_for_browser,
    render_page,
    render_template,
    respond_with_page,
)
from web.sessions import FindViewer, Sessions, Viewer, refuse_key
from web.value_texts import Cell, render_csv

# The links between pages set it, because another filter begins again at the first page.
PAGING_ARGUMENT = "offset"
# A header and its rows.
Table = tuple[Sequence[str], Iterable[Sequence[Cell]]]


@dataclass(frozen=True, slots=True)
class View:
    """A page that shows one tool's result.

    The page words its filters by `labels` of arguments, and by labels of `values` by argument.
    `main` are the arguments in the first row; the others are behind "More filters". `list_rows`
    returns what the page lists. `build_table` returns the header and rows of the CSV file. `wider`
    has, by argument, values that may match more than the one that was chosen, best first; the
    default of an argument is always one of them.
    """

    path: str
    title: str
    description: str
    tool: AnyTool
    labels: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]]
    main: Collection[str]
    list_rows: Callable[[Any], Sequence[Any]]
    build_table: Callable[[Any], Table]
    wider: Callable[[Any], Mapping[str, Sequence[Any]]]
    nothing: str


def find_firing(row: Signal) -> Instant | None:
    """Return when a held alert fired; None for an alert that the next run published."""
    # The id of an alert has the close of the bar on which it fired, in seconds.
    fired_at = 1000 * int(row.id.rsplit(".", 3)[1])
    is_held = parse_instant_ms("created_at", row.created_at) - fired_at > HOUR_MS
    return format_instant(fired_at) if is_held else None


def group_by_run(rows: Iterable[Signal]) -> list[list[Signal]]:
    """Return rows that the same hourly run published side by side, in their order."""
    runs = groupby(rows, lambda row: find_latest_run(parse_instant_ms("at", row.created_at)))
    return [list(run) for _, run in runs]


def list_vote_keys(result: ConfluenceResponse) -> list[Any]:
    """Return the columns of votes: the current indicators, and outdated ones that voted."""
    return [*INDICATOR_IDS, *result.meta.legacy_keys]


_TIMEFRAMES = {"": "Any", "1h": "1h", "4h": "4h", "1d": "1d"}
FEED = View(
    path="feed",
    title="Feed",
    description="Every change of a reading and every alert, newest first.",
    tool=GET_SIGNALS,
    labels={"tier": "Show", "ticker": "Asset", "since": "Since (UTC)", "limit": "Rows a page"},
    values={
        "tier": {"universe": "Changes", "alerts": "Alerts", "all": "Changes and alerts"},
        "timeframe": _TIMEFRAMES,
        "direction": {"": "Any", "exit": "Exit (CLOSE)"},
        "order": {"newest": "Newest first", "oldest": "Oldest first"},
    },
    main=("tier", "ticker", "indicator", "timeframe", "direction"),
    list_rows=lambda result: result.signals,
    build_table=lambda result: (
        (
            *("created_at", "tier", "ticker", "asset_class", "indicator", "timeframe"),
            *("direction", "from", "to", "change_type", "action", "price", "id", "source"),
        ),
        (
            (
                *(row.created_at, row.tier, row.ticker, row.asset_class, row.indicator),
                *(row.timeframe, row.direction),
                *((row.transition.from_, row.transition.to) if row.transition else (None, None)),
                *(row.change_type, row.action, row.price, row.id, result.meta.source),
            )
            for row in result.signals
        ),
    ),
    wider=lambda query: {"tier": ["all"]},
    nothing="No change or alert matches.",
)
FLIPS = View(
    path="flips",
    title="Flips",
    description="The latest change of each indicator, by asset; most changes first.",
    tool=GET_FLIPS,
    labels={"hours": "Hours back"},
    values={"timeframe": _TIMEFRAMES, "direction": {"all": "Any"}},
    main=("timeframe", "direction", "hours"),
    list_rows=lambda result: result.groups,
    build_table=lambda result: (
        (
            *("created_at", "ticker", "name", "asset_class", "timeframe", "indicator", "from"),
            *("to", "change_type", "price", "dominant", "score", "as_of", "source"),
        ),
        (
            (
                *(flip.created_at, group.ticker, group.name, group.asset_class),
                *(result.query.timeframe, flip.indicator, flip.from_, flip.to),
                *(flip.change_type, flip.price, group.dominant, group.score),
                *(result.as_of, result.meta.source),
            )
            for group in result.groups
            for flip in group.flips
        ),
    ),
    wider=lambda query: {"hours": [WINDOW_HOURS[query.timeframe].max]},
    nothing="No reading changed in these hours.",
)
CONFLUENCE = View(
    path="confluence",
    title="Confluence",
    description="Assets on which several indicators agree. A count of readings, not a forecast.",
    tool=GET_CONFLUENCE,
    labels={"min_agree": "Agreeing", "asset_class": "Class", "as_of": "At a past time (UTC)"},
    values={
        "timeframe": _TIMEFRAMES,
        "min_agree": {str(count): f"{count} or more" for count in range(1, 10)},
        "asset_class": {"": "All", **{str(kind): name for kind, name in CLASS_NAMES.items()}},
    },
    main=("timeframe", "direction", "min_agree", "asset_class"),
    list_rows=lambda result: result.results,
    build_table=lambda result: (
        (
            *("ticker", "name", "asset_class", "timeframe", "direction", "agree"),
            *("total_reporting", "score", *list_vote_keys(result), "as_of", "source"),
        ),
        (
            (
                *(one.ticker, one.name, one.asset_class, result.query.timeframe),
                *(result.query.direction, one.agree, one.total_reporting, one.score),
                *(one.votes.get(key) for key in list_vote_keys(result)),
                *(result.as_of, result.meta.source),
            )
            for one in result.results
        ),
    ),
    wider=lambda query: {"min_agree": range(query.min_agree - 1, 0, -1)},
    nothing="No asset has so many agreeing indicators.",
)


def change_query(query: Query, **changes: Any) -> Query:
    """Return a query with some arguments changed, on its first page unless that is among them."""
    kept = query.model_dump(exclude_defaults=True, exclude={PAGING_ARGUMENT}) | changes
    return type(query).model_validate({n: value for n, value in kept.items() if value is not None})


def to_query_string(query: Query) -> str:
    """Return the arguments of a query that are not defaults."""
    return urlencode(query.model_dump(exclude_defaults=True))


def build_paging(query: Any, result: Any) -> dict[str, Any]:
    """Return the addresses of the newer and older pages, None for none, and the rows shown."""
    pagination = getattr(result, "pagination", None)
    if pagination is None:
        return {"newer": None, "older": None, "shown": None, "has_more": False}
    first, limit = pagination.offset, pagination.limit
    before = to_query_string(change_query(query, offset=max(first - limit, 0))) if first else None
    after = (
        to_query_string(change_query(query, offset=first + limit)) if pagination.has_more else None
    )
    newer, older = (before, after) if query.order == "newest" else (after, before)
    return {
        "newer": newer,
        "older": older,
        "shown": (first + 1, first + pagination.returned),
        "has_more": pagination.has_more,
    }


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a view, with the arguments as they were sent and what its source covers.

    Only a viewer who `is_member` may see live data; `runner` calls the tools over what others see.
    """

    request: Request
    viewer: Viewer | None
    is_member: bool
    runner: ToolRunner
    sent: Mapping[str, Any]
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class ViewPage:
    """Serves one view as a page, as CSV and as JSON; visitors see the `sample`."""

    view: View
    endpoint: Endpoint
    runner: ToolRunner
    sample: ToolRunner
    find_viewer: FindViewer

    def build_routes(self) -> list[Route]:
        """Return the routes of the page and of its two files."""
        path, runner = f"/{self.view.path}", self.runner
        files = {f"{path}.csv": self.send_csv, f"{path}.json": self.send_json}
        if self.view is FEED:
            files[f"{path}.atom"] = self.send_atom
        return [
            build_page_route(path, runner, self.show),
            *(
                Route(
                    file,
                    guard_route(file, runner, respond, render_error_for_browser),
                    methods=["GET"],
                )
                for file, respond in files.items()
            ),
        ]

    async def send_json(self, request: Request) -> Response:
        """Return the tool's result, in the bytes that its REST endpoint returns."""
        refuse_key(request, f"{self.runner.context.base_url}{self.endpoint.path}")
        visit = await self._read(request)
        body = await self._fetch(visit, await self._parse(visit))
        response = respond_with_body(request, body, self.endpoint)
        response.headers.update(SECURITY_HEADERS)
        return response

    async def send_csv(self, request: Request) -> Response:
        """Return the rows of the view as a CSV file."""
        refuse_key(request, f"{self.runner.context.base_url}{self.endpoint.path}")
        visit = await self._read(request)
        result = await self._load(visit, await self._parse(visit))
        header, rows = self.view.build_table(result)
        has_prices = visit.runner.context.prices is not None
        columns = [at for at, name in enumerate(header) if name != "price" or has_prices]
        name = f"signals-{self.view.path}{'' if visit.is_member else '-sample'}.csv"
        headers = {**PRIVATE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        text = render_csv(
            [header[at] for at in columns], ([row[at] for at in columns] for row in rows)
        )
        return Response(text, 200, headers, media_type="text/csv")

    async def send_atom(self, request: Request) -> Response:
        """Return the rows as an Atom feed: of the key in the request, else as the page does."""
        visit = await self._read(request)
        headers, runner = read_bearer(read_headers(request.scope)), visit.runner
        quota: QuotaUsage | None = None
        if headers.keys() & {b"authorization", b"x-api-key"}:
            # A key opens the feed to programs that cannot sign in. The call is counted.
            runner = self.runner
            # As in `_parse`: a feed needs the rows.
            sent = {**visit.sent, "view": "full"}
            called = await runner.run(self.view.tool, headers, lambda: sent, request.scope)
            runner.report_key_call(request.scope, self.view.tool, "rest", called, 200)
            # The endpoints know the headers of live keys, and do not take this form.
            request.scope.pop(SENT_KEY_HASH, None)
            if called.error is not None:
                keep_error(request.scope, called.error)
                return build_error_response(called.error, runner, called.quota)
            body, query = called.response, parse_arguments(self.view.tool.query, sent)
            quota = called.quota
        else:
            query = await self._parse(visit)
            body = await self._fetch(visit, query)
        result = self.view.tool.result.model_validate_json(body.text)
        coverage = (await runner.context.snapshot()).coverage
        text = render_template(
            "feed.atom",
            f"{runner.context.base_url}/",
            title=self.view.title if runner is self.runner else "Sample, not live data",
            address=to_query_string(query),
            result=result,
            names={asset.ticker: asset.name for asset in coverage.assets},
            host=urlsplit(runner.context.base_url).hostname,
            has_prices=runner.context.prices is not None,
        )
        response = Response(text, 200, PRIVATE_HEADERS, media_type="application/atom+xml")
        response.raw_headers += build_quota_headers(quota)
        return response

    async def show(self, request: Request) -> Response:
        """Return the page; with status 400 and the errors in its form if a filter is invalid."""
        visit = await self._read(request)
        key = None if visit.sent else self.view.path
        context = self.runner.context
        return await respond_with_page(
            request, context, visit.viewer, key, lambda: self._draw(visit)
        )

    async def _draw(self, visit: Visit) -> Response:
        view, context = self.view, visit.runner.context
        try:
            query = await self._parse(visit)
            result = await self._load(visit, query)
        except ArgumentError as error:
            # What to change, by argument: the sentences of the tool without its name.
            errors = {}
            for problem in error.problems:
                text = problem.text.removeprefix(f"{problem.argument}: ")
                errors[problem.argument] = f"{text[0].upper()}{text[1:]}."
            if not visit.is_member and error.code == "unknown_ticker":
                errors["ticker"] = "The sample does not have this asset. Choose one from the list."
            return self._render(visit, 400, errors)
        rows = view.list_rows(result)
        # The same view for an agent, and for a script.
        call = f"{view.tool.name} {json.dumps(query.model_dump(exclude_defaults=True))}"
        url = f"{context.base_url}{self.endpoint.path}?{to_query_string(query)}".rstrip("?")
        command = f'curl -H "Authorization: Bearer $SIGNALS_API_KEY" {shlex.quote(url)}'
        return self._render(
            visit,
            200,
            result=result,
            meta=result.meta,
            rows=rows,
            # The last sentence is for programs that would call again.
            why=(result.meta.note or "").replace(NO_CALL, ""),
            wider=[] if rows else [one async for one in self._find_wider(visit, query)],
            address=to_query_string(query),
            call=call,
            command=command,
            **build_paging(query, result),
        )

    async def _read(self, request: Request) -> Visit:
        query = self.view.tool.query
        sent = read_page_arguments(request, query)
        viewer = await self.find_viewer(request)
        is_member = viewer is not None and viewer.is_member
        runner = self.runner if is_member else self.sample
        coverage = (await runner.context.snapshot()).coverage
        return Visit(request, viewer, is_member, runner, sent, coverage)

    async def _parse(self, visit: Visit) -> Any:
        query = await visit.runner.parse(self.view.tool, visit.sent)
        # A page needs the rows, also if an agent's address is pasted.
        return query.model_copy(update={"view": "full"})

    async def _fetch(self, visit: Visit, query: Query) -> ResponseBody:
        client = visit.request.client
        caller = visit.viewer.email if visit.viewer else find_client(client.host if client else "")
        return await visit.runner.fetch(self.view.tool, query, caller)

    async def _load(self, visit: Visit, query: Query) -> Any:
        """Return what `_fetch` does as the tool's result model."""
        body = await self._fetch(visit, query)
        return self.view.tool.result.model_validate_json(body.text)

    def _build_fields(self, visit: Visit, errors: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the fields of the form with the values that were sent.

        `kind` is choice, asset, number, time or text. `choices` are values and their labels; an
        empty value leaves the filter out. `is_set` if the viewer should see the field, because it
        has a value of its own, or an error.
        """
        query: type[Query] = self.view.tool.query
        fields = []
        for name, schema in get_argument_schemas(query).items():
            # The view is for agents: a page always shows rows.
            if name in (PAGING_ARGUMENT, "view"):
                continue
            error, value = errors.get(name, ""), visit.sent.get(name)
            labels = self.view.values.get(name, {})
            typed = "" if value is None or isinstance(value, Rejected) else str(value)
            if error:
                typed = typed[:MAX_ECHOED_CHARS]
            default, low, high = (
                str(schema.get("default", "")),
                *map(schema.get, ("minimum", "maximum")),
            )
            kind, values = "text", schema.get("enum", [])
            if schema["type"] == "integer":
                kind = "number"
                # A number with at most so many values is chosen from a list.
                if low is not None and high is not None and high - low < 12:
                    values = [str(number) for number in range(low, high + 1)]
            choices = [(each, labels.get(each, each.capitalize())) for each in values]
            if name == "ticker":
                kind = "asset"
            elif name == "indicator":
                choices = [(str(one.id), one.name) for one in visit.coverage.indicators]
            elif schema.get("format") == "date-time":
                kind = "time"
            if choices:
                kind = "choice"
                if "default" not in schema:
                    choices = [("", labels.get("", "Any")), *choices]
            if kind == "choice" and error and typed:
                # The value that was sent stays visible beside its error.
                choices = [*choices, (typed, typed)]
            elif kind == "choice":
                # A value or its label, ignoring case and spacing.
                named = {fold_name(text): pair[0] for pair in choices for text in pair[::-1]}
                typed = named.get(fold_name(typed or default), "")
            elif kind == "time" and not error:
                sent_time, typed = typed, ""
                # A relative time, such as 7d, is an instant in the query and stays out of the
                # field.
                with suppress(ArgumentError):
                    instant = format_instant(parse_instant_ms("time", sent_time))
                    # As browsers' time fields hold it, in UTC without its zone.
                    typed = instant.removesuffix("Z").removesuffix(".000").removesuffix(":00")
            fields.append(
                {
                    "name": name,
                    "label": self.view.labels.get(name, name.replace("_", " ").capitalize()),
                    "kind": kind,
                    "value": typed,
                    "is_main": name in self.view.main,
                    "is_set": error or typed != (default if kind == "choice" else ""),
                    "choices": choices,
                    "minimum": low,
                    "maximum": high,
                    "default": default,
                    "error": error,
                }
            )
        return fields

    async def _find_wider(
        self, visit: Visit, query: Query
    ) -> AsyncIterator[tuple[str, str, str, str]]:
        """Yield views with one filter changed that have rows; none if no single change helps.

        They are the filter, its value, the address, and the number of rows, such as `50+`.
        """
        first_page = change_query(query)
        if first_page != query:
            if found := await self._count(visit, first_page):
                yield "Page", "first", to_query_string(first_page), found
            return
        wider = self.view.wider(query)
        for one in self._build_fields(visit, {}):
            name = one["name"]
            for value in dict.fromkeys(
                (*wider.get(name, ()), type(query).model_fields[name].default)
            ):
                changed = change_query(query, **{name: value})
                found = await self._count(visit, changed) if changed != query else ""
                if found:
                    address = to_query_string(changed)
                    text = "" if value is None else str(value)
                    said = dict(one["choices"]).get(text, text or "any")
                    yield one["label"], said, address, found
                    break

    async def _count(self, visit: Visit, query: Query) -> str:
        """Return the number of rows of a view, `50+` if there are more pages, empty if none."""
        try:
            result = await self._load(visit, query)
        except ArgumentError:
            return ""
        rows = len(self.view.list_rows(result))
        has_more = build_paging(query, result)["has_more"]
        return f"{rows}{'+' if has_more else ''}" if rows else ""

    def _render(
        self, visit: Visit, status: int, errors: Mapping[str, str] | None = None, **values: Any
    ) -> Response:
        now = self.runner.context.clock()
        return render_page(
            visit.request,
            f"{self.view.path}.html",
            status=status,
            title=self.view.title,
            description=self.view.description,
            here=self.view.path,
            badge=BADGES[visit.coverage.source if visit.is_member else "sample"],
            is_wide=True,
            is_public=not visit.is_member and not visit.sent,
            viewer=visit.viewer,
            view=self.view,
            is_sample=not visit.is_member,
            fields=self._build_fields(visit, errors or {}),
            is_filtered=bool(visit.sent),
            errors=errors or {},
            coverage=visit.coverage,
            indicator_names={one.id: one.name for one in visit.coverage.indicators},
            now=now,
            ago=lambda at: format_ago(at, now),
            has_prices=visit.runner.context.prices is not None,
            find_firing=find_firing,
            group_by_run=group_by_run,
            asset_names=lambda: {one.ticker: one.name for one in visit.coverage.assets},
            vote_keys=list_vote_keys,
            legacy_names={key: f"{key.title()} (outdated)" for key in LEGACY_KEYS},
            **{"result": None, "rows": [], "meta": None, "newer": None, "older": None} | values,
        )


def format_ago(at: str, now: int) -> str:
    """Return how long before `now` (epoch ms) an instant was, empty if it is in the future."""
    minutes = (now - parse_instant_ms("at", at)) // 60_000
    if minutes < 1:
        return "just now" if minutes == 0 else ""
    if minutes < 60:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} d ago"


def read_bearer(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return headers with a key as a bearer; readers of feeds send it as a password (RFC 7617)."""
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return dict(headers)
    with suppress(ValueError):
        credentials = b64decode(credentials, validate=True).partition(b":")[2]
    return {**headers, b"authorization": b"Bearer " + credentials}


def build_view_routes(
    runner: ToolRunner, sample: ToolRunner, find_viewer: FindViewer
) -> list[Route]:
    """Return the routes of all views; visitors see the `sample`."""
    endpoints = {one.tool.name: one for one in ENDPOINTS if one.tool is not None}
    return [
        route
        for view in (FEED, FLIPS, CONFLUENCE)
        for route in ViewPage(
            view, endpoints[view.tool.name], runner, sample, find_viewer
        ).build_routes()
    ]


def build_log_routes(runner: ToolRunner, sessions: Sessions) -> list[Route]:
    """Return the open page of the log, and those of a row's proof, which members get."""
    log = runner.context.snapshots.store.feed_log

    async def fetch(request: Request, viewer: Viewer) -> tuple[str, str]:
        if not viewer.is_member:
            remedy = " Buy access to get them." * runner.context.sells_keys
            raise ApiError("missing_key", f"Proofs are for members.{remedy}", 403)
        query = await runner.parse(GET_LOG_PROOF, dict(request.query_params))
        proof = await runner.fetch(GET_LOG_PROOF, query, viewer.email)
        return request.query_params["id"], proof.text.decode()

    async def respond(request: Request, viewer: Viewer) -> Response:
        _, proof = await fetch(request, viewer)
        name = {"Content-Disposition": 'inline; filename="row.tlog-proof"'}
        return Response(proof, 200, PRIVATE_HEADERS | name, "text/plain; charset=utf-8")

    async def explain(request: Request, viewer: Viewer) -> Response:
        id_, proof = await fetch(request, viewer)
        leaf = await log.find_leaf(id_)
        since = format_instant((leaf.created_at if leaf else 0) - 1)
        arguments = {"tier": "all", "order": "oldest", "limit": "1", "since": since}
        query = await runner.parse(GET_SIGNALS, arguments)
        page = json.loads((await runner.fetch(GET_SIGNALS, query, viewer.email)).text)
        rows = [json.dumps(row, indent=1) for row in page["signals"] if row["id"] == id_]
        values = {"id": id_, "proof": proof, "row": "".join(rows)}
        return await render(request, viewer, "Proof of a row", **values)

    async def show(request: Request) -> Response:
        return await render(request, await sessions.find_viewer(request), "Log of the feed")

    async def render(
        request: Request, viewer: Viewer | None, title: str, **values: Any
    ) -> Response:
        size, note = await load_signed_note(log)
        values = {"id": None, "row": "", "proof": ""} | values
        values |= {"key": await load_log_key(log), "line": f"{size} {note.split()[2]}"}
        return render_page(request, "log.html", title=title, is_wide=True, viewer=viewer, **values)

    return [
        build_page_route("/log", runner, show),
        build_page_route("/log/proof", runner, sessions.require_viewer(respond)),
        build_page_route("/log/row", runner, sessions.require_viewer(explain)),
    ]

"""Measure what requests without a key cost: time, size and memory, and another key's latency.

`python -m bench.strangers [--store FILE]` fills each header, parameter, field, body, page and form
at its bound and beyond, with shapes that are known to be costly, and prints the worst twenty. Then
64 connections send each of the worst, while a key makes calls. The places come from the service
itself: its routes, OpenAPI document and tools, and the forms and links of its pages.
"""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import httpx
import numpy as np
from starlette.routing import BaseRoute, Route

from access.call_log import CallLog
from bench.calls import MCP_HEADERS, MCP_PATH
from bench.fairness import MAX_P99_MS, watch
from bench.generator import Connection, encode_request
from bench.latency import format_percentiles
from bench.load import Call, measure_load
from bench.served import SIGNALS, Service, copy_store, create_key, run_module, start_service
from bench.table import Row
from rest_shim.endpoints import CALL_NAMES
from service.config.settings import Settings
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.resources import open_resources

WORST, REPEATS, MEMORY_REPEATS = 20, 2, 200
# A request that takes longer in the mean is repeated less often.
LONG_MS = 30.0
CONNECTIONS, ATTACKED, ATTACK_S, TIMEOUT_S = 64, 5, 5.0, 60
MAX_MS, MAX_BYTES, MAX_KB, MAX_RSS_MB = 2.0, 100_000, 1.0, 250.0
GET, FORM, JSON = "GET", "application/x-www-form-urlencoded", "application/json"
# By place its bound and sizes above it, in bytes.
SIZES = {
    "path": (1_000, 60_000),
    GET: (7_900, 60_000),
    "header": (4_000, 15_000, 60_000),
    FORM: (7_900, 65_000),
    JSON: (64_000,),
}
# Repeated up to the size. NFKC makes 18 signs of the ligature, lower() two of the capital, and
# escaping five of "&".
UNITS = {
    "quotes": '\\"',
    "commas": ",",
    "encoded commas": "%2C",
    "slashes": "/",
    "parents": "../",
    "spaces": " ",
    "addresses": "a.@",
    "encoded words": "=?utf-8?b?YQ==?=",
    "markup": '&<>"',
    "fields": "&a=",
    "tags": 'W/"a",',
    "types": "a/b;q=0.1,",
    "hops": "10.0.0.1,",
    "brackets": "[",
    "ligatures": "\ufdfa",
    "capitals": "\u0130",
}
# Without these, a header is not read to its end.
PREFIXES = {"Cookie": 'a="', "Authorization": "Bearer ", "Stripe-Signature": "t=1"}
HEADERS = (
    *("Accept", "Accept-Encoding", "Authorization", "Content-Encoding", "Content-Type", "Cookie"),
    *("Expect", "Forwarded", "Host", "Idempotency-Key", "If-Modified-Since", "If-None-Match"),
    *("Last-Event-ID", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id"),
    *("Origin", "Sec-Fetch-Site", "Stripe-Signature", "Transfer-Encoding", "User-Agent"),
    *("X-Api-Key", "X-Any", "X-Forwarded-For", "X-Forwarded-Proto"),
)
WEBHOOK_PATH = "/webhooks/stripe"
# One route of each kind, with the body that is sent.
HEADER_PATHS = {
    "/feed": ("", {}),
    "/api/v1/state": ("", {}),
    MCP_PATH: ('{"jsonrpc": "2.0", "id": 1, "method": "ping"}', MCP_HEADERS),
    "/oauth/token": ("grant_type=authorization_code", {"Content-Type": FORM}),
    WEBHOOK_PATH: ("{}", {"Content-Type": JSON}),
}
# RFC 6749, 7009 and 7591, and the processor: no document of the service lists these.
OTHER_FIELDS = {
    (GET, "/oauth/authorize"): "response_type client_id redirect_uri scope state code_challenge "
    "code_challenge_method resource",
    (FORM, "/oauth/token"): "grant_type code redirect_uri client_id code_verifier refresh_token "
    "resource",
    (FORM, "/oauth/revoke"): "token token_type_hint client_id",
    (JSON, "/oauth/register"): "redirect_uris client_name client_uri logo_uri scope grant_types "
    "response_types token_endpoint_auth_method software_id",
    (JSON, WEBHOOK_PATH): "id type data",
}
# Fields that are sent beside the odd one.
SAMPLES = {
    "billing": "monthly",
    "client_id": "https://client.example/metadata.json",
    "code_challenge_method": "S256",
    "contact_email": "stranger@example.com",
    "grant_type": "authorization_code",
    "jsonrpc": "2.0",
    "method": "ping",
    "redirect_uri": "http://127.0.0.1:1/",
    "response_type": "code",
    "ticker": "BTC",
}
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
# The address of the processor refuses connections.
STRIPE = (
    *("SIGNALS_BILLING=stripe", "SIGNALS_STRIPE_API_BASE=http://127.0.0.1:9"),
    *("SIGNALS_STRIPE_API_KEY=rk_test_a", "SIGNALS_STRIPE_WEBHOOK_SECRET=whsec_a"),
    *("SIGNALS_STRIPE_PRICE_MONTHLY=price_a", "SIGNALS_STRIPE_PRICE_YEARLY=price_b"),
)
# The names of fields by kind (GET, FORM or JSON) and path.
Places = dict[tuple[str, str], set[str]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request costs: CPU time, bytes of the answer, memory that is kept of each."""

    name: str
    call: Call
    status: str
    cpu_ms: float
    answer_bytes: int
    kept_kb: float


def list_probes(url: str, routes: Sequence[BaseRoute]) -> dict[str, Call]:
    """Return anonymous requests to all routes of a running service, by name."""
    places = read_documents(url)
    found = {
        f"{path} {name}: {shape}": Call(path, body, head | {name: PREFIXES.get(name, "") + text})
        for path, (body, head) in HEADER_PATHS.items()
        for name in HEADERS
        for size in SIZES["header"]
        for shape, text in fill(size).items()
    }
    for method, route, examples in read_pages(url, list_routes(routes), places):
        body = "" if method == GET else "{}"
        found |= {f"{method} {path}": Call(path, body) for path in examples}
        for size in SIZES["path"] if route.param_convertors else ():
            for shape, text in fill(size // len(route.param_convertors), "/,%.:@").items():
                odd = "".join(
                    text if at % 2 else part for at, part in enumerate(PARAMETER.split(route.path))
                )
                found[f"{method} {route.path} {shape}"] = Call(odd, body)
    for (kind, path), named in places.items():
        found |= probe_json(url, path, named) if kind == JSON else probe_fields(kind, path, named)
    return found


def list_routes(routes: Iterable[BaseRoute]) -> list[tuple[str, Route]]:
    """Return each route with each of its methods except HEAD; without methods it reads bodies."""
    return [
        (method, route)
        for route in routes
        if isinstance(route, Route)
        for method in sorted((route.methods or {"POST"}) - {"HEAD"})
    ]


def read_documents(url: str) -> Places:
    """Return the fields that the OpenAPI document and the RFCs name."""
    document = httpx.get(f"{url}/api/v1/openapi.json", timeout=TIMEOUT_S).json()
    places = {place: set(names.split()) for place, names in OTHER_FIELDS.items()}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            places[GET, path] = {one["name"] for one in operation.get("parameters", ())}
            if body := operation.get("requestBody"):
                schema = body["content"][JSON]["schema"]["$ref"].rpartition("/")[2]
                places[JSON, path] = set(document["components"]["schemas"][schema]["properties"])
    return places


def read_pages(
    url: str, routes: Sequence[tuple[str, Route]], places: Places
) -> list[tuple[str, Route, list[str]]]:
    """Add the fields of all pages to the places; return existing paths of each route."""
    named, read = defaultdict[str, set[str]](set), set[str]()
    found = list[tuple[str, Route, list[str]]]()
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        # Pages link to pages that link to others, whose paths have parameters.
        for _ in range(4):
            found.clear()
            for method, route in routes:
                linked = [path for path in sorted(named) if route.path_regex.match(path)]
                unknown = PARAMETER.sub(lambda part: SAMPLES.get(part[1], "1"), route.path)
                examples = linked[:WORST] if route.param_convertors and linked else [unknown]
                # One example of each set of fields is enough.
                different = {frozenset(named[path]): path for path in examples}.values()
                found.append((method, route, list(different)))
                for path in {*examples} - read if method == GET else ():
                    read.add(path)
                    read_page(path, client.get(path).text, named)
    for method, _, examples in found:
        for path in examples:
            kind = GET if method == GET else JSON if (JSON, path) in places else FORM
            # The files of a page have its parameters.
            page = path.removesuffix(".csv").removesuffix(".json")
            places.setdefault((kind, path), set()).update(named[path] | named[page])
    return found


def read_page(path: str, page: str, named: dict[str, set[str]]) -> None:
    """Add the names in the links and forms of a page, by the path that they lead to."""
    fields = set(re.findall(r'<(?:input|select|textarea|button)\b[^>]*?\bname="([^"]+)"', page))
    for attribute, text in re.findall(r'\b(href|action)="([^"#]*)', page):
        address = urlsplit(urljoin(path, unescape(text)))
        if not address.netloc:
            named[address.path] |= {name for name, _ in parse_qsl(address.query)}
            named[address.path] |= fields if attribute == "action" else set()


def fill(size: int, safe: str | None = None) -> dict[str, str]:
    """Return a text of each shape in a size, percent-encoded if `safe` is given."""
    # "&" and "=" divide fields.
    units = {
        shape: unit if safe is None or shape == "fields" else quote(unit, safe=safe)
        for shape, unit in UNITS.items()
    }
    return {
        f"{shape} ({size:,})": unit * (size // len(unit.encode())) for shape, unit in units.items()
    }


def fill_json(size: int) -> dict[str, str]:
    """Return a JSON value of each shape in a size."""
    nested = {
        f"{depth} levels of {begin}": f"{begin * depth}1{end * depth}"
        for begin, end in (("[", "]"), ('{"a":', "}"))
        for depth in (900, size // len(begin + end))
    }
    many = {
        f"many {item}": f"[{','.join([item] * (size // len(item) // 2))}]"
        for item in ("{}", "[]", '""', "1.5")
    }
    texts = {shape: json.dumps(text, ensure_ascii=False) for shape, text in fill(size // 2).items()}
    keys = ",".join(f'"{number:x}":0' for number in range(size // 9))
    return nested | many | texts | {"a number": "1" * size, "keys": f"{{{keys}}}"}


def probe_fields(kind: str, path: str, named: set[str]) -> dict[str, Call]:
    """Return requests with one odd field in the query or form, and with an odd query or form."""
    found = dict[str, Call]()
    for name in ("", *named):
        others = urlencode({one: SAMPLES[one] for one in SAMPLES if one in named - {name}})
        for size in SIZES[kind]:
            for shape, text in fill(size - len(f"{name}=&{others}"), "/,%.:@").items():
                fields = f"{name}={text}&{others}" if name else text
                form = Call(path, fields, {"Content-Type": FORM})
                call = form if kind == FORM else Call("?".join((path, fields)))
                found[f"{call.method} {path} {name}= {shape}"] = call
    return found


def probe_json(url: str, path: str, named: set[str]) -> dict[str, Call]:
    """Return JSON bodies that are odd, or have an odd field or an odd argument of a tool."""
    values = fill_json(SIZES[JSON][0] - 1_000)
    bodies = values | {f"signs: {shape}": text for shape, text in fill(SIZES[JSON][0]).items()}
    for name in named:
        usual = {one: SAMPLES[one] for one in SAMPLES if one in named - {name}}
        # The odd value takes the place of the last null.
        begin, end = json.dumps(usual | {name: None}).rsplit("null", 1)
        bodies |= {f"{name}: {shape}": begin + value + end for shape, value in values.items()}
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    tools = httpx.post(url + MCP_PATH, json=listed, headers=MCP_HEADERS, timeout=TIMEOUT_S).json()
    bodies |= {
        f"{tool['name']} {name}: {shape}": '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", '
        f'"params": {{"name": "{tool["name"]}", "arguments": '
        + (f'{{"{name}": {value}}}}}}}' if name else f"{value}}}}}")
        for tool in (tools["result"]["tools"] if path == MCP_PATH else ())
        for name in ("", *tool["inputSchema"].get("properties", ()))
        for shape, value in values.items()
    }
    head = MCP_HEADERS | (
        {"Stripe-Signature": "t=1" + ",v1=a" * 700} if path == WEBHOOK_PATH else {}
    )
    pieces = "".join(f"1\r\n{sign}\r\n" for sign in f'"{"a" * SIZES[JSON][0]}"') + "0\r\n\r\n"
    return {f"POST {path} {shape}": Call(path, body, head) for shape, body in bodies.items()} | {
        f"POST {path} chunks of a byte": Call(path, pieces, head | {"Transfer-Encoding": "chunked"})
    }


def read_cpu_ms(pid: int) -> float:
    """Return the CPU time of a process, when it has come to rest."""
    # The clock of another process, as clock_getcpuclockid(3) numbers it on Linux.
    clock, before = (~pid << 3) | 2, 0
    while (spent := time.clock_gettime_ns(clock)) != before:
        before = spent
        time.sleep(2e-4)
    return spent / 1e6


def read_memory_kb(pid: int, name: str = "VmRSS") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0])


async def measure(ours: Service, probes: Mapping[str, Call], repeats: int = REPEATS) -> list[Cost]:
    """Send each request some times on one connection; the least CPU time counts."""
    address, costs, loop = urlsplit(ours.url), list[Cost](), asyncio.get_running_loop()
    connection: Connection | None = None
    for name, call in probes.items():
        request, times, first_kb = encode_request(call, address.netloc), list[float](), 0
        while len(times) < repeats and sum(times) < LONG_MS * repeats:
            # Only now is it noticed if the server ended the connection.
            await asyncio.sleep(0)
            if connection is None or connection.transport.is_closing():
                at = address.hostname or "", address.port or 80
                connection = (await loop.create_connection(Connection, *at))[1]
            before_ms = read_cpu_ms(ours.pid)
            answer = await asyncio.wait_for(connection.send(request), TIMEOUT_S)
            times.append(read_cpu_ms(ours.pid) - before_ms)
            # What the first leaves may serve the later ones.
            first_kb = first_kb or read_memory_kb(ours.pid)
        kept_kb = (read_memory_kb(ours.pid) - first_kb) / max(1, len(times) - 1)
        status = answer[9:12].decode() or "none"
        costs.append(Cost(name, call, status, min(times), len(answer), kept_kb))
    return costs


def list_rows(costs: Sequence[Cost], kept: Sequence[Cost]) -> Iterator[Row]:
    """Yield how many are above each target, and the worst."""
    for unit, limit, among, values in (
        ("ms", MAX_MS, costs, [cost.cpu_ms for cost in costs]),
        ("bytes", MAX_BYTES, costs, [cost.answer_bytes for cost in costs]),
        ("KB kept", MAX_KB, kept, [cost.kept_kb for cost in kept]),
    ):
        above = sum(value > limit for value in values)
        of = f"{above:,} of {len(among):,}"
        yield Row(f"anonymous requests above {limit:,g} {unit}", of, "", "", "0", above == 0)
        for at in np.argsort(values)[: -WORST - 1 : -1]:
            yield Row(f"{among[at].name} ({among[at].status})", f"{values[at]:,.1f} {unit}")


def measure_attack(ours: Service, cost: Cost) -> Row:
    """Return another key's latencies and our memory beside 64 connections, once in use."""
    watch(ours, 1.0)
    Path(f"/proc/{ours.pid}/clear_refs").write_text("5")
    with ThreadPoolExecutor() as pool:
        pool.submit(measure_load, ours.url, cost.call, ATTACK_S + 6, CONNECTIONS)
        time.sleep(2)
        seen = watch(ours, ATTACK_S)
    took_s = np.concatenate([each.took_s for each in seen.arrivals])
    failed = sum(each.failed for each in seen.arrivals) + seen.failed_probes
    rss_mb, p99_ms = read_memory_kb(ours.pid, "VmHWM") / 1024, np.percentile(took_s, 99) * 1e3
    return Row(
        f"{CONNECTIONS} connections, {cost.name}: another key's p50 / p99 / max",
        format_percentiles(took_s, 50, 99, 100),
        f"{rss_mb:.0f} MB, {failed} failed",
        target=f"< {MAX_P99_MS:g} ms, < {MAX_RSS_MB:g} MB, 0",
        is_met=bool(p99_ms < MAX_P99_MS and rss_mb < MAX_RSS_MB and not failed),
    )


async def read_routes(store: Path) -> list[BaseRoute]:
    settings = Settings.read({"SIGNALS_DATABASE_URL": f"sqlite:///{store}"})
    async with open_resources(settings, lambda: time.time_ns() // 1_000_000) as resources:
        metrics = Metrics(CALL_NAMES)
        call_log = CallLog(resources.access, metrics.on_calls_dropped)
        return list(build_app(settings, resources, metrics, call_log).routes)


@contextmanager
def serve(store: Path, *settings: str) -> Iterator[Service]:
    """Serve a store behind trusted proxies without computing."""
    command = [
        "env",
        "SIGNALS_TRUSTED_PROXIES=127.0.0.1,10.0.0.0/8",
        *settings,
        SIGNALS,
        "serve",
        "--no-compute",
    ]
    with start_service(command, store) as (running, url):
        yield Service(url, create_key(store), time.time_ns() // 1_000_000, running.pid)


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as file:
        routes, costs = asyncio.run(read_routes(file)), list[Cost]()
        # Only a service with a processor has its webhook.
        for billing in ((), STRIPE):
            with serve(file, *billing) as ours:
                listed = list_probes(ours.url, routes).items()
                chosen = {
                    name: call
                    for name, call in listed
                    if (call.path == WEBHOOK_PATH) is bool(billing)
                }
                costs += asyncio.run(measure(ours, chosen))
        with serve(file) as ours:
            grown = sorted(costs, key=lambda cost: -cost.kept_kb)[: 2 * WORST]
            again = {cost.name: cost.call for cost in grown}
            found = list(list_rows(costs, asyncio.run(measure(ours, again, MEMORY_REPEATS))))
        for cost in sorted(costs, key=lambda cost: -cost.cpu_ms)[:ATTACKED]:
            with serve(file) as ours:
                found.append(measure_attack(ours, cost))
    return found


if __name__ == "__main__":
    run_module(rows, __doc__)

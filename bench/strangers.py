"""How much do requests without a key cost, and how much do the worst of them delay a key?

Each header, parameter, field, body, page and form is filled at its bound and beyond, with shapes
that are known to be costly; the worst twenty are printed. Then 64 connections send each of the
worst, while a key makes calls. The places come from the service itself: its routes, OpenAPI
document and tools, and the forms and links of its pages.
"""

import asyncio
import json
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from html import unescape
from http.client import HTTPException, HTTPResponse
from operator import itemgetter
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import httpx
import numpy as np
from starlette.routing import BaseRoute, Route

from access.call_log import CallLog
from bench.calls import MCP_HEADERS, MCP_PATH, STATE_OF_ONE
from bench.fairness import MAX_P99_MS, RATE
from bench.load import TIMEOUT_S, Call, run_wrk, watch
from bench.served import copy_store, create_key, serve_store
from bench.start import read_memory_mib
from bench.table import Row, format_percentiles
from rest_shim.endpoints import CALL_NAMES
from service.config.settings import Settings
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.resources import open_resources

WORST, REPEATS = 20, 2
# A request that takes longer in the mean is repeated less often.
LONG_MS = 30.0
CONNECTIONS, ATTACKED, ATTACK_S = 64, 5, 5
MAX_MS, MAX_BYTES, MAX_MIB = 2.0, 100_000, 250.0
GET, FORM, JSON = "GET", "application/x-www-form-urlencoded", "application/json"
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
# Fields that are sent with the odd one.
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
CHUNKED = {"Transfer-Encoding": "chunked"}
# The address of the processor refuses connections, and any X-Forwarded-For is read.
SETTINGS = {
    "SIGNALS_BILLING": "stripe",
    "SIGNALS_STRIPE_API_BASE": "http://127.0.0.1:9",
    "SIGNALS_STRIPE_API_KEY": "rk_test_a",
    "SIGNALS_STRIPE_WEBHOOK_SECRET": "whsec_a",
    "SIGNALS_STRIPE_PRICE_MONTHLY": "price_a",
    "SIGNALS_STRIPE_PRICE_YEARLY": "price_b",
    "SIGNALS_TRUSTED_PROXIES": "127.0.0.1,10.0.0.0/8",
}


def list_probes(url: str, routes: Iterable[BaseRoute]) -> dict[str, Call]:
    """Return anonymous requests to all routes of a running service, by name."""
    found = {
        f"{path} {name}: {shape}": Call(path, body, head | {name: PREFIXES.get(name, "") + text})
        for path, (body, head) in HEADER_PATHS.items()
        for name in HEADERS
        for size in SIZES["header"]
        for shape, text in fill(size).items()
    }
    # The names of fields, by kind and path.
    places = {place: set(names.split()) for place, names in OTHER_FIELDS.items()}
    document = httpx.get(f"{url}/api/v1/openapi.json", timeout=TIMEOUT_S).json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            places[GET, path] = {one["name"] for one in operation.get("parameters", ())}
            if body := operation.get("requestBody"):
                schema = body["content"][JSON]["schema"]["$ref"].rpartition("/")[2]
                places[JSON, path] = set(document["components"]["schemas"][schema]["properties"])
    listed = list_routes(routes)
    named = crawl(url, [route for method, route in listed if method == GET])
    for method, route in listed:
        body = "" if method == GET else "{}"
        examples = list_examples(route, named)
        # One example of each set of fields is enough.
        for path in {frozenset(named.get(path, ())): path for path in examples}.values():
            found[f"{method} {path}"] = Call(path, body)
            kind = GET if method == GET else JSON if (JSON, path) in places else FORM
            places.setdefault((kind, path), set()).update(named.get(path, ()))
        for size in SIZES["path"] if route.param_convertors else ():
            for shape, text in fill(size // len(route.param_convertors), "/,%.:@").items():
                odd = PARAMETER.sub(lambda _, text=text: text, route.path)
                found[f"{method} {route.path} {shape}"] = Call(odd, body)
    for (kind, path), names in places.items():
        found |= probe_json(url, path, names) if kind == JSON else probe_fields(kind, path, names)
    return found


def list_routes(routes: Iterable[BaseRoute]) -> list[tuple[str, Route]]:
    """Return each route with each of its methods except HEAD; without methods it reads bodies."""
    return [
        (method, route)
        for route in routes
        if isinstance(route, Route)
        for method in sorted((route.methods or {"POST"}) - {"HEAD"})
    ]


def list_examples(route: Route, named: Mapping[str, set[str]]) -> list[str]:
    """Return existing paths of a route, or one that may not exist."""
    linked = [path for path in sorted(named) if route.path_regex.match(path)][:WORST]
    if linked and route.param_convertors:
        return linked
    return [PARAMETER.sub(lambda part: SAMPLES.get(part[1], "1"), route.path)]


def crawl(url: str, routes: Sequence[Route]) -> dict[str, set[str]]:
    """Return the names of the fields in the links and forms of all pages, by their paths."""
    named, read = defaultdict[str, set[str]](set), set[str]()
    # Pages link to pages that link to others, whose paths have parameters.
    for _ in range(4):
        for path in {path for route in routes for path in list_examples(route, named)} - read:
            read.add(path)
            page = httpx.get(url + path, timeout=TIMEOUT_S).text
            fields = re.findall(r'<(?:input|select|textarea|button)\b[^>]*?\bname="([^"]+)"', page)
            for attribute, text in re.findall(r'\b(href|action)="([^"#]*)', page):
                address = urlsplit(urljoin(path, unescape(text)))
                if not address.netloc:
                    named[address.path] |= {name for name, _ in parse_qsl(address.query)}
                    named[address.path].update(fields if attribute == "action" else ())
    return named


def fill(size: int, safe: str | None = None) -> dict[str, str]:
    """Return a text of each shape in a size, percent-encoded if `safe` is given."""
    return {
        f"{shape} ({size:,})": text * (size // len(text.encode()))
        for shape, unit in UNITS.items()
        # "&" and "=" divide fields.
        for text in (unit if safe is None or shape == "fields" else quote(unit, safe=safe),)
    }


def fill_json(size: int) -> dict[str, str]:
    """Return a JSON value of each shape in a size."""
    numbers, texts = range(size // 9), fill(size // 2).items()
    return {
        "a number": "1" * size,
        "keys": json.dumps({f"{number:x}": 0 for number in numbers}, separators=(",", ":")),
        **{shape: json.dumps(text, ensure_ascii=False) for shape, text in texts},
        **{
            f"{depth} levels of {begin}": f"{begin * depth}1{end * depth}"
            for begin, end in (("[", "]"), ('{"a":', "}"))
            for depth in (900, size // len(begin + end))
        },
        **{
            f"many {item}": f"[{','.join([item] * (size // len(item) // 2))}]"
            for item in ("{}", "[]", '""', "1.5")
        },
    }


def probe_fields(kind: str, path: str, names: set[str]) -> dict[str, Call]:
    """Return requests with one odd field in the query or form, and with an odd query or form."""
    found = dict[str, Call]()
    for name in ("", *names):
        others = urlencode({one: SAMPLES[one] for one in SAMPLES if one in names - {name}})
        for size in SIZES[kind]:
            for shape, text in fill(size - len(f"{name}=&{others}"), "/,%.:@").items():
                fields = f"{name}={text}&{others}" if name else text
                form = Call(path, fields, {"Content-Type": FORM})
                call = form if kind == FORM else Call(f"{path}?{fields}")
                found[f"{call.method} {path} {name}= {shape}"] = call
    return found


def probe_json(url: str, path: str, names: set[str]) -> dict[str, Call]:
    """Return JSON bodies that are odd, or have an odd field or an odd argument of a tool."""
    values = fill_json(SIZES[JSON][0] - 1_000)
    bodies = values | {f"signs: {shape}": text for shape, text in fill(SIZES[JSON][0]).items()}
    # The odd value takes the place of a null.
    templates = {
        name: json.dumps({one: SAMPLES[one] for one in SAMPLES if one in names} | {name: None})
        for name in names
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    listed = httpx.post(url + MCP_PATH, json=request, headers=MCP_HEADERS, timeout=TIMEOUT_S).json()
    for tool in listed["result"]["tools"] if path == MCP_PATH else ():
        for name in (None, *tool["inputSchema"].get("properties", ())):
            params = {"name": tool["name"], "arguments": {name: None} if name else None}
            call = request | {"method": "tools/call", "params": params}
            templates[f"{tool['name']} {name or ''}"] = json.dumps(call)
    for name, template in templates.items():
        begin, end = template.rsplit("null", 1)
        bodies |= {f"{name}: {shape}": begin + value + end for shape, value in values.items()}
    head = MCP_HEADERS | {"Stripe-Signature": "t=1" + ",v1=a" * 700}
    found = {f"POST {path} {shape}": Call(path, body, head) for shape, body in bodies.items()}
    # Chunks of a byte.
    pieces = "".join(f"1\r\n{sign}\r\n" for sign in f'"{"a" * SIZES[JSON][0]}"') + "0\r\n\r\n"
    return found | {f"POST {path} chunks": Call(path, pieces, head | CHUNKED)}


def read_cpu_ms(pid: int) -> float:
    """Return the CPU time of a process, when it has come to rest."""
    # The clock of another process, as clock_getcpuclockid(3) numbers it on Linux.
    clock, before = (~pid << 3) | 2, 0
    while (spent := time.clock_gettime_ns(clock)) != before:
        before = spent
        time.sleep(2e-4)
    return spent / 1e6


def measure(url: str, pid: int, probes: Mapping[str, Call]) -> list[tuple[float, int, str]]:
    """Send each request some times; return its least CPU time, the size of its answer, its name."""
    address, costs = urlsplit(url), list[tuple[float, int, str]]()
    for name, call in probes.items():
        times, size, status = list[float](), 0, "no answer"
        with (
            socket.create_connection((address.hostname, address.port), TIMEOUT_S) as connection,
            suppress(OSError, HTTPException),
        ):
            while len(times) < REPEATS and sum(times) < LONG_MS * REPEATS:
                before_ms, answer = read_cpu_ms(pid), HTTPResponse(connection, method=call.method)
                connection.sendall(call.encode(address.netloc))
                answer.begin()
                size, status = len(answer.read()), str(answer.status)
                times.append(read_cpu_ms(pid) - before_ms)
                if answer.will_close:
                    break
        costs.append((min(times, default=0.0), size, f"{name} ({status})"))
    return costs


def measure_attack(name: str, call: Call) -> Row:
    """Return another key's latencies and our memory while 64 connections send a request."""
    with copy_store() as file, serve_store(file, "--no-compute", **SETTINGS) as ours:
        calls = STATE_OF_ONE.list_calls("MCP", create_key(file), number=RATE * ATTACK_S)
        watch(ours.url, calls, RATE, 1)
        Path(f"/proc/{ours.process.pid}/clear_refs").write_text("5")
        with ThreadPoolExecutor() as pool:
            pool.submit(run_wrk, ours.url, [call], ATTACK_S + 2, CONNECTIONS)
            time.sleep(1)
            seen = watch(ours.url, calls, RATE, ATTACK_S)
        rss_mib = read_memory_mib(ours.process.pid, "VmHWM")
    p99_ms = np.percentile(seen.took_s, 99) * 1e3
    return Row(
        f"{CONNECTIONS} connections, {name}: another key's p50 / p99 / max",
        format_percentiles(seen.took_s),
        f"{rss_mib:.0f} MiB, {seen.failed.sum()} failed",
        target=f"< {MAX_P99_MS:g} ms, < {MAX_MIB:g} MiB, 0",
        is_met=bool(p99_ms < MAX_P99_MS and rss_mib < MAX_MIB and not seen.failed.any()),
    )


async def read_routes(store: Path) -> list[BaseRoute]:
    settings = Settings.read({"SIGNALS_DATABASE_URL": f"sqlite:///{store}"})
    async with open_resources(settings, lambda: time.time_ns() // 1_000_000) as resources:
        metrics = Metrics(CALL_NAMES)
        call_log = CallLog(resources.access, metrics.on_calls_dropped)
        return list(build_app(settings, resources, metrics, call_log).routes)


def rows() -> Iterator[Row]:
    with copy_store() as file:
        routes = asyncio.run(read_routes(file))
        with serve_store(file, "--no-compute", **SETTINGS) as ours:
            probes = list_probes(ours.url, routes)
            costs = measure(ours.url, ours.process.pid, probes)
    for place, (unit, limit) in enumerate((("ms", MAX_MS), ("bytes", MAX_BYTES))):
        above = sum(cost[place] > limit for cost in costs)
        what, of = f"anonymous requests above {limit:,g} {unit}", f"{above:,} of {len(costs):,}"
        yield Row(what, of, target="0", is_met=above == 0)
        for cost in sorted(costs, key=itemgetter(place), reverse=True)[:WORST]:
            yield Row(cost[2], f"{cost[place]:,.1f} {unit}")
    for _, _, name in sorted(costs, reverse=True)[:ATTACKED]:
        yield measure_attack(name, probes[name.rpartition(" (")[0]])

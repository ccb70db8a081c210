"""Each part of a request's head has a bound, checked before anything reads it."""

import httpx
import pytest

from compute.universe import load_universe
from service.http.app import OPEN_READS
from serving.http import (
    BOUNDED_HEADERS,
    HEALTH_PATHS,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    MAX_QUERY_FIELDS,
    MAX_TARGET_BYTES,
    read_cookie,
)
from tests.security.wire import HOST, LAST, exchange_bytes, open_raw_connection, parse_statuses
from tests.support.openapi_document import list_operations
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("endpoint")


SAMPLE = "/api/v1/signals/sample"


def build_request(path: str = SAMPLE, headers: str = "", host: bytes = HOST) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n".encode() + host + b"\r\n"


def check_refusal(served: RunningService, received: bytes, status: int, named: str) -> None:
    assert parse_statuses(received) == [status]
    response = httpx.Response(status, content=received.partition(b"\r\n\r\n")[2])
    body = response.json()
    assert (body["error"], body["docs"]) == ("invalid_parameter", f"{served.base_url}/api/v1")
    assert named in body["message"]
    # A page of any origin can read why its request was refused.
    assert received.lower().count(b"\r\naccess-control-allow-origin: *\r\n") == 1
    assert len(received) < 1000


@pytest.mark.parametrize("start", ["/", "/assets/", "/docs/", "/api/v1/", "/mcp/"])
@pytest.mark.parametrize("filler", ["a", "/"])
async def test_a_path_over_1_kib_is_refused_in_few_bytes(
    served: RunningService, start: str, filler: str
):
    path = start.ljust(MAX_PATH_BYTES, filler)
    browser = "Accept: text/html\r\n"
    assert parse_statuses(await exchange_bytes(served.base_url, build_request(path))) == [404]
    received = await exchange_bytes(served.base_url, build_request(f"{path}a", browser))
    check_refusal(served, received, 414, "path exceeds 1 KiB")


async def test_a_target_over_8_kib_is_refused(served: RunningService):
    for excess, expected in ((0, 200), (1, 414)):
        query = "?".ljust(MAX_TARGET_BYTES - len("/healthz") + excess, "a")
        received = await exchange_bytes(served.base_url, build_request(f"/healthz{query}"))
        assert parse_statuses(received) == [expected]
    check_refusal(served, received, 414, "exceeds 8 KiB")
    longer = await exchange_bytes(served.base_url, build_request("/?" + "a" * MAX_HEAD_BYTES))
    check_refusal(served, longer, 414, "exceeds 8 KiB")


@pytest.mark.parametrize("path", ["/", "/oauth/authorize", "/api/v1/state", "/api/v1/catalog"])
async def test_a_query_of_many_fields_is_refused(served: RunningService, path: str):
    target = f"{path}?a=1" + "&a=" * MAX_QUERY_FIELDS
    received = await exchange_bytes(served.base_url, build_request(target))
    check_refusal(served, received, 414, "more than 100 fields")
    fewer = await exchange_bytes(served.base_url, build_request(target.removesuffix("&a=")))
    assert parse_statuses(fewer) != [414]


async def test_all_tickers_with_encoded_commas_fit_the_target(served: RunningService):
    tickers = "%2C".join(asset.ticker for asset in load_universe().assets)
    assert tickers.count("%2C") >= 250
    target = f"/api/v1/state?ticker={tickers}"
    received = await exchange_bytes(served.base_url, build_request(target))
    assert parse_statuses(received) == [401]


@pytest.mark.parametrize("name", BOUNDED_HEADERS)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_header_over_4_kib_is_refused_also_in_sum(
    served: RunningService, name: str, count: int
):
    part = "a" * ((MAX_HEADER_BYTES + 1) // count)
    host = b"" if name == "Host" else HOST
    received = await exchange_bytes(
        served.base_url, build_request(headers=f"{name}: {part}\r\n" * count, host=host)
    )
    check_refusal(served, received, 431, f"header {name} exceeds 4 KiB")


async def test_a_browser_gets_a_page_about_a_header_that_is_too_long(served: RunningService):
    answer = await served.client.get(
        "/feed", headers={"Accept": "text/html", "Cookie": "a" * (MAX_HEADER_BYTES + 1)}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (431, "text/html; charset=utf-8")
    assert "header Cookie exceeds 4 KiB" in answer.text


async def test_a_head_is_refused_at_16_kib_without_its_end(served: RunningService):
    async with open_raw_connection(served.base_url) as (reader, writer):
        writer.write(build_request()[:-2] + b"X-Pad: " + b"a" * MAX_HEAD_BYTES)
        received = await reader.read(1000)
    check_refusal(served, received, 431, "head of the request exceeds 16 KiB")


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        ("ours=ab-c_1.2", "ab-c_1.2"),
        ("other=1; ours=abc", "abc"),
        ("other=1;ours=abc;more", "abc"),
        ("other=1, ours=abc, x=2", "abc"),
        ("ours=abc; ours=def", "abc"),
        ("yours=abc", ""),
        ("__Host-ours=abc", ""),
        ('ours="abc"', ""),
        ("ours=a b", ""),
        ("ours=", ""),
        ("ours", ""),
        ("", ""),
    ],
)
def test_only_plain_values_of_our_own_cookie_are_read(sent: str, value: str):
    assert read_cookie({"headers": [(b"cookie", sent.encode())]}, "ours") == value


@pytest.mark.parametrize("unit", ['a="\\"', "ours=", "ours=\\", "; ", ";ours=a ", ", ,"])
def test_a_cookie_of_any_shape_is_found_behind_the_bytes_before_it(unit: str):
    before = (unit * MAX_HEADER_BYTES)[: MAX_HEADER_BYTES - 10]
    headers = [(b"cookie", f"{before}; mine=abc".encode())]
    assert read_cookie({"headers": headers}, "mine") == "abc"


PAGES = [
    ("GET", "/docs"),
    ("GET", "/docs/tools"),
    ("GET", "/web/page.css"),
    ("GET", "/sandbox/checkout/x"),
    ("POST", "/sandbox/checkout/x"),
]
PROBES = [("GET", "/healthz"), ("GET", "/readyz")]
FOREIGN_HOSTS = [
    *(
        "localhost..",
        "localhost.evil",
        ".",
        ".:80",
        "127.1",
        "127.0.0.2",
        "0.0.0.0",
        "2130706433",
        "0x7f.0.0.1",
    ),
    *("[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::1", "::1", "[::1]evil.example", "[]"),
    *("", ":80", "localhost:80:80", "localhost:999999", "localhost:x", "localhost,evil.example"),
    *("localhost evil.example", "localhost/", "localhost?", "localhost#", "evil.example:8000"),
    *("localhost\\evil.example", "localhost%00", "%6cocalhost", "http://localhost", "l\xf6calhost"),
]
FOREIGN_ORIGINS = [
    *("http://localhost.evil.example", "http://localhost@evil.example", "http://localhost.."),
    *("http://evil.example#localhost", "http://evil.example/localhost", "http://localhost/path"),
    *("", "null", "localhost", "//localhost", "http:localhost", "http://", "ftp://localhost"),
    *("chrome-extension://localhost", "http://localhost http://evil.example", "http://[::1"),
]
OUR_ORIGINS = [
    "HTTPS://LOCALHOST:3000",
    "http://localhost.:3000",
    "http://[::1]:3000",
    "http://127.0.0.1",
]


def get(
    host_line: bytes, target: bytes = b"/api/v1/signals/sample", version: bytes = b"1.1"
) -> bytes:
    """Return a GET request as bytes with the given Host lines."""
    return b"GET %s HTTP/%s\r\n%s\r\n" % (target, version, host_line)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_host_that_only_looks_like_ours_is_refused(served: RunningService, host: str):
    line = b"Host: %s\r\n" % host.encode("latin-1")
    assert parse_statuses(await exchange_bytes(served.base_url, get(line) + LAST)) == [421, 200]


@pytest.mark.parametrize(
    "host",
    [
        *(b"localhost", b"LocalHost:1", b"127.0.0.1:", b"[::1]:8000"),
        *(b"localhost.", b"LOCALHOST.:80"),
    ],
)
async def test_our_own_host_is_served_in_each_of_its_spellings(served: RunningService, host: bytes):
    sent = get(b"Host: %s\r\n" % host) + LAST
    assert parse_statuses(await exchange_bytes(served.base_url, sent)) == [200, 200]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (get(b"Host: localhost\r\nHost: evil.example\r\n"), [400]),
        (get(b"Host: localhost\r\nHost: localhost\r\n"), [400]),
        (get(b""), [400]),
        (get(b"", version=b"1.0"), [421]),
        (get(b"X-Forwarded-Host: localhost\r\nHost: evil.example\r\n"), [421, 200]),
        (get(b"Host: evil.example\r\n", b"http://localhost/api/v1/signals/sample"), [421, 200]),
        (get(b"Host: localhost\r\n", b"http://evil.example/api/v1/signals/sample"), [200, 200]),
        (get(b"Host: localhost\r\n", b"//evil.example/api/v1/signals/sample"), [404, 200]),
    ],
)
async def test_only_one_host_header_of_our_own_is_served(
    served: RunningService, sent: bytes, expected: list[int]
):
    assert parse_statuses(await exchange_bytes(served.base_url, sent + LAST)) == expected


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
async def test_an_origin_that_only_looks_like_ours_is_refused(served: RunningService, origin: str):
    answer = await served.client.get("/api/v1/state", headers={"Origin": origin})
    assert answer.status_code == 403
    both = [("Origin", "http://localhost"), ("Origin", origin)]
    assert (await served.client.get("/api/v1/state", headers=both)).status_code == 403


async def test_pages_and_unknown_paths_are_protected_from_other_origins_too(served: RunningService):
    for method, path in [*PAGES, *PROBES, ("GET", "/nothing"), ("GET", "/")]:
        for name, value, status in (
            ("Host", "evil.example", 421),
            ("Origin", "https://evil.example", 403),
        ):
            answer = await served.client.request(method, path, headers={name: value})
            # Balancers and containers probe under any name.
            assert answer.status_code == (
                200 if path in HEALTH_PATHS and name == "Host" else status
            )


@pytest.mark.prove
async def test_no_response_allows_scripts_of_another_origin_to_read_it(served: RunningService):
    requested = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    keyed = [each for each in list_operations(served) if each[1] not in OPEN_READS]
    for method, path in [*keyed, *PAGES]:
        for origin in [*OUR_ORIGINS, "https://evil.example"]:
            sent = served.key_headers | {"Origin": origin}
            answer = await served.client.request(method, path, headers=sent)
            preflight = await served.client.request("OPTIONS", path, headers=sent | requested)
            assert (answer.status_code == 403) is (origin not in OUR_ORIGINS)
            assert preflight.status_code == 403
            assert "SIGNALS_ALLOWED_ORIGINS" in preflight.json()["message"]
            for headers in (answer.headers, preflight.headers):
                assert not [name for name in headers if name.startswith("access-control")]

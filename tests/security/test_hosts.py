"""Host and Origin are checked on every route and page, and no foreign script can be loaded."""

import pytest

from service.http.app import OPEN_READS
from serving.http import HEALTH_PATHS
from tests.security.wire import LAST, exchange_bytes, parse_statuses
from tests.support.openapi_document import list_operations
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("endpoint")

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

"""Which proxy of the environment a request goes through, and what is said about a bad one."""

import pytest

from schemas.errors import OperatorError
from service.config.settings import find_proxy

pytestmark = pytest.mark.clause("operation")

PROXY = "http://user:secret@proxy.example:3128"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("environment", "address", "expected"),
    [
        ({}, "https://signals.example", None),
        ({"HTTPS_PROXY": PROXY}, "https://signals.example", ("HTTPS_PROXY", PROXY)),
        ({"https_proxy": PROXY}, "https://signals.example", ("https_proxy", PROXY)),
        ({"HTTPS_PROXY": PROXY}, "http://signals.example", None),
        ({"ALL_PROXY": PROXY}, "http://signals.example", ("ALL_PROXY", PROXY)),
        (
            {"ALL_PROXY": "socks5://x:1", "HTTP_PROXY": "p:1"},
            "http://a.b",
            ("HTTP_PROXY", "http://p:1"),
        ),
        ({"HTTP_PROXY": ""}, "http://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "signals.example"}, "https://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": ".example"}, "https://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*"}, "https://signals.example", None),
        *(
            ({"ALL_PROXY": "socks5://x:1", "HTTP_PROXY": PROXY}, f"http://{host}:8000", None)
            for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]")
        ),
    ],
)
def test_the_proxy_is_the_one_that_other_programs_use(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    address: str,
    expected: tuple[str, str] | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(address) == expected


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        ("socks5://user:secret@x:1", "venues do not support: set HTTPS_PROXY to an http:// proxy"),
        ("socks4://user:secret@x:1", "is not the address of a proxy"),
        ("http://user:secret@:1", "is not the address of a proxy"),
        ("http://user:secret@x:0", "is not the address of a proxy"),
        ("http://user:secret@x:port", "is not the address of a proxy"),
    ],
)
def test_a_bad_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, problem: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(OperatorError) as refused:
        find_proxy("https://signals.example", allows_socks=False)
    assert str(refused.value).startswith("ALL_PROXY ")
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_socks_without_its_package_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setattr("service.config.settings.find_spec", lambda name: None)
    with pytest.raises(OperatorError, match="pip install socksio"):
        find_proxy("http://signals.example")
    monkeypatch.setattr("service.config.settings.find_spec", lambda name: name)
    assert find_proxy("http://signals.example") == ("ALL_PROXY", "socks5://127.0.0.1:1")

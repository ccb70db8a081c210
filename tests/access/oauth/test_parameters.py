"""Redirect URIs: which may be registered, and which a request may use."""

from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.oauth.parameters import MAX_REDIRECT_URI_CHARS, is_redirect_uri, matches_redirect_uri

pytestmark = pytest.mark.clause("11.1")

# As hosts register them.
SEEN_CALLBACKS = [
    "https://claude.ai/api/mcp/auth_callback",
    "https://claude.com/api/mcp/auth_callback",
    "http://localhost/callback",
    "http://127.0.0.1/callback",
    "https://chatgpt.com/connector_platform_oauth_redirect",
    "https://chatgpt.com/connector/oauth/kDmjx77UnKOM",
    "https://vscode.dev/redirect",
    "http://127.0.0.1:33418/",
    "http://localhost:8787/callback",
    "cursor://anysphere.cursor-mcp/oauth/callback",
]


@pytest.mark.parametrize(
    "uri",
    [
        *SEEN_CALLBACKS,
        "http://[::1]:1234/callback",
        "http://localhost:3334/oauth/callback?from=here",
        "com.example.app:/oauth/callback",
        "vscode://publisher.extension/callback",
        "vscode-insiders://publisher.extension/callback",
        "windsurf://publisher.extension/callback",
        "https://app.example/callback?codes=1&State=2",
        "https://app.example:8443/callback?tenant=a%20b",
        "https://xn--mnchen-3ya.example/callback",
    ],
)
def test_a_client_may_register_and_use_an_address(uri: str) -> None:
    assert is_redirect_uri(uri)
    assert matches_redirect_uri(uri, uri)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "callback",
        "//app.example/callback",
        "https:app.example",
        "https:///callback",
        "https://",
        "http://app.example/callback",
        "http://127.0.0.2/callback",
        "http://0.0.0.0/callback",
        "http://192.168.1.2/callback",
        "http://localhost.app.example/callback",
        "http://127.0.0.1.app.example/callback",
        "http://localhost:0/callback",
        "http://localhost:65536/callback",
        "http://localhost:/callback",
        "http://localhost:80:80/callback",
        "http://user@localhost/callback",
        "http://localhost@app.example/callback",
        "https://user:secret@app.example/callback",
        "https://app.example/callback#",
        "https://app.example/callback#part",
        "cursor://user@host/callback",
        "com.example.app:/callback#part",
        "com.example.app:/callback?code=1",
        # Without a dot, a scheme may be a browser's, an office program's or the system's.
        "microsoft-edge:http://app.example/",
        "googlechrome://navigate?url=app.example",
        "ms-word:ofe|u|https://app.example/a.docx",
        "ms-word:ofe/u/https://app.example/a.docx",
        "jscript:alert(1)",
        "steam://run/1",
        "app:/callback",
        "app.:/callback",
        "app..x:/callback",
        "view-source+app.example:https://app.example/",
        "cursor://anysphere.cursor-deeplink/mcp/install?name=a",
        "cursor:anysphere.cursor-mcp/",
        "vscode://file/etc/passwd",
        "vscode://publisher.extension@app.example/callback",
        "vscode:mcp/install",
        "https://app.example/callback?code=1",
        "https://app.example/callback?a=1&state=1",
        "https://app.example/callback?%63ode=1",
        "https://app.example/callback?iss=https://other.example",
        "https://app.example/callback?iss",
        "https://app.example/callback?error=access_denied",
        "http://localhost/callback?state",
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "data:text/html,hello",
        "file:///etc/passwd",
        "about:blank",
        "blob:https://app.example/1",
        "vbscript:msgbox(1)",
        "view-source:https://app.example/",
        "mailto:ann@example.com",
        "ftp://app.example/callback",
        "ws://localhost/callback",
        "urn:ietf:wg:oauth:2.0:oob",
        "https://app.example\\@localhost/callback",
        "https://app.example/call back",
        " https://app.example/callback",
        "https://app.example/callback\n",
        "https://app.example/\tcallback",
        "https://app.example/<script>",
        'https://app.example/"',
        "https://münchen.example/callback",
        "https://app.example%2f/callback",
        "https://[::1/callback",
        "https://[::::]/callback",
        "https://app.example/" + "a" * MAX_REDIRECT_URI_CHARS,
    ],
)
def test_no_client_may_register_or_use_an_address(uri: str) -> None:
    assert not is_redirect_uri(uri)
    for registered in ("http://localhost/callback", uri):
        assert not matches_redirect_uri(registered, uri)


@pytest.mark.clause("11.2")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("registered_port", ["", ":33418"])
def test_a_program_on_this_computer_may_use_any_port(host: str, registered_port: str) -> None:
    registered = f"http://{host}{registered_port}/callback?a=1"
    for port in ("", ":80", ":1", ":65535", ":33418"):
        assert matches_redirect_uri(registered, f"http://{host}{port}/callback?a=1")
    for port in (":0", ":65536", ":999999", ":", ":1:2", ":a", ":-1", ":1@app.example", ":1\\"):
        assert not matches_redirect_uri(registered, f"http://{host}{port}/callback?a=1")


@pytest.mark.clause("11.2")
@pytest.mark.parametrize(
    ("registered", "requested"),
    [
        ("http://localhost/callback", "http://127.0.0.1/callback"),
        ("http://localhost/callback", "http://localhost/callback/"),
        ("http://localhost/callback", "http://localhost/callback?"),
        ("http://localhost/callback", "http://localhost/callback?a=1"),
        ("http://localhost/callback", "http://localhost/Callback"),
        ("http://localhost/callback", "https://localhost/callback"),
        ("http://localhost/callback", "http://localhost/callback#part"),
        ("http://localhost/callback", "http://localhost/x/../callback"),
        ("http://localhost", "http://localhost/"),
        ("http://localhost/?to=http://localhost:1/", "http://localhost/?to=http://localhost:2/"),
        ("https://app.example/callback", "https://app.example:443/callback"),
        ("https://app.example/callback", "https://app.example:8443/callback"),
        ("https://app.example/callback", "https://app.example/callback/"),
        ("https://app.example/callback", "https://app.example/callback?a=1"),
        ("https://app.example/callback", "https://www.app.example/callback"),
        ("https://app.example/callback", "https://app.example.evil.example/callback"),
        ("https://localhost:1/callback", "https://localhost:2/callback"),
        ("https://app.example/?http://localhost/", "https://app.example/?http://localhost:1/"),
        ("cursor://anysphere.cursor-mcp/callback", "cursor://evil.example/callback"),
        ("app.example:/callback", "app.example:/callback?a=1"),
    ],
)
def test_all_else_has_to_be_the_same(registered: str, requested: str) -> None:
    assert is_redirect_uri(registered)
    assert not matches_redirect_uri(registered, requested)


URIS = st.builds(
    "{}:{}{}{}".format,
    st.sampled_from(["http", "https", "HTTPS", "cursor"]),
    st.sampled_from(["//", "/", "", "///", "/\\"]),
    st.text("ab1.:@[]%/\\?#localhost", max_size=20),
    st.sampled_from(["", "/callback", ":1/callback", "@localhost/callback"]),
)


@given(URIS)
def test_parsers_agree_about_the_host_of_an_accepted_address(uri: str) -> None:
    if is_redirect_uri(uri) and uri.lower().startswith("http"):
        assert urlsplit(uri).hostname == httpx2.URL(uri).host
        assert httpx2.URL(uri).host
        assert not httpx2.URL(uri).userinfo

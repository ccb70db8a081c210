import pytest

from tests.bad_inputs import BAD_INPUTS, PATHS, as_path


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("signals_get_state", {}),
        ("signals_get_state", {"ticker": "btc,MATIC", "direction": "bullish"}),
        ("signals_get_signals", {"limit": 3, "offset": 1}),
        ("signals_get_signals", {"direction": "exit"}),
        ("signals_get_signals", {"since": "2026-09-30T12:03:00.003+00:00"}),
    ],
)
async def test_the_body_is_what_the_tool_returns(served, tool, arguments):
    response = await served.rest(as_path(tool, arguments))
    assert response.status_code == 200
    result = await served.call(tool, arguments)
    assert response.json() == result["structuredContent"]
    assert response.text == result["content"][0]["text"]


@pytest.mark.parametrize(("tool", "arguments", "code", "named"), BAD_INPUTS)
async def test_bad_parameters_are_refused_with_what_is_accepted(
    served, tool, arguments, code, named
):
    response = await served.rest(as_path(tool, arguments))
    assert response.status_code == 400
    assert response.json()["error"] == code
    message = response.json()["message"]
    assert not [part for part in named if part not in message], message


@pytest.mark.parametrize(
    "query",
    [
        "limit=1&limit=1",
        "ticker=BTC&ticker=ETH",
        "limit",
        "limit=",
        "limit=%31%zz",
        "ticker=%ff",
        "ticker=%",
        "limit=5.0",
        "limit=%D9%A5",
        "limit=+5",
        "limit=" + "9" * 5000,
        "=5",
        "li%6Dit=1&limit=2",
    ],
)
async def test_a_query_string_is_read_strictly(served, query):
    response = await served.rest(f"/signals?{query}")
    assert response.status_code == 400
    assert response.json()["error"] == "invalid_parameter"
    assert set(response.json()) == {"error", "message", "docs"}


async def test_an_unescaped_plus_in_since_is_understood(served):
    response = await served.rest("/signals?since=2026-09-30T12:03:00.003+00:00")
    assert response.json()["pagination"]["returned"] == 2


@pytest.mark.parametrize("path", PATHS.values())
async def test_a_missing_key_is_told_before_bad_parameters(served, path):
    response = await served.client.get(f"/api/v1{path}?colour=red")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"] == "missing_key"
    assert "how_to_get_access" in response.json()


@pytest.mark.parametrize("path", PATHS.values())
async def test_nothing_computed_yet_says_when_to_retry(served_empty, path):
    response = await served_empty.rest(path)
    assert (response.status_code, response.headers["retry-after"]) == (503, "900")
    assert response.json()["error"] == "unavailable"


async def test_head_answers_as_get_without_a_body(served):
    get = await served.rest("/state")
    head = await served.client.head("/api/v1/state", headers=served.key_headers)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/api/v1/state/", 404),
        ("GET", "/api/v2/state", 404),
        ("POST", "/api/v1/state", 405),
        ("DELETE", "/api/v1/signals", 405),
    ],
)
async def test_every_other_failure_has_the_one_body(served, method, path, status):
    response = await served.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()) == {"error", "message", "docs"}
    if status == 405:
        assert sorted(response.headers["allow"].split(", ")) == ["GET", "HEAD"]

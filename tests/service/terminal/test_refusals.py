"""A call that fails says in one line what to do, and whether it may succeed later."""

import shutil

import pytest

from service.terminal.follow import TransientError
from tests.doubles.fixed_answers import KEY, loopback
from tests.service.commands.test_cli import only_line
from tests.support.running_service import RunningService, run_service
from tests.support.running_service import served as served
from tests.support.signals_command import run_signals
from verifier.client import ServiceClient, ServiceError

pytestmark = [pytest.mark.clause("22.5"), pytest.mark.usefixtures("use_single_ca")]

COMMANDS = ["state", "board", "feed", "flips", "confluence", "usage"]


async def refuse(address: str, api_key: str, view: str = "state") -> ServiceError | TransientError:
    """Return the error of a call."""
    async with ServiceClient(address, api_key) as client:
        with pytest.raises((ServiceError, TransientError)) as refused:
            await client.read_view(view)
    error: ServiceError | TransientError = refused.value
    assert "\n" not in str(error)
    assert api_key not in str(error)
    return error


@pytest.mark.parametrize("command", [*COMMANDS, "feed --follow"])
def test_without_a_key_it_says_where_one_comes_from(tmp_path, command):
    done = run_signals(tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    line = only_line(done.stderr)
    assert line.startswith("signals: SIGNALS_API_KEY is not set: ")
    assert "`signals keys create" in line


async def test_a_refused_key_is_not_tried_again(served: RunningService):
    error = await refuse(served.base_url, KEY)
    assert isinstance(error, ServiceError)
    assert "answered 401: The API key is unknown" in str(error)
    assert str(error).endswith("Check the key in SIGNALS_API_KEY.")


def test_a_service_that_does_not_run_is_named_with_the_next_step(tmp_path):
    done = run_signals(tmp_path, "state", port="1", api_key=KEY)
    assert (done.returncode, done.stdout) == (1, "")
    line = only_line(done.stderr)
    assert line.startswith("signals: http://127.0.0.1:1/api/v1/state did not answer: ConnectError")
    assert "(`signals serve`), or set --url" in line


async def test_an_exhausted_quota_says_when_to_come_back(tmp_path, seeded):
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path, daily_limit=1) as running:
        await running.get_api("/usage")
        await running.get_api("/state")
        error = await refuse(running.base_url, running.api_key)
    assert isinstance(error, TransientError)
    # It is 12:06:20, and the quota is reset at midnight.
    assert error.retry_after_s == 3600  # at most an hour, of the 12 until midnight
    assert "The daily quota of 1 calls is used up" in str(error)


async def test_a_first_start_that_has_computed_nothing_may_pass(served_empty: RunningService):
    error = await refuse(served_empty.base_url, served_empty.api_key)
    assert isinstance(error, TransientError)
    assert error.retry_after_s > 0


@pytest.mark.parametrize("body", [b"{}", b'{"meta": {}, "key": null}', b'{"meta": 1, "key": 2}'])
def test_an_answer_in_another_form_is_one_line(tmp_path, body):
    with loopback(200, body) as (address, _):
        done = run_signals(tmp_path, "usage", "--url", address, api_key=KEY)
        as_json = run_signals(tmp_path, "usage", "--json", "--url", address, api_key=KEY)
        followed = run_signals(tmp_path, "feed", "--follow", "--url", address, api_key=KEY)
    for refused in (done, followed):
        assert refused.returncode == 1
        assert "answered in a form that this version does not know" in only_line(refused.stderr)
    assert as_json.stdout == f"{body.decode()}\n"

"""`signals verify` as a customer runs it: its output, its exit status and its files."""

import base64
import json
import re
from pathlib import Path

import pytest
from tlog_scales.backend import LocalBackend
from tlog_scales.reader import TilesReader

from service.commands.verify import find_verify_folder, verify_service
from tests.doubles.published_log import API_KEY, PublishedLog, make_row, serve_log
from tests.support.signals_command import run_signals
from tests.verifier.test_tree import Witness

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]


@pytest.fixture
def log(tmp_path):
    log = PublishedLog(tmp_path / "trees")
    log.publish(*map(make_row, range(12)))
    return log


@pytest.fixture
async def run(log, tmp_path, capsys):
    """A function that runs the command with some options; it returns the status and the lines."""
    async with serve_log(log) as address:

        async def verify(api_key: str = API_KEY, **options: object) -> tuple[int, list[str]]:
            status = await verify_service(
                address,
                api_key,
                tmp_path / "state",
                lambda: int(log.now.timestamp() * 1000),
                **options,
            )
            # The double logs its requests to the same place.
            printed = re.sub(r"^.*request_id.*\n", "", capsys.readouterr().out, flags=re.M)
            return status, printed.replace(address, "ADDRESS").split("\n")

        yield verify


async def test_a_verified_service_is_summed_up_in_a_few_lines(run, log):
    assert await run() == (
        0,
        [
            "checked: 1 signed checkpoint, 12 rows in the log",
            f"the key of the log is trusted from now on: {log.vkey}",
            "read the feed from 2026-01-30T11:03:00.000Z to 2026-03-01T11:03:00.000Z, 12 rows",
            "the newest row is 1 minutes old",
            "the signed checkpoint is 0 minutes old",
            "the log states no first start",
            "verified",
            "",
        ],
    )


async def test_a_time_is_read_in_every_form_that_the_feed_accepts(run):
    for since, begin in {
        "2d": "2026-02-27T11:04:00.000Z",
        "2026-02-28": "2026-02-28T00:00:00.000Z",
    }.items():
        _, lines = await run(since=since)
        assert f"read the feed from {begin} to" in "".join(lines)


async def test_a_changed_row_is_printed_with_both_checkpoints(run, log, tmp_path):
    await run()
    seen = log.checkpoint
    log.find(3)["price"] = 1.5
    log.publish(make_row(12))
    status, lines = await run()
    assert status == 1
    assert f"{log.rows[3]['id']}: price was 97000.75, is 1.5" in lines
    assert f"the evidence is in {next((tmp_path / 'state').glob('evidence-*.json'))}" in lines
    text = "\n".join(lines)
    assert f":\n\n{seen}\nthe checkpoint that is served now:\n\n{log.checkpoint}" in text
    assert "\n1 finding\n" in text


@pytest.mark.parametrize("form", ["answer", "list", "lines", "answers"])
async def test_rows_of_a_file_are_read_in_every_documented_form(run, log, tmp_path, form):
    file = tmp_path / "rows.json"
    rows = log.rows[2:5]
    answer = {"signals": rows, "pagination": {}, "meta": {}}
    file.write_text(
        {
            "answer": json.dumps(answer, indent=1),
            "list": json.dumps(rows),
            "lines": "".join(json.dumps(row) + "\n" for row in rows),
            "answers": f"{json.dumps(answer)}\n\n{json.dumps({'signals': []})}",
        }[form]
    )
    status, lines = await run(rows=file)
    assert (status, lines[0]) == (0, "checked: 1 signed checkpoint, 3 rows in the log")


async def test_a_policy_requires_its_quorum(run, log, tmp_path):
    first, second = Witness("witness.example/1", 1), Witness("witness.example/2", 2)
    policy = tmp_path / "policy"
    policy.write_text(
        f"log {log.vkey}\nwitness A {first.vkey.serialize()}\nwitness B {second.vkey.serialize()}\n"
        "group both all A B\nquorum both\n"
    )
    body = log.checkpoint.split("\n\n")[0] + "\n"
    at = int(log.now.timestamp())
    log.lines = first.cosign(body, at)
    status, lines = await run(policy=policy)
    assert status == 2
    assert "not verified: the policy requires the quorum both; cosigned within a day by: A" in lines
    assert not (tmp_path / "state").exists()
    log.lines += second.cosign(body, at)
    status, lines = await run(policy=policy)
    assert (status, lines[0]) == (
        0,
        "checked: 1 signed checkpoint, 2 cosignatures, 12 rows in the log",
    )


async def test_a_policy_of_other_logs_verifies_nothing(run, log, tmp_path):
    policy = tmp_path / "policy"
    policy.write_text(f"log {PublishedLog(tmp_path, seed=9).vkey}\nquorum none\n")
    status, lines = await run(policy=policy)
    assert status == 2
    assert f"not verified: the policy does not list the key of the log, {log.vkey}" in lines


def write_proof(log: PublishedLog, index: int, folder: Path) -> dict[str, Path]:
    """Write the proof of a row, and the row, as files."""
    reader = TilesReader(LocalBackend(log.tree))
    path = reader.get_inclusion_proof(index, reader.get_checkpoint().size).node_hashes
    lines = [base64.b64encode(one).decode() for one in path]
    salt = base64.b64encode(log.get_salt(index)).decode()
    head = ["c2sp.org/tlog-proof@v1", f"extra {salt}", f"index {index}", *lines]
    files = {"proof": folder / "row.tlog-proof", "rows": folder / "row.json"}
    files["proof"].write_text("\n".join(head) + f"\n\n{log.checkpoint}")
    files["rows"].write_text(json.dumps(log.rows[index]))
    return files


async def test_a_proof_is_verified_without_the_service(run, log, tmp_path):
    files = write_proof(log, 5, tmp_path)
    log.has_log = False
    status, lines = await run(**files, vkey=log.vkey)
    assert (status, lines[:-1]) == (
        0,
        [
            "checked: 1 rows in the log",
            f"{log.rows[5]['id']} is leaf 5 of {log.origin}",
            "verified",
        ],
    )
    assert not (tmp_path / "state").exists()


async def test_a_proof_of_another_row_or_of_another_log_is_refused(run, log, tmp_path):
    files = write_proof(log, 5, tmp_path)
    files["rows"].write_text(json.dumps(log.rows[6]))
    status, lines = await run(**files, vkey=log.vkey)
    assert (status, lines[1]) == (1, "leaf 5 of the proof is none of the given rows")
    files = write_proof(log, 5, tmp_path)
    status, lines = await run(**files, vkey=PublishedLog(tmp_path, seed=9).vkey)
    assert status == 1
    assert "is not signed by the key of" in lines[2]


async def test_without_a_key_only_open_files_are_read(run):
    status, lines = await run(api_key="")
    assert status == 2
    assert lines[-3].startswith("not verified: SIGNALS_API_KEY is not set: set it to your API key")


async def test_a_service_without_a_log_is_named(run, log):
    log.has_log = False
    status, lines = await run()
    assert status == 2
    assert lines[0] == "checked: nothing"
    assert lines[1].startswith("not verified: ADDRESS/api/v1/log/key answered 404")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--vkey", "me"], "--vkey: 'me' is not a verifier key"),
        (["--policy", "missing"], "--policy missing: .*No such file"),
        (["--policy", "text"], "--policy text: line 1: 'hello' is none of log, witness"),
        (["--rows", "text"], "--rows text: text cannot be read as rows of the feed"),
        (["--proof", "text"], "--proof text: the first line of a proof is"),
        (["--since", "soon"], '--since: "soon" is not accepted; accepted: .*7d'),
        (["--url", "ftp://me"], "--url must be an http:// or https:// address"),
    ],
)
def test_bad_arguments_exit_with_2_in_one_line(tmp_path, arguments, reason):
    (tmp_path / "text").write_text("hello\n")
    done = run_signals(tmp_path, "verify", *arguments, api_key=API_KEY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert re.search(f"^signals: {reason}", done.stderr)


def test_a_service_that_does_not_answer_exits_with_2(tmp_path):
    done = run_signals(
        tmp_path, "verify", "--url", "http://127.0.0.1:9", "--state", "s", api_key=API_KEY
    )
    assert done.returncode == 2
    assert "not verified: http://127.0.0.1:9/api/v1/log/key did not answer" in done.stdout


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1_8000"),
        ("https://signals.example", "signals.example_443"),
        ("https://example.com/a/b", "example.com_443_a_b"),
    ],
)
def test_each_service_has_a_record_of_its_own(address, folder):
    found = find_verify_folder(address, {"XDG_STATE_HOME": "/state"})
    assert found == Path("/state/signals/verify") / folder

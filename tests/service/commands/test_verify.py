"""`signals verify` as a customer runs it, and `signals witness`, which cosigns no other history."""

import base64
import json
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from tlog_scales.backend import LocalBackend
from tlog_scales.reader import TilesReader

from compute.signing.log_signer import LogKey, LogSigner, load_key, save_key, sign_checkpoint
from compute.signing.witnesses import Witness as ListedWitness, Witnesses
from schemas.errors import OperatorError
from service.commands.verify import find_verify_folder, verify_service
from service.commands.witness import Witness as LogWitness, build_app, run_witness
from service.processes.lifecycle import lock_file
from store.sql.transparency_log import FeedLog
from tests.doubles.published_log import API_KEY, PublishedLog, make_row, serve_log
from tests.service.commands.test_cli import refused
from tests.store.sql.test_transparency_log import commit_rows
from tests.support.row_builders import NOW
from tests.support.running_service import open_loopback_socket, run_app
from tests.support.signals_command import run_signals
from tests.support.store_homes import SqliteHome, open_and_close
from tests.verifier.test_tree import Witness
from verifier.notes import Checkpoint, parse_policy

pytestmark = pytest.mark.usefixtures("use_single_ca")


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


@pytest.mark.clause("verify")
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


@pytest.mark.clause("verify")
async def test_a_time_is_read_in_every_form_that_the_feed_accepts(run):
    for since, begin in {
        "2d": "2026-02-27T11:04:00.000Z",
        "2026-02-28": "2026-02-28T00:00:00.000Z",
    }.items():
        _, lines = await run(since=since)
        assert f"read the feed from {begin} to" in "".join(lines)


@pytest.mark.clause("verify")
async def test_a_changed_row_is_printed_with_both_checkpoints(run, log, tmp_path):
    await run()
    seen = log.checkpoint
    log.rows[3]["price"] = 1.5
    log.publish(make_row(12))
    status, lines = await run()
    assert status == 1
    assert f"{log.rows[3]['id']}: price was 97000.75, is 1.5" in lines
    assert f"the evidence is in {next((tmp_path / 'state').glob('evidence-*.json'))}" in lines
    text = "\n".join(lines)
    assert f":\n\n{seen}\nthe checkpoint that is served now:\n\n{log.checkpoint}" in text
    assert "\n1 finding\n" in text


@pytest.mark.clause("verify")
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


@pytest.mark.clause("verify")
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
    assert (status, (tmp_path / "state").exists()) == (2, False)
    assert "not verified: the policy requires the quorum both; cosigned within a day by: A" in lines
    log.lines += second.cosign(body, at)
    status, lines = await run(policy=policy)
    assert (status, lines[0]) == (
        0,
        "checked: 1 signed checkpoint, 2 cosignatures, 12 rows in the log",
    )


@pytest.mark.clause("verify")
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


@pytest.mark.clause("verify")
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


@pytest.mark.clause("verify")
async def test_a_proof_of_another_row_or_of_another_log_is_refused(run, log, tmp_path):
    files = write_proof(log, 5, tmp_path)
    files["rows"].write_text(json.dumps(log.rows[6]))
    status, lines = await run(**files, vkey=log.vkey)
    assert (status, lines[1]) == (1, "leaf 5 of the proof is none of the given rows")
    files = write_proof(log, 5, tmp_path)
    status, lines = await run(**files, vkey=PublishedLog(tmp_path, seed=9).vkey)
    assert status == 1
    assert "is not signed by the key of" in lines[2]


@pytest.mark.clause("verify")
async def test_without_a_key_only_open_files_are_read(run):
    status, lines = await run(api_key="")
    assert status == 2
    assert lines[-3].startswith("not verified: SIGNALS_API_KEY is not set: set it to your API key")


@pytest.mark.clause("verify")
async def test_a_service_without_a_log_is_named(run, log):
    log.has_log = False
    status, lines = await run()
    assert (status, lines[0]) == (2, "checked: nothing")
    assert lines[1].startswith("not verified: ADDRESS/api/v1/log/key answered 404")


@pytest.mark.clause("verify")
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
    line = refused(tmp_path, "verify", *arguments, status=2, api_key=API_KEY)
    assert re.match(f"signals: {reason}", line)


@pytest.mark.clause("verify")
def test_a_service_that_does_not_answer_exits_with_2(tmp_path):
    done = run_signals(
        tmp_path, "verify", "--url", "http://127.0.0.1:9", "--state", "s", api_key=API_KEY
    )
    assert done.returncode == 2
    assert "not verified: http://127.0.0.1:9/api/v1/log/key did not answer" in done.stdout


@pytest.mark.clause("verify")
@pytest.mark.parametrize(
    ("address", "folder"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1_8000"),
        ("https://signals.example", "signals.example_443"),
        ("https://example.com/a/b", "example.com_443_a_b"),
    ],
)
def test_each_service_has_a_record_of_its_own(address, folder):
    assert (
        find_verify_folder(address, {"XDG_STATE_HOME": "/state"})
        == Path("/state/signals/verify") / folder
    )


LOG = LogKey.create("signals.example/api/v1/log")


@pytest.fixture
def witness(tmp_path: Path) -> LogWitness:
    return LogWitness(tmp_path / "witness.json", "witness.example/w1", LOG.vkey, lambda: NOW)


async def build_request(log: FeedLog, old: int) -> str:
    head = await log.head(old)
    proof = "".join(f"{b64encode(one).decode()}\n" for one in head.proof)
    return f"old {old}\n{proof}\n{head.checkpoint.note}"


Change = Callable[[str], str]
REFUSED: dict[str, tuple[Change, int]] = {
    "what is no checkpoint": (lambda text: "old 5\n\nnothing\n", 400),
    "an old size that is none": (lambda text: text.replace("old 5", "old -5"), 400),
    "an old size beyond the tree": (lambda text: text.replace("old 5", "old 999"), 400),
    "a proof without end": (lambda text: text.replace("\n", f"\n{'A' * 43}=\n" * 64, 1), 400),
    "the checkpoint of another log": (lambda text: text.replace("\n\nsignals", "\n\nsignal"), 404),
    "what the log did not sign": (lambda text: text.replace("\n246\n", "\n247\n"), 403),
    "a proof from another size": (lambda text: text.replace("old 5", "old 6"), 409),
    "a proof that is too short": (
        lambda text: "\n".join(text.split("\n")[:1] + text.split("\n")[2:]),
        422,
    ),
    "a false proof": (lambda text: text.replace("old 5\n", "old 5\n" + "A" * 43 + "=\n", 1), 422),
}


@pytest.mark.clause("proof")
async def test_a_log_is_cosigned_run_by_run_and_another_history_is_not(
    witness: LogWitness, tmp_path: Path
) -> None:
    save_key(tmp_path / "key.json", LOG)
    policy = parse_policy(f"witness w {witness.vkey}\nquorum w")
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with (
            run_app(build_app(witness), bound),
            open_and_close(SqliteHome(tmp_path).open_market()) as market,
        ):
            log = market.feed_log
            asked = Witnesses(log, [ListedWitness("w", witness.vkey, address)])
            files = log, tmp_path / "key.json", LOG.origin, lambda: NOW
            await commit_rows(market, 5)
            await LogSigner(*files, submit=asked.submit).sign()
            await asked.settle()
            await commit_rows(market, 300, 10)
            await LogSigner(*files).sign()
            request, before = await build_request(log, 5), load_key(tmp_path / "witness.json")
            for name, (change, status) in REFUSED.items():
                assert change(request) != request
                assert witness.add_checkpoint(change(request))[0] == status, name
            assert load_key(tmp_path / "witness.json") == before
            await LogSigner(*files, submit=asked.submit).sign()
            await asked.settle()
            await asked.close()
            note = (await log.checkpoint()).note or ""
    assert policy.list_cosigners(Checkpoint.parse(note), None) == ["w"]
    other = sign_checkpoint(LOG.origin, 246, bytes(32), LOG.private_key)
    assert witness.add_checkpoint(f"old 246\n\n{other}") == (409, "246\n")


@pytest.mark.clause("proof")
def test_the_key_file_is_that_of_one_witness(witness: LogWitness, tmp_path: Path) -> None:
    log = LOG.vkey
    # A file that exists is not written again.
    (tmp_path / "witness.json.unfinished").mkdir()
    same = LogWitness(tmp_path / "witness.json", "witness.example/w1", log, lambda: NOW)
    assert same.vkey == witness.vkey
    for name, fault in (("witness.example/w2", "of witness.example/w1"), ("a b", "--name must")):
        with pytest.raises(OperatorError, match=fault):
            LogWitness(tmp_path / "witness.json", name, log, lambda: NOW)


@pytest.mark.clause("proof")
async def test_a_second_witness_is_refused_before_it_uses_the_key_file(tmp_path: Path) -> None:
    path = tmp_path / "witness.json"
    with open_loopback_socket() as bound:
        port = bound.getsockname()[1]
        for block, fault in ((lock_file(path), "another command uses"), (bound, "cannot listen")):
            with block, pytest.raises(OperatorError, match=fault):
                await run_witness(path, "witness.example/w1", str(LOG.vkey), port, lambda: NOW)
            assert not path.exists()


@pytest.mark.clause("proof")
def test_a_tree_that_cannot_be_saved_is_not_cosigned(
    witness: LogWitness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = sign_checkpoint(LOG.origin, 5, bytes(32), LOG.private_key)
    blocked = tmp_path / "witness.json.unfinished"
    blocked.mkdir()
    assert witness.add_checkpoint(f"old 0\n\n{note}")[0] == 503
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot write the key file {tmp_path / 'witness.json'}: ")
    blocked.rmdir()
    assert witness.add_checkpoint(f"old 0\n\n{note}")[0] == 200

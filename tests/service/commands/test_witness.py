"""`signals witness` cosigns only what continues the tree that it cosigned before."""

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from compute.signing.log_signer import LogKey, LogSigner, load_key, save_key, sign_checkpoint
from compute.signing.witnesses import Witness as ListedWitness
from compute.signing.witnesses import Witnesses
from schemas.errors import OperatorError
from service.commands.witness import Witness, build_app, run_witness
from service.processes.lifecycle import lock_file
from store.sql.feed_log import FeedLog
from tests.store.sql.test_feed_log import commit_rows
from tests.support.row_builders import NOW
from tests.support.running_service import open_loopback_socket, run_app
from tests.support.store_homes import SqliteHome, open_and_close
from verifier.notes import Checkpoint, parse_policy

pytestmark = [pytest.mark.clause("proof"), pytest.mark.usefixtures("use_single_ca")]

LOG = LogKey.create("signals.example/api/v1/log")


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "witness.json", "witness.example/w1", LOG.vkey, lambda: NOW)


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


async def test_a_log_is_cosigned_run_by_run_and_another_history_is_not(
    witness: Witness, tmp_path: Path
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


def test_the_key_file_is_that_of_one_witness(witness: Witness, tmp_path: Path) -> None:
    log = LOG.vkey
    # A file that exists is not written again.
    (tmp_path / "witness.json.unfinished").mkdir()
    same = Witness(tmp_path / "witness.json", "witness.example/w1", log, lambda: NOW)
    assert same.vkey == witness.vkey
    for name, fault in (("witness.example/w2", "of witness.example/w1"), ("a b", "--name must")):
        with pytest.raises(OperatorError, match=fault):
            Witness(tmp_path / "witness.json", name, log, lambda: NOW)


async def test_a_second_witness_is_refused_before_it_uses_the_key_file(tmp_path: Path) -> None:
    path = tmp_path / "witness.json"
    with open_loopback_socket() as bound:
        port = bound.getsockname()[1]
        for block, fault in ((lock_file(path), "another command uses"), (bound, "cannot listen")):
            with block, pytest.raises(OperatorError, match=fault):
                await run_witness(path, "witness.example/w1", str(LOG.vkey), port, lambda: NOW)
            assert not path.exists()


def test_a_tree_that_cannot_be_saved_is_not_cosigned(
    witness: Witness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = sign_checkpoint(LOG.origin, 5, bytes(32), LOG.private_key)
    blocked = tmp_path / "witness.json.unfinished"
    blocked.mkdir()
    assert witness.add_checkpoint(f"old 0\n\n{note}")[0] == 503
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot write the key file {tmp_path / 'witness.json'}: ")
    blocked.rmdir()
    assert witness.add_checkpoint(f"old 0\n\n{note}")[0] == 200

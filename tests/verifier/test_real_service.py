"""The real service is verified by the customer's software, over HTTP."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compute.signing.log_signer import LogSigner
from compute.signing.notes import Vkey
from compute.signing.witnesses import Witness, Witnesses
from service.commands.verify import VerifyOptions, verify_proof
from tests.doubles.witness import open_witness
from tests.mcp_server.tools.test_get_signals import publish_alerts
from tests.support.example_market import HOUR_MS, NOON, make_batch, make_change
from tests.support.running_service import RunningService
from verifier.client import ServiceClient
from verifier.notes import InclusionProof, Policy, parse_policy
from verifier.record import Record
from verifier.report import Report
from verifier.verification import Request, Verification

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

ALL = datetime(2025, 12, 1, tzinfo=UTC)
RUNS = 3
ROWS_PER_RUN = 300


async def commit_flips(served: RunningService, run: int) -> None:
    """Commit a run with published changes of one cell, each with its own bar."""
    start = NOON + (2 + run) * HOUR_MS
    rows = [
        make_change(start + n, "BTC", "enzo", "1h", 1 - 2 * (n % 2), 2 * (n % 2) - 1)._replace(
            close_time=start // 1000 + n
        )
        for n in range(ROWS_PER_RUN)
    ]
    await served.market.commit(make_batch(start, rows))
    served.clock.now = start + HOUR_MS // 2


async def sign(served: RunningService, folder: Path) -> None:
    await LogSigner(served.market.feed_log, folder / "log-key.json", "signals.example/log").sign()


async def verify(served: RunningService, state: Path, policy: Policy | None = None) -> Report:
    async with ServiceClient(served.base_url, served.api_key) as client:
        clock = datetime.fromtimestamp(served.clock() / 1000, UTC)
        verification = Verification(client, Record(state), lambda: clock, lambda done, total: None)
        return await verification.run(Request(since=ALL, policy=policy))


async def test_every_row_of_every_run_is_verified_while_the_log_grows(
    served: RunningService, tmp_path: Path
) -> None:
    await publish_alerts(served)
    size = 0
    for run in range(RUNS):
        await commit_flips(served, run)
        await sign(served, tmp_path)
        report = await verify(served, tmp_path / "state")
        assert (report.status, report.findings, report.obstacles) == (0, [], [])
        assert report.checked["rows as verified before"] == size
        assert report.checked["earlier checkpoint"] == (run > 0)
        size = report.checked["rows in the log"]
        head = await served.market.feed_log.head()
        assert size == head.size > ROWS_PER_RUN * (run + 1)
    tiers = {one.row["tier"] for one in Record(tmp_path / "state").load_rows().values()}
    assert tiers == {"universe", "alerts"}


async def test_rows_of_a_run_that_is_not_signed_yet_are_a_note(
    served: RunningService, tmp_path: Path
) -> None:
    await sign(served, tmp_path)
    await commit_flips(served, 0)
    report = await verify(served, tmp_path / "state")
    assert report.status == 0
    assert any(f"{ROWS_PER_RUN} rows since " in note for note in report.notes)


async def test_a_proof_of_the_service_is_verified_without_it(
    served: RunningService, tmp_path: Path
) -> None:
    await sign(served, tmp_path)
    key = (await served.client.get("/api/v1/log/key")).text
    rows = (await served.get_api("/signals?tier=all")).json()["signals"]
    for row in rows:
        proof = await served.get_api(f"/log/proof?id={row['id']}")
        assert proof.status_code == 200
        (tmp_path / "row.json").write_text(json.dumps(row))
        options = VerifyOptions(rows=tmp_path / "row.json", vkey=key)
        report = verify_proof(InclusionProof.parse(proof.text), Record(tmp_path / "none"), options)
        assert (report.status, report.checked["rows in the log"]) == (0, 1)


async def test_cosignatures_that_the_service_collects_make_the_quorum_of_a_policy(
    served: RunningService, tmp_path: Path
) -> None:
    await sign(served, tmp_path)
    vkey = (await served.client.get("/api/v1/log/key")).text.strip()
    async with (
        open_witness(vkey, name="witness.example/a") as ours,
        open_witness(vkey, name="witness.example/b", is_ml_dsa=True) as theirs,
        open_witness(vkey, name="witness.example/c") as absent,
    ):
        doubles = (ours, theirs, absent)
        lines = [f"witness W{n} {one.vkey.serialize()}" for n, one in enumerate(doubles)]
        text = "\n".join([f"log {vkey}", *lines, "group all 2 W0 W1 W2", "quorum all"])
        policy = parse_policy(text)
        report = await verify(served, tmp_path / "state", policy)
        assert (report.status, len(report.obstacles)) == (2, 1)
        assert report.obstacles[0].endswith("requires the quorum all; cosigned by: none")
        done: asyncio.Queue[None] = asyncio.Queue()
        listed = [
            Witness(one.name, Vkey.parse(one.vkey.serialize()), one.url) for one in (ours, theirs)
        ]
        witnesses = Witnesses(served.market.feed_log, listed, lambda: done.put_nowait(None))
        await commit_flips(served, 0)
        key_file = tmp_path / "log-key.json"
        await LogSigner(served.market.feed_log, key_file, "", submit=witnesses.submit).sign()
        async with asyncio.timeout(20):
            for _ in listed:
                await done.get()
        await witnesses.close()
        report = await verify(served, tmp_path / "state", policy)
    assert (report.status, report.checked["cosignatures"]) == (0, 2)

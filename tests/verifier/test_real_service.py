"""The real service is verified by the customer's software, over HTTP."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.signing.log_signer import LogSigner
from compute.signing.witnesses import Witness, Witnesses
from service.commands.verify import verify_proof
from store.opening import open_sqlite_market
from tests.doubles.scripted_source import ALTERNATING
from tests.doubles.witness import open_witness
from tests.support.running_service import ManualClock, RunningService, run_service
from tests.support.store_homes import open_and_close
from tests.support.tampering import Market, sign_log
from verifier.client import ServiceClient
from verifier.notes import InclusionProof, Policy, VerifierKey, parse_policy
from verifier.record import Record
from verifier.report import Report
from verifier.verification import Request, Verification

pytestmark = [pytest.mark.clause("verify"), pytest.mark.usefixtures("use_single_ca")]

ORIGIN = "signals.example/api/v1/log"
HOUR, DAY = 3600, 86_400


async def verify(
    address: str, api_key: str, state: Path, now: int, policy: Policy | None = None
) -> Report:
    """Verify a service at a time (epoch ms)."""
    async with ServiceClient(address, api_key) as client:
        at = datetime.fromtimestamp(now / 1000, UTC)
        verification = Verification(client, Record(state), at, lambda done, total: None)
        return await verification.run(Request(policy=policy))


@dataclass
class HonestService:
    """A service on a source, whose compute process ends after each step; its customers."""

    folder: Path
    source: Any
    indicators: Sequence[Indicator]
    served: RunningService

    async def compute(self, after_s: int, *, is_late: bool = False, prunes: bool = False) -> None:
        """Let time pass, then run what is due in a new pipeline, and sign."""
        clock = self.source.time
        clock.now += 1000 * after_s
        async with open_and_close(open_sqlite_market(self.folder / "market.db")) as store:
            signer = LogSigner(store.feed_log, self.folder / "log-key.json", ORIGIN, clock)
            pipeline = await HourlyPipeline.open(
                *(store, self.source, self.source.universe, self.indicators, clock),
                sign_log=signer.sign,
                believes_clock=True,
            )
            if is_late:
                await pipeline.run_late()
            else:
                await pipeline.run_until(pipeline.due_hour)
            if prunes:
                await store.prune()

    async def verify(self, customer: str) -> Report:
        now = self.source.time.now
        await self.served.get_at(now, "/catalog")
        state = self.folder / customer
        report = await verify(self.served.base_url, self.served.api_key, state, now)
        assert report.findings == []
        return report


# Seconds after which the service computes, and how. The first is its first start, with 30 days of
# history; one is a split, after which two epochs begin; one is a bar that comes half an hour late;
# one is missing for good; after the pauses it catches up, and after the long one old alerts go.
STEPS: list[tuple[int, dict[str, bool]]] = [
    *((0, {}), (HOUR, {}), (HOUR, {}), (HOUR, {}), (2400, {"is_late": True}), (1200, {})),
    *((HOUR, {}), (HOUR, {}), (9 * HOUR, {}), (HOUR, {}), (33 * DAY, {}), (HOUR, {})),
    *((65 * DAY, {"prunes": True}), (HOUR, {})),
]


async def test_an_honest_service_is_never_accused(tmp_path: Path) -> None:
    source = Market()
    source.time.now += 60_000
    async with run_service(tmp_path, clock=ManualClock(source.time.now)) as served:
        service = HonestService(tmp_path, source, ALTERNATING, served)
        sizes, late, aged = [0], 0, 0
        for number, (after_s, how) in enumerate(STEPS):
            if after_s > HOUR:
                source.time.now += 1000 * (after_s - HOUR)
                # A service that is down is not verified, but accused of nothing.
                report = await service.verify("hourly")
                assert report.status == 2
                after_s = HOUR
            await service.compute(after_s, **how)
            customers = ["hourly", f"once{number}", *["monthly"] * (after_s > DAY or number == 0)]
            for customer in customers:
                report = await service.verify(customer)
                assert (report.status, report.obstacles) == (0, []), (number, customer)
            notes = " ".join(report.notes)
            late += "more than 2 hours after their candle closed" in notes
            aged += "alerts are not served longer" in notes
            sizes.append(report.checked["rows in the log"])
        assert len({*sizes}) > 10
        # Every kind of row was there.
        assert late
        rows = Record(tmp_path / "hourly").load_rows().values()
        assert {one.row["tier"] for one in rows} == {"universe", "alerts"}
        assert any(one.id.endswith(".1") for one in rows)


async def test_a_proof_of_the_service_is_verified_without_it(
    served: RunningService, tmp_path: Path
) -> None:
    await sign_log(served.market, tmp_path / "log-key.json", served.clock)
    key = (await served.client.get("/api/v1/log/key")).text
    for row in (await served.get_api("/signals?tier=all")).json()["signals"]:
        proof = await served.get_api(f"/log/proof?id={row['id']}")
        assert proof.status_code == 200
        (tmp_path / "row.json").write_text(json.dumps(row))
        report = verify_proof(
            InclusionProof.parse(proof.text),
            Record(tmp_path / "none"),
            rows=tmp_path / "row.json",
            vkey=key,
        )
        assert (report.status, report.checked["rows in the log"]) == (0, 1)


@pytest.mark.prove
async def test_cosignatures_that_the_service_collects_make_the_quorum_of_a_policy(
    served: RunningService, tmp_path: Path
) -> None:
    # The post-quantum witness signs the present time.
    served.clock.now = time.time_ns() // 1_000_000
    await sign_log(served.market, tmp_path / "log-key.json", served.clock)
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
        checking = partial(verify, served.base_url, served.api_key, tmp_path, served.clock())
        report = await checking(policy)
        quorum = [one for one in report.obstacles if "quorum" in one]
        assert quorum[0].endswith("requires the quorum all; cosigned within a day by: none")
        done: asyncio.Queue[None] = asyncio.Queue()
        listed = [
            Witness(one.name, VerifierKey.parse(one.vkey.serialize(), 4, 6), one.url)
            for one in (ours, theirs)
        ]
        witnesses = Witnesses(served.market.feed_log, listed, lambda: done.put_nowait(None))
        ours.time = theirs.time = served.clock() // 1000
        key_file = tmp_path / "log-key.json"
        await LogSigner(
            served.market.feed_log, key_file, "", served.clock, submit=witnesses.submit
        ).sign()
        async with asyncio.timeout(20):
            for _ in listed:
                await done.get()
        await witnesses.close()
        report = await checking(policy)
    # The rows of this market are made up, so that only the checkpoint can be verified.
    assert [one for one in report.obstacles if "quorum" in one] == []
    assert report.checked["cosignatures"] == 2

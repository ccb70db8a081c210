"""Throughput of calls with key and quota, beside fixed bytes and beside other people's servers.

`python -m bench.endpoint [--store FILE]` serves by the real command and loads it, the limit and the
peers by turns; the best round of each counts, since what else runs can only slow one down.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.calls import (
    CASES,
    SIGNALS,
    STATE,
    STATE_OF_ONE,
    STATS,
    USAGE,
    Case,
    Sample,
    must_be_equal,
    sampled,
)
from bench.load import drive
from bench.peers.started import AS_OURS, DEFAULT, PEERS, SDK, limits, peers
from bench.served import Ours, copied, run_alone, serving
from bench.table import Row, compared

ROUNDS, SECONDS = 3, 1.0
OVER_SDK, OF_OPEN = 10.0, 0.6
# Heads and counters grow by some digits; a refusal is a fraction of an answer.
SAME_SIZE = 0.05
PEERS_OF = {
    USAGE.name: (SDK,),
    STATE_OF_ONE.name: tuple(PEERS),
    SIGNALS.name: (SDK,),
    STATE.name: tuple(PEERS),
}


@dataclass(frozen=True, slots=True)
class Lane:
    """One call to one server, as sampled there; `target` is what ours shall be times it."""

    name: str
    url: str
    sample: Sample
    target: float | None = None

    def calls_s(self) -> float:
        """Return the rate of one round; failures or answers of another size end the bench."""
        load = drive(self.url, self.sample.call, SECONDS)
        grown = load.answer_bytes / self.sample.wire_bytes - 1
        if load.failed or abs(grown) > SAME_SIZE:
            raise SystemExit(f"{self.name}: {load.failed} failed, answers {grown:+.0%} in size")
        return load.calls_s


@dataclass(frozen=True, slots=True)
class Measured:
    """A call to ours, and the lanes beside it; `absent` tells what could not be."""

    what: str
    ours: Lane
    beside: Sequence[Lane]
    absent: Sequence[str] = ()

    def rows(self) -> Iterator[Row]:
        lanes = [self.ours, *self.beside]
        rounds = [[lane.calls_s() for lane in lanes] for _ in range(ROUNDS)]
        ours, *rates = map(max, zip(*rounds, strict=True))
        for lane, rate in zip(self.beside, rates, strict=True):
            yield compared(f"{self.what} / {lane.name}", ours, rate, lane.target)
        for why in self.absent:
            yield Row(self.what, f"{ours:,.0f} calls/s", why)


@dataclass(frozen=True, slots=True)
class Bench:
    """Ours, the peers and the limit, all of them serving."""

    ours: Ours
    over_mcp: Mapping[str, Sample]
    peers: Mapping[str, str | None]
    limits: Mapping[str, str]

    def measured(self) -> Iterator[Measured]:
        """Yield one after the other: what a version of the store decides is sampled just before."""
        yield from map(self._over_mcp, CASES)
        yield from map(self._over_rest, CASES)
        etag = self._rest(STATE).headers.get("etag", "none")
        known = self._rest(STATE, If_None_Match=etag)
        yield self._where(not known.content, "REST state, not modified", 0.8, known)
        zipped = self._rest(STATE, Accept_Encoding="gzip")
        yield self._where("content-encoding" in zipped.headers, "REST state, gzip", 0.9, zipped)

    def _where(self, is_there: bool, what: str, of_limit: float, sample: Sample) -> Measured:
        if is_there:
            return self._beside_limit(what, of_limit, sample)
        return Measured(what, Lane("ours", self.ours.url, sample), [], ["not what was asked for"])

    def _rest(self, case: Case, **headers: str) -> Sample:
        return sampled(self.ours.url, case.over_rest(self.ours, **headers))

    def _over_rest(self, case: Case) -> Measured:
        sample = self._rest(case)
        over_mcp = sampled(self.ours.url, case.over_mcp(self.ours))
        must_be_equal(f"REST {case.name}", over_mcp, sample)
        return self._beside_limit(f"REST {case.name}", case.of_limit, sample)

    def _over_mcp(self, case: Case) -> Measured:
        sample = self.over_mcp[case.name]
        limited = self._beside_limit(f"MCP {case.name}", case.of_limit, sample)
        asked = PEERS_OF.get(case.name, ())
        there = [self._peer(name, sample) for name in asked if self.peers[name] is not None]
        absent = [f"{name}: not installed" for name in asked if self.peers[name] is None]
        if case is USAGE:
            there += [self._fixed(AS_OURS, sample), self._open()]
        return replace(limited, beside=[*limited.beside, *there], absent=absent)

    def _beside_limit(self, what: str, of_limit: float, sample: Sample) -> Measured:
        limit = self._fixed(DEFAULT, sample, of_limit)
        return Measured(what, Lane("ours", self.ours.url, sample), [limit])

    def _fixed(self, set_as: str, sample: Sample, target: float | None = None) -> Lane:
        url, call = self.limits[set_as], replace(sample.call, path=f"/{sample.body_bytes}")
        return Lane(set_as, url, sampled(url, call), target)

    def _peer(self, name: str, sample: Sample) -> Lane:
        url = self.peers[name]
        assert url is not None
        theirs = sampled(url, replace(sample.call, path="/mcp"))
        must_be_equal(name, sample, theirs)
        return Lane(name, url, theirs, OVER_SDK if name == SDK else None)

    def _open(self) -> Lane:
        sample = sampled(self.ours.url, STATS.over_mcp(self.ours))
        return Lane("ours, open and uncounted (stats)", self.ours.url, sample, OF_OPEN)


def rows(store: Path | None = None) -> list[Row]:
    """Measure; on a copy of a store where there is one."""
    with copied(store) as own, serving(own) as ours, tempfile.TemporaryDirectory() as folder:
        over_mcp = {case.name: sampled(ours.url, case.over_mcp(ours)) for case in CASES}
        answers = {name: sample.answer for name, sample in over_mcp.items()}
        with peers(Path(folder), answers) as others, limits() as fixed:
            bench = Bench(ours, over_mcp, others, fixed)
            return [row for measured in bench.measured() for row in measured.rows()]


def main() -> None:
    run_alone(rows, __doc__)


if __name__ == "__main__":
    main()

"""Measure the throughput of calls with key and quota against fixed bytes and other MCP servers.

`python -m bench.endpoint [--store FILE]` runs `signals serve` and loads it, the limit and the peers
in turn. The best round of each counts, because other load on the machine can only slow one down.
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
    require_equal,
    sample_call,
)
from bench.load import measure_load
from bench.peers.started import AS_OURS, DEFAULT, PEERS, SDK, start_limits, start_peers
from bench.served import Service, copy_store, run_module, serve_store
from bench.table import Row, compare_rates

# The same code differed by a factor of two within an hour on a busy machine, so rates are compared
# only within short alternating rounds, never across runs.
ROUNDS, SECONDS = 3, 1.0
# A peer that renders a large response for each connection can need longer for the first one.
SLOW_SECONDS = 5.0
MIN_SDK_RATIO, MIN_OPEN_RATIO = 10.0, 0.6
# Numbers in heads and counters grow by some digits, while an error is a fraction of a response:
# the mean size shows errors that are sent with status 200. Checking each response under wrk would
# make the load generator the bottleneck.
MAX_SIZE_DRIFT = 0.05
PEERS_BY_CASE = {
    USAGE.name: (SDK,),
    STATE_OF_ONE.name: tuple(PEERS),
    SIGNALS.name: (SDK,),
    STATE.name: tuple(PEERS),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A call to one server, with a sampled response.

    `target` is the required ratio of our rate to this server's; None if there is no requirement.
    """

    name: str
    url: str
    sample: Sample
    target: float | None = None

    def measure_rate(self) -> float:
        """Return the rate of one round; SystemExit if calls fail or responses change in size."""
        load = measure_load(self.url, self.sample.call, SECONDS)
        if not load.calls_s:
            load = measure_load(self.url, self.sample.call, SLOW_SECONDS)
        grown = load.answer_bytes / self.sample.wire_bytes - 1
        if load.failed or abs(grown) > MAX_SIZE_DRIFT:
            raise SystemExit(f"{self.name}: {load.failed} failed, responses {grown:+.0%} in size")
        return load.calls_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """A call to our service and to others; `absent` lists peers that are not available."""

    what: str
    ours: Target
    others: Sequence[Target]
    absent: Sequence[str] = ()

    def measure_rows(self) -> Iterator[Row]:
        targets = [self.ours, *self.others]
        rounds = [[target.measure_rate() for target in targets] for _ in range(ROUNDS)]
        ours, *rates = map(max, zip(*rounds, strict=True))
        for other, rate in zip(self.others, rates, strict=True):
            yield compare_rates(f"{self.what} / {other.name}", ours, rate, other.target)
        for why in self.absent:
            yield Row(self.what, f"{ours:,.0f} calls/s", why)


@dataclass(frozen=True, slots=True)
class Bench:
    """Our service, the peers and the limit, all running."""

    ours: Service
    over_mcp: Mapping[str, Sample]
    peers: Mapping[str, str | None]
    limits: Mapping[str, str]

    def build_comparisons(self) -> Iterator[Comparison]:
        """Yield the comparisons, each sampled just before it is measured.

        A run of the compute process in between would change the responses.
        """
        yield from map(self._compare_mcp, CASES)
        yield from map(self._compare_rest, CASES)
        etag = self._sample_rest(STATE).headers.get("etag", "none")
        not_modified = self._sample_rest(STATE, If_None_Match=etag)
        yield self._compare_if(
            not not_modified.content, "REST state, not modified", 0.8, not_modified
        )
        zipped = self._sample_rest(STATE, Accept_Encoding="gzip")
        yield self._compare_if(
            "content-encoding" in zipped.headers, "REST state, gzip", 0.9, zipped
        )

    def _compare_if(self, is_there: bool, what: str, of_limit: float, sample: Sample) -> Comparison:
        if is_there:
            return self._compare_with_limit(what, of_limit, sample)
        return Comparison(
            what, Target("ours", self.ours.url, sample), [], ["not the requested form"]
        )

    def _sample_rest(self, case: Case, **headers: str) -> Sample:
        return sample_call(self.ours.url, case.build_rest_call(self.ours, **headers))

    def _compare_rest(self, case: Case) -> Comparison:
        sample = self._sample_rest(case)
        over_mcp = sample_call(self.ours.url, case.build_mcp_call(self.ours))
        require_equal(f"REST {case.name}", over_mcp, sample)
        return self._compare_with_limit(f"REST {case.name}", case.limit_ratio, sample)

    def _compare_mcp(self, case: Case) -> Comparison:
        sample = self.over_mcp[case.name]
        limited = self._compare_with_limit(f"MCP {case.name}", case.limit_ratio, sample)
        peer_names = PEERS_BY_CASE.get(case.name, ())
        others = [
            self._sample_peer(name, sample) for name in peer_names if self.peers[name] is not None
        ]
        absent = [f"{name}: not installed" for name in peer_names if self.peers[name] is None]
        if case is USAGE:
            others += [self._sample_fixed(AS_OURS, sample), self._sample_open()]
        return replace(limited, others=[*limited.others, *others], absent=absent)

    def _compare_with_limit(self, what: str, of_limit: float, sample: Sample) -> Comparison:
        limit = self._sample_fixed(DEFAULT, sample, of_limit)
        return Comparison(what, Target("ours", self.ours.url, sample), [limit])

    def _sample_fixed(self, set_as: str, sample: Sample, target: float | None = None) -> Target:
        url, call = self.limits[set_as], replace(sample.call, path=f"/{sample.body_bytes}")
        return Target(set_as, url, sample_call(url, call), target)

    def _sample_peer(self, name: str, sample: Sample) -> Target:
        url = self.peers[name]
        assert url is not None
        theirs = sample_call(url, replace(sample.call, path="/mcp"))
        require_equal(name, sample, theirs)
        return Target(name, url, theirs, MIN_SDK_RATIO if name == SDK else None)

    def _sample_open(self) -> Target:
        sample = sample_call(self.ours.url, STATS.build_mcp_call(self.ours))
        return Target("ours, open and uncounted (stats)", self.ours.url, sample, MIN_OPEN_RATIO)


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with (
        copy_store(store) as copy,
        serve_store(copy) as ours,
        tempfile.TemporaryDirectory() as folder,
    ):
        over_mcp = {case.name: sample_call(ours.url, case.build_mcp_call(ours)) for case in CASES}
        answers = {name: sample.answer for name, sample in over_mcp.items()}
        with start_peers(Path(folder), answers) as others, start_limits() as fixed:
            bench = Bench(ours, over_mcp, others, fixed)
            return [
                row for measured in bench.build_comparisons() for row in measured.measure_rows()
            ]


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()

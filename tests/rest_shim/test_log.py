"""The log over HTTP: another implementation reads and verifies it, and it reveals no row."""

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import rfc8785
from structlog.testing import capture_logs
from tlog_scales.backend import HttpBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import Vkey
from tlog_scales.tiles import leaf_hash
from tlog_scales.tlog import Checkpoint, InclusionProof

from compute.signing.log_signer import LogSigner
from rest_shim.log import parse_tile
from schemas.errors import ApiError
from schemas.vocabulary import LOGGED_IDS, TIMEFRAMES
from store.log_tree import TileId
from store.market_rows import CheckpointRow
from tests.support.example_market import ASSETS, HOUR_MS, NOON, make_batch, make_change
from tests.support.running_service import RunningService
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("proof")

LOG = "/api/v1/log"
COVERED = (
    *("id", "tier", "ticker", "indicator", "timeframe", "direction", "transition", "change_type"),
    *("action", "price", "created_at"),
)
Row = dict[str, Any]


async def fetch_rows(served: RunningService) -> list[Row]:
    path = "/signals?tier=all&order=oldest&limit=200&since=2025-12-01&offset="
    pages = [(await served.get_api(f"{path}{offset}")).json()["signals"] for offset in (0, 200)]
    return [row for page in pages for row in page]


def render(row: Row) -> bytes:
    """Return the canonical JSON of a row, by another implementation of RFC 8785."""
    return rfc8785.dumps({name: row[name] for name in COVERED})


async def read_log(served: RunningService) -> tuple[Checkpoint, TilesReader]:
    """Return the checkpoint, whose signature is verified, and a reader of the tiles over HTTP."""
    key = (await served.client.get(f"{LOG}/key")).text
    reader = TilesReader(HttpBackend(served.base_url + LOG))
    checkpoint = await asyncio.to_thread(reader.get_checkpoint)
    checkpoint.verify(Vkey.from_string(key.strip()))
    assert await asyncio.to_thread(reader.calculate_root_hash) == checkpoint.root_hash
    return checkpoint, reader


def parse_proof(text: str) -> tuple[bytes, InclusionProof, Checkpoint]:
    """Return the salt, the proof and the checkpoint of a tlog-proof."""
    head, _, note = text.partition("\n\n")
    first, extra, index, *hashes = head.splitlines()
    assert first == "c2sp.org/tlog-proof@v1"
    checkpoint = Checkpoint.from_text(note)
    leaf = int(index.removeprefix("index "))
    proof = InclusionProof(leaf, checkpoint.size, [*map(b64decode, hashes)])
    return b64decode(extra.removeprefix("extra ")), proof, checkpoint


async def commit_flips(served: RunningService, count: int) -> None:
    start = NOON + HOUR_MS
    rows = [
        make_change(start + n, "BTC", "enzo", "1h", 1 - 2 * (n % 2), 2 * (n % 2) - 1)._replace(
            close_time=NOON // 1000 + n
        )
        for n in range(count)
    ]
    await served.market.commit(make_batch(start, rows))


@pytest.mark.clause("21.1", "21.2", "21.3", "21.8", "21.9")
async def test_every_row_is_proven_to_another_implementation(
    served: RunningService, tmp_path: Any
) -> None:
    await commit_flips(served, 300)
    await sign(served, tmp_path)
    checkpoint, reader = await read_log(served)
    rows = await fetch_rows(served)
    assert checkpoint.size == len(rows) == 308
    for index in (0, 5, 255, 256, 307):
        response = await served.client.get(
            f"{LOG}/proof", params={"id": rows[index]["id"]}, headers=served.key_headers
        )
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        salt, proof, signed = parse_proof(response.text)
        assert (proof.leaf_index, signed) == (index, checkpoint)
        proof.check(leaf_hash(salt + render(rows[index])), checkpoint.root_hash)
        assert proof == await asyncio.to_thread(reader.get_inclusion_proof, index, 308)


async def sign(served: RunningService, tmp_path: Any) -> None:
    """Sign with the key of the seeded store, which lies beside it."""
    await LogSigner(served.market.feed_log, tmp_path / "log-key.json", "", served.clock).sign()


@pytest.mark.clause("21.1", "21.7")
async def test_a_later_tree_is_consistent_with_an_earlier_one(
    served: RunningService, tmp_path: Any
) -> None:
    earlier, _ = await read_log(served)
    await commit_flips(served, 300)
    # A tree that is not signed yet is not served.
    assert await read_tile(served, f"0/000.p/{earlier.size + 1}") == 404
    assert (await read_log(served))[0] == earlier
    await sign(served, tmp_path)
    later, reader = await read_log(served)
    found = await asyncio.to_thread(reader.get_consistency_proof, earlier.size, later.size)
    found.check(earlier.root_hash, later.root_hash)


async def read_tile(served: RunningService, path: str) -> int:
    """Return the number of hashes of a tile, or the status of an error."""
    response = await served.client.get(f"{LOG}/tile/{path}")
    if response.status_code != 200:
        assert response.json()["error"] == "invalid_parameter"
        return response.status_code
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["content-type"] == "application/octet-stream"
    assert not len(response.content) % 32
    return len(response.content) // 32


@pytest.mark.clause("21.4", "21.5", "21.6")
async def test_tiles_have_the_widths_that_the_signed_tree_has(
    served: RunningService, tmp_path: Any
) -> None:
    await commit_flips(served, 300)
    await sign(served, tmp_path)
    for path, hashes in {
        "0/000": 256,
        "0/000.p/255": 255,
        "0/000.p/1": 1,
        "0/001.p/52": 52,
        "0/001.p/7": 7,
        "1/000.p/1": 1,
        "0/001": 404,
        "0/001.p/53": 404,
        "0/000.p/256": 404,
        "0/000.p/0": 404,
        "0/000.p/01": 404,
        "0/002.p/1": 404,
        "1/000": 404,
        "1/000.p/2": 404,
        "2/000.p/1": 404,
        "64/000.p/1": 404,
        "00/000.p/1": 404,
        "0/0": 404,
        "0/x000/000": 404,
        "0/001/000": 404,
        "entries/000": 404,
        "entries/000.p/1": 404,
    }.items():
        assert await read_tile(served, path) == hashes, path
    whole = (await served.client.get(f"{LOG}/tile/0/000")).content
    assert (await served.client.get(f"{LOG}/tile/0/000.p/9")).content == whole[: 9 * 32]


def test_the_number_of_a_tile_is_written_in_groups_of_three_digits() -> None:
    assert parse_tile("1/x001/x234/067") == (TileId(1, 1234067), 256)
    assert parse_tile("0/x001/000.p/9") == (TileId(0, 1000), 9)
    assert parse_tile("63/999") == (TileId(63, 999), 256)
    for path in ("1/x1/234", "1/001/234", "1/x001/x234", "1/x001/234/", "1//234", "a/000"):
        with pytest.raises(ApiError, match="has no such tile"):
            parse_tile(path)


@pytest.mark.clause("21.10")
@pytest.mark.prove
async def test_the_salts_of_all_leaves_check_all_rows_against_the_open_tiles(
    served: RunningService, tmp_path: Any
) -> None:
    await commit_flips(served, 300)
    await sign(served, tmp_path)
    _, reader = await read_log(served)
    first = (await served.get_api("/log/leaves?limit=200")).json()
    rest = (await served.get_api("/log/leaves?start=200")).json()
    assert (first["size"], len(first["leaves"]), len(rest["leaves"])) == (308, 200, 108)
    for row, leaf in zip(await fetch_rows(served), first["leaves"] + rest["leaves"], strict=True):
        assert row["created_at"] == leaf["created_at"]
        expected = await asyncio.to_thread(reader._get_from_tile, 0, *divmod(leaf["index"], 256))
        assert leaf_hash(b64decode(leaf["salt"]) + render(row)) == expected
    beyond = (await served.get_api("/log/leaves?start=308")).json()
    assert beyond == {"size": 308, "start": None, "leaves": []}
    assert (await served.get_api("/log/leaves?start=9007199254740991")).json()["leaves"] == []


@pytest.mark.clause("21.11")
@pytest.mark.prove
async def test_the_open_files_reveal_nothing_about_a_row(served: RunningService) -> None:
    """Try every content that a row can have against its leaf, with all that a stranger knows."""
    (known, *_) = await fetch_rows(served)
    size = Checkpoint.from_text((await served.client.get(f"{LOG}/checkpoint")).text).size
    tile = (await served.client.get(f"{LOG}/tile/0/000.p/{size}")).content
    hashes = [tile[at : at + 32] for at in range(0, len(tile), 32)]
    salt, _, _ = parse_proof((await served.get_api(f"/log/proof?id={known['id']}")).text)
    assert leaf_hash(salt + render(known)) == hashes[0]
    tried = {bytes(16), b""}
    found = [
        row
        for row in list_contents(known)
        for prefix in tried
        if {leaf_hash(prefix + render(row)), sha256(prefix + render(row)).digest()} & {*hashes}
    ]
    assert found == []


def list_contents(known: Row) -> list[Row]:
    """Return all rows that could be the known one, given its times, its epoch and its price."""
    *_, closed, epoch = known["id"].split(".")
    cells = itertools.product([asset.ticker for asset in ASSETS], LOGGED_IDS, TIMEFRAMES)
    rows = []
    for (ticker, indicator, timeframe), (before, after) in itertools.product(
        cells, itertools.permutations(("bullish", "bearish", "neutral"), 2)
    ):
        change_type = "deactivation" if after == "neutral" else "reversal"
        rows.append(
            {
                **known,
                "id": f"universe.{ticker}.{indicator}.{timeframe}.{closed}.{epoch}",
                "ticker": ticker,
                "indicator": indicator,
                "timeframe": timeframe,
                "direction": after,
                "transition": {"from": before, "to": after},
                "change_type": "activation" if before == "neutral" else change_type,
            }
        )
    # The known row itself is among them.
    assert any(render(row) == render(known) for row in rows)
    return rows


@pytest.mark.clause("21.8", "21.12")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        *(
            (f"?id={row_id}", "is not the id of a published row; accepted: the id of a row as")
            for row_id in ("BTC", "universe.BTC.enzo.1h.5.0", "x" * 100)
        ),
        *((query, "") for query in ("", "?id=", "?id=a&id=b", "?ids=a")),
    ],
)
async def test_an_id_is_given_once_and_an_unknown_one_is_refused_with_the_form_of_ids(
    served: RunningService, query: str, reason: str
) -> None:
    response = await served.get_api(f"/log/proof{query}")
    body = response.json()
    assert (response.status_code, body["error"]) == (400, "invalid_parameter")
    assert reason in body["message"]
    assert "x-ratelimit-remaining" in response.headers


@pytest.mark.clause("21.8", "21.10")
@pytest.mark.parametrize("path", ["proof?id=a", "leaves"])
async def test_reads_of_the_log_need_a_key_and_are_counted(
    served: RunningService, path: str
) -> None:
    without = await served.client.get(f"{LOG}/{path}")
    assert (without.status_code, without.json()["error"]) == (401, "missing_key")
    left = [
        int((await served.get_api(f"/log/{path}")).headers["x-ratelimit-remaining"])
        for _ in range(2)
    ]
    assert left[0] - left[1] == 1


@pytest.mark.clause("21.10", "21.12")
async def test_a_row_that_is_not_signed_yet_is_proven_later(
    served: RunningService, tmp_path: Any
) -> None:
    await commit_flips(served, 1)
    leaves = (await served.get_api("/log/leaves")).json()
    assert len(leaves["leaves"]) == leaves["size"] == 8
    newest = (await fetch_rows(served))[-1]["id"]
    waiting = await served.get_api(f"/log/proof?id={newest}")
    assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "60")
    assert "newer than the last signed checkpoint" in waiting.json()["message"]
    await sign(served, tmp_path)
    assert (await served.get_api(f"/log/proof?id={newest}")).status_code == 200


@pytest.mark.clause("21.13")
async def test_a_log_that_is_not_signed_answers_503_with_the_reason(
    served: RunningService, tmp_path: Any
) -> None:
    row_id = (await fetch_rows(served))[0]["id"]
    (tmp_path / "log-key.json").rename(tmp_path / "away.json")
    with capture_logs():
        await sign(served, tmp_path)
    for path in ("checkpoint", f"proof?id={row_id}", "leaves"):
        response = await served.get_api(f"/log/{path}")
        assert (response.status_code, response.json()["error"]) == (503, "unavailable")
        assert response.headers["retry-after"] == "3600"
        assert (
            "The log is not signed at the moment: the key file of the log is missing."
            in response.json()["message"]
        )
    # Published rows and immutable tiles stay.
    assert await read_tile(served, "0/000.p/8") == 8
    assert (await served.client.get(f"{LOG}/key")).status_code == 200
    (tmp_path / "away.json").rename(tmp_path / "log-key.json")
    await sign(served, tmp_path)
    assert (await served.get_api("/log/leaves")).status_code == 200


async def test_before_the_first_checkpoint_nothing_is_served(served_empty: RunningService) -> None:
    for path in ("checkpoint", "key", "leaves", "proof?id=universe.BTC.enzo.1h.5.0"):
        response = await served_empty.get_api(f"/log/{path}")
        assert (response.status_code, response.json()["error"]) == (503, "unavailable")
        assert "has not been signed yet" in response.json()["message"]
    assert await read_tile(served_empty, "0/000.p/1") == 404


@pytest.mark.clause("21.2")
async def test_a_checkpoint_is_revalidated_and_cosignatures_are_served(
    served: RunningService,
) -> None:
    first = await served.client.get(f"{LOG}/checkpoint")
    assert first.headers["cache-control"] == "no-cache"
    tag = {"If-None-Match": first.headers["etag"]}
    assert (await served.client.get(f"{LOG}/checkpoint", headers=tag)).status_code == 304
    stored = await served.market.feed_log.checkpoint()
    cosigned = CheckpointRow(stored.size, f"{stored.note}— witness.example AAAA\n", stored.vkey)
    await served.market.feed_log.save_checkpoint(cosigned)
    second: httpx.Response = await served.client.get(f"{LOG}/checkpoint", headers=tag)
    assert (second.status_code, second.text) == (200, cosigned.note)


GO_PACKAGES = Path("/usr/share/gocode")


@pytest.mark.prove
@pytest.mark.skipif(
    shutil.which("go") is None or not (GO_PACKAGES / "src/golang.org/x/mod/sumdb").is_dir(),
    reason="Go and its sumdb packages are not installed here",
)
async def test_the_sumdb_packages_of_go_check_a_row(served: RunningService, tmp_path: Path) -> None:
    row = (await served.get_api("/signals?limit=1")).json()["signals"][0]
    proof, vkey = [
        (await served.get_api(path)).text for path in (f"/log/proof?id={row['id']}", "/log/key")
    ]
    (tmp_path / "proof").write_text(proof)
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(GO_PACKAGES)}
    for price, printed in ((row["price"], "leaf "), (1.5, "invalid transparency proof")):
        (tmp_path / "row").write_text(json.dumps(row | {"price": price}))
        command = ["go", "run", ROOT / "deploy/verify/check_row.go", tmp_path / "row"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, tmp_path / "proof", vkey.strip()],
            env=environment | {"GOCACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )
        assert printed in done.stdout + done.stderr

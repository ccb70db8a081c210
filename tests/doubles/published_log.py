"""A service whose operator can rewrite everything, in the formats of the real one.

The library tlog-scales builds its trees and signs them, so a history can be rewritten in a way that
the real service refuses: another tree, signed by the same key.
"""

import base64
import copy
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import rfc8785
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tlog_scales.signing import PlainEd25519Signer, Vkey
from tlog_scales.tlog import Checkpoint
from tlog_scales.writer import TilesWriter

from tests.support.running_service import serve_app

Row = dict[str, Any]
FIRST = datetime(2026, 3, 1, 0, 3, tzinfo=UTC)
UNCOVERED = ("asset_class", "indicator_name")
API_KEY = "ek_" + "k" * 43


def format_time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_row(number: int, step: timedelta = timedelta(hours=1)) -> Row:
    """Return a row of the universe tier that continues its cell; every fifth one is an alert.

    Rows that come once an hour are of one asset, and faster ones of as many as an hour has rows.
    """
    at = FIRST + number * step
    close = int(at.timestamp()) // 3600 * 3600
    assets = max(timedelta(hours=1) // step, 1)
    ticker = "BTC" if assets == 1 else f"T{number % assets}"
    turns = (number - number // 5) if assets == 1 else number // assets
    before, after = ("bullish", "bearish")[:: 1 if turns % 2 else -1]
    row: Row = {
        "id": f"universe.{ticker}.enzo.1h.{close}.1",
        "tier": "universe",
        "ticker": ticker,
        "asset_class": "crypto",
        "indicator": "enzo",
        "indicator_name": "Enzo",
        "timeframe": "1h",
        "direction": after,
        "transition": {"from": before, "to": after},
        "change_type": "reversal",
        "action": None,
        "price": 97_000.0 + number / 4,
        "created_at": format_time(at),
    }
    if number % 5 == 4:
        row |= {"id": f"alerts.{ticker}.enzo.4h.{close}.LONG.1", "tier": "alerts"}
        row |= {"timeframe": "4h", "transition": None, "change_type": None, "action": "LONG"}
        row |= {"direction": "bullish"}
    return row


def make_start(started_at: datetime, source: str = "live") -> Row:
    """Return the content of a first leaf, with what lists it among the rows."""
    listed = {"id": "start", "created_at": "1970-01-01T00:00:00.001Z"}
    return listed | {"source": source, "started_at": format_time(started_at)}


def make_entry(row: Row, salt: bytes) -> bytes:
    left_out = ("id", "created_at") if "started_at" in row else UNCOVERED
    return salt + rfc8785.dumps({k: v for k, v in row.items() if k not in left_out})


@dataclass
class PublishedLog:
    """The rows that are served, the rows of the leaves, and the files of the signed tree.

    `sign` builds the tree of `logged` from its beginning. `unavailable` is the message of the 503
    that the checkpoint gets instead. `lines` are added to each signed checkpoint. The log signs the
    minute after the newest row, or `signed_at`, which is no time if it is 0.
    """

    folder: Path
    origin: str = "127.0.0.1/api/v1/log"
    seed: int = 1
    rows: list[Row] = field(default_factory=list)
    # The first one may be the start.
    logged: list[Row] = field(default_factory=list)
    unavailable: str | None = None
    has_log: bool = True
    lines: str = ""
    requests: list[str] = field(default_factory=list)
    # Times of leaves that are listed instead of those of their rows.
    listed_times: dict[int, str] = field(default_factory=dict)
    as_of: datetime | None = None
    source: str = "live"
    # The start that is stated instead of that of the first leaf, unless it is an ellipsis.
    stated: object = ...
    signed_at: int | None = None
    _generation: int = 0
    times: str = ""

    def publish(self, *rows: Row) -> None:
        self.rows += copy.deepcopy(rows)
        self.logged += copy.deepcopy(rows)
        self.sign()

    def sign(self) -> None:
        self._generation += 1
        writer = TilesWriter.create(self.tree, self.origin)
        for index, row in enumerate(self.logged):
            writer.add_leaf(make_entry(row, self.get_salt(index)))
        writer.commit([self.signer])
        at = int(self.now.timestamp()) if self.signed_at is None else self.signed_at
        self.times = self.cosign(at) if at else ""

    @property
    def now(self) -> datetime:
        """The minute after the newest row."""
        rows = [*self.rows, *self.logged]
        last = max((row["created_at"] for row in rows), default=format_time(FIRST))
        return datetime.fromisoformat(last) + timedelta(minutes=1)

    def cosign(self, at: int) -> str:
        """Return the line by which the log's own key signs a time."""
        body = (self.tree / "checkpoint").read_text().partition("\n\n")[0]
        signature = self.signer.key.sign(f"cosignature/v1\ntime {at}\n{body}\n".encode())
        key_id = Vkey(self.origin, None, 4, self.signer.vkey.pubkey).key_id.to_bytes(4)
        content = base64.b64encode(key_id + at.to_bytes(8) + signature).decode()
        return f"— {self.origin} {content}\n"

    @property
    def tree(self) -> Path:
        return self.folder / str(self._generation)

    @property
    def signer(self) -> PlainEd25519Signer:
        return PlainEd25519Signer(self.origin, bytes([self.seed] * 32))

    @property
    def vkey(self) -> str:
        return self.signer.vkey.serialize()

    @property
    def checkpoint(self) -> str:
        return (self.tree / "checkpoint").read_text() + self.times + self.lines

    def get_size(self) -> int:
        return Checkpoint.from_text(self.checkpoint).size

    def get_salt(self, index: int) -> bytes:
        """Return the salt of a leaf, which stays with its row."""
        return hashlib.sha256(self.logged[index]["id"].encode()).digest()[:16]

    async def _send_checkpoint(self, request: Request) -> Response:
        self.requests.append("checkpoint")
        if not self.has_log:
            return refuse(404, "not_found", "Nothing is here.")
        if self.unavailable is not None:
            return refuse(503, "unavailable", self.unavailable)
        return PlainTextResponse(self.checkpoint)

    async def _send_key(self, request: Request) -> Response:
        if not self.has_log:
            return refuse(404, "not_found", "Nothing is here.")
        return PlainTextResponse(self.vkey + "\n")

    async def _send_tile(self, request: Request) -> Response:
        path = request.path_params["path"]
        self.requests.append(f"tile/{path}")
        hashes = self._read_tile(path)
        return refuse(404, "not_found", "No tile.") if hashes is None else Response(hashes)

    def _read_tile(self, path: str) -> bytes | None:
        """Return a tile of any width that an earlier or the present tree has."""
        whole, _, part = path.partition(".p/")
        width = int(part or 256)
        file = self.tree / "tile" / whole
        wider = [file, *file.parent.glob(f"{file.name}.p/*")]
        contents = (one.read_bytes() for one in wider if one.is_file())
        return next((one[: 32 * width] for one in contents if len(one) >= 32 * width), None)

    async def _send_leaves(self, request: Request) -> Response:
        if (refusal := refuse_without_key(request)) is not None:
            return refusal
        start, limit = (int(request.query_params[name]) for name in ("start", "limit"))
        self.requests.append(f"leaves {start} {limit}")
        leaves = [
            {
                "index": index,
                "created_at": self.listed_times.get(index, row["created_at"]),
                "salt": base64.b64encode(self.get_salt(index)).decode(),
            }
            for index, row in enumerate(self.logged[: self.get_size()])
        ]
        body = {"size": self.get_size(), "leaves": leaves[start : start + limit]}
        if (first := self.logged[:1]) and "started_at" in first[0]:
            body["start"] = {name: first[0][name] for name in ("source", "started_at")}
        return JSONResponse(body if self.stated is ... else body | {"start": self.stated})

    async def _send_rows(self, request: Request) -> Response:
        if (refusal := refuse_without_key(request)) is not None:
            return refusal
        arguments = request.query_params
        since, limit = arguments.get("since", ""), int(arguments["limit"])
        self.requests.append(f"rows {since}".strip())
        rows = sorted(
            (row for row in self.rows if row["created_at"] > since),
            key=lambda row: row["created_at"],
            reverse=arguments.get("order") != "oldest",
        )
        last = max((row["created_at"] for row in self.rows), default=format_time(FIRST))
        as_of = last if self.as_of is None else format_time(self.as_of)
        body = {"signals": rows[:limit], "pagination": {"has_more": len(rows) > limit}}
        return JSONResponse(body | {"meta": {"as_of": as_of, "source": self.source}})


def refuse(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": code, "message": message}, status)


def refuse_without_key(request: Request) -> Response | None:
    if request.headers.get("authorization") != f"Bearer {API_KEY}":
        return refuse(401, "invalid_key", "No such key.")
    return None


@asynccontextmanager
async def serve_log(log: PublishedLog) -> AsyncIterator[str]:
    routes = [
        Route("/api/v1/log/checkpoint", log._send_checkpoint),
        Route("/api/v1/log/key", log._send_key),
        Route("/api/v1/log/tile/{path:path}", log._send_tile),
        Route("/api/v1/log/leaves", log._send_leaves),
        Route("/api/v1/signals", log._send_rows),
    ]
    async with serve_app(lambda _: Starlette(routes=routes)) as address:
        yield address


LEAVES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    bytes.fromhex(text)
    for text in (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    )
]

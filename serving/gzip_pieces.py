"""Gzip of a text of which a short part changes with each response; the rest is compressed once."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

# Deflate, no name, no time, so that equal texts give equal bytes; the system is unknown.
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
# Raw deflate: gzip's header and checksum are those of the whole text.
_RAW = -zlib.MAX_WBITS
_END = b"\x03\x00"


class CompressedPiece(NamedTuple):
    """A piece of a text, and its deflate blocks, none of which is the last one."""

    plain: bytes
    blocks: bytes


def compress_piece(plain: bytes) -> CompressedPiece:
    """Compress a piece so that other blocks can follow it."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, _RAW)
    return CompressedPiece(plain, compressor.compress(plain) + compressor.flush(zlib.Z_SYNC_FLUSH))


def join_compressed(between: bytes, pieces: Sequence[CompressedPiece]) -> bytes:
    """Return the gzip form of the pieces with a text of less than 64 KB between them."""
    stored = _store(between).join([piece.blocks for piece in pieces])
    checksum, size = 0, len(between) * (len(pieces) - 1)
    for number, piece in enumerate(pieces):
        checksum = zlib.crc32(between, checksum) if number else checksum
        checksum = zlib.crc32(piece.plain, checksum)
        size += len(piece.plain)
    return b"%b%b%b%b%b" % (_HEADER, stored, _END, _encode(checksum, 4), _encode(size, 4))


def _store(text: bytes) -> bytes:
    """Return a deflate block that holds a text as it is."""
    return b"\x00%b%b%b" % (_encode(len(text), 2), _encode(~len(text), 2), text)


def _encode(number: int, size: int) -> bytes:
    return (number & (1 << 8 * size) - 1).to_bytes(size, "little")

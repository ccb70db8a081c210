"""Reduces the memory of a process and the pauses of its garbage collector."""

import ctypes
import gc
from contextlib import suppress

M_ARENA_MAX = -8  # From glibc's malloc.h.
# Python's defaults are 700, 10 and 10. With them, expensive calls caused a full collection each
# second, and with 1,500 connections each stopped all threads for 0.1 to 0.2 s. Rarer than this,
# cycles that requests leave behind would grow to a collection that everybody notices.
COLLECTION_THRESHOLDS = 2_000, 10, 500


def limit_malloc_arenas() -> None:
    """Make all threads share one malloc arena; does nothing unless the C library is glibc.

    Call it before the first thread starts.
    """
    # Each thread keeps freed memory in its own arena. A first start peaked at 235 to 267 MB; with
    # one arena, and with free memory returned after it, at 170 MB, of which 144 MB remain.
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def release_memory() -> None:
    """Return free memory to the system, and exclude all present objects from collections."""
    # A full collection after a first start would stop all threads for 0.1 s.
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def prepare_to_serve() -> None:
    """Exclude all present objects from collections, and make full collections rare."""
    release_memory()
    gc.set_threshold(*COLLECTION_THRESHOLDS)

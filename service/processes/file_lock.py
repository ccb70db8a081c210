"""The lock of a file that only one process may use. It ends with the process."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import OperatorError


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock FILE.lock during the block, which is never removed; OperatorError if that fails."""
    try:
        lock = path.with_name(f"{path.name}.lock").open("a")
    except OSError as error:
        raise OperatorError(f"cannot lock {path}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OperatorError(
                f"another command uses {path}: stop it, or choose another file"
            ) from None
        yield

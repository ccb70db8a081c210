"""Every internal of uvicorn that service/http/server.py and service/processes/supervisor.py use.

If a test fails here after an update, read how the named internal changed, adapt the
two modules, then write the new digest and move the bound on uvicorn in pyproject.toml.
"""

import ast
import asyncio
import inspect
import re
import tomllib
from hashlib import sha256
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from service.http import server
from service.processes import supervisor
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("operation")

# The methods that our code overrides, calls or replaces, and a digest of each one's source.
DIGESTS: dict[type, dict[str, str]] = {
    HttpToolsProtocol: {
        "__init__": "4f08999410347141",
        "connection_made": "6efb565ff3d36b91",
        "connection_lost": "c91a4c9bf2e29c55",
        "data_received": "010a7ae59a5d3b1a",
        "send_400_response": "ae5a4a3782b646fd",
        "on_message_begin": "96d377fdc7c2baef",
        "on_headers_complete": "1ea8589acfad92d8",
        "_start_asgi_task": "9c08c2571ae9b038",
        "on_body": "dba9c32aeba35b6a",
        "on_message_complete": "1fbad42dc31fc01f",
        "on_response_complete": "64e254f28e389e76",
        "shutdown": "d7351fa33f00d430",
        "_unsupported_upgrade_warning": "55bbd2762b189d9a",
    },
    RequestResponseCycle: {
        "__init__": "4d2f220910c33c12",
        "run_asgi": "0f33f2449a444bc2",
        "send": "abdd8601b326a8da",
        "receive": "8124ae006be71184",
    },
    FlowControl: {
        "__init__": "0152d94a040758b5",
        "pause_reading": "7c27388bb984e9ed",
        "resume_reading": "a0429d30857e8488",
        "pause_writing": "93d4a08a9f2da9d6",
        "resume_writing": "a343e8b0baf08901",
    },
    ServerState: {
        "__init__": "8daf3a9b4e4e4245",
    },
    uvicorn.Server: {
        "serve": "112ef41af52167e3",
        "startup": "2aa1d70a244bfcf2",
        "on_tick": "60ea49b06ccf68c1",
        "shutdown": "9b33c50562992b1e",
        "capture_signals": "e1bbcd4770d1c887",
    },
    Multiprocess: {
        "__init__": "5e0f105cb4a381b5",
        "init_processes": "6c69f2a36bf55750",
        "terminate_all": "6efef9523120f025",
        "join_all": "0a1cc752977298f9",
        "run": "306814569fbd547b",
        "keep_subprocess_alive": "3ba4980aa33bcecd",
        "handle_signals": "69be08d4fd9bc0b4",
        "handle_term": "88e8dbda93f2e062",
        "handle_hup": "c6701178f72d4d79",
    },
    Process: {
        "__init__": "a8c85f799aae5b2c",
        "_healthcheck": "989efe6df65860a1",
        "is_alive": "7fb1ab8fc3907ec2",
        "terminate": "34bb463698e7c333",
        "kill": "23db0314aac48aa2",
        "join": "bcc96b4a8bcdf2f7",
    },
}
# The attributes that our code reads or sets, by the class whose instances have them.
ATTRIBUTES: dict[type, str] = {
    HttpToolsProtocol: "config cycle flow headers loop server_state transport url",
    RequestResponseCycle: "body default_headers disconnected keep_alive message_event more_body"
    " on_response response_complete response_started scope transport",
    FlowControl: "write_paused",
    ServerState: "total_requests",
    uvicorn.Server: "should_exit",
    uvicorn.Config: "backlog lifespan timeout_worker_healthcheck workers",
    Multiprocess: "processes should_exit",
    Process: "child_conn exitcode pid",
}
SUBCLASSES: list[tuple[type, type]] = [
    (server.BoundedProtocol, HttpToolsProtocol),
    (server.Server, uvicorn.Server),
    (supervisor.Supervisor, Multiprocess),
]


def list_members(owner: type) -> set[str]:
    """Return the methods of a class and the attributes that its methods set."""
    source = inspect.getsource(owner)
    return set(vars(owner)) | set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", source))


def list_used_names(module: ModuleType) -> set[str]:
    """Return the name of every attribute that a module reads, calls or sets."""
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in DIGESTS.items() for name in names]
)
def test_an_internal_has_the_source_that_we_tested(owner: type, name: str) -> None:
    source = inspect.getsource(getattr(owner, name))
    assert sha256(source.encode()).hexdigest()[:16] == DIGESTS[owner][name]


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_the_attributes_that_we_use_exist(owner: type) -> None:
    assert set(ATTRIBUTES[owner].split()) <= list_members(owner)


def test_a_transport_reads_as_much_as_it_is_told() -> None:
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    assert transport.max_size > server.READ_BYTES
    assert "recv(self.max_size)" in inspect.getsource(transport)


def test_status_lines_are_bytes_by_status() -> None:
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(("ours", "theirs"), SUBCLASSES)
def test_every_override_is_listed(ours: type, theirs: type) -> None:
    assert issubclass(ours, theirs)
    overrides = {
        name
        for name, value in vars(ours).items()
        if hasattr(theirs, name) and inspect.isroutine(value)
    }
    assert overrides
    assert overrides <= set(DIGESTS[theirs])


@pytest.mark.parametrize("module", [server, supervisor])
def test_every_internal_that_we_use_is_listed(module: Any) -> None:
    internals = set().union(*map(list_members, DIGESTS))
    listed = {name for names in DIGESTS.values() for name in names}
    listed |= set(" ".join(ATTRIBUTES.values()).split())
    assert list_used_names(module) & internals <= listed


def test_the_installed_and_the_locked_version_lie_within_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [bounds] = [line for line in project["dependencies"] if Requirement(line).name == "uvicorn"]
    [locked] = re.findall(r"^uvicorn==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)
    specifier = Requirement(bounds).specifier
    assert "<" in {part.operator for part in specifier}
    assert version("uvicorn") in specifier
    assert locked in specifier

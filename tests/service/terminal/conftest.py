"""Runs the commands that read a service, in the loop of the service."""

from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from service.commands.cli import _build_parser
from service.config.settings import find_proxy
from service.terminal.commands import read_service
from tests.support.running_service import RunningService

ReadFrom = Callable[..., Awaitable[str]]
Read = Callable[..., Awaitable[str]]


@pytest.fixture
def read_from(capsys: pytest.CaptureFixture[str]) -> ReadFrom:
    """Run a command that reads a service; return its output."""

    async def run(service: RunningService, *arguments: str) -> str:
        args = _build_parser().parse_args(arguments)
        # The service logs to the same standard output, because it runs in this process.
        capsys.readouterr()
        with capture_logs():
            assert await read_service(args, service.base_url, service.api_key, find_proxy) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def read(served: RunningService, read_from: ReadFrom) -> Read:
    """Run a command that reads the shared service; return its output."""
    return lambda *arguments: read_from(served, *arguments)

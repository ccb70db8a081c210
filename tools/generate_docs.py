"""The parts of the Markdown pages that are made: `python -m tools.generate_docs`, or `make docs`.

Such a part lies between `<!-- generated: NAME -->` and `<!-- end -->`; what lies there is replaced.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.client_registration import CLIENTS, Client
from mcp_server.tools.get_flips import HOURS
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import ENDPOINTS
from schemas.vocabulary import TIMEFRAMES
from tests.agents.agent import Agent
from tests.agents.played import Task, every_task
from tests.bad_inputs import CATALOG, CONFLUENCE, FLIPS, SIGNALS, STATE
from tests.full_board import fill, turn_everything
from tests.serving import Served, serving
from tests.serving import coverage as small_coverage
from tools import clauses as specification

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{n}.md" for n in ("agents", "coverage", "examples")),
)
ADDRESS = "http://127.0.0.1:8000"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Arguments = dict[str, Any]
Sizes = list[tuple[Arguments, int]]
# The default call, then what may give the largest answer.
ASKED: dict[str, list[Arguments]] = {
    **{tool.name: [{}] for tool in TOOLS},
    SIGNALS: [{}, {"limit": 200}],
    CONFLUENCE: [
        {},
        *(
            {"timeframe": timeframe, "direction": direction, "min_agree": 1}
            for timeframe in TIMEFRAMES
            for direction in ("bullish", "bearish")
        ),
    ],
    FLIPS: [{}, *({"timeframe": timeframe, "hours": HOURS[timeframe].max} for timeframe in HOURS)],
}
NARROW: dict[str, list[Arguments]] = {
    STATE: [
        {"ticker": "BTC"},
        {"timeframe": "1d"},
        {"timeframe": "1d", "indicator": "ceres"},
        {"asset_class": "metal"},
        {"view": "board"},
    ],
    SIGNALS: [{"limit": 10}],
    CONFLUENCE: [{"min_agree": 5}],
    FLIPS: [{"direction": "bullish"}, {"timeframe": "1h"}],
    CATALOG: [{"ticker": "BTC,ETH"}],
}
SHOWN: dict[str, Arguments] = {
    STATE: {"ticker": "BTC", "timeframe": "1d"},
    SIGNALS: {"ticker": "BTC", "indicator": "trend_oracle", "limit": 1},
    CONFLUENCE: {"timeframe": "1d", "direction": "bearish", "min_agree": 6},
    FLIPS: {"timeframe": "1h"},
    CATALOG: {"ticker": "BTC"},
}


def main(arguments: Sequence[str] | None = None, pages: Sequence[Path] = PAGES) -> int:
    """Bring the pages up to date, or with --check name those that are not; 1 where any is not."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name what is old")
    is_check = parser.parse_args(arguments).check
    old = asyncio.run(outdated(pages))
    for page, text in old.items():
        if is_check:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
        else:
            page.write_text(text)
    return 1 if old and is_check else 0


async def outdated(pages: Iterable[Path], without: Container[str] = ()) -> dict[Path, str]:
    """Return the pages whose generated parts are not up to date, with the text they should have.

    Parts named in `without` are taken as they are.
    """
    texts = {page: page.read_text() for page in pages}
    names = {match[2] for text in texts.values() for match in BLOCK.finditer(text)}
    made = {name: await BLOCKS[name]() for name in sorted(names) if name not in without}

    def current_part(match: re.Match[str]) -> str:
        return match[1] + made[match[2]] + match[3] if match[2] in made else match[0]

    current = {page: BLOCK.sub(current_part, text) for page, text in texts.items()}
    return {page: text for page, text in current.items() if text != texts[page]}


async def tools() -> str:
    """Return the table of tools, in the order of tools/list."""
    calls = {e.tool.name: f"{e.method} {e.path}" for e in ENDPOINTS if e.tool}
    return _table(
        ("tool", "REST", "key", "what it returns"),
        (
            (
                f"`{tool.name}`",
                f"`{calls[tool.name]}`",
                "yes" if tool.keyed else "no",
                _first_sentence(tool.description),
            )
            for tool in TOOLS
        ),
    )


async def clients() -> str:
    """Return the table of clients, where each is told of the server, and what prints the lines."""
    return _table(
        ("client", "where", "the lines"),
        ((c.title, c.where, f"`signals connect {c.name}`") for c in CLIENTS),
    )


async def hosts() -> str:
    """Return how the programs that agents run in register the server."""
    return _registrations(client for client in CLIENTS if client.language != "python")


async def frameworks() -> str:
    """Return how Python programs register the server."""
    return _registrations(client for client in CLIENTS if client.language == "python")


def _registrations(clients: Iterable[Client]) -> str:
    return "\n".join(
        f"{client.told}\n\n```{client.language}\n{client.lines(ADDRESS)}```\n" for client in clients
    )


async def sizes() -> str:
    """Return the sizes of answers on the full board: default, largest, narrowed."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as served:
            await fill(served.market)
            usual = {tool.name: await _measured(served, tool.name, ASKED) for tool in TOOLS}
            narrow = {tool: await _measured(served, tool, NARROW) for tool in NARROW}
            await turn_everything(served.market)
            turned = {tool.name: await _measured(served, tool.name, ASKED) for tool in TOOLS}
    return "\n".join([_sizes_at_most(usual, turned), _sizes_narrowed(narrow)])


async def examples() -> str:
    """Return a call of each tool and its answer, on the small store that tests are served from."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), small_coverage()) as served:
            return "\n".join([await _example(served, tool.name) for tool in TOOLS])


async def _example(served: Served, tool: str) -> str:
    call = {"name": tool, "arguments": SHOWN.get(tool, {})}
    result = await served.call(tool, call["arguments"])
    answer = json.dumps(result["structuredContent"], indent=2).replace(served.base_url, ADDRESS)
    return f"## {tool}\n\n```json\n{json.dumps(call)}\n```\n\n```json\n{answer}\n```\n"


async def coverage() -> str:
    """Return the clauses of SPEC.md, section by section, with what holds them."""
    named, _ = specification.named_by_tests()
    return specification.coverage(specification.read(), named)


async def tasks() -> str:
    """Return what each question of tests/agents costs the agent that answers it."""
    agents = await every_task()
    return _table(
        ("question", "calls", "refused", "characters", "tokens"),
        (task_cells(task, agent) for task, agent in agents.items()),
    )


def task_cells(task: Task, agent: Agent) -> tuple[str, ...]:
    """Return what a row tells of a task and the agent that solved it."""
    figures = agent.characters, round(agent.tokens)
    return task.question, str(len(agent.calls)), str(agent.errors), *map(_rounded, figures)


def _sizes_at_most(usual: dict[str, Sizes], turned: dict[str, Sizes]) -> str:
    return _table(
        ("tool", "default answer", "largest answer", "its arguments", "if everything turned"),
        (
            (
                f"`{tool}`",
                _rounded(answers[0][1]),
                _rounded(_largest(answers)[1]),
                _written(_largest(answers)[0]),
                _rounded(max(_largest(answers)[1], _largest(turned[tool])[1])),
            )
            for tool, answers in usual.items()
        ),
    )


def _sizes_narrowed(narrow: dict[str, Sizes]) -> str:
    return _table(
        ("tool", "narrowed by", "answer"),
        (
            (f"`{tool}`", _written(arguments), _rounded(size))
            for tool, answers in narrow.items()
            for arguments, size in answers
        ),
    )


async def _measured(served: Served, tool: str, asked: Mapping[str, list[Arguments]]) -> Sizes:
    return [(arguments, await _size(served, tool, arguments)) for arguments in asked[tool]]


async def _size(served: Served, tool: str, arguments: Arguments) -> int:
    result = await served.call(tool, arguments)
    if result["isError"]:
        raise ValueError(result["content"][0]["text"])
    return len(result["content"][0]["text"])


def _largest(answers: Sizes) -> tuple[Arguments, int]:
    return max(answers, key=lambda answer: answer[1])


def _rounded(count: int) -> str:
    """Write a count with three digits that mean something."""
    return f"{round(count, 3 - len(str(count))):,}"


def _written(arguments: Arguments) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in arguments.items()) or "none"


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(map(line, [head, ["---"] * len(head), *rows]))


def line(cells: Sequence[str]) -> str:
    """Write a row of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


BLOCKS: dict[str, Callable[[], Awaitable[str]]] = {
    "tools": tools,
    "clients": clients,
    "hosts": hosts,
    "frameworks": frameworks,
    "examples": examples,
    "sizes": sizes,
    "tasks": tasks,
    "coverage": coverage,
}

if __name__ == "__main__":
    raise SystemExit(main())

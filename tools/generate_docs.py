"""Updates the generated blocks of the documentation: `python -m tools.generate_docs`.

A block is the text between `<!-- generated: NAME -->` and `<!-- end -->`. `make docs` runs it too.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pydantic import SecretStr

from evals.forms import SOLVER
from evals.market import open_eval_market
from evals.questions import read_questions
from evals.report import Totals, list_totals
from evals.run import ask_all
from mcp_server.client_registration import Client
from mcp_server.clients import CLIENTS, CLIENTS_BY_NAME, FRAMEWORKS, HOSTS
from mcp_server.tools.get_flips import WINDOW_HOURS
from mcp_server.tools.registry import TOOLS
from rest_shim.endpoints import ENDPOINTS
from schemas.vocabulary import TIMEFRAMES
from service.commands.cli import _build_parser
from service.commands.command_tree import walk_commands
from service.commands.examples import EXAMPLES
from service.config.settings import PREFIX, Settings
from tools import clauses as specification
from tests.support.example_market import make_coverage, seed_market
from tools.example_service import ADDRESS, ExampleService, open_example_service
from tests.support.full_universe import fill_full_universe, turn_all_daily_readings
from tests.support.tool_search import HALVES, add_ranks, count_ranks, list_own_tools, read_earlier_tools

ROOT = Path(__file__).parents[1]
NAMES = (
    "agents",
    "clauses/coverage",
    "commands",
    "connect",
    "contract",
    "examples",
    "proof-of-storage",
    "settings",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES))
BLOCK_PATTERN = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

STATE, SIGNALS = "signals_get_state", "signals_get_signals"
CONFLUENCE, FLIPS = "signals_get_confluence", "signals_get_flips"
CATALOG = "signals_get_catalog"
# The README is short: a command-line host and an editor stand for the rest.
FIRST_CLIENTS = ("claude-code", "cursor")
# These tests solve the tasks, and record the cost of each in this property of their results.
TASK_TESTS, TASK_PROPERTY = "tests/agents", "agent_tasks"

MAX_USAGE_CHARS = 120

Arguments = dict[str, Any]
Sizes = list[tuple[Arguments, int]]
# The default call, then the calls that can give the largest answer. For confluence and flips it
# depends on the market, so several are measured.
MEASURED_ARGUMENTS: dict[str, list[Arguments]] = {
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
    FLIPS: [
        {},
        *(
            {"timeframe": timeframe, "hours": WINDOW_HOURS[timeframe].max}
            for timeframe in WINDOW_HOURS
        ),
    ],
}
NARROWED_ARGUMENTS: dict[str, list[Arguments]] = {
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
EXAMPLE_ARGUMENTS: dict[str, Arguments] = {
    STATE: {"ticker": "BTC", "timeframe": "1d"},
    SIGNALS: {"ticker": "BTC", "indicator": "trend_oracle", "limit": 1},
    CONFLUENCE: {"timeframe": "1d", "direction": "bearish", "min_agree": 6},
    FLIPS: {"timeframe": "1h"},
    CATALOG: {"ticker": "BTC"},
}


def main(arguments: Sequence[str] | None = None, pages: Sequence[Path] = PAGES) -> int:
    """Update the pages; with --check, only name the outdated ones and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name outdated pages")
    is_check = parser.parse_args(arguments).check
    outdated_pages = asyncio.run(find_outdated(pages))
    for page, text in outdated_pages.items():
        if is_check:
            print(f"{page} is not up to date: run `make docs`", file=sys.stderr)
        else:
            page.write_text(text)
    return 1 if outdated_pages and is_check else 0


async def find_outdated(
    pages: Iterable[Path], skipped_names: Container[str] = ()
) -> dict[Path, str]:
    """Return the new text of each page that has an outdated block.

    Blocks named in `skipped_names` stay as they are: rendering some of them takes minutes.
    """
    texts = {page: page.read_text() for page in pages}
    names = {match[2] for text in texts.values() for match in BLOCK_PATTERN.finditer(text)}
    rendered_blocks = {
        name: await BLOCK_RENDERERS[name]() for name in sorted(names) if name not in skipped_names
    }

    def replace_block(match: re.Match[str]) -> str:
        return (
            match[1] + rendered_blocks[match[2]] + match[3]
            if match[2] in rendered_blocks
            else match[0]
        )

    current_texts = {page: BLOCK_PATTERN.sub(replace_block, text) for page, text in texts.items()}
    return {page: text for page, text in current_texts.items() if text != texts[page]}


async def render_tools() -> str:
    """Return the table of tools, in the order of tools/list."""
    calls = {e.tool.name: f"{e.method} {e.path}" for e in ENDPOINTS if e.tool}
    return _render_table(
        ("tool", "REST", "key", "what it returns"),
        (
            (
                f"`{tool.name}`",
                f"`{calls[tool.name]}`",
                "yes" if tool.requires_key else "no",
                _extract_first_sentence(tool.description),
            )
            for tool in TOOLS
        ),
    )


async def render_clients() -> str:
    """Return the table of clients: location, command, version tried, and documentation."""
    return _render_table(
        ("client", "location", "command", "tried", "format"),
        (
            (
                client.title,
                client.location,
                f"`signals connect {client.name}`",
                client.tried or "no",
                f"[documentation]({client.documentation})",
            )
            for client in CLIENTS
        ),
    )


async def render_hosts() -> str:
    """Return the registrations for hosts, the programs that run agents."""
    return _render_registrations(HOSTS)


async def render_frameworks() -> str:
    """Return the registrations for Python programs."""
    return _render_registrations(FRAMEWORKS)


async def render_first_clients() -> str:
    """Return the registrations that the README shows."""
    return _render_registrations(CLIENTS_BY_NAME[name] for name in FIRST_CLIENTS)


def _render_registrations(clients: Iterable[Client]) -> str:
    return "\n".join(
        f"{client.instructions}\n\n```{client.language}\n{client.render_lines(ADDRESS)}```\n"
        for client in clients
    )


async def render_settings() -> str:
    """Return the table of settings, in the order of `Settings`."""
    return _render_table(
        ("setting", "default", "meaning"),
        (
            (f"`{PREFIX}{name.upper()}`", _format_default(field.default), field.description or "")
            for name, field in Settings.model_fields.items()
        ),
    )


def _format_default(default: object) -> str:
    """Format a default as an environment variable has it; empty if the setting is unset."""
    value = default.get_secret_value() if isinstance(default, SecretStr) else default
    text = str(int(value)) if isinstance(value, bool) else str(value or "")
    return f"`{text}`" if text else ""


async def render_commands() -> str:
    """Return a section for each command: its usage, its purpose and its options."""
    return "\n".join(_render_command(command) for command in walk_commands(_build_parser()))


def _render_command(command: argparse.ArgumentParser) -> str:
    arguments = [one for one in command._actions if not isinstance(one, argparse._HelpAction)]
    # `format_usage` would wrap at the width of the terminal, so the page would depend on it.
    formatter = argparse.HelpFormatter(command.prog, width=MAX_USAGE_CHARS)
    formatter.add_usage(None, arguments, [], prefix="")
    # Python 3.14 colours it on a terminal.
    usage = re.sub(r"\x1b\[[\d;]*m", "", formatter.format_help()).strip()
    purpose = _format_sentence(command.description or "")
    options = "".join(
        f"- `{' '.join((*one.option_strings, str(one.metavar or ''))).strip()}`: "
        f"{_format_sentence(one.help)}\n"
        for one in arguments
        if one.help
    )
    examples = "".join(f"{line}\n" for line in EXAMPLES.get(command.prog, ()))
    parts = (
        *(f"### {command.prog}\n", f"```sh\n{usage}\n```\n", f"{purpose}\n", options),
        f"For example:\n\n```sh\n{examples}```\n" if examples else "",
    )
    return "\n".join(filter(None, parts))


def _format_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


async def render_sizes() -> str:
    """Return tables of answer sizes in characters, measured on the whole universe.

    The first has the default and the largest answer of each tool, the second filtered answers.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with open_example_service(Path(folder)) as served:
            await fill_full_universe(served.market)
            measured_sizes = {
                tool.name: await _measure_calls(served, tool.name, MEASURED_ARGUMENTS)
                for tool in TOOLS
            }
            narrowed_sizes = {
                tool: await _measure_calls(served, tool, NARROWED_ARGUMENTS)
                for tool in NARROWED_ARGUMENTS
            }
            await turn_all_daily_readings(served.market)
            turned_sizes = {
                tool.name: await _measure_calls(served, tool.name, MEASURED_ARGUMENTS)
                for tool in TOOLS
            }
    return "\n".join(
        [
            _render_largest_sizes(measured_sizes, turned_sizes),
            _render_narrowed_sizes(narrowed_sizes),
        ]
    )


async def render_examples() -> str:
    """Return a call of each tool with its answer, from the small store that the tests use."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_example_service(Path(folder)) as served:
            await seed_market(served.market, make_coverage())
            return "\n".join([await _render_example(served, tool.name) for tool in TOOLS])


async def _render_example(served: ExampleService, tool: str) -> str:
    arguments = EXAMPLE_ARGUMENTS.get(tool, {})
    call = {"name": tool, "arguments": arguments}
    result = await served.call(tool, arguments)
    response_json = json.dumps(result["structuredContent"], indent=2)
    return f"## {tool}\n\n```json\n{json.dumps(call)}\n```\n\n```json\n{response_json}\n```\n"


async def render_contract() -> str:
    """Return the clauses of the contract, section by section."""
    return specification.render_contract(specification.read_specification())


async def render_coverage() -> str:
    """Return the tests and the evidence of each clause, section by section."""
    tests_by_clause, _ = specification.find_clause_tests()
    return specification.render_coverage(specification.read_specification(), tests_by_clause)


async def render_tampers() -> str:
    """Return the table of columns of the market store, with the ways by which a change is found."""
    listed = tomllib.loads((ROOT / "docs" / "tampers.toml").read_text())
    return _render_table(
        ("column", "how a change is found"),
        (
            (f"`{table}.{name}`", _describe_ways(value, listed["ways"]))
            for table, columns in listed["columns"].items()
            for name, value in columns.items()
        ),
    )


def _describe_ways(value: Any, ways: Mapping[str, Mapping[str, str]]) -> str:
    named, reason = (value["ways"], value["unless"]) if isinstance(value, dict) else (value, "")
    text = "; ".join(ways[name]["says"] for name in named)
    return f"{text or 'not found'}. {reason}" if reason else text


async def render_ranks() -> str:
    """Return the table of how well a search finds the tools, before and after."""
    earlier, own = read_earlier_tools(), list_own_tools()
    before = [count_ranks(earlier, half) for half in HALVES]
    after = [count_ranks(own, half) for half in HALVES]
    titles = [*(f"{half} half" for half in HALVES), "all"]
    rows = zip(titles, [*before, add_ranks(before)], [*after, add_ranks(after)], strict=True)
    return _render_table(
        ("questions", "first, before", "first", "first three, before", "first three"),
        (
            (title, *map(str, (old.first, new.first, old.first_three, new.first_three)))
            for title, old, new in rows
        ),
    )


async def render_evals() -> str:
    """Return the table of the scripted solver's answers."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_eval_market(Path(folder)) as market:
            outcomes = await ask_all(market, read_questions(), SOLVER.answer)
    head = ("questions", "right", "wrong", "calls", "characters", "wrong tools", "bad arguments")
    return _render_table(head, map(format_totals_cells, list_totals(outcomes)))


def format_totals_cells(totals: Totals) -> tuple[str, ...]:
    """Return the cells of a row of the evaluation."""
    title, right, wrong, calls, characters, wrong_tools, bad_arguments = totals
    figures = (right, wrong, calls, _format_count(characters), wrong_tools, bad_arguments)
    return title, *map(str, figures)


async def render_tasks() -> str:
    """Return the table of questions, with the calls and characters that answering each takes."""
    rows = await asyncio.to_thread(_solve_tasks)
    return _render_table(
        ("question", "calls", "errors", "characters", "tokens"), map(format_task_cells, rows)
    )


def _solve_tasks() -> list[dict[str, Any]]:
    """Run the tests that solve the tasks and return their costs; ValueError if one failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        # The exit status is ignored: a test also fails if the page is outdated, but only after it
        # has recorded the costs.
        command = [sys.executable, "-m", "pytest", TASK_TESTS, "-m", "not prove"]
        subprocess.run([*command, f"--junitxml={results}"], cwd=ROOT, stdout=sys.stderr)
        suites = ElementTree.parse(results)
    recorded = suites.iterfind(f".//property[@name='{TASK_PROPERTY}']")
    rows = [row for entry in recorded for row in json.loads(entry.get("value", ""))]
    if not rows or len(rows) != rows[0]["of"]:
        raise ValueError(f"{TASK_TESTS} did not solve every task")
    return sorted(rows, key=lambda row: row["number"])


def format_task_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a task's row: question, calls, errors, characters and tokens."""
    figures = map(_format_count, (row["characters"], row["tokens"]))
    return row["question"], str(row["calls"]), str(row["refused"]), *figures


def _render_largest_sizes(measured_sizes: dict[str, Sizes], turned_sizes: dict[str, Sizes]) -> str:
    return _render_table(
        ("tool", "default answer", "largest answer", "its arguments", "if everything turned"),
        (
            (
                f"`{tool}`",
                _format_count(measured[0][1]),
                _format_count(_find_largest(measured)[1]),
                _format_arguments(_find_largest(measured)[0]),
                _format_count(
                    max(_find_largest(measured)[1], _find_largest(turned_sizes[tool])[1])
                ),
            )
            for tool, measured in measured_sizes.items()
        ),
    )


def _render_narrowed_sizes(narrowed_sizes: dict[str, Sizes]) -> str:
    return _render_table(
        ("tool", "narrowed by", "answer"),
        (
            (f"`{tool}`", _format_arguments(arguments), _format_count(size))
            for tool, measured in narrowed_sizes.items()
            for arguments, size in measured
        ),
    )


async def _measure_calls(
    served: ExampleService, tool: str, arguments_by_tool: Mapping[str, list[Arguments]]
) -> Sizes:
    return [
        (arguments, await _measure_call(served, tool, arguments))
        for arguments in arguments_by_tool[tool]
    ]


async def _measure_call(served: ExampleService, tool: str, arguments: Arguments) -> int:
    result = await served.call(tool, arguments)
    if result["isError"]:
        raise ValueError(result["content"][0]["text"])
    return len(result["content"][0]["text"])


def _find_largest(measured: Sizes) -> tuple[Arguments, int]:
    return max(measured, key=lambda entry: entry[1])


def _format_count(count: int) -> str:
    """Format a count with three significant digits, so that small changes do not change pages."""
    return f"{round(count, 3 - len(str(count))):,}"


def _format_arguments(arguments: Arguments) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in arguments.items()) or "none"


def _extract_first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "."


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(map(format_row, [head, ["---"] * len(head), *rows]))


def format_row(cells: Sequence[str]) -> str:
    """Format a row of a Markdown table, with its line end."""
    return f"| {' | '.join(cells)} |\n"


BLOCK_RENDERERS: dict[str, Callable[[], Awaitable[str]]] = {
    "tools": render_tools,
    "clients": render_clients,
    "hosts": render_hosts,
    "first_clients": render_first_clients,
    "settings": render_settings,
    "commands": render_commands,
    "frameworks": render_frameworks,
    "examples": render_examples,
    "sizes": render_sizes,
    "tasks": render_tasks,
    "ranks": render_ranks,
    "evals": render_evals,
    "contract": render_contract,
    "coverage": render_coverage,
    "tampers": render_tampers,
}

if __name__ == "__main__":
    raise SystemExit(main())

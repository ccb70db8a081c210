"""SPEC.md clause by clause: what it says, which tests hold it, which change to the code they catch.

`docs/clauses/*.toml` has the clauses; tests name them by `@pytest.mark.clause(id, ...)`, one by one
or a module at once. `docs/coverage.md` is made from both.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).parents[1]
CLAUSES_FOLDER = ROOT / "docs" / "clauses"


class Change(BaseModel):
    """One line of one file, and what to make of it so that a clause no longer holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    old: str
    new: str

    @model_validator(mode="after")
    def _check_one_line(self) -> "Change":
        if "\n" in self.old + self.new or self.old == self.new:
            raise ValueError(f"{self.file}: a change is within one line and changes it")
        return self

    def render_changed_file(self, root: Path) -> str:
        """Return the changed text of the file.

        ValueError where `old` is not in it exactly once, or where it is no Python any more.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {count} times: {self.old}")
        changed = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise ValueError(f"{self.file} is no Python with: {self.new}") from error
        return changed


class Clause(BaseModel):
    """What SPEC.md says in one place, word for word, and how that is spoken for: one of four."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    says: str
    change: Change | None = None
    same_as: tuple[str, ...] = ()
    decision: str | None = None
    untested: str | None = None

    @model_validator(mode="after")
    def _check_exactly_one_evidence(self) -> "Clause":
        evidence = [self.change, self.same_as, self.decision, self.untested]
        if sum(map(bool, evidence)) != 1:
            raise ValueError(f"{self.id} needs one of: change, same_as, decision, untested")
        return self

    @property
    def section(self) -> str:
        """The id without its last number."""
        return self.id.rpartition(".")[0]


class Promise(BaseModel):
    """A subject outside of SPEC.md that tests may name instead of a clause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    says: str


@dataclass(frozen=True)
class Specification:
    """All clauses in SPEC.md's order, the titles of its sections, and the promises beyond it."""

    clauses: tuple[Clause, ...]
    titles: dict[str, str]
    promises: tuple[Promise, ...]

    @property
    def ids(self) -> set[str]:
        """Everything that a test may name."""
        return {clause.id for clause in self.clauses} | {promise.id for promise in self.promises}


@dataclass
class ClauseTests:
    """The tests that name one clause: by themselves, or as all of a module."""

    tests: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[str]:
        yield from (*self.tests, *self.modules)


def read_specification(folder: Path = CLAUSES_FOLDER) -> Specification:
    """Return what the folder's files say; ValueError names an entry that is not well formed."""
    clauses: list[Clause] = []
    promises: list[Promise] = []
    titles: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        text = path.read_text()
        data: dict[str, Any] = tomllib.loads(text)
        titles |= data.get("titles", {})
        clauses += parse_clauses(text)
        promises += map(Promise.model_validate, data.get("promise", ()))
    clauses.sort(key=lambda clause: _split_id(clause.id))
    return Specification(tuple(clauses), titles, tuple(promises))


def parse_clauses(text: str) -> list[Clause]:
    """Return the clauses of one file, in its order; ValueError if one is not well formed."""
    return [Clause.model_validate(entry) for entry in tomllib.loads(text).get("clause", ())]


def find_clause_tests(root: Path = ROOT) -> tuple[dict[str, ClauseTests], list[str]]:
    """Return who names each id, and whatever names wrongly, from the sources of the tests.

    Wrong are tests that name nothing, and functions that name something and are no tests.
    """
    tests_by_clause: dict[str, ClauseTests] = {}
    misnamed_tests: list[str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        module = ast.parse(path.read_text())
        module_ids = set(_extract_ids(_iterate_module_marks(module)))
        for id_ in module_ids:
            tests_by_clause.setdefault(id_, ClauseTests()).modules.append(name)
        for function in _iterate_functions(module):
            function_ids = set(_extract_ids(function.decorator_list))
            for id_ in function_ids:
                tests_by_clause.setdefault(id_, ClauseTests()).tests.append(
                    f"{name}::{function.name}"
                )
            is_test = function.name.startswith("test_")
            if (is_test and not function_ids | module_ids) or (function_ids and not is_test):
                misnamed_tests.append(f"{name}::{function.name}")
    return tests_by_clause, misnamed_tests


def render_coverage(specification: Specification, tests_by_clause: dict[str, ClauseTests]) -> str:
    """Return the tables of docs/coverage.md, one a section of SPEC.md."""
    sections: dict[str, list[Clause]] = {}
    for clause in specification.clauses:
        sections.setdefault(clause.section, []).append(clause)
    titles = {id_: specification.titles[id_] for id_ in sections}
    parts = []
    for id_, clauses in sections.items():
        table = _render_table(_format_row(clause, tests_by_clause) for clause in clauses)
        parts.append(f"## {id_} {titles[id_]}\n\n{table}")
    promise_table = _render_table(
        (promise.id, promise.says, _format_tests(tests_by_clause.get(promise.id, ClauseTests())))
        for promise in specification.promises
    )
    return "\n".join([*parts, f"## Beyond SPEC.md\n\n{promise_table}"])


def _format_row(clause: Clause, tests_by_clause: dict[str, ClauseTests]) -> tuple[str, str, str]:
    text = clause.says.replace(" | ", " · ").replace("|", "\\|")
    formatted_tests = _format_tests(tests_by_clause.get(clause.id, ClauseTests()))
    return (
        clause.id,
        text,
        f"{formatted_tests}{'<br>' if formatted_tests else ''}{_describe_evidence(clause)}",
    )


def _describe_evidence(clause: Clause) -> str:
    if clause.change:
        file, old, new = clause.change.file, clause.change.old, clause.change.new
        return f"Fails when in {file} {_format_code(old)} becomes {_format_code(new)}"
    if clause.same_as:
        return f"As {', '.join(clause.same_as)}"
    if clause.decision:
        return f"Decided: [{clause.decision}](decisions.md)"
    return f"No test: {clause.untested}"


def _format_tests(clause_tests: ClauseTests) -> str:
    """Write the holders, those of one module together, without the folder they all lie in."""
    names_by_module: dict[str, list[str]] = {module: [] for module in clause_tests.modules}
    for test in clause_tests.tests:
        module, _, name = test.partition("::")
        names_by_module.setdefault(module, []).append(name)
    return "<br>".join(
        f"{module.removeprefix('tests/')}{': ' if names else ''}{', '.join(names)}"
        for module, names in names_by_module.items()
    )


def _format_code(text: str) -> str:
    text = text.strip().replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else "nothing"


def _render_table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [("", "what is said", "held by"), ("---",) * 3, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _iterate_functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _iterate_module_marks(module: ast.Module) -> Iterator[ast.expr]:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from node.value.elts if isinstance(node.value, ast.List) else [node.value]


def _extract_ids(marks: Iterable[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
            yield from (ast.literal_eval(argument) for argument in mark.args)


def _split_id(id_: str) -> tuple[int, ...]:
    return tuple(map(int, id_.split(".")))

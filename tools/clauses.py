"""The clauses of the contract and the tests that cite them: `python -m tools.clauses` prints both.

`docs/clauses.toml` holds the clauses. Tests cite them with `@pytest.mark.clause(id, ...)`, each
test by itself or a whole module at once.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Specification:
    """The sentences of clauses and of promises by id, and the titles of the clauses' sections."""

    titles: dict[str, str]
    clauses: dict[str, str]
    promises: dict[str, str]


def read_specification() -> Specification:
    """Read the list of clauses."""
    return Specification(**tomllib.loads((ROOT / "docs" / "clauses.toml").read_text()))


def find_clause_tests() -> tuple[dict[str, list[str]], list[str]]:
    """Return the tests and modules that cite each id, and the functions whose citations are wrong.

    A test without a citation is wrong, and so is a function that cites an id but is not a test.
    """
    # Sources are parsed, because importing all tests would take long.
    tests_by_id, wrong = dict[str, list[str]](), list[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT / "tests").as_posix()
        module = ast.parse(path.read_text())
        module_ids = set(_extract_ids(_iterate_module_marks(module)))
        for id_ in module_ids:
            tests_by_id.setdefault(id_, []).append(name)
        for function in module.body:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            ids = set(_extract_ids(function.decorator_list))
            for id_ in ids:
                tests_by_id.setdefault(id_, []).append(f"{name}::{function.name}")
            is_test = function.name.startswith("test_")
            if (is_test and not ids | module_ids) or (ids and not is_test):
                wrong.append(f"{name}::{function.name}")
    return tests_by_id, wrong


def _iterate_module_marks(module: ast.Module) -> Iterator[ast.expr]:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from node.value.elts if isinstance(node.value, ast.List) else [node.value]


def _extract_ids(marks: Iterable[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
            yield from (ast.literal_eval(argument) for argument in mark.args)


if __name__ == "__main__":
    specification, (tests_by_id, _) = read_specification(), find_clause_tests()
    for id_, text in (specification.clauses | specification.promises).items():
        print(id_, text, *(f"  {test}" for test in tests_by_id.get(id_, ())), sep="\n", end="\n\n")

"""Pins follow their lines through renames, moves, splits and reformatting."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.update_pins import main

pytestmark = pytest.mark.clause("tests")

FARES = '''"""Fares of a ride."""

FLAG_FALL = 3


def fare(km: float) -> float:
    if km < 1:
        return 0
    return FLAG_FALL + begun(km) * 2


def tip(paid: float, generous: bool) -> float:
    share = 0.2 if generous else 0.1
    return paid * share
'''
PINS = """[[clause]]
id = "1.1"
says = "A short ride is free."
change = { file = "fares.py", old = 'if km < 1:', new = 'if km < 2:' }

[[clause]]
id = "1.2"
says = "Each begun kilometre costs two."
change = { file = "fares.py", old = "begun(km) * 2", new = "km * 2" }

[[clause]]
id = "2.1"
says = "A generous tip is larger."
change = { file = "fares.py", old = '0.2 if generous else 0.1', new = '0.1' }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "clauses").mkdir(parents=True)
    (tmp_path / "docs" / "clauses" / "1.toml").write_text(PINS)
    (tmp_path / "docs" / "clauses" / "README.md").write_text("# Clauses\n")
    (tmp_path / "fares.py").write_text(FARES)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit_all(tmp_path)
    return tmp_path


def commit_all(root: Path) -> None:
    for command in ("add .", "-c user.name=a -c user.email=a commit -qm all"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)


def read_changes(root: Path) -> dict[str, tuple[str, str, str]]:
    text = (root / "docs" / "clauses" / "1.toml").read_text()
    clauses = tomllib.loads(text)["clause"]
    return {clause["id"]: tuple(clause["change"].values()) for clause in clauses}


def test_pins_that_fit_stay_byte_for_byte(tree):
    (tree / "fares.py").write_text(FARES.replace("Fares of", "What is paid for"))
    assert main([], tree) == 0
    assert (tree / "docs" / "clauses" / "1.toml").read_text() == PINS


def test_a_renamed_name_is_renamed_on_both_sides_and_the_layout_stays(tree):
    (tree / "fares.py").write_text(FARES.replace("km", "distance").replace("begun", "round_up"))
    assert main([], tree) == 0
    expected = PINS.replace("if km", "if distance").replace('"km', '"distance')
    expected = expected.replace("begun(km)", "round_up(distance)")
    assert (tree / "docs" / "clauses" / "1.toml").read_text() == expected


def test_a_stale_name_in_the_broken_text_only_is_renamed_too(tree):
    pins = PINS.replace("new = 'if km < 2:'", "new = 'if km < FLAG_FALL:'")
    (tree / "docs" / "clauses" / "1.toml").write_text(pins)
    commit_all(tree)
    (tree / "fares.py").write_text(FARES.replace("FLAG_FALL", "BASE_FARE"))
    assert main([], tree) == 0
    assert read_changes(tree)["1.1"] == ("fares.py", "if km < 1:", "if km < BASE_FARE:")


def test_a_moved_file_is_followed(tree):
    (tree / "taxi").mkdir()
    (tree / "fares.py").rename(tree / "taxi" / "prices.py")
    assert main([], tree) == 0
    changes = read_changes(tree)
    assert {file for file, _, _ in changes.values()} == {"taxi/prices.py"}
    assert changes["1.2"][1:] == ("begun(km) * 2", "km * 2")


def test_a_commit_with_pins_that_do_not_fit_is_not_a_base(tree):
    (tree / "fares.py").rename(tree / "prices.py")
    commit_all(tree)
    (tree / "prices.py").write_text(FARES.replace("begun", "round_up"))
    commit_all(tree)
    assert main([], tree) == 0
    assert read_changes(tree)["1.2"] == ("prices.py", "round_up(km) * 2", "km * 2")


def test_parts_of_a_split_file_are_found_each_in_its_own(tree):
    ride, tip = FARES.split("\n\ndef tip")
    (tree / "fares.py").unlink()
    (tree / "ride.py").write_text(ride.replace("fare(", "compute_fare("))
    (tree / "tips.py").write_text(f'"""Tips."""\n\n\ndef tip{tip}')
    assert main([], tree) == 0
    files = {id_: change[0] for id_, change in read_changes(tree).items()}
    assert files == {"1.1": "ride.py", "1.2": "ride.py", "2.1": "tips.py"}


def test_a_line_that_the_formatter_wrapped_is_pinned_by_its_part(tree):
    wrapped = "return (\n        FLAG_FALL\n        + count_begun_kilometres(km) * 2\n    )"
    (tree / "fares.py").write_text(FARES.replace("return FLAG_FALL + begun(km) * 2", wrapped))
    assert main([], tree) == 0
    assert read_changes(tree)["1.2"] == ("fares.py", "count_begun_kilometres(km) * 2", "km * 2")


def test_a_name_that_became_an_attribute_is_replaced_with_its_object(tree):
    pins = PINS.replace(
        "old = 'if km < 1:', new = 'if km < 2:'", "old = '(km) * 2', new = '(9) * 2'"
    )
    (tree / "docs" / "clauses" / "1.toml").write_text(pins)
    commit_all(tree)
    (tree / "fares.py").write_text(FARES.replace("begun(km)", "begun(ride.km)"))
    assert main([], tree) == 0
    assert read_changes(tree)["1.1"] == ("fares.py", "(ride.km) * 2", "(9) * 2")


def test_a_line_that_occurs_twice_is_left_and_reported(tree, capsys):
    (tree / "fares.py").unlink()
    for name in ("taxi.py", "train.py"):
        (tree / name).write_text(FARES)
    assert main(["--base", "HEAD"], tree) == 1
    assert (tree / "docs" / "clauses" / "1.toml").read_text() == PINS
    assert "2.1: more than one place" in capsys.readouterr().err


def test_a_line_that_is_gone_is_left_and_reported(tree, capsys):
    (tree / "fares.py").write_text(FARES.split("\n\ndef tip")[0])
    assert main([], tree) == 1
    assert "2.1: nothing is similar to: 0.2 if generous else 0.1" in capsys.readouterr().err
    assert read_changes(tree)["1.1"][0] == "fares.py"


def test_a_name_that_no_longer_exists_is_left_and_reported(tree, capsys):
    pins = PINS.replace("new = 'if km < 2:'", "new = 'if km < TODAY:'")
    (tree / "docs" / "clauses" / "1.toml").write_text(pins)
    (tree / "fares.py").write_text(f"{FARES}\n\nTODAY = 5\n")
    commit_all(tree)
    (tree / "fares.py").write_text(FARES.replace("km", "distance"))
    assert main([], tree) == 1
    assert "1.1: no present name for TODAY" in capsys.readouterr().err

"""`signals import` reports what it read, and writes only what is free of doubt."""

import sys
from pathlib import Path

import pytest

from schemas.version import describe_install
from tests.compute.conftest import RunSignals
from tests.compute.conftest import signals as signals
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("sources")

START = 1_717_372_800
HEADER = "time,open,high,low,close,volume\n"
ROWS = "".join(f"{START + 3600 * n},{n + 100},{n + 102},{n + 99},{n + 101},5\n" for n in range(9))


def test_a_file_is_reported_and_written_and_a_dry_run_writes_nothing(tmp_path: Path):
    (tmp_path / "BTCUSDT-1h.csv").write_text(HEADER + ROWS)
    given = "import", str(tmp_path / "BTCUSDT-1h.csv"), "--to", str(tmp_path / "bars")
    dry = run_signals(tmp_path, *given, "--dry-run")
    assert (dry.returncode, (tmp_path / "bars").exists()) == (0, False)
    done = run_signals(tmp_path, *given)
    assert done.stdout == dry.stdout
    assert done.stdout.splitlines() == [
        "BTCUSDT-1h.csv: BTC 1h, 9 rows 3600 s apart, 2024-06-03T00:00Z to 2024-06-03T08:00Z, "
        "times in UTC",
        "BTC_1h.csv: 9 bars, 2024-06-03T00:00Z to 2024-06-03T08:00Z, 0 missing",
    ]
    text = (tmp_path / "bars" / "BTC_1h.csv").read_text()
    assert text.splitlines()[:2] == [
        "ts,open,high,low,close,volume",
        f"{START},100.0,102.0,99.0,101.0,5.0",
    ]
    assert [path.name for path in (tmp_path / "bars").iterdir()] == ["BTC_1h.csv"]


def test_one_doubtful_file_of_a_folder_keeps_all_from_being_written(
    signals: RunSignals, tmp_path: Path
):
    files = tmp_path / "files"
    files.mkdir()
    (files / "BTC.csv").write_text(HEADER + ROWS)
    (files / "ETH.csv").write_text(HEADER + ROWS + ROWS.replace(",101,", ",100.5,", 1))
    ran = signals("import", str(files), "--to", str(tmp_path / "bars"))
    assert (ran.status, (tmp_path / "bars").exists()) == (1, False)
    assert "doubtful: " in ran.out
    assert ran.err == "Nothing is written: 1 doubtful.\n"
    ran = signals("import", str(files), "--to", str(tmp_path / "bars"), "--repeated", "first")
    assert ran.status == 0
    assert len([*(tmp_path / "bars").iterdir()]) == 2


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["--zone", "Mars/Base"], "'Mars/Base' is no time zone"),
        (["--columns", "time"], "'time' is not of the form time=Date"),
        (["--columns", "shut=Close"], "--columns has no 'shut'; it names time,"),
        (["--split", "2024-06-10"], "'2024-06-10' is not of the form 2024-06-10:10"),
        (["--split", "10-06-2024:10"], "'10-06-2024' is not a day"),
        (["--split", "2024-06-10:0"], "'0' is not a number of new shares"),
        (["--accept-jump", "June"], "'June' is not a day"),
    ],
)
def test_an_option_that_means_nothing_is_named(
    signals: RunSignals, tmp_path: Path, given: list[str], fault: str
):
    ran = signals("import", "BTC.csv", "--to", str(tmp_path / "bars"), *given)
    assert (ran.status, ran.out) == (1, "")
    assert fault in ran.err


def test_a_missing_extra_is_named_with_how_to_install_it(
    signals: RunSignals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("compute.sources.bar_formats", "compute.sources.bar_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "polars", None)
    ran = signals("import", "BTC.csv", "--to", str(tmp_path / "bars"))
    assert ran.status == 1
    assert f"(polars is missing): {describe_install('import')}" in ran.err

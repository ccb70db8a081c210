"""Policy files are read as tlog-policy says, and a mistake is named with its line."""

from pathlib import Path

import pytest

from compute.signing.notes import Vkey
from compute.signing.witnesses import PolicyError, Witness, load_witnesses

pytestmark = pytest.mark.clause("proof")

LOG = Vkey("signals.example/api/v1/log", 1, bytes(32)).format()
ONE, TWO = (Vkey(f"w{n}.example", 4, bytes([n]) * 32) for n in (1, 2))
POST_QUANTUM = Vkey("w3.example", 6, bytes(1312))
POLICY = f"""
# Witnesses of the log.
log {LOG}

witness one {ONE.format()} https://w1.example/sub/
\twitness two\t{TWO.format()} http://127.0.0.1:9000
witness three {POST_QUANTUM.format()} https://w3.example
witness offline {Vkey("w4.example", 4, bytes([4]) * 32).format()}
group both 2 one two
quorum both
"""


def load(tmp_path: Path, text: str) -> list[Witness]:
    path = tmp_path / "policy.txt"
    path.write_text(text)
    return load_witnesses(path)


def test_the_witnesses_with_an_address_are_read(tmp_path: Path) -> None:
    assert load(tmp_path, POLICY) == [
        Witness("one", ONE, "https://w1.example/sub"),
        Witness("two", TWO, "http://127.0.0.1:9000"),
        Witness("three", POST_QUANTUM, "https://w3.example"),
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("witnesses a b", "line 1: 'witnesses' is none of log, witness, group, quorum"),
        ("witness a", "line 1: expected witness NAME VKEY [URL]"),
        ("witness a b https://w.example", "line 1: expected a verifier key: NAME+ID+KEY"),
        (f"witness a {LOG} https://w.example", "line 1: the key is not one for cosignatures"),
        (f"witness a {ONE.format()} w.example", "line 1: expected an http(s):// address"),
        (f"witness a {ONE.format()} https://w.example?a", "line 1: expected an http(s):// address"),
        (f"witness a {ONE.format()}\nwitness b {ONE.format()}", "line 2: this key is there twice"),
        (f"witness a {ONE.format()}\nquorum a", "no witness has an address"),
        ("", "no witness has an address; expected lines such as witness NAME VKEY https://"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, line)
    assert fault in str(caught.value)
    assert str(tmp_path / "policy.txt") in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read the witness policy"):
        load_witnesses(tmp_path / "lost.txt")

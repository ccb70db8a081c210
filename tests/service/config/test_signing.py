"""The signer of the log is built as the settings say."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint

from compute.signing.log_signer import load_key
from compute.signing.witnesses import PolicyError
from service.config.settings import Settings
from service.config.sources import build_log_signer, open_log_signer
from store.sqlite.market_store import open_sqlite_market
from tests.doubles.witness import open_witness
from tests.store.sql.test_feed_log import commit_rows
from tests.support.store_homes import open_and_close

pytestmark = [pytest.mark.clause("proof"), pytest.mark.usefixtures("use_single_ca")]


def make_settings(folder: Path, **settings: object) -> Settings:
    url = SecretStr(f"sqlite:///{folder / 'signals.db'}")
    return Settings.model_validate({"database_url": url, **settings})


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "/data/signals.db-log-key.json"),
        ({"database_url": "postgresql://u:p@db/s"}, "signals-log-key.json"),
        ({"log_key_file": "/keys/log.json"}, "/keys/log.json"),
    ],
)
def test_the_key_file_lies_beside_the_store_unless_it_is_named(
    settings: dict[str, str], path: str
) -> None:
    assert make_settings(Path("/data"), **settings).log_key_path == Path(path)


@pytest.mark.parametrize(
    ("settings", "origin"),
    [
        ({}, "127.0.0.1:8000/api/v1/log"),
        ({"base_url": "https://signals.example/below/"}, "signals.example/below/api/v1/log"),
        ({"host": "::1", "port": 9}, "[::1]:9/api/v1/log"),
    ],
)
def test_the_origin_is_the_address_of_the_log_without_a_scheme(
    settings: dict[str, object], origin: str
) -> None:
    assert make_settings(Path("/data"), **settings).log_origin == origin


async def test_a_new_key_keeps_the_origin_of_its_first_start(tmp_path: Path) -> None:
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        for base_url in ("https://one.example", "https://two.example"):
            settings = make_settings(tmp_path, base_url=base_url)
            await build_log_signer(settings, market).sign()
            key = load_key(settings.log_key_path)
            assert key is not None
            assert key.origin == "one.example/api/v1/log"


async def test_the_witnesses_of_the_policy_are_asked(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, witness_policy=tmp_path / "policy")
    outcomes: list[str] = []
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        await build_log_signer(settings, market).sign()
        vkey = (await market.feed_log.checkpoint()).vkey
        assert vkey is not None
        async with open_witness(vkey) as witness:
            line = f"witness W {witness.vkey.serialize()} {witness.url}\nquorum W\n"
            (tmp_path / "policy").write_text(line)
            async with open_log_signer(settings, market, outcomes.append) as signer:
                await commit_rows(market, 5)
                await signer.sign()
        checkpoint = await market.feed_log.checkpoint()
    assert checkpoint.note is not None
    signed = Checkpoint.from_text(checkpoint.note)
    signed.verify(Vkey.from_string(vkey))
    signed.verify(witness.vkey)
    assert outcomes == ["signed", "cosigned"]


async def test_a_policy_with_a_mistake_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("witness W\n")
    settings = make_settings(tmp_path, witness_policy=tmp_path / "policy")
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        with pytest.raises(PolicyError, match="line 1: expected witness NAME VKEY"):
            async with open_log_signer(settings, market, lambda outcome: None):
                pass

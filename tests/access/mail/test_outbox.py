"""The outbox writes one file per mail, readable only by its owner."""

import asyncio
import resource
import stat
from email import message_from_bytes
from email.policy import SMTPUTF8
from pathlib import Path

import pytest

from access.mail import MailError, Outbox, build_mail
from tests.support.example_market import NOON

pytestmark = pytest.mark.clause("dashboard")

SENDER = "signals@localhost"


def list_mails(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_a_mail_becomes_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    outbox = Outbox(folder, SENDER)
    assert await outbox.check() == f"written to {folder}, not sent"
    assert not folder.exists()
    await outbox.send(build_mail("jörg@example.com", "Sign in", "the link", NOON))
    (file,) = list_mails(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    mail = message_from_bytes(file.read_bytes(), policy=SMTPUTF8)
    assert (mail["From"], mail["To"]) == (SENDER, "jörg@example.com")
    assert mail["Date"] == "Wed, 30 Sep 2026 12:03:00 +0000"
    assert mail.get_content().strip() == "the link"


async def test_files_sort_in_the_order_of_sending(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, SENDER)
    for number in range(12):
        await outbox.send(build_mail("a@example.com", str(number), "text", NOON))
    sent = [message_from_bytes(file.read_bytes()) for file in list_mails(tmp_path)]
    subjects = [mail["Subject"] for mail in sent]
    assert subjects == [str(number) for number in range(12)]


async def test_concurrent_mails_do_not_replace_each_other(tmp_path: Path) -> None:
    boxes = [Outbox(tmp_path, SENDER) for _ in range(4)]
    await asyncio.gather(
        *(box.send(build_mail("a@example.com", "s", "text", NOON)) for box in boxes * 3)
    )
    assert len(list_mails(tmp_path)) == 12


async def test_a_failing_folder_is_named_without_the_recipient(tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("a file")
    outbox = Outbox(tmp_path / "outbox", SENDER)
    with pytest.raises(MailError, match="cannot write to") as failed:
        await outbox.send(build_mail("a@example.com", "s", "text", NOON))
    assert str(tmp_path) in str(failed.value)
    assert "a@example.com" not in str(failed.value)


async def test_a_mail_that_is_written_in_part_is_deleted(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, SENDER)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(MailError, match="cannot write to"):
            await outbox.send(build_mail("a@example.com", "s", "text", NOON))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list_mails(tmp_path) == []

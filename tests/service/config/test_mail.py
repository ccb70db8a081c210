"""How the settings select the mailer of a service."""

import pytest

from access.mail import Outbox, SmtpMailer
from service.config.mail import choose_visible_outbox, open_mailer
from service.config.settings import SettingsError
from tests.service.commands.test_cli import only_line, write_bars
from tests.service.config.test_billing import read
from tests.support.signals_command import find_free_port, run_signals, start_signals

pytestmark = pytest.mark.clause("dashboard")

SMTP = {"smtp_url": "smtp://127.0.0.1:9", "mail_from": "keys@mail.example"}


@pytest.mark.parametrize(
    ("given", "kind"), [({}, Outbox), ({"mail_from": "me@example.com"}, Outbox), (SMTP, SmtpMailer)]
)
def test_the_settings_select_the_mailer(given: dict[str, str], kind: type) -> None:
    assert type(open_mailer(read(**given))) is kind


def test_pages_name_the_outbox_only_on_a_local_service() -> None:
    outbox = choose_visible_outbox(read(database_url="sqlite:////data/signals.db"))
    assert str(outbox) == "/data/signals.db-outbox"
    for others in (SMTP, {"host": "0.0.0.0"}, {"base_url": "https://signals.example"}):
        assert choose_visible_outbox(read(**others)) is None


def test_a_mail_server_without_a_sender_is_refused() -> None:
    with pytest.raises(SettingsError, match="SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too"):
        open_mailer(read(smtp_url=SMTP["smtp_url"]))


def test_serve_does_not_start_without_a_sender(tmp_path) -> None:
    given = {"smtp_url": SMTP["smtp_url"], "port": find_free_port()}
    done = run_signals(tmp_path, "serve", **given, source=f"files:{write_bars(tmp_path / 'bars')}")
    assert done.returncode == 1
    assert "SIGNALS_MAIL_FROM" in only_line(done.stderr)


def test_the_start_message_names_the_outbox(tmp_path) -> None:
    bars = f"files:{write_bars(tmp_path / 'bars')}"
    with start_signals(tmp_path, "serve", port=find_free_port(), source=bars) as process:
        assert (
            process.wait_for_line("Mail: ") == f"Mail: written to {tmp_path}/signals.db-outbox.\n"
        )
        process.wait_for_line("--header")
        assert process.stop() == 0

"""Notices for the operator are kept, counted, and never in the way of a call."""

from email.message import EmailMessage

import pytest

from access.mail import MailError
from schemas.errors import ApiError
from service.http.notices import (
    MAIL_NOTICE,
    PAUSE_MS,
    WEBHOOK_NOTICE,
    NoticeKeeper,
    WatchedMailer,
    watch_webhooks,
)
from store.access_rows import Notice
from tests.support.running_service import ManualClock
from tests.support.store_homes import StoreHome, open_and_close

pytestmark = pytest.mark.clause("monitoring")


class FullMailbox:
    """A mailer whose server delays the first mail, and refuses all later ones."""

    has_delayed = False

    async def send(self, mail: EmailMessage) -> None:
        if not self.has_delayed:
            self.has_delayed = True
            raise MailError("the server answered 451", is_temporary=True)
        raise MailError("the server answered 552")

    async def check(self) -> str:
        return "ok"


async def test_a_failed_mail_is_counted_kept_and_still_fails(home: StoreHome) -> None:
    async with open_and_close(home.open_access()) as access:
        clock, outcomes = ManualClock(), list[str]()
        mailer = WatchedMailer(FullMailbox(), NoticeKeeper(access, clock), outcomes.append)
        with pytest.raises(MailError):
            await mailer.send(EmailMessage())
        assert (outcomes, await access.list_notices()) == (["delayed"], [])
        for _ in range(2):
            with pytest.raises(MailError):
                await mailer.send(EmailMessage())
        assert outcomes == ["delayed", "failed", "failed"]
        assert await access.list_notices() == [
            Notice(MAIL_NOTICE, "the server answered 552", clock())
        ]


async def test_a_refused_webhook_is_kept_once_a_minute_and_an_outage_is_only_counted(
    home: StoreHome,
) -> None:
    answers: list[ApiError | None] = [
        ApiError("invalid_parameter", "the signature is invalid", 400),
        ApiError("invalid_parameter", "another reason", 400),
        ApiError("unavailable", "the processor is away", 503),
        None,
    ]

    async def handle(payload: bytes, signature: str | None) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    async with open_and_close(home.open_access()) as access:
        clock, outcomes = ManualClock(), list[str]()
        watched = watch_webhooks(handle, NoticeKeeper(access, clock), outcomes.append)
        first_at = clock()
        for _ in range(3):
            with pytest.raises(ApiError):
                await watched(b"{}", None)
        await watched(b"{}", "v1")
        assert outcomes == ["invalid_parameter", "invalid_parameter", "unavailable", "ok"]
        assert await access.list_notices() == [
            Notice(WEBHOOK_NOTICE, "the signature is invalid", first_at)
        ]
        clock.now += PAUSE_MS
        answers.append(ApiError("invalid_parameter", "later", 400))
        with pytest.raises(ApiError):
            await watched(b"{}", None)
        assert [notice.detail for notice in await access.list_notices()] == ["later"]

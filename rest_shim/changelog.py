"""What has changed for clients, newest first; the first two days are SPEC.md's."""

from datetime import date

from schemas.manifest import ChangelogEntry

CHANGELOG = (
    ChangelogEntry(
        date=date(2026, 11, 21),
        additive=True,
        changes=[
            "First release of the open implementation.",
            "Every read has a top-level meta: what it rests on, how fresh it is, whether it "
            "is simulated.",
            "Every refusal, 404 and 405 included, has the one Error body, and docs on it.",
            "Added GET /legal; /api/v1/ answers as /api/v1.",
            "created_at is unique and grows in the order of writing, so polling with since neither "
            "loses nor repeats a row.",
            "Keys are bought over the purchase routes, and a key's calls are counted by UTC day.",
            "_meta of MCP results tells what HTTP tells in status and headers: signals/error, "
            "signals/status, signals/retry_after_seconds, signals/quota.",
            "tier=alerts and tier=all serve the actions of the alert engines.",
            "/state takes view=board, all readings as a compact letter matrix, and as_of, the "
            "board as it was served at a past time; /confluence takes as_of too.",
            "/signals takes order=oldest, to read forward from since page by page.",
            "/catalog takes ticker; meta of catalog and usage has nothing_new_before.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 9, 27),
        additive=False,
        changes=[
            "One asset left coverage: its readings had stopped, its coin goes on under a ticker "
            "that was covered already. /state keeps the last readings it held.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 9, 25),
        additive=True,
        changes=[
            "Added GET /api/v1/flips and its MCP tool.",
            "Universe rows carry change_type.",
            "Checkout, claim and usage answers carry mode.",
            "The catalog tells indicator status and appears_in, indicator_statuses, "
            "legacy_indicator_keys, state_indicators and state_readings of the universe tier, and "
            "coverage by asset.",
            "Documented perpkit in /state and /confluence, the timing of publication, the cooldown "
            "of alerts and what CLOSE means.",
        ],
    ),
)

"""Changes of the API that affect clients, newest first. The manifest returns them.

It has the entries of the contract. Nothing is released yet, so no client has seen another change.
"""

from datetime import date

from schemas.manifest import ChangelogEntry

CHANGELOG = (
    ChangelogEntry(
        date=date(2026, 9, 27),
        additive=False,  # an asset was removed
        changes=[
            "One asset was removed from coverage because its readings had stopped updating; its "
            "coin continues under a ticker that was already covered. /state still has the last "
            "readings of the removed asset.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 9, 25),
        additive=True,
        changes=[
            "Added GET /api/v1/flips and its MCP tool.",
            "Added change_type to universe rows.",
            "Added mode to checkout, claim and usage responses.",
            "Extended the catalog: indicator status and appears_in, indicator_statuses, "
            "legacy_indicator_keys, state_indicators and state_readings of the universe tier, and "
            "coverage by asset.",
            "Documented perpkit in /state and /confluence, the timing of publication, the cooldown "
            "of alerts and the meaning of CLOSE.",
        ],
    ),
)

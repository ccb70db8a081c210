"""Changes that affect clients, newest first. The manifest returns them."""

from datetime import date

from schemas.manifest import ChangelogEntry

CHANGELOG = (
    ChangelogEntry(
        date=date(2026, 11, 26),
        additive=False,  # pages without rows became shorter, and scores are rounded
        changes=[
            "Added the log of the feed: a signed checkpoint, tiles and the verifier key at "
            "/api/v1/log, and for keys the proof of a row and the salts of leaves. log of the "
            "manifest names them.",
            "Over MCP, null for an argument means that it is left out, and a string of digits is "
            "accepted for an integer.",
            "The first ten calls of a key in a minute that are refused with 400 do not count "
            "against its quota.",
            "The message about an unknown ticker explains former, colloquial and foreign names, "
            "and names every suggested asset.",
            "/state and /confluence accept detail=changes: since when each reading holds, the "
            "price then, the change since in percent, and each asset's last bar.",
            "meta of every result has now, the server's time when it sent the result.",
            "/signals and /flips accept several comma-separated tickers, and asset_class.",
            "/catalog accepts view=tickers: the ticker, name and class of every asset.",
            "A page of /signals without rows has only the fields of meta that say when to call "
            "again, and at most 450 characters. cooldown and close come with tier alerts or all.",
            "score of confluence is rounded to four digits. The note on simulated data is shorter.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 11, 23),
        additive=False,  # agree and two errors changed
        changes=[
            "agree of confluence, min_agree and the ranking count current indicators only; dexter "
            "stays in votes and total_reporting.",
            "Candles of stocks end at full UTC hours, so their changes come 3 to 5 minutes after "
            "each close. Sunday's hours of metals belong to Monday's daily candle.",
            "meta has ended_assets, and that of state last_bars. meta.note gives the true reason "
            "of an empty result, and nothing_new_before is null if nothing more can come.",
            "meta has missing_bars, which counts by ticker the bars that a source never delivered.",
            "meta.building_assets names assets whose history is still being built; "
            "nothing_new_before is null meanwhile.",
            "Programs can connect by URL at /mcp, with OAuth. /api/v1/mcp serves revision "
            "2026-07-28 of MCP beside the older ones.",
            "A valid key in one header counts whatever the other carries, except another key.",
            "Published response schemas accept added fields.",
            "since and as_of accept a date, which means 00:00Z of that day.",
            "One error names every bad argument, with values quoted as JSON.",
            "A JSON-RPC response that is posted to the MCP endpoint gets 202.",
            "A claim_token of another form than checkout returns gets 400, and an e-mail address "
            "whose domain has no dot gets 400.",
            "With billing off, how_to_buy of the manifest is null, and errors have no "
            "how_to_get_access.",
        ],
    ),
    ChangelogEntry(
        date=date(2026, 11, 21),
        additive=True,
        changes=[
            "First release of the open implementation.",
            "Every read has a top-level meta with the source and age of its data, and whether they "
            "are simulated.",
            "Every error, including 404 and 405, has the same Error body, with docs in it.",
            "Added GET /legal; /api/v1/ is served like /api/v1.",
            "created_at is unique and grows in the order of writing, so polling with since neither "
            "loses nor repeats a row.",
            "Keys are sold through the purchase endpoints unless billing is off. Calls are counted "
            "per key and UTC day.",
            "_meta of MCP results repeats the HTTP status and headers: signals/error, "
            "signals/status, signals/retry_after_seconds, signals/quota.",
            "tier=alerts and tier=all return the actions of the alert engines.",
            "/state accepts view=board, all readings as a compact letter matrix, and as_of, the "
            "readings as served at a past time; /confluence accepts as_of too.",
            "/signals accepts order=oldest, to read forward from since page by page.",
            "/catalog accepts ticker; meta of catalog and usage has nothing_new_before.",
        ],
    ),
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

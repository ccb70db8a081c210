"""Examples of commands, which `--help` and docs/commands.md show."""

from collections.abc import Mapping, Sequence
from typing import Final

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "signals": (
        "signals serve",
        "signals keys create --label me",
        "signals state BTC ETH",
        "signals feed --follow",
    ),
    "signals serve": ("signals serve", "signals serve --workers 2"),
    "signals compute": ("signals compute", "signals compute --believe-clock"),
    "signals prune": ("signals prune",),
    "signals replay": ("signals replay --bars recorded --until 2026-09-30T00:00:00Z",),
    "signals audit": ("signals audit",),
    "signals backup": ("signals backup /var/backups/signals",),
    "signals restore": ("signals restore /var/backups/signals",),
    "signals migrate": (
        "signals migrate --from sqlite:///signals.db --to postgresql://signals@localhost/signals",
    ),
    "signals doctor": ("signals doctor", "signals doctor --universe"),
    "signals connect": (
        "signals connect",
        "signals connect cursor --url https://signals.example",
    ),
    "signals stdio": ("signals stdio --url https://signals.example",),
    "signals verify": (
        "signals verify --url https://signals.example",
        "signals verify --answers --since 2026-09-01T00:00:00Z",
        "signals verify --rows answers.jsonl --policy witnesses.txt",
    ),
    "signals state": (
        "signals state BTC ETH --timeframe 1d",
        "signals state --asset-class metal --direction bullish",
        "signals state NVDA --as-of 2026-09-30T12:00:00Z --json",
    ),
    "signals board": (
        "signals board",
        "signals board --asset-class crypto --timeframe 1d --csv > board.csv",
    ),
    "signals feed": (
        "signals feed --ticker BTC --limit 10",
        "signals feed --tier alerts --since 2026-09-30T00:00:00Z --csv",
        "signals feed --follow --timeframe 1d",
        "signals feed --follow --exec 'jq -r .ticker >> changed' --cursor feed.cursor",
        "signals feed --follow --post https://example.com/hook --cursor feed.cursor",
    ),
    "signals flips": ("signals flips", "signals flips --timeframe 4h --hours 24"),
    "signals confluence": (
        "signals confluence",
        "signals confluence --timeframe 1d --direction bearish --min-agree 5",
    ),
    "signals usage": ("signals usage", "signals usage --url https://signals.example"),
    "signals keys create": (
        "signals keys create --label me",
        "signals keys create --label trial --expires 30",
    ),
    "signals keys revoke": ("signals keys revoke 3",),
    "signals keys rotate": ("signals keys rotate 3 --overlap 48",),
    "signals keys requests": ("signals keys requests 3",),
    "signals completion": (
        'eval "$(signals completion bash)"',
        "signals completion zsh > ~/.zfunc/_signals",
        "signals completion fish > ~/.config/fish/completions/signals.fish",
    ),
}

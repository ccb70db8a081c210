-- late: a bit for each timeframe whose due candle was not stepped; market_0010.sql explains it.

ALTER TABLE watermarks RENAME COLUMN is_late TO late;
ALTER TABLE watermarks DROP CONSTRAINT watermarks_is_late_check;
ALTER TABLE watermarks ADD CONSTRAINT watermarks_late_check CHECK (late BETWEEN 0 AND 7);

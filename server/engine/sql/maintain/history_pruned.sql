-- Records which types' jobs were deleted from a day's history, and deletes the records of dropped days. $1 day $2 types $3 keep
WITH forgotten AS (
    DELETE FROM howdah.history_pruned
    WHERE day <> $1::text::date AND to_regclass('howdah.' || to_char(day, '"history_"YYYYMMDD')) IS NULL
)
INSERT INTO howdah.history_pruned (day, types, keep) VALUES ($1::text::date, $2::integer[], $3::boolean)
ON CONFLICT (day) DO UPDATE SET types = excluded.types, keep = excluded.keep

-- Adds the results of a transaction to the counts of its bulk operation, in the same transaction. $1 id $2 changed $3 skipped
-- $4 failed $5 why (empty: unchanged)
UPDATE howdah.bulk SET done = done + $2::bigint, round_done = round_done + $2, skipped = skipped + $3::bigint,
    failed = failed + $4::bigint, problem = coalesce(nullif($5::text, ''), problem), updated = now()
WHERE id = $1::bigint

-- Pauses, continues or cancels a bulk operation. $1 id $2 its new state $3 only in these states
UPDATE howdah.bulk SET state = $2::text, owner = NULL, updated = now(), next_at = now(),
    ended = CASE WHEN $2 = 'cancelled' THEN now() END
WHERE id = $1::bigint AND state = ANY ($3::text[])
RETURNING id

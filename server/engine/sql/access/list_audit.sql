-- Returns a page of the audit, the newest first, along the index of each partition. ORDER BY names the column a.time, and not
-- the returned number with the same name, because only the column is in the index.
-- $1 from this time on $2 before this time (both µs after 1970, or null) $3, $4 after the row of this time and id $5 principal
-- $6 method $7 one of the ids (all may be null) $8 rows at most $9 one of the types (may be null)
SELECT id, (extract(epoch FROM time) * 1e6)::bigint AS time, principal, broker, peer, method, types, count, ids, reason, changes
FROM howdah.audit a
WHERE time >= coalesce(to_timestamp($1::bigint / 1000000.0), '-infinity')
  AND time < coalesce(to_timestamp($2::bigint / 1000000.0), 'infinity')
  AND (time, id) < (coalesce(to_timestamp($3::bigint / 1000000.0), 'infinity'), coalesce($4::bigint, 0))
  AND ($5::text IS NULL OR principal = $5) AND ($6::text IS NULL OR method = $6) AND ($7::text IS NULL OR $7 = ANY (ids))
  AND ($9::text IS NULL OR $9 = ANY (types))
ORDER BY a.time DESC, a.id DESC LIMIT $8::integer

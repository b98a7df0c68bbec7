-- Pauses a limit key for some ms (negative: until it is resumed), or with null resumes it. $1 type_id $2 key $3 ms
SELECT howdah.pause_limit_key($1::integer, $2::text,
    CASE WHEN $3::bigint < 0 THEN 'infinity' ELSE now() + $3::bigint * interval '1 millisecond' END)

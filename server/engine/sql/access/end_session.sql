-- Records that a session of the web page was ended by a logout, and deletes expired sessions. $1 hash $2 ms until it expires
WITH forgotten AS (DELETE FROM howdah.ended_session WHERE ends < now())
INSERT INTO howdah.ended_session (hash, ends) VALUES ($1::bytea, now() + $2::bigint * interval '1 millisecond')
ON CONFLICT (hash) DO NOTHING

-- One step of what follows from changed limits; see howdah.follow_limits. $1 keys and jobs at most
SELECT howdah.follow_limits($1::integer) AS next_in_us

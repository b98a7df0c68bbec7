-- Records that an archive run of a day has failed, and lets the next run begin. $1 day $2 run $3 why
UPDATE howdah.archive SET held_until = NULL, held_by = NULL, error = left($3, 1000) WHERE day = $1::text::date AND run = $2

-- The limits of a type have changed, in this transaction; see howdah.limits_changed. $1 type_id
SELECT howdah.limits_changed($1::integer)

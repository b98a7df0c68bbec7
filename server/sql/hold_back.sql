-- Jobs with limit keys whose leases have ended other than by an ack, after settle_nack.sql and after_end.sql and in their
-- transaction: null if gates are to be looked at, and those that are ready again and have to wait; see howdah.hold_back. $1 id[] $2 type_id[] $3 options[] $4 leased_at[]
SELECT howdah.hold_back($1::bigint[], $2::integer[], $3::jsonb[], $4::timestamptz[]) AS id

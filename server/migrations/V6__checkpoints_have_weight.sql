-- A checkpoint (sql/report_progress.sql) is sent with its job, so it counts wherever the payload does: in
-- windows, in what a claim may take, in messages. In base64, as it is stored. Bounded like payload_bytes,
-- whatever somebody wrote into options. Most jobs have no options: for them nothing more is looked at.
CREATE OR REPLACE FUNCTION howdah.payload_size(payload bytea, options jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN options IS NULL THEN octet_length(payload)
                ELSE CASE WHEN jsonb_typeof(options -> 'payload_bytes') = 'number'
                          THEN least(greatest((options -> 'payload_bytes')::numeric, 0), 1073741824)::integer
                          ELSE octet_length(payload) END
                     + least(coalesce(octet_length(options ->> 'checkpoint'), 0), 1048576) END
$$;

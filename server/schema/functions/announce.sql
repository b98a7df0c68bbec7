-- A NOTIFY holds a lock of the whole cluster until its transaction is on disk, so if each transaction had one, they
-- would commit one by one. Therefore one connection in 20 ms announces a type for all; brokers that hear it (`e`) check the
-- type again a bit later, for the connections that kept silent. Only a transaction that is younger than 80 ms may keep
-- silent, and only for jobs that do not go before those that were announced: all others announce exactly their jobs. The
-- sweep finds what is missed all the same. Sequences say which connection announced a type last, and when: their values are
-- visible at once, and nobody waits for them.

-- These four are short, since in a transaction of one insert each operator counts, and independent of the caller's
-- search_path. The first names the schema of each operator. The others have bodies of the SQL standard, which are bound to
-- what they call now; the first cannot have one, since pg_dump would write it before the sequences that it names.
-- The sequence of a type; others may share it, which costs a notification more.
CREATE OR REPLACE FUNCTION howdah.announcement_sequence(of_type integer) RETURNS regclass LANGUAGE sql STABLE AS $$
    SELECT ('{howdah.announced_0,howdah.announced_1,howdah.announced_2,howdah.announced_3,howdah.announced_4,howdah.announced_5,howdah.announced_6,howdah.announced_7}'::pg_catalog.regclass[])
        [(of_type OPERATOR(pg_catalog.&) 7) OPERATOR(pg_catalog.+) 1]
$$;

-- What is in it: from bit 42 in which 20 ms the transaction began (20 bits, 6 hours), from bit 22 the type, below it the pid.
CREATE OR REPLACE FUNCTION howdah.announcement_mark(of_type integer, began_us bigint) RETURNS bigint LANGUAGE sql STABLE
    RETURN ((began_us / 20000 & 1048575) << 42) # (of_type::bigint << 22) # pg_backend_pid();

CREATE OR REPLACE FUNCTION howdah.rank_now() RETURNS bigint LANGUAGE sql STABLE RETURN (date_part('epoch', now()) * 1000000)::bigint;

-- Whether the brokers must be told that a job of this type became ready in this transaction, which began then: unless
-- another connection does that just now, of the same type and at most 20 ms before or 40 ms after; then in the
-- difference of the two marks the bits of the types are 0 (those of the pids are not: 1 less borrows nothing). What this
-- connection said itself may have been rolled back, or was heard long ago.
CREATE OR REPLACE FUNCTION howdah.needs_announcement(of_type integer, began_us bigint) RETURNS boolean LANGUAGE sql VOLATILE
    RETURN now() < clock_timestamp() - interval '80 ms'
        OR ((pg_sequence_last_value(howdah.announcement_sequence(of_type)) # pg_backend_pid() # (of_type::bigint << 22))
            - ((began_us / 20000 & 1048575) << 42) + 4398046511103 & -13194143727616) IS DISTINCT FROM 0;

-- Tells the brokers, unless another connection does. Returns nothing.
CREATE OR REPLACE FUNCTION howdah.announce(of_type integer, lowest_rank bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint - 100000;
BEGIN
    IF lowest_rank < since THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'r ' || of_type || ':' || lowest_rank);
    ELSIF howdah.needs_announcement(of_type, howdah.rank_now()) THEN
        PERFORM setval(howdah.announcement_sequence(of_type), howdah.announcement_mark(of_type, howdah.rank_now()));
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 'e ' || of_type || ':' || since);
    END IF;
    RETURN NULL;
END $$;

-- Tells the brokers what a function of the schema did. Brokers find what comes due in more than a second without it.
CREATE OR REPLACE FUNCTION howdah.send_wakeup(w howdah.wakeup) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF w.kind = 'ready' THEN
        PERFORM howdah.announce(w.type_id, w.rank);
    ELSIF w.kind = 'limit' OR w.kind IN ('scheduled', 'limit_later') AND w.in_us < 1000000 THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', 's');
    END IF;
END $$;

-- A job of a type with a limit has ended: another one may begin.
CREATE OR REPLACE FUNCTION howdah.wake_limited_type(of_type integer) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(rtrim('howdah.', '.') || '_wake', 'r ' || of_type || ':9223372036854775807')
$$;

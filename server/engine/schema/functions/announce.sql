-- Announces ready jobs from SQL functions. NOTIFY locks the whole database cluster until the commit is on disk, so transactions
-- that all notify would commit one by one. Therefore only one connection in 20 ms announces a task type, with the message `e`.
-- Brokers that receive `e` check the type again shortly afterwards, and find the jobs of connections that sent no message. A
-- transaction may omit its message only while it is younger than 80 ms, and only for jobs that rank after the announced ones.
-- Jobs with older ranks are announced by their rank, with the message `r`. The sweep, a regular poll of the brokers, finds jobs
-- that were still missed. Sequences record which connection last announced a type, and when, because their values are visible
-- before commit, and no transaction waits for them.

-- announcement_sequence, announcement_mark, rank_now and needs_announcement are short, because each operator adds time to a
-- transaction of one insert. They do not depend on the caller's search_path: announcement_sequence names the schema of each
-- operator, and the others have SQL-standard bodies, which Postgres resolves at creation. announcement_sequence cannot have
-- such a body, because pg_dump would write it before its sequences.
--
-- Returns the sequence that records the last announcement of a task type. Types may share a sequence, which costs additional
-- notifications.
CREATE OR REPLACE FUNCTION howdah.announcement_sequence(of_type integer) RETURNS regclass LANGUAGE sql STABLE AS $$
    SELECT ('{howdah.announced_0,howdah.announced_1,howdah.announced_2,howdah.announced_3,howdah.announced_4,howdah.announced_5,howdah.announced_6,howdah.announced_7}'::pg_catalog.regclass[])
        [(of_type OPERATOR(pg_catalog.&) 7) OPERATOR(pg_catalog.+) 1]
$$;

-- Returns the value that the sequence stores for an announcement. Bits 42 to 61: the 20 ms slot in which the transaction began
-- (repeats after 6 hours). From bit 22 on: the type id. Below: the pid of the session.
CREATE OR REPLACE FUNCTION howdah.announcement_mark(of_type integer, began_us bigint) RETURNS bigint LANGUAGE sql STABLE
    RETURN ((began_us / 20000 & 1048575) << 42) # (of_type::bigint << 22) # pg_backend_pid();

CREATE OR REPLACE FUNCTION howdah.rank_now() RETURNS bigint LANGUAGE sql STABLE RETURN (date_part('epoch', now()) * 1000000)::bigint;

-- Returns whether brokers must be notified that a job of this type became ready in this transaction, which began at began_us.
-- No notification is needed if another connection announced the same type at most 20 ms before or 40 ms after. The stored
-- value, XOR the pid and type of this transaction, then has type bits of 0 and pid bits that are not 0, so subtracting 1
-- borrows nothing from the type bits. An earlier announcement of this connection does not count: its transaction may have been
-- rolled back, or brokers received it long ago.
CREATE OR REPLACE FUNCTION howdah.needs_announcement(of_type integer, began_us bigint) RETURNS boolean LANGUAGE sql VOLATILE
    RETURN now() < clock_timestamp() - interval '80 ms'
        OR ((pg_sequence_last_value(howdah.announcement_sequence(of_type)) # pg_backend_pid() # (of_type::bigint << 22))
            - ((began_us / 20000 & 1048575) << 42) + 4398046511103 & -13194143727616) IS DISTINCT FROM 0;

-- Returns whether this transaction may notify. Sessions that use PREPARE TRANSACTION turn notifications off by the setting
-- howdah\x2enotify (\x2e is a dot), because Postgres cannot prepare a transaction that notified. The dot is escaped, because
-- the prefix of the schema is replaced in this file.
CREATE OR REPLACE FUNCTION howdah.may_notify() RETURNS boolean LANGUAGE sql STABLE
    RETURN coalesce(lower(current_setting(E'howdah\x2enotify', true)), '') NOT IN ('off', 'false', 'no', '0');

-- Sends a message to the brokers. The message only saves time: brokers that receive none find the jobs within the poll interval
-- and a second. No message is sent while the queue of notifications, which all databases of the server share, is nearly full.
-- If the queue is full, Postgres fails the whole transaction at its commit (54000), where no function can catch the error.
CREATE OR REPLACE FUNCTION howdah.notify(message text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF howdah.may_notify() AND pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify(rtrim('howdah.', '.') || '_wake', message);
    END IF;
END $$;

-- Notifies the brokers of a ready job with this rank, unless another connection has just announced the type. Returns null.
CREATE OR REPLACE FUNCTION howdah.announce(of_type integer, lowest_rank bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint - 100000;
BEGIN
    IF lowest_rank < since THEN
        PERFORM howdah.notify('r ' || of_type || ':' || lowest_rank);
    ELSIF howdah.may_notify() AND howdah.needs_announcement(of_type, howdah.rank_now()) THEN
        PERFORM setval(howdah.announcement_sequence(of_type), howdah.announcement_mark(of_type, howdah.rank_now()));
        PERFORM howdah.notify('e ' || of_type || ':' || since);
    END IF;
    RETURN NULL;
END $$;

-- Sends a wake-up to the brokers. Sends none for jobs and limit keys that are due in more than a second, because brokers find
-- them by polling.
CREATE OR REPLACE FUNCTION howdah.send_wakeup(w howdah.wakeup) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF w.kind = 'ready' THEN
        PERFORM howdah.announce(w.type_id, w.rank);
    ELSIF w.kind = 'limit' OR w.kind IN ('scheduled', 'limit_later') AND w.in_us < 1000000 THEN
        PERFORM howdah.notify('s');
    END IF;
END $$;

-- Notifies the brokers that a job of a type with a limit has ended, so another one may start.
CREATE OR REPLACE FUNCTION howdah.wake_limited_type(of_type integer) RETURNS void LANGUAGE sql AS $$
    SELECT howdah.notify('r ' || of_type || ':9223372036854775807')
$$;

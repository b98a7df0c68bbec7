#!/usr/bin/env bash
# Measures how fast 64 connections enqueue by SQL, one job per transaction, against a plain INSERT into a table of the same shape.
# The variants run in turn in each round, so that other load on the machine affects them alike. The result is the median of each
# variant.
#
#   howdah migrate --database-url URL && bench/sql_enqueue.sh URL [rounds [seconds]]
#
# Use a database that you can throw away, with fsync on. The plain table has the columns and indexes of howdah.ready.
# PROTOCOL=simple (default) lets Postgres parse and plan each statement, as with psql, psycopg2 or node-postgres; PROTOCOL=prepared
# prepares statements once per connection.
set -euo pipefail
url=${1:?the URL of a database with the schema howdah} rounds=${2:-5} seconds=${3:-15} clients=${CLIENTS:-64} protocol=${PROTOCOL:-simple}
pgbench=$(command -v pgbench || echo "$(pg_config --bindir)/pgbench")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

psql -qAt "$url" -v ON_ERROR_STOP=1 <<'SQL'
SET client_min_messages = warning;
DROP TABLE IF EXISTS howdah_yardstick_plain;
CREATE TABLE howdah_yardstick_plain (LIKE howdah.ready INCLUDING ALL);
CREATE SEQUENCE IF NOT EXISTS howdah_yardstick_id;
SELECT howdah.enqueue('bench.sql');
SQL
cat >"$work/insert.sql" <<'SQL'
INSERT INTO howdah_yardstick_plain (id, rank, created, type_id, attempt, max_attempts, priority, payload)
VALUES (nextval('howdah_yardstick_id'), (extract(epoch FROM now()) * 1000000)::bigint, now(), 1, 0, 10, 0, 'ann@example.com');
SQL
cat >"$work/enqueue.sql" <<'SQL'
SELECT howdah.enqueue('bench.sql', 'ann@example.com');
SQL
cat >"$work/notify.sql" <<'SQL'
BEGIN;
INSERT INTO howdah_yardstick_plain (id, rank, created, type_id, attempt, max_attempts, priority, payload)
VALUES (nextval('howdah_yardstick_id'), (extract(epoch FROM now()) * 1000000)::bigint, now(), 1, 0, 10, 0, 'ann@example.com');
NOTIFY howdah_yardstick;
COMMIT;
SQL

run() {
    psql -q "$url" -c CHECKPOINT 2>/dev/null || true
    "$pgbench" -n -M "$protocol" -c "$clients" -j 2 -T "$seconds" -f "$work/$1.sql" "$url" 2>/dev/null | sed -n 's/^tps = \([0-9]*\).*/\1/p'
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for ((round = 1; round <= rounds; round++)); do
    for name in insert enqueue notify; do
        run $name >>"$work/$name.tps"
    done
    echo "round $round: plain insert $(tail -1 "$work/insert.tps"), enqueue $(tail -1 "$work/enqueue.tps")," \
        "insert and NOTIFY in each transaction $(tail -1 "$work/notify.tps") transactions/s"
done
plain=$(median "$work/insert.tps") enqueue=$(median "$work/enqueue.tps")
echo "medians ($protocol protocol): plain insert $plain, enqueue $enqueue: $(awk "BEGIN { printf \"%.2f\", $enqueue / $plain }")"

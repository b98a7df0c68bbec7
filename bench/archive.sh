#!/usr/bin/env bash
# Measures archiving: archives a day of 10 million finished jobs, checks that each job is in the files exactly once, and prints rows
# per second, resident memory and size. Then reads all jobs back with howdah history, from the files alone.
#
#   howdah migrate --database-url URL && bench/archive.sh URL DIRECTORY [jobs]
#
# Use a database that you can throw away, and a DIRECTORY that does not exist; the script deletes this directory at the
# end. HOWDAH names the program, a release build. Needs GNU time, and 1 kB of disk per job. Processor time is howdah's,
# without Postgres.
#
#   howdah serve --database-url URL &    CYCLE=http://127.0.0.1:7432 bench/archive.sh URL DIRECTORY
#
# With CYCLE, the address of a broker of this database, the script only measures howdah bench cycle in three cases in turn:
# alone; while the day is archived repeatedly with the processor share that brokers use (SHARE, 0.05); and while the day is
# archived without a limit. ROUNDS sets the rounds (3), SECONDS_EACH the seconds per case (20). This mode needs jq and an
# otherwise idle machine, and must start before 19:00 UTC.
set -euo pipefail
url=${1:?the URL of a database with the schema howdah} directory=${2:?a directory for the archive} jobs=${3:-10000000}
howdah=${HOWDAH:-howdah} batch=500000
[ ! -e "$directory" ] || { echo "$directory exists" >&2; exit 1; }
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
trap 'rm -rf "$directory"' EXIT
sql() { psql -qAtX "$url" -v ON_ERROR_STOP=1 -c "$1"; }
measured() { # NAME OUTPUT COMMAND...: runs COMMAND and prints its resource usage
    local name=$1 output=$2
    shift 2
    /usr/bin/time -o "$directory/time" -f '%e %U %S %M' "$@" >"$output"
    read -r wall user system resident <"$directory/time"
    awk -v name="$name" -v n="$jobs" -v w="$wall" -v c="$(awk "BEGIN { print $user + $system }")" -v m="$resident" 'BEGIN {
        printf "%s: %.1f s, %.1f s of processor time: %d jobs/s, %d jobs/s a core; %d MB resident\n", name, w, c, n / w, n / c, m / 1024 }'
}
echo "load average: $(cut -d' ' -f1-3 /proc/loadavg)"

ago=3
if [ -n "${CYCLE:-}" ]; then
    # `archive_share` limits archiving only until 20 hours after the end of the archived day. After that the day counts as late
    # and is archived at full speed.
    ago=1
    [ "$((10#$(date -u +%H)))" -lt 19 ] || { echo "run this before 19:00 UTC: after that, yesterday is archived without the share" >&2; exit 1; }
fi
day=$(sql "SELECT (now() AT TIME ZONE 'UTC')::date - $ago")
part=history_${day//-/}
sql "SELECT howdah.make_day_partition('history', 'finished', '$day');
     INSERT INTO howdah.task_type (name) SELECT 'bench.archive-' || t FROM generate_series(1, 20) t" >"$directory/quiet"
types=$(sql "SELECT string_agg(id::text, ',') FROM howdah.task_type WHERE name LIKE 'bench.archive-%'")
for ((from = 1; from <= jobs; from += batch)); do
    to=$((from + batch - 1 < jobs ? from + batch - 1 : jobs))
    sql "INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority, key, payload)
         SELECT g, d + g * step, d + g * step + (hashint8(g) & 1023) * interval '1 ms',
                d + g * step + (hashint8(g) & 65535) * interval '1 ms', ('{$types}'::int[])[1 + abs(hashint8(g) % 20)],
                CASE WHEN g % 100 = 0 THEN 'cancelled' ELSE 'succeeded' END::howdah.job_state, 1, 10, 0,
                CASE WHEN g % 2 = 0 THEN 'order-' || g END,
                convert_to(format('{\"order\": %s, \"customer\": \"%s\", \"express\": %s}', g, md5(g::text), g % 3 = 0), 'UTF8')
         FROM generate_series($from::bigint, $to) g, (SELECT '$day'::timestamp AT TIME ZONE 'UTC' AS d, interval '80000 s' / $jobs AS step) d"
done
sql "VACUUM ANALYZE howdah.$part"
table=$(sql "SELECT pg_table_size('howdah.$part')") all=$(sql "SELECT pg_total_relation_size('howdah.$part')")
echo "$jobs jobs: $((table >> 20)) MiB in the table, $((all >> 20)) MiB with indexes"

cycle() {
    "$howdah" bench cycle --seconds "${SECONDS_EACH:-20}" --server "$CYCLE" --database-url "$url" --json | jq -r 'select(.workload == "cycle") | .jobs_per_s | floor'
}
again() { # SHARE: archives the day repeatedly until the file stop exists
    while [ ! -e "$directory/stop" ]; do
        sql "DELETE FROM howdah.archive; DELETE FROM howdah.archive_file; DELETE FROM howdah.archive_late"
        rm -rf "$directory/archive"
        timeout "${SECONDS_EACH:-20}" "$howdah" archive now --share "$1" --database-url "$url" --url "file://$directory/archive" || true
    done
}
beside() { # SHARE: runs bench cycle while the day is archived
    again "$1" >"$directory/quiet" 2>&1 &
    cycle
    touch "$directory/stop"
    wait
    rm "$directory/stop"
}
if [ -n "${CYCLE:-}" ]; then
    for ((round = 1; round <= ${ROUNDS:-3}; round++)); do
        alone=$(cycle) shared=$(beside "${SHARE:-0.05}") unlimited=$(beside 1)
        awk "BEGIN { printf \"round $round: cycle alone %d jobs/s; beside a share of ${SHARE:-0.05} %d: %.2f; without a limit %d: %.2f\n\",
             $alone, $shared, $shared / $alone, $unlimited, $unlimited / $alone }"
    done
    exit
fi

measured "howdah archive now" "$directory/quiet" "$howdah" archive now --database-url "$url" --url "file://$directory/archive"
bytes=$(sql "SELECT bytes FROM howdah.archive WHERE day = '$day' AND state = 'archived'")
awk "BEGIN { printf \"files: %d MiB, %.1f %% of the table, %.1f %% with indexes\n\", $bytes / 1048576, 100 * $bytes / $table, 100 * $bytes / $all }"
measured "howdah archive verify" "$directory/quiet" "$howdah" archive verify --database-url "$url" --url "file://$directory/archive"

# From here on, the jobs exist only in the files.
sql "SELECT howdah.drop_history_partitions('$day'::date + 1)" >"$directory/quiet"
[ "$(sql "SELECT count(*) FROM howdah.history WHERE type_id = ANY ('{$types}')")" = 0 ] || { echo "the history partition of $day was not dropped" >&2; exit 1; }
measured "howdah history --csv" "$directory/all.csv" "$howdah" history --all --csv --database-url "$url"
found=$(tail -n +2 "$directory/all.csv" | cut -d, -f1 | sort -n -S 512M -T "$directory" |
    awk '{ n++; if ($1 != last) d++; last = $1; if (NR == 1) low = $1 } END { printf "%d %d %d %d", n, d, low, last }')
rm "$directory/all.csv"
[ "$found" = "$jobs $jobs 1 $jobs" ] || { echo "wrong: rows, distinct ids, lowest, highest are $found" >&2; exit 1; }
echo "each of the $jobs jobs is in the files exactly once (ids 1 to $jobs)"
measured "howdah history --payload --parquet" "$directory/quiet" "$howdah" history --all --payload --parquet "$directory/all.parquet" --database-url "$url"
echo "load average: $(cut -d' ' -f1-3 /proc/loadavg)"

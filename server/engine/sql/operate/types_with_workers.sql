-- Returns which of these task types have a worker, as live brokers last reported their workers: it is connected, is not
-- draining, and has a window, which may be 0 while the worker is full. Leaves out the brokers in $2, whose workers the calling
-- process knows from memory. $1 names $2 not of these brokers
SELECT n.name FROM unnest($1::text[]) AS n(name)
WHERE EXISTS (
    SELECT FROM howdah.worker w JOIN howdah.broker b ON b.id = w.broker_id
    WHERE w.task_types @> ARRAY[n.name] AND w.broker_id <> ALL ($2::integer[]) AND b.expires > now()
      AND jsonb_path_exists(w.summary, '$ ? (@.is_connected == true && @.is_draining == false).windows[*] ? (@.task_type == $name)',
                            jsonb_build_object('name', n.name)))

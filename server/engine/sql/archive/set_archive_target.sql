-- Turns the archive on: from now on no broker drops a day partition that is not archived. $1 URL $2 broker
INSERT INTO howdah.archive_target AS t (url, set_by) VALUES ($1, $2)
ON CONFLICT (only_row) DO UPDATE SET url = excluded.url, set_by = excluded.set_by, since = now() WHERE t.url <> excluded.url

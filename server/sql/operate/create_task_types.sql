-- $1 name[], sorted, so that two brokers insert in one order
INSERT INTO howdah.task_type (name) SELECT * FROM unnest($1::text[]) ON CONFLICT (name) DO NOTHING

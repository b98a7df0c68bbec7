-- How many there are; two that are made at once may both be the last.
SELECT count(*), now() FROM howdah.schedule

-- Types whose jobs are not claimed while they move from here or to here, and whether old ids may have new ones. Brokers read it
-- with the settings.
SELECT ARRAY(SELECT type_id FROM howdah.type_move UNION SELECT type_id FROM howdah.type_arrival WHERE rests) AS type_ids,
       EXISTS (SELECT FROM howdah.type_move) OR EXISTS (SELECT FROM howdah.moved) AS has_moved

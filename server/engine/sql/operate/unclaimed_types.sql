-- Returns types that brokers do not claim because they move from or to this store, and whether old job ids may have new ones,
-- because a type moves from this store or jobs have moved. Brokers read this together with the settings.
SELECT ARRAY(SELECT type_id FROM howdah.type_move UNION SELECT type_id FROM howdah.type_arrival WHERE claims_held) AS type_ids,
       EXISTS (SELECT FROM howdah.type_move) OR EXISTS (SELECT FROM howdah.moved) AS has_moved

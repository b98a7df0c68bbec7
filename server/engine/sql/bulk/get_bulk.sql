-- Returns a bulk operation, and the name of the broker that works on it. $1 id
SELECT b.*, (SELECT o.name FROM howdah.broker o WHERE o.id = b.owner AND o.expires > now()) AS broker
FROM howdah.bulk b WHERE b.id = $1::bigint

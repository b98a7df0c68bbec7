-- Roles for clients that speak SQL, with their rights; those that are there now.
SELECT howdah.create_roles() AS name

-- Returns settings before a change, for the audit, and locks nothing. $1 kind $2 name
SELECT howdah.audited_settings($1::text, $2::text)::text AS settings

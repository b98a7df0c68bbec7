-- Credentials, and sessions that were ended before they expire.

-- Access tokens for the gRPC and HTTP ports (server/engine/src/access). A token is shown once, when it is created; only its hash is
-- stored. Rows stay after a token expires or is revoked, so that its id in logs can be looked up. howdah_reader cannot read
-- this table.
CREATE TABLE howdah.token (
    id          text COLLATE "C" PRIMARY KEY,  -- the public part of the token
    hash        bytea NOT NULL,             -- SHA-256 of the whole token: 256 random bits need no slow hash
    principal   text COLLATE "C" NOT NULL,  -- the owner of the token; a principal may have several tokens
    scopes      text[] COLLATE "C" NOT NULL,  -- operation:pattern
    created     timestamptz NOT NULL DEFAULT now(),
    created_by  text COLLATE "C" NOT NULL,  -- the principal that created the token; empty: authentication was off
    expires     timestamptz,                -- null: never
    revoked     timestamptz                 -- null: not revoked
);

-- Sessions of the web page that were ended by a logout before they expired.
CREATE TABLE howdah.ended_session (
    hash  bytea PRIMARY KEY,                -- SHA-256 of the cookie
    ends  timestamptz NOT NULL              -- the session expires then, and the row can be deleted
);

-- JSON Web Tokens that were revoked before they expire (server/src/credentials/jwt).
CREATE TABLE howdah.revoked_jwt (
    name         text COLLATE "C" NOT NULL,  -- jwt:ISSUER:JTI, or jwt:ISSUER:SUBJECT
    of_principal boolean NOT NULL,          -- true: revokes all tokens of the principal that were issued until `revoked`
    revoked      timestamptz NOT NULL DEFAULT now(),
    until        timestamptz NOT NULL,      -- by then every token that the row revokes has expired
    PRIMARY KEY (name, of_principal)
);

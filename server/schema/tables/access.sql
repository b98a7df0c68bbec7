-- Who may call, and what for.

-- Tokens of the gRPC and HTTP ports (server/src/access). A token is shown once, when it is made; its hash is kept. Rows stay
-- after the end of a token, so that its id can be found in logs. howdah_reader does not read this table.
CREATE TABLE howdah.token (
    id          text PRIMARY KEY,           -- the public part of the token
    hash        bytea NOT NULL,             -- SHA-256 of the whole token: 256 random bits need no slow hash
    principal   text NOT NULL,              -- whose token it is; several may be one principal's
    scopes      text[] NOT NULL,            -- operation:pattern
    created     timestamptz NOT NULL DEFAULT now(),
    created_by  text NOT NULL,              -- the principal that made it; empty: nobody in particular
    expires     timestamptz,                -- null: never
    revoked     timestamptz                 -- null: it holds
);

-- JSON Web Tokens that were revoked before they expire (server/src/access/jwt/revoked.rs).
CREATE TABLE howdah.revoked_jwt (
    name         text NOT NULL,             -- jwt:ISSUER:JTI, or jwt:ISSUER:SUBJECT
    of_principal boolean NOT NULL,          -- all tokens of a principal that were issued until it was revoked
    revoked      timestamptz NOT NULL DEFAULT now(),
    until        timestamptz NOT NULL,      -- then nothing that it revokes can hold
    PRIMARY KEY (name, of_principal)
);

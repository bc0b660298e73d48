-- Roles and databases of an empty server; the image runs this once, on its first start.
-- Nobody but its owner may connect to a database, and no role but the superuser owns two kinds.
\getenv temporal_password TEMPORAL_DB_PASSWORD
\getenv owner_password LEDGER_OWNER_PASSWORD
\getenv worker_password LEDGER_WORKER_PASSWORD
\getenv retention_password LEDGER_RETENTION_PASSWORD

CREATE ROLE temporal LOGIN PASSWORD :'temporal_password';
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE CONNECT ON DATABASE temporal, temporal_visibility FROM PUBLIC;

-- Owns the ledger's tables and changes their shape; nothing runs as this role for long.
CREATE ROLE surehand_owner LOGIN PASSWORD :'owner_password';
-- What the workers are. It owns nothing, so row-level security binds it; see grants.sql.
CREATE ROLE surehand_worker LOGIN PASSWORD :'worker_password';
-- What deletes when its time is over (`retention`). It owns nothing, either.
CREATE ROLE surehand_retention LOGIN PASSWORD :'retention_password';
CREATE DATABASE surehand OWNER surehand_owner;
REVOKE CONNECT, TEMPORARY ON DATABASE surehand FROM PUBLIC;
GRANT CONNECT ON DATABASE surehand TO surehand_worker, surehand_retention;

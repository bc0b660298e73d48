-- What the workers may do with the ledger. Run by its owner after each migration, in one
-- transaction, so that a worker that is running never finds a right missing.
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM surehand_worker;
GRANT USAGE ON SCHEMA public TO surehand_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO surehand_worker;
-- No DELETE anywhere: retention leaves a tombstone, purging is another role's.
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO surehand_worker;
-- What happened is added to, never rewritten.
REVOKE UPDATE ON events, steerings FROM surehand_worker;
-- Who may decide and sign is an administrator's to say: a worker that is taken over grants nothing.
REVOKE INSERT, UPDATE ON principals, grants, principal_keys, principal_changes FROM surehand_worker;
-- So is what is approved in advance. Its uses are counted by the workers, and given back, not changed.
REVOKE INSERT, UPDATE ON standing_approvals FROM surehand_worker;
REVOKE UPDATE ON standing_uses FROM surehand_worker;
GRANT UPDATE (returned_ms) ON standing_uses TO surehand_worker;
-- A saved checkpoint is never rewritten, only removed.
REVOKE UPDATE ON checkpoints FROM surehand_worker;
GRANT UPDATE (document, removed_ms) ON checkpoints TO surehand_worker;
-- Only migrations say which migration the database is at.
REVOKE INSERT, UPDATE ON alembic_version FROM surehand_worker;

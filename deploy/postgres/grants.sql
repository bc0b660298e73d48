-- What the workers may do with the ledger. Run by its owner after each migration, in one
-- transaction, so that a worker that is running never finds a right missing.
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM surehand_worker;
-- Nobody but its owner puts a table or a function beside the ledger's: not for one session, either.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
DO $$ BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;
GRANT USAGE ON SCHEMA public TO surehand_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO surehand_worker;
-- No DELETE of what was recorded: retention leaves a tombstone, purging is another role's.
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO surehand_worker;
-- What a worker has in hand is no record.
GRANT DELETE ON in_hand TO surehand_worker;
-- What happened, was planned, decided and replayed is added to, never rewritten.
REVOKE UPDATE ON bars, decisions, events, halt_votes, plans, replays, steerings FROM surehand_worker;
-- What is asked stays. How it goes on, a trigger looks after.
REVOKE UPDATE ON approvals FROM surehand_worker;
GRANT UPDATE (state, decided_by, verified, consumed_entry, consumed_generation, remind_ms)
    ON approvals TO surehand_worker;
-- Who may decide and sign is an administrator's to say: a worker that is taken over grants nothing.
REVOKE INSERT, UPDATE ON principals, grants, principal_keys, principal_changes, deputies
    FROM surehand_worker;
-- So is what is approved in advance. Its uses are counted by the workers, and given back, not changed.
REVOKE INSERT, UPDATE ON standing_approvals FROM surehand_worker;
REVOKE UPDATE ON standing_uses FROM surehand_worker;
GRANT UPDATE (returned_ms) ON standing_uses TO surehand_worker;
-- And what a tenant may use; the workers count what it has used.
REVOKE INSERT, UPDATE ON quotas FROM surehand_worker;
-- What counts for a limit is counted again when its call is made again, and is no other call's then.
REVOKE UPDATE ON limit_uses FROM surehand_worker;
GRANT UPDATE (group_hash, amount, counted_ms) ON limit_uses TO surehand_worker;
-- Any worker may halt calls. To lift a halt is an administrator's, also in the statement that makes it.
REVOKE INSERT, UPDATE ON halts FROM surehand_worker;
GRANT INSERT (tenant_id, halt_id, tool, run_id, undo_too, reason, halted_by, halted_ms, needs)
    ON halts TO surehand_worker;
-- That the ledger was restored, its owner says.
REVOKE INSERT, UPDATE ON epochs FROM surehand_worker;
-- And of which cell it is.
REVOKE INSERT, UPDATE ON tenants FROM surehand_worker;
-- A saved checkpoint is never rewritten. Emptying it is the owner's.
REVOKE UPDATE ON checkpoints FROM surehand_worker;
-- Workers make the keys of runs and read them. Wrapping them anew and erasing them is the owner's.
REVOKE UPDATE ON run_keys FROM surehand_worker;
-- Only migrations say which migration the database is at.
REVOKE INSERT, UPDATE ON alembic_version FROM surehand_worker;
-- What is held and deleted is retention's to say.
REVOKE INSERT, UPDATE ON deletions, retention_rounds, holds FROM surehand_worker;

-- What retention may: it holds runs, and deletes what goes, which triggers look after.
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM surehand_retention;
GRANT USAGE ON SCHEMA public TO surehand_retention;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO surehand_retention;
GRANT INSERT, UPDATE ON deletions TO surehand_retention;
GRANT INSERT, UPDATE ON retention_rounds TO surehand_retention;
GRANT INSERT, DELETE ON holds TO surehand_retention;
GRANT DELETE ON artifacts, checkpoints, decisions, drafts, events, interventions, notifications,
    plans, replays, steerings, steps TO surehand_retention;
-- Who holds a run is in its chain, and nothing of a run that goes is claimed any more.
GRANT INSERT ON events, bars TO surehand_retention;
GRANT UPDATE (seq, head, input, error) ON runs TO surehand_retention;
-- What stays is emptied.
GRANT UPDATE (params, failures, observed, receipt, answer, evidence, error, left_because,
    content_deleted_ms, identity_hash) ON effects TO surehand_retention;
GRANT UPDATE (params, answers, description, undo, precondition) ON approvals TO surehand_retention;
GRANT UPDATE (parts, tail, ended_ms, removed_ms) ON drafts TO surehand_retention;
GRANT UPDATE (wrapped, erased_ms, erased_by) ON run_keys TO surehand_retention;

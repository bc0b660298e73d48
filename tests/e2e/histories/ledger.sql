BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001_ledger');
CREATE TABLE approvals (
	tenant_id VARCHAR(80) NOT NULL, 
	approval_id VARCHAR(400) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	tool VARCHAR(120) NOT NULL, 
	tool_version VARCHAR(40) NOT NULL, 
	"key" VARCHAR(400) NOT NULL, 
	params_hash VARCHAR(80) NOT NULL, 
	params JSON NOT NULL, 
	answers JSON, 
	description TEXT NOT NULL, 
	undo TEXT NOT NULL, 
	user_id VARCHAR(200) NOT NULL, 
	editors JSON NOT NULL, 
	needs JSON NOT NULL, 
	asked_of VARCHAR(1000) NOT NULL, 
	assurance VARCHAR(16) NOT NULL, 
	precondition TEXT, 
	secret BOOLEAN DEFAULT 0 NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	requested_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	decided_by VARCHAR(200), 
	verified BOOLEAN, 
	consumed_entry VARCHAR(80), 
	consumed_generation INTEGER, 
	remind_ms BIGINT, 
	CONSTRAINT pk_approvals PRIMARY KEY (tenant_id, approval_id), 
	CONSTRAINT fk_approvals_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_approvals_state CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'superseded', 'void')), 
	CONSTRAINT ck_approvals_assurance CHECK (assurance IN ('open', 'chat', 'signed', 'passkey', 'device_passkey')), 
	CONSTRAINT ck_approvals_decided_by_someone CHECK ((state IN ('approved', 'rejected', 'superseded')) = (decided_by IS NOT NULL)), 
	CONSTRAINT ck_approvals_only_approved_is_consumed CHECK (consumed_entry IS NULL OR state = 'approved'), 
	CONSTRAINT ck_approvals_consumed_whole CHECK ((consumed_entry IS NULL) = (consumed_generation IS NULL))
);
INSERT INTO "approvals" VALUES('default','run-bd623aa423c9/refund/1','run-bd623aa423c9','refund','payments.refund','1','refund:order-21dee23246e7','sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3','{"order_id": "order-21dee23246e7", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-21dee23246e7','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795925606950,1796012006950,'ann',0,'ef-deb12d34155e299cca72d6b7',1,NULL);
INSERT INTO "approvals" VALUES('default','run-fa0c9f169e73/refund/1','run-fa0c9f169e73','refund','payments.refund','1','refund:order-b8a4d056197b','sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd','{"order_id": "order-b8a4d056197b", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-b8a4d056197b','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795925608059,1796012008059,'ann',0,'ef-b09420aed93b531e320f62ae',1,NULL);
INSERT INTO "approvals" VALUES('default','run-65c5a091043d/refund/1','run-65c5a091043d','refund','payments.refund','1','refund:order-b1edf35d8a08','sha256:6d8fdbe7639fdd9251333c0ebea5a1ea49254672c443fc67d5c00ac354587714','{"order_id": "order-b1edf35d8a08", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-b1edf35d8a08','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'rejected',1795925609819,1796012009819,'ann',0,NULL,NULL,NULL);
INSERT INTO "approvals" VALUES('default','run-688e7aa288a2/refund/1','run-688e7aa288a2','refund','payments.refund','1','refund:order-f603012e3b95','sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657','{"order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-f603012e3b95','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795925610997,1796012010997,'ann',0,'ef-1dad8a128171802c93dc191a',1,NULL);
INSERT INTO "approvals" VALUES('default','run-e681ce958715/refund/1','run-e681ce958715','refund','payments.refund','1','refund:order-1d19f65560cb','sha256:e347067839d24c2da5efc25fb6803dac6646ef68b3d242513f06293bd83cce0b','{"order_id": "order-1d19f65560cb", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-1d19f65560cb','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'pending',1795925618317,1796012018317,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE artifacts (
	tenant_id VARCHAR(80) NOT NULL, 
	artifact_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	type VARCHAR(80) NOT NULL, 
	uri VARCHAR(400) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	bytes BIGINT NOT NULL, 
	sealed_for VARCHAR(255), 
	content BLOB, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (tenant_id, artifact_id), 
	CONSTRAINT fk_artifacts_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT uq_artifacts_tenant_id_run_id_step_id_sha256 UNIQUE (tenant_id, run_id, step_id, sha256)
);
CREATE TABLE bars (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	barred_ms BIGINT NOT NULL, 
	CONSTRAINT pk_bars PRIMARY KEY (tenant_id, run_id, step_id), 
	CONSTRAINT fk_bars_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "bars" VALUES('default','run-fa0c9f169e73','*',1795925608448);
INSERT INTO "bars" VALUES('default','run-fa0c9f169e73','restock',1795925608572);
INSERT INTO "bars" VALUES('default','run-fa0c9f169e73','refund',1795925608716);
INSERT INTO "bars" VALUES('default','run-65c5a091043d','*',1795925610072);
INSERT INTO "bars" VALUES('default','run-65c5a091043d','restock',1795925610139);
CREATE TABLE checkpoints (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	seq BIGINT NOT NULL, 
	document JSON, 
	bytes BIGINT NOT NULL, 
	saved_by VARCHAR(200) NOT NULL, 
	saved_ms BIGINT NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (tenant_id, run_id, name), 
	CONSTRAINT ck_checkpoints_counts CHECK (seq >= 0), 
	CONSTRAINT fk_checkpoints_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
CREATE TABLE decisions (
	tenant_id VARCHAR(80) NOT NULL, 
	decision_id VARCHAR(400) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	approval_id VARCHAR(400) NOT NULL, 
	approver VARCHAR(200) NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	params_hash VARCHAR(200) NOT NULL, 
	reason TEXT NOT NULL, 
	verdict VARCHAR(32) NOT NULL, 
	message TEXT NOT NULL, 
	verified BOOLEAN NOT NULL, 
	edited JSON, 
	signature TEXT, 
	kid VARCHAR(80), 
	nonce VARCHAR(100), 
	at_ms BIGINT NOT NULL, 
	standing_id VARCHAR(40), 
	deputy_for VARCHAR(200), 
	CONSTRAINT pk_decisions PRIMARY KEY (tenant_id, decision_id), 
	CONSTRAINT fk_decisions_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_decisions_verified_by_a_signature CHECK (verified = (kid IS NOT NULL AND nonce IS NOT NULL))
);
INSERT INTO "decisions" VALUES('default','run-bd623aa423c9#01a22582-0090-7bb2-8301-7c6f1ff55fbc.1','run-bd623aa423c9','run-bd623aa423c9/refund/1','ann','approve','sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795925607033,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-fa0c9f169e73#01a22582-04d5-7e59-beb2-4b4a2962a1d4.1','run-fa0c9f169e73','run-fa0c9f169e73/refund/1','ann','approve','sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795925608161,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-65c5a091043d#01a22582-0aaf-7dd3-98e7-63106e636e3f.1','run-65c5a091043d','run-65c5a091043d/refund/1','ann','reject','sha256:6d8fdbe7639fdd9251333c0ebea5a1ea49254672c443fc67d5c00ac354587714','too much','accepted','rejected by ann',0,NULL,NULL,NULL,NULL,1795925610002,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.1','run-688e7aa288a2','run-688e7aa288a2/refund/1','ann','approve','sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795925611151,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-e681ce958715#01a22582-2bf7-789d-9ce5-7eb50c931073.1','run-e681ce958715','run-e681ce958715/refund/1','ann','approve','sha256:0000000000000000000000000000000000000000000000000000000000000000','','wrong_hash','the decision is for params sha256:0000000000000000000000000000000000000000000000000000000000000000, asked is sha256:e347067839d24c2da5efc25fb6803dac6646ef68b3d242513f06293bd83cce0b',0,NULL,NULL,NULL,NULL,1795925618530,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-e681ce958715#01a22582-2bf7-789d-9ce5-7eb50c931073.2','run-e681ce958715','','','','','','malformed','decision: must be a JSON object with approval_id, params_hash, outcome, approver',0,NULL,NULL,NULL,NULL,1795925618690,NULL,NULL);
CREATE TABLE deletions (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	begun_ms BIGINT NOT NULL, 
	begun_by VARCHAR(200) NOT NULL, 
	deleted_ms BIGINT, 
	CONSTRAINT pk_deletions PRIMARY KEY (tenant_id, run_id), 
	CONSTRAINT fk_deletions_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
CREATE TABLE deputies (
	tenant_id VARCHAR(80) NOT NULL, 
	deputy_id VARCHAR(40) NOT NULL, 
	principal VARCHAR(200) NOT NULL, 
	deputy VARCHAR(200) NOT NULL, 
	tool VARCHAR(120), 
	amount_of VARCHAR(200), 
	most VARCHAR(40), 
	until_ms BIGINT NOT NULL, 
	named_ms BIGINT NOT NULL, 
	named_by VARCHAR(200) NOT NULL, 
	revoked_ms BIGINT, 
	revoked_by VARCHAR(200), 
	CONSTRAINT pk_deputies PRIMARY KEY (tenant_id, deputy_id), 
	CONSTRAINT ck_deputies_amount_whole CHECK ((amount_of IS NULL) = (most IS NULL)), 
	CONSTRAINT ck_deputies_revoked_whole CHECK ((revoked_ms IS NULL) = (revoked_by IS NULL)), 
	CONSTRAINT ck_deputies_somebody_else CHECK (deputy <> principal), 
	CONSTRAINT fk_deputies_principals FOREIGN KEY(tenant_id, principal) REFERENCES principals (tenant_id, principal)
);
CREATE TABLE drafts (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	number INTEGER NOT NULL, 
	params_hash VARCHAR(80) NOT NULL, 
	bytes BIGINT NOT NULL, 
	parts JSON NOT NULL, 
	tail BLOB, 
	begun_ms BIGINT NOT NULL, 
	ended_ms BIGINT, 
	removed_ms BIGINT, 
	CONSTRAINT pk_drafts PRIMARY KEY (tenant_id, run_id, step_id, number), 
	CONSTRAINT ck_drafts_counts CHECK (number >= 1 AND bytes >= 0), 
	CONSTRAINT ck_drafts_removed_at_a_time CHECK ((tail IS NULL) = (removed_ms IS NOT NULL)), 
	CONSTRAINT ck_drafts_ended_when_removed CHECK (removed_ms IS NULL OR ended_ms IS NOT NULL), 
	CONSTRAINT fk_drafts_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
CREATE TABLE effects (
	tenant_id VARCHAR(80) NOT NULL, 
	entry_id VARCHAR(80) NOT NULL, 
	tool VARCHAR(120) NOT NULL, 
	tool_version VARCHAR(40) NOT NULL, 
	"key" VARCHAR(400) NOT NULL, 
	generation INTEGER NOT NULL, 
	identity_hash VARCHAR(80) NOT NULL, 
	params_hash VARCHAR(80) NOT NULL, 
	params JSON NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	undo JSON, 
	undoes VARCHAR(80), 
	state VARCHAR(16) NOT NULL, 
	fencing_token BIGINT NOT NULL, 
	holder VARCHAR(400), 
	activity_key VARCHAR(400), 
	lease_until_ms BIGINT, 
	lease_ms BIGINT NOT NULL, 
	deadline_ms BIGINT, 
	timeout_ms BIGINT NOT NULL, 
	settle_ms BIGINT, 
	window_ms BIGINT, 
	first_call_ms BIGINT, 
	epoch INTEGER NOT NULL, 
	recovering_ms BIGINT, 
	unproven BOOLEAN NOT NULL, 
	calls INTEGER NOT NULL, 
	failures JSON NOT NULL, 
	approval_id VARCHAR(400), 
	observed JSON, 
	receipt JSON, 
	foreign_receipt BOOLEAN NOT NULL, 
	answer JSON, 
	evidence JSON, 
	error TEXT, 
	commit_no BIGINT, 
	left_because TEXT, 
	claimed_ms BIGINT NOT NULL, 
	settled_ms BIGINT, 
	content_deleted_ms BIGINT, 
	CONSTRAINT pk_effects PRIMARY KEY (tenant_id, entry_id), 
	CONSTRAINT fk_effects_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_effects_state CHECK (state IN ('claimed', 'committed', 'failed', 'in_doubt', 'partial', 'compensating', 'compensated')), 
	CONSTRAINT ck_effects_leased_while_claimed CHECK ((state = 'claimed') = (lease_until_ms IS NOT NULL)), 
	CONSTRAINT ck_effects_recovering_until_settled CHECK (recovering_ms IS NULL OR state IN ('claimed', 'in_doubt', 'partial')), 
	CONSTRAINT ck_effects_undos_have_their_own_keys CHECK ((undoes IS NOT NULL) = (substr(key, 1, 5) = 'undo:')), 
	CONSTRAINT ck_effects_counts CHECK (generation >= 1 AND fencing_token >= 1 AND calls >= 1), 
	CONSTRAINT ck_effects_committed_has_number CHECK ((commit_no IS NOT NULL) OR state NOT IN ('committed', 'compensating', 'compensated')), 
	CONSTRAINT uq_effects_tenant_id_tool_key_generation UNIQUE (tenant_id, tool, "key", generation)
);
INSERT INTO "effects" VALUES('default','ef-deb12d34155e299cca72d6b7','payments.refund','1','refund:order-21dee23246e7',1,'sha256:98b1b13a372384a9afe1446e432ff243ac0a1be29e944a3d1d40358f6d97f37a','sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3','{"order_id": "order-21dee23246e7", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-bd623aa423c9','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',1,'01a22582-0090-7bb2-8301-7c6f1ff55fbc:6:1:46243a0cad9140889200975f9ff8d1cd','01a22582-0090-7bb2-8301-7c6f1ff55fbc:6',NULL,3000,1795925612074,5000,1000,NULL,1795925607074,0,NULL,0,1,'{}','run-bd623aa423c9/refund/1',NULL,'{"refund_id": "refund-39b0040a2c50", "order_id": "order-21dee23246e7", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,1,NULL,1795925607074,1795925607110,NULL);
INSERT INTO "effects" VALUES('default','ef-106b8d44675fbab595c85c6d','inventory.restock','1','restock:order-21dee23246e7',1,'sha256:95c301f257236cba688b753cc6d81d1b70d0bd2e6c523a8729776672d7773d2f','sha256:1b656884bbfb94a0f49abdfb426767f93674a872d3b1f6e73d6624f4105c78e1','{"order_id": "order-21dee23246e7", "lines": [{"sku": "article-of-order-21dee23246e7", "quantity": 2}]}','run-bd623aa423c9','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a22582-0090-7bb2-8301-7c6f1ff55fbc:7:1:18474c2b1e804b178b74b1f6e7ab0076','01a22582-0090-7bb2-8301-7c6f1ff55fbc:7',NULL,3000,1795925612185,5000,1000,NULL,1795925607185,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-05fac2b72191", "order_id": "order-21dee23246e7", "lines": [{"sku": "article-of-order-21dee23246e7", "quantity": 2}]}',0,NULL,NULL,NULL,2,NULL,1795925607185,1795925607209,NULL);
INSERT INTO "effects" VALUES('default','ef-cd51298bc00f4d3fbe8355cf','mail.send','1','mail:order-21dee23246e7:refund_notice',1,'sha256:a9a5617e757ce8b7321f3f6c3212337ce1256bbd0c9e5186d793861d15c92945','sha256:041ecf12d67e5b31e20efd6e8f9a616737d9043f1e9a936e974e6511338cf08b','{"order_id": "order-21dee23246e7", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-21dee23246e7", "body": "We have refunded 120.00 EUR for order-21dee23246e7."}','run-bd623aa423c9','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a22582-0090-7bb2-8301-7c6f1ff55fbc:8:1:830f4cb4228849a4a6ded7e8498f1f9a','01a22582-0090-7bb2-8301-7c6f1ff55fbc:8',NULL,3000,1795925612335,5000,NULL,86395000,1795925607335,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-1ae9f2b78f90", "to": "ada@example.com"}',0,NULL,NULL,NULL,3,NULL,1795925607335,1795925607365,NULL);
INSERT INTO "effects" VALUES('default','ef-b09420aed93b531e320f62ae','payments.refund','1','refund:order-b8a4d056197b',1,'sha256:2054d7ac914d86d7a94bd47de6205ad05b6cad4b5e8ed1f304628e1deb957db8','sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd','{"order_id": "order-b8a4d056197b", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-fa0c9f169e73','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'compensated',1,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:6:1:dfc621903de94ac98f54f208191218aa','01a22582-04d5-7e59-beb2-4b4a2962a1d4:6',NULL,3000,1795925613198,5000,1000,NULL,1795925608198,0,NULL,0,1,'{}','run-fa0c9f169e73/refund/1',NULL,'{"refund_id": "refund-00a5d37b891c", "order_id": "order-b8a4d056197b", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,4,NULL,1795925608198,1795925608761,NULL);
INSERT INTO "effects" VALUES('default','ef-527434a55b0a74ced027b7da','inventory.restock','1','restock:order-b8a4d056197b',1,'sha256:f3abd09718dd87f297c30fca97967c7fb9174cab853b33197dc8ace1167d8b00','sha256:25713e1c93d6e8a49cc47e15ff0e65994876589516bb0c7b99d1217a4cb83c55','{"order_id": "order-b8a4d056197b", "lines": [{"sku": "article-of-order-b8a4d056197b", "quantity": 2}]}','run-fa0c9f169e73','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:7:1:ce2d2e97ab4a42c5aa280a5aab785876','01a22582-04d5-7e59-beb2-4b4a2962a1d4:7',NULL,3000,1795925613291,5000,1000,NULL,1795925608291,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-52bff8a015ac", "order_id": "order-b8a4d056197b", "lines": [{"sku": "article-of-order-b8a4d056197b", "quantity": 2}]}',0,NULL,NULL,NULL,5,NULL,1795925608291,1795925608636,NULL);
INSERT INTO "effects" VALUES('default','ef-04d8db0af162d4f9d2d079a6','tickets.close','1','close-ticket:ticket-78',1,'sha256:2f60be35bec1dc45b157384297ef2feb4293a2ebaa01fff81d5b9993b165bdae','sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe','{"ticket_id": "ticket-78"}','run-fa0c9f169e73','close','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'failed',1,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:8:1:4059368e0d764a379cde83c34c705b23','01a22582-04d5-7e59-beb2-4b4a2962a1d4:8',NULL,3000,1795925613364,5000,NULL,86395000,1795925608364,0,NULL,0,1,'{"permanent": 1}',NULL,NULL,NULL,0,NULL,NULL,'HTTP 422 from POST /tickets/ticket-78/close',NULL,NULL,1795925608364,1795925608378,NULL);
INSERT INTO "effects" VALUES('default','ef-15196a4ae0c0de88c0f99636','inventory.undo_restock','1','undo:ef-527434a55b0a74ced027b7da',1,'sha256:c3fb102128ea27dc0397b116093ffd1125c6b2b388bdcf4ea9f1c537df0eeb75','sha256:af7b308ffcf8ccb612295f3927aacb654d5ba03ba1e46a15335b1465d3d9e1ba','{"restock_id": "restock-52bff8a015ac"}','run-fa0c9f169e73','restock',NULL,'ef-527434a55b0a74ced027b7da','committed',1,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:10:1:6ba54c0100a3410c8567f954dc881c5d','01a22582-04d5-7e59-beb2-4b4a2962a1d4:10',NULL,3000,1795925613611,5000,1000,NULL,1795925608611,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-98092aca5bb5", "restock_id": "restock-52bff8a015ac"}',0,NULL,NULL,NULL,6,NULL,1795925608611,1795925608636,NULL);
INSERT INTO "effects" VALUES('default','ef-f20d58192178e14ab79e53ca','payments.cancel_refund','1','undo:ef-b09420aed93b531e320f62ae',1,'sha256:8c091d63e6403a07d9a0dbb67122ca0ca26671a9c5b24f4377dbab77e80768c8','sha256:648be38f2f0ab4df050ea2fb14d80e963b1e4b17915ce094378e1324e217a434','{"refund_id": "refund-00a5d37b891c", "order_id": "order-b8a4d056197b"}','run-fa0c9f169e73','refund',NULL,'ef-b09420aed93b531e320f62ae','committed',1,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:11:1:9cc5378d80f74f389679f46dba3447aa','01a22582-04d5-7e59-beb2-4b4a2962a1d4:11',NULL,3000,1795925613731,5000,1000,86394000,1795925608731,0,NULL,0,1,'{}',NULL,NULL,'{"cancellation_id": "cancellation-94b796da4741", "refund_id": "refund-00a5d37b891c", "amount": "120.00"}',0,NULL,NULL,NULL,7,NULL,1795925608731,1795925608761,NULL);
INSERT INTO "effects" VALUES('default','ef-2b0aedbd8757c6114e57eecc','inventory.restock','1','restock:order-b1edf35d8a08',1,'sha256:acc1e0db065a3226285aaed768051cf3dc2a4886cbc43479913390b78bc51e14','sha256:9ffb8222655c624491189a70da938522abcc02a804692ceef10c5bd7bc386e0d','{"order_id": "order-b1edf35d8a08", "lines": [{"sku": "article-of-order-b1edf35d8a08", "quantity": 2}]}','run-65c5a091043d','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a22582-0aaf-7dd3-98e7-63106e636e3f:4:1:009c541a7739459a9f067b6f979f5e27','01a22582-0aaf-7dd3-98e7-63106e636e3f:4',NULL,3000,1795925614672,5000,1000,NULL,1795925609672,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-f6227737b156", "order_id": "order-b1edf35d8a08", "lines": [{"sku": "article-of-order-b1edf35d8a08", "quantity": 2}]}',0,NULL,NULL,NULL,8,NULL,1795925609672,1795925610196,NULL);
INSERT INTO "effects" VALUES('default','ef-ac4a3fcac848a566b93dc05f','inventory.undo_restock','1','undo:ef-2b0aedbd8757c6114e57eecc',1,'sha256:d3cd3169ee95bb629d692ef0db7ad5bf055df4fa0f040a7c95523e1693ccf0b5','sha256:e6523bb866d8b506ea102d67abac22de58581ec6ee57cd1b3226261799e34c28','{"restock_id": "restock-f6227737b156"}','run-65c5a091043d','restock',NULL,'ef-2b0aedbd8757c6114e57eecc','committed',1,'01a22582-0aaf-7dd3-98e7-63106e636e3f:8:1:a865263b8048477995ed241dc37ed726','01a22582-0aaf-7dd3-98e7-63106e636e3f:8',NULL,3000,1795925615167,5000,1000,NULL,1795925610167,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-ee69b5df27ee", "restock_id": "restock-f6227737b156"}',0,NULL,NULL,NULL,9,NULL,1795925610167,1795925610196,NULL);
INSERT INTO "effects" VALUES('default','ef-1dad8a128171802c93dc191a','payments.refund','1','refund:order-f603012e3b95',1,'sha256:01d711d3c2a947c83cdfc280d1174105ba6f8329d78ed39e1d3053c32965474a','sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657','{"order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-688e7aa288a2','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',3,'01a22582-103e-7b4f-8aca-4ff8991411dd:9:1:2f8cad6cd6ea46b6addacb5045b2ca02','01a22582-103e-7b4f-8aca-4ff8991411dd:9',NULL,3000,1795925621873,5000,NULL,NULL,1795925611216,0,NULL,0,2,'{"in_doubt": 1}','run-688e7aa288a2/refund/1',NULL,'{"refund_id": "refund-e7622226b258", "order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,'RemoteProtocolError: Server disconnected without sending a response.',10,NULL,1795925611216,1795925616943,NULL);
INSERT INTO "effects" VALUES('default','ef-d5cd4ec2d1e7e4dcf7c5578d','inventory.restock','1','restock:order-f603012e3b95',1,'sha256:9adefdbd4f281279e4954f1665e309a4577b476939283a683a70b79cea191e7c','sha256:f265da003ad6ef9a3ef72b0c023499638c1889f1f924cd0a5561c4bb3fbec8a0','{"order_id": "order-f603012e3b95", "lines": [{"sku": "article-of-order-f603012e3b95", "quantity": 2}]}','run-688e7aa288a2','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a22582-103e-7b4f-8aca-4ff8991411dd:10:1:5b3eeac609194d42886f2f72176f267e','01a22582-103e-7b4f-8aca-4ff8991411dd:10',NULL,3000,1795925622037,5000,1000,NULL,1795925617037,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-18f13859d421", "order_id": "order-f603012e3b95", "lines": [{"sku": "article-of-order-f603012e3b95", "quantity": 2}]}',0,NULL,NULL,NULL,11,NULL,1795925617037,1795925617061,NULL);
INSERT INTO "effects" VALUES('default','ef-509c5a84e7087ced6863fd4e','mail.send','1','mail:order-f603012e3b95:refund_notice',1,'sha256:f2e9eec9a4fd36870a0411a53651f416f22476c6ca2954d416f13defb78a7872','sha256:a28a091badb54c6bb62621a3f434170bc39d193859e6475060afb96b397af881','{"order_id": "order-f603012e3b95", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-f603012e3b95", "body": "We have refunded 120.00 EUR for order-f603012e3b95."}','run-688e7aa288a2','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a22582-103e-7b4f-8aca-4ff8991411dd:11:1:34f2938bbd4946f4bccac4bb5ffabe9a','01a22582-103e-7b4f-8aca-4ff8991411dd:11',NULL,3000,1795925622319,5000,NULL,86395000,1795925617319,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-896e0271bbe5", "to": "ada@example.com"}',0,NULL,NULL,NULL,12,NULL,1795925617319,1795925617340,NULL);
CREATE TABLE epochs (
	number INTEGER NOT NULL, 
	restored_to_ms BIGINT NOT NULL, 
	opened_ms BIGINT NOT NULL, 
	opened_by VARCHAR(200) NOT NULL, 
	closed_ms BIGINT, 
	closed_by VARCHAR(200), 
	CONSTRAINT pk_epochs PRIMARY KEY (number), 
	CONSTRAINT ck_epochs_number CHECK (number >= 1), 
	CONSTRAINT ck_epochs_opened_later CHECK (restored_to_ms <= opened_ms), 
	CONSTRAINT ck_epochs_closed_whole CHECK ((closed_ms IS NULL) = (closed_by IS NULL))
);
CREATE TABLE events (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	seq BIGINT NOT NULL, 
	type VARCHAR(64) NOT NULL, 
	step_id VARCHAR(80), 
	body JSON NOT NULL, 
	at_ms BIGINT NOT NULL, 
	previous VARCHAR(80) NOT NULL, 
	hash VARCHAR(80) NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (tenant_id, run_id, seq), 
	CONSTRAINT ck_events_seq CHECK (seq >= 1), 
	CONSTRAINT fk_events_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "events" VALUES('default','run-bd623aa423c9',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:cbe98c05e493010f6acbb92f707295da3d77405def28524cdd1b54fd27191eae", "gated": ["refund"], "store": "7ef01ed042fe446cba74ec262544707b"}',1795925606656,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:4b3a381b8e8a4e953da2585eae57688713589cf93e97f32634f0636378c21c09');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795925606830,'sha256:4b3a381b8e8a4e953da2585eae57688713589cf93e97f32634f0636378c21c09','sha256:85ca5ece50a34055c020b3001abaa0667820759314d0d57c5d12657ee6b000ec');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795925606916,'sha256:85ca5ece50a34055c020b3001abaa0667820759314d0d57c5d12657ee6b000ec','sha256:615559a52426e35fcc33154e2bf6086b1310ea6ebb2f0965ca7fee65059e8146');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',4,'approval.requested','refund','{"approval_id": "run-bd623aa423c9/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3", "expires_ms": 1796012006950, "assurance": "open", "quorum": 1}',1795925606950,'sha256:615559a52426e35fcc33154e2bf6086b1310ea6ebb2f0965ca7fee65059e8146','sha256:30fcbf382907bbd8f8571a878fef3a644addb686954af7e621d97208a5674e68');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',5,'decision.accepted','refund','{"decision_id": "run-bd623aa423c9#01a22582-0090-7bb2-8301-7c6f1ff55fbc.1", "approval_id": "run-bd623aa423c9/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 83}',1795925607033,'sha256:30fcbf382907bbd8f8571a878fef3a644addb686954af7e621d97208a5674e68','sha256:dde9269d034fcaab4c120e5da5696a30e210dfcef052ebf791b334b4d3bf7511');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',6,'approval.approved','refund','{"approval_id": "run-bd623aa423c9/refund/1", "params_hash": "sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3", "verified": false}',1795925607033,'sha256:dde9269d034fcaab4c120e5da5696a30e210dfcef052ebf791b334b4d3bf7511','sha256:6f0eeb9f8b14bd78dadcb565c6a6ba89447f91e88871be72c8b68e2ecce9cfd7');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',7,'approval.consumed','refund','{"approval_id": "run-bd623aa423c9/refund/1", "params_hash": "sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3", "entry_id": "ef-deb12d34155e299cca72d6b7", "generation": 1}',1795925607074,'sha256:6f0eeb9f8b14bd78dadcb565c6a6ba89447f91e88871be72c8b68e2ecce9cfd7','sha256:b76074d7efca8cd3e570e6495a34bc7e412ee79f618ada387f2ffbd9eeee54ea');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',8,'effect.claimed','refund','{"entry_id": "ef-deb12d34155e299cca72d6b7", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:c4ae5c6a579e581b380ac21b0a3864907039f651a0c9eb3f3f42c6f766ecaed3", "approval_id": "run-bd623aa423c9/refund/1"}',1795925607074,'sha256:b76074d7efca8cd3e570e6495a34bc7e412ee79f618ada387f2ffbd9eeee54ea','sha256:49f64219dfe97f8df970cb289e97381a43ae014e6bfd6c5aeb815200ccddac8c');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',9,'effect.committed','refund','{"entry_id": "ef-deb12d34155e299cca72d6b7", "tool": "payments.refund", "receipt": "sha256:b8c6a4cd51dc05d81f9cea5869277f686436ce3d9f50594228e26652ba78970a"}',1795925607110,'sha256:49f64219dfe97f8df970cb289e97381a43ae014e6bfd6c5aeb815200ccddac8c','sha256:7a744a2e3fd1a3583493a14ce5abcdbd31f45c8775e9c0a6fdc9f79f5e1753d4');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',10,'effect.claimed','restock','{"entry_id": "ef-106b8d44675fbab595c85c6d", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:1b656884bbfb94a0f49abdfb426767f93674a872d3b1f6e73d6624f4105c78e1"}',1795925607185,'sha256:7a744a2e3fd1a3583493a14ce5abcdbd31f45c8775e9c0a6fdc9f79f5e1753d4','sha256:30ea0572dec749a7afffb376f2614cd24866fb2034e29705f1c4cdc85e21cdd5');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',11,'effect.committed','restock','{"entry_id": "ef-106b8d44675fbab595c85c6d", "tool": "inventory.restock", "receipt": "sha256:d330f5ad7ebe3ed30173872ad2b28052dd5e9919fb7e026421ef17d58a1d382a"}',1795925607209,'sha256:30ea0572dec749a7afffb376f2614cd24866fb2034e29705f1c4cdc85e21cdd5','sha256:c1a9050b72eb9b7bd1f7c7c340080656d41eb18d50edc35b5a474291e9098dd4');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',12,'effect.claimed','mail','{"entry_id": "ef-cd51298bc00f4d3fbe8355cf", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:041ecf12d67e5b31e20efd6e8f9a616737d9043f1e9a936e974e6511338cf08b"}',1795925607335,'sha256:c1a9050b72eb9b7bd1f7c7c340080656d41eb18d50edc35b5a474291e9098dd4','sha256:a21c7f0a4159b63fab67ac57125dba4bb5bf62c52f000a6005388b4916778b34');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',13,'effect.committed','mail','{"entry_id": "ef-cd51298bc00f4d3fbe8355cf", "tool": "mail.send", "receipt": "sha256:8d47b47d2ffda946ad3b123b611555bc8bfffb6a1fbbaf5e8acdeb5d740971b5"}',1795925607365,'sha256:a21c7f0a4159b63fab67ac57125dba4bb5bf62c52f000a6005388b4916778b34','sha256:d2befaca22e0e02d3b5fd1e70cd262f3b5f260d43ac1cf8a481e189614e9b8d9');
INSERT INTO "events" VALUES('default','run-bd623aa423c9',14,'run.completed',NULL,'{}',1795925607444,'sha256:d2befaca22e0e02d3b5fd1e70cd262f3b5f260d43ac1cf8a481e189614e9b8d9','sha256:7a7dc8b6be79d9906576151aeb53845d716ff680a9afd3df14beb3060953cae9');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund-fails", "plan_digest": "sha256:6f68a507c7bdfa837ada5469b18456eb539ffd9687c8bb6e1ff1eb878ad2319f", "gated": ["refund"], "store": "85312e06b15443369e273840a9801858"}',1795925607795,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:bee845bfbba3fda38771934b7db26409ce8822fb7308588eb5db145745e93313');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795925607869,'sha256:bee845bfbba3fda38771934b7db26409ce8822fb7308588eb5db145745e93313','sha256:24ecddeba82047a3e2dfa23e7bebdd919c3f5dc74aa8a37c079f361385b2936e');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795925608009,'sha256:24ecddeba82047a3e2dfa23e7bebdd919c3f5dc74aa8a37c079f361385b2936e','sha256:f9e6664f25beacb9f5ad46241084502c261a5b292a190a41f95a4a7e5345094e');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',4,'approval.requested','refund','{"approval_id": "run-fa0c9f169e73/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd", "expires_ms": 1796012008059, "assurance": "open", "quorum": 1}',1795925608059,'sha256:f9e6664f25beacb9f5ad46241084502c261a5b292a190a41f95a4a7e5345094e','sha256:c6ebd35d7271d6944135388bfecd38478b283d1dafc635ac9369311e36456b7a');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',5,'decision.accepted','refund','{"decision_id": "run-fa0c9f169e73#01a22582-04d5-7e59-beb2-4b4a2962a1d4.1", "approval_id": "run-fa0c9f169e73/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 102}',1795925608161,'sha256:c6ebd35d7271d6944135388bfecd38478b283d1dafc635ac9369311e36456b7a','sha256:2276240f55272877aecd86986434ba62155e6fa780e0038ba9d58fbecd60da1f');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',6,'approval.approved','refund','{"approval_id": "run-fa0c9f169e73/refund/1", "params_hash": "sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd", "verified": false}',1795925608161,'sha256:2276240f55272877aecd86986434ba62155e6fa780e0038ba9d58fbecd60da1f','sha256:91feb37bdd338d58be7885c836a5b584b0ce31481d93a69f680b885f477e6476');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',7,'approval.consumed','refund','{"approval_id": "run-fa0c9f169e73/refund/1", "params_hash": "sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd", "entry_id": "ef-b09420aed93b531e320f62ae", "generation": 1}',1795925608198,'sha256:91feb37bdd338d58be7885c836a5b584b0ce31481d93a69f680b885f477e6476','sha256:29d64499454389b28a22fceeeb38cf35adc7a33694882980d701dc8a2e6b8c9c');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',8,'effect.claimed','refund','{"entry_id": "ef-b09420aed93b531e320f62ae", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:84cf906a37f06c6fa0b799fc9cd0917a4cfd2eaa66f6a6971b0e41ae42e9eadd", "approval_id": "run-fa0c9f169e73/refund/1"}',1795925608198,'sha256:29d64499454389b28a22fceeeb38cf35adc7a33694882980d701dc8a2e6b8c9c','sha256:446f76d3df97e8ab723cd5999c9836f0609d2d8983580263bc35c67df9ce4175');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',9,'effect.committed','refund','{"entry_id": "ef-b09420aed93b531e320f62ae", "tool": "payments.refund", "receipt": "sha256:782b8fd46f3c8e0fe4a56577ecf3c548d071bc3a88c4548329c460cb37ebae4b"}',1795925608222,'sha256:446f76d3df97e8ab723cd5999c9836f0609d2d8983580263bc35c67df9ce4175','sha256:a0fa899f5ebea1c550bc67d022fbd27de214bd8666ab61ffdc5364c7d4afeabd');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',10,'effect.claimed','restock','{"entry_id": "ef-527434a55b0a74ced027b7da", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:25713e1c93d6e8a49cc47e15ff0e65994876589516bb0c7b99d1217a4cb83c55"}',1795925608291,'sha256:a0fa899f5ebea1c550bc67d022fbd27de214bd8666ab61ffdc5364c7d4afeabd','sha256:c30fbae91410f98eacf9cf6b6d7ece75ea98e5c3e94a28b4e444f94e2fa36f19');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',11,'effect.committed','restock','{"entry_id": "ef-527434a55b0a74ced027b7da", "tool": "inventory.restock", "receipt": "sha256:f4225aea260591b54c13c0df541789e21f6df9c5a9b461cad8dd3b8ec6354664"}',1795925608302,'sha256:c30fbae91410f98eacf9cf6b6d7ece75ea98e5c3e94a28b4e444f94e2fa36f19','sha256:4cf5ceb2587304a5a32e5dbdedc11dc78bb1f3461d922413130898cb288a046b');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',12,'effect.claimed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe"}',1795925608364,'sha256:4cf5ceb2587304a5a32e5dbdedc11dc78bb1f3461d922413130898cb288a046b','sha256:667b61cfd335caae8a37b0636fee1e981e0c63fc051fe384381b78f2a168e256');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',13,'effect.failed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "failure_class": "permanent", "failures": 1}',1795925608378,'sha256:667b61cfd335caae8a37b0636fee1e981e0c63fc051fe384381b78f2a168e256','sha256:0d14503e529474bb3ab3c6f14c1b7d25cc8adf628e3f2a7d192ce5f198824532');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',14,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795925608448,'sha256:0d14503e529474bb3ab3c6f14c1b7d25cc8adf628e3f2a7d192ce5f198824532','sha256:e90c3cf58088a7d1fb63091da97fe0257b5ef481acd37abc8b07b3a9a1f53ede');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',15,'step.barred','restock','{"action": "refuse_late_attempts"}',1795925608572,'sha256:e90c3cf58088a7d1fb63091da97fe0257b5ef481acd37abc8b07b3a9a1f53ede','sha256:74400edb0aaf738bb332e059fc4eb2eccdf18dbd5fd283a2a70686c710255ef5');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',16,'effect.claimed','restock','{"entry_id": "ef-15196a4ae0c0de88c0f99636", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:af7b308ffcf8ccb612295f3927aacb654d5ba03ba1e46a15335b1465d3d9e1ba", "undoes": "ef-527434a55b0a74ced027b7da"}',1795925608611,'sha256:74400edb0aaf738bb332e059fc4eb2eccdf18dbd5fd283a2a70686c710255ef5','sha256:c66a86b69ed30557c777f1657695b4dc4ca3ebf9ea1115e7d32a1edb3b205076');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',17,'effect.committed','restock','{"entry_id": "ef-15196a4ae0c0de88c0f99636", "tool": "inventory.undo_restock", "receipt": "sha256:6aa2e3359f1d409ab83e23240ca9fb68ead3395f390b53923db6912485a51dd5"}',1795925608636,'sha256:c66a86b69ed30557c777f1657695b4dc4ca3ebf9ea1115e7d32a1edb3b205076','sha256:4359d4afb3aabb4450fa2cf30d8ed9d1de85c22ef6822cebd5fec479f7ea7aeb');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',18,'effect.compensated','restock','{"entry_id": "ef-527434a55b0a74ced027b7da", "tool": "inventory.undo_restock", "by": "ef-15196a4ae0c0de88c0f99636"}',1795925608636,'sha256:4359d4afb3aabb4450fa2cf30d8ed9d1de85c22ef6822cebd5fec479f7ea7aeb','sha256:ee749a932cff5f9735729a9e18dcaf026a1f9944559b747bd49aed9625ee9155');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',19,'step.barred','refund','{"action": "refuse_late_attempts"}',1795925608716,'sha256:ee749a932cff5f9735729a9e18dcaf026a1f9944559b747bd49aed9625ee9155','sha256:f4cc966039c2e6991ad764efb204701520669e783cbc8b8754af7276d4972c0b');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',20,'effect.claimed','refund','{"entry_id": "ef-f20d58192178e14ab79e53ca", "tool": "payments.cancel_refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:648be38f2f0ab4df050ea2fb14d80e963b1e4b17915ce094378e1324e217a434", "undoes": "ef-b09420aed93b531e320f62ae"}',1795925608731,'sha256:f4cc966039c2e6991ad764efb204701520669e783cbc8b8754af7276d4972c0b','sha256:d85a6bbb2a94a550a13dcc90ce249de767c289e32102cdf0201bd5c4453c67ee');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',21,'effect.committed','refund','{"entry_id": "ef-f20d58192178e14ab79e53ca", "tool": "payments.cancel_refund", "receipt": "sha256:cc008c68f44ae51a71682f40eac2a2451ed78ea3ef5e7de8555c615cf5e45765"}',1795925608761,'sha256:d85a6bbb2a94a550a13dcc90ce249de767c289e32102cdf0201bd5c4453c67ee','sha256:0a62954bcddee09a0f1a658006eb576d5e5a0ad89e40910510b3da55f101959e');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',22,'effect.compensated','refund','{"entry_id": "ef-b09420aed93b531e320f62ae", "tool": "payments.cancel_refund", "by": "ef-f20d58192178e14ab79e53ca"}',1795925608761,'sha256:0a62954bcddee09a0f1a658006eb576d5e5a0ad89e40910510b3da55f101959e','sha256:a8bf7d302386737cdd0bc8701e3e2b8ab369510c6cb63523183c931b5ad2ba39');
INSERT INTO "events" VALUES('default','run-fa0c9f169e73',23,'run.failed',NULL,'{"error": true}',1795925608877,'sha256:a8bf7d302386737cdd0bc8701e3e2b8ab369510c6cb63523183c931b5ad2ba39','sha256:358c84f0a92a67d034ba10cf21ac52ce5502cb68da7758034d83a77bcb77f4c3');
INSERT INTO "events" VALUES('default','run-65c5a091043d',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:b45d8f17e3f8994fe25d6c09a16070203cf26db28aa81d6dfa2af37fff024ceb", "gated": ["refund"], "store": "83943782a25c443eb2b2fa9cadcb1aa7"}',1795925609372,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:68af4c652234306cee160a78e8a7d9d6b78725a0e9b825192e44b977f818cdd2');
INSERT INTO "events" VALUES('default','run-65c5a091043d',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795925609478,'sha256:68af4c652234306cee160a78e8a7d9d6b78725a0e9b825192e44b977f818cdd2','sha256:2e2ad37b6f4ae4ff3c2d8fd9c2bbe7b23bd02da60345347290b9dd43bd3078e4');
INSERT INTO "events" VALUES('default','run-65c5a091043d',3,'effect.claimed','restock','{"entry_id": "ef-2b0aedbd8757c6114e57eecc", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:9ffb8222655c624491189a70da938522abcc02a804692ceef10c5bd7bc386e0d"}',1795925609672,'sha256:2e2ad37b6f4ae4ff3c2d8fd9c2bbe7b23bd02da60345347290b9dd43bd3078e4','sha256:bb0821e62c6a0e5e33ebb02026e49642312f0f18a635e78ac3bcb7600e5c6c4b');
INSERT INTO "events" VALUES('default','run-65c5a091043d',4,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795925609695,'sha256:bb0821e62c6a0e5e33ebb02026e49642312f0f18a635e78ac3bcb7600e5c6c4b','sha256:30ddc59ce4916ca7db5b1352962ebd09b1a7f0522fbcd05288e06b4bbedc73c7');
INSERT INTO "events" VALUES('default','run-65c5a091043d',5,'effect.committed','restock','{"entry_id": "ef-2b0aedbd8757c6114e57eecc", "tool": "inventory.restock", "receipt": "sha256:98cc6574764cbd2fcded7ce3e375fb02c4a211eb7364221c53f77571691ae95e"}',1795925609753,'sha256:30ddc59ce4916ca7db5b1352962ebd09b1a7f0522fbcd05288e06b4bbedc73c7','sha256:2dc10fe9ecfef94ed9e0a38c4b5eca11ab61b6979aaf8d66af2cd744045b9365');
INSERT INTO "events" VALUES('default','run-65c5a091043d',6,'approval.requested','refund','{"approval_id": "run-65c5a091043d/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:6d8fdbe7639fdd9251333c0ebea5a1ea49254672c443fc67d5c00ac354587714", "expires_ms": 1796012009819, "assurance": "open", "quorum": 1}',1795925609819,'sha256:2dc10fe9ecfef94ed9e0a38c4b5eca11ab61b6979aaf8d66af2cd744045b9365','sha256:32e2c2a13a88488655b77ddbfac1ff2b1419041e83a2bd407f91339b4353fac0');
INSERT INTO "events" VALUES('default','run-65c5a091043d',7,'decision.accepted','refund','{"decision_id": "run-65c5a091043d#01a22582-0aaf-7dd3-98e7-63106e636e3f.1", "approval_id": "run-65c5a091043d/refund/1", "outcome": "reject", "approver": "ann", "verified": false, "proof": "open", "value_by": "ann", "tool": "payments.refund", "waited_ms": 183}',1795925610002,'sha256:32e2c2a13a88488655b77ddbfac1ff2b1419041e83a2bd407f91339b4353fac0','sha256:250e4055ac6b74f3edc21c15219e5c830d0ff18bc8bb316a46f4ef136a61e373');
INSERT INTO "events" VALUES('default','run-65c5a091043d',8,'approval.rejected','refund','{"approval_id": "run-65c5a091043d/refund/1", "params_hash": "sha256:6d8fdbe7639fdd9251333c0ebea5a1ea49254672c443fc67d5c00ac354587714", "verified": false}',1795925610002,'sha256:250e4055ac6b74f3edc21c15219e5c830d0ff18bc8bb316a46f4ef136a61e373','sha256:3095262cef7143e04e21a7dbd76105831c8e1e163859cf7cfde163ae90608991');
INSERT INTO "events" VALUES('default','run-65c5a091043d',9,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795925610072,'sha256:3095262cef7143e04e21a7dbd76105831c8e1e163859cf7cfde163ae90608991','sha256:4491e627366b835275281d4370608c4ab9cc267d9d11ad65f279e0cd1ebe6db1');
INSERT INTO "events" VALUES('default','run-65c5a091043d',10,'step.barred','restock','{"action": "refuse_late_attempts"}',1795925610139,'sha256:4491e627366b835275281d4370608c4ab9cc267d9d11ad65f279e0cd1ebe6db1','sha256:d2d3a3cb37bec744df557718e768ddfd03c956bbd04e4e9f67fc9bba91027b2b');
INSERT INTO "events" VALUES('default','run-65c5a091043d',11,'effect.claimed','restock','{"entry_id": "ef-ac4a3fcac848a566b93dc05f", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:e6523bb866d8b506ea102d67abac22de58581ec6ee57cd1b3226261799e34c28", "undoes": "ef-2b0aedbd8757c6114e57eecc"}',1795925610167,'sha256:d2d3a3cb37bec744df557718e768ddfd03c956bbd04e4e9f67fc9bba91027b2b','sha256:ddd12dab00ef90b803e235111806be91e6cdcee68bd19e7730948b5c272fe61a');
INSERT INTO "events" VALUES('default','run-65c5a091043d',12,'effect.committed','restock','{"entry_id": "ef-ac4a3fcac848a566b93dc05f", "tool": "inventory.undo_restock", "receipt": "sha256:f3cfa004df4ac2244ccf1ef4b1fbdc254a8bdbf50f5722812a7985dfeb4e9f43"}',1795925610196,'sha256:ddd12dab00ef90b803e235111806be91e6cdcee68bd19e7730948b5c272fe61a','sha256:6bbaa948716e5cb26c889b5438cdc3373da11b3afba916fdaf93462845e84e4e');
INSERT INTO "events" VALUES('default','run-65c5a091043d',13,'effect.compensated','restock','{"entry_id": "ef-2b0aedbd8757c6114e57eecc", "tool": "inventory.undo_restock", "by": "ef-ac4a3fcac848a566b93dc05f"}',1795925610196,'sha256:6bbaa948716e5cb26c889b5438cdc3373da11b3afba916fdaf93462845e84e4e','sha256:db0742ac8879e3d8afff49952aa550fcb1e4158e0d26615e10f093792f977bbb');
INSERT INTO "events" VALUES('default','run-65c5a091043d',14,'run.failed',NULL,'{"error": true}',1795925610347,'sha256:db0742ac8879e3d8afff49952aa550fcb1e4158e0d26615e10f093792f977bbb','sha256:108b6558c19d0e92e91e70fcc4b798453fffbc05865887d17d4a57f7b327aaee');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:b90e2cbc879b73673e29a8fc39844a37c4e52e857d208193218d6c3ded8023d8", "gated": ["refund"], "store": "bdd07be4e4ab4e5d8a1f815a260b8762"}',1795925610763,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:f44d1bb394cc3cda7dd3fd77fd932a364d7835afc5155d123caf0d4da81a6b13');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795925610821,'sha256:f44d1bb394cc3cda7dd3fd77fd932a364d7835afc5155d123caf0d4da81a6b13','sha256:678545a773f79835033943806430c422972a60bd8ed0ea8c568deb17ee5386ce');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795925610943,'sha256:678545a773f79835033943806430c422972a60bd8ed0ea8c568deb17ee5386ce','sha256:7b70d226942672464ceac21c75b4400505945f8009c5fe1e87482035d202dcb0');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',4,'approval.requested','refund','{"approval_id": "run-688e7aa288a2/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657", "expires_ms": 1796012010997, "assurance": "open", "quorum": 1}',1795925610997,'sha256:7b70d226942672464ceac21c75b4400505945f8009c5fe1e87482035d202dcb0','sha256:44ef29e4a4725ed47ca577ae808b3bc5edc4777304ee36a6986503f88f770cf4');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',5,'decision.accepted','refund','{"decision_id": "run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.1", "approval_id": "run-688e7aa288a2/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 154}',1795925611151,'sha256:44ef29e4a4725ed47ca577ae808b3bc5edc4777304ee36a6986503f88f770cf4','sha256:3ee6873e04f1d20eceb0141c7926308feca33170e487d234df2678616b8842cb');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',6,'approval.approved','refund','{"approval_id": "run-688e7aa288a2/refund/1", "params_hash": "sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657", "verified": false}',1795925611151,'sha256:3ee6873e04f1d20eceb0141c7926308feca33170e487d234df2678616b8842cb','sha256:c035d190a00a26a9c582e3c3b9fd2d16e3f9f04423af25b403d3da020dbcebdb');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',7,'approval.consumed','refund','{"approval_id": "run-688e7aa288a2/refund/1", "params_hash": "sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657", "entry_id": "ef-1dad8a128171802c93dc191a", "generation": 1}',1795925611216,'sha256:c035d190a00a26a9c582e3c3b9fd2d16e3f9f04423af25b403d3da020dbcebdb','sha256:df00f18a66cb694be8834656427caafe57b576ed0a043ba2436214486f21f27d');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',8,'effect.claimed','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657", "approval_id": "run-688e7aa288a2/refund/1"}',1795925611216,'sha256:df00f18a66cb694be8834656427caafe57b576ed0a043ba2436214486f21f27d','sha256:47d08432fbcabcbee99d8c3f66b96e30785d620bcb4abdec9e42f58b6397dee4');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',9,'effect.in_doubt','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "rule": "call_ended_without_an_outcome", "evidence": "sha256:002eb782e444690bd1a0cd3a9806f6463b79d1e5cbc4de69b99968543f5ccb0d", "action": "reconcile"}',1795925611240,'sha256:47d08432fbcabcbee99d8c3f66b96e30785d620bcb4abdec9e42f58b6397dee4','sha256:642a77ac8871f611435743374df213b064a8558ed821efaed7c631df25f95f97');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',10,'intervention.opened','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "intervention_id": "iv-1dad8a128171802c93dc191a-1", "rule": "unknown", "action": "ask_human"}',1795925611279,'sha256:642a77ac8871f611435743374df213b064a8558ed821efaed7c631df25f95f97','sha256:722a266bf1363518c64d74e9ecc2631ce5c16e15d57f5cb43cfc163c257a3572');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',11,'steering.accepted',NULL,'{"steering_id": "run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.2", "verb": "resolve", "actor": "oscar", "content": "sha256:9988dc10e37e9ac1f05ac92a50899139e44251680215373562d173bd8e74534c", "verified": false}',1795925616544,'sha256:722a266bf1363518c64d74e9ecc2631ce5c16e15d57f5cb43cfc163c257a3572','sha256:62ab2b20370868c1cc0dbbd275c46fee051274e265b4ef41fd9c9be2dec8f931');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',12,'intervention.settled','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "intervention_id": "iv-1dad8a128171802c93dc191a-1", "rule": "unknown", "outcome": "not_happened", "actor": "oscar", "resolution_id": "run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.2", "action": "failed"}',1795925616682,'sha256:62ab2b20370868c1cc0dbbd275c46fee051274e265b4ef41fd9c9be2dec8f931','sha256:ab35a539975595e36d9f15b6f769fea6a270bdfd79d43db970957e2b7ac39c46');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',13,'recovery.verified','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "outcome": "failed", "action": "human", "calls": 1, "took_ms": 5442}',1795925616682,'sha256:ab35a539975595e36d9f15b6f769fea6a270bdfd79d43db970957e2b7ac39c46','sha256:efb5c08b8e80bf58fec8273a751e1e60f2ea02b717f8e4e0dad7de3886da53d4');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',14,'effect.claimed','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "generation": 1, "fencing_token": 3, "attempt": 2, "params_hash": "sha256:43c1b819534260f19d8366c42bab8c38cfd4691f9ae0ba550753eac666809657", "approval_id": "run-688e7aa288a2/refund/1"}',1795925616873,'sha256:efb5c08b8e80bf58fec8273a751e1e60f2ea02b717f8e4e0dad7de3886da53d4','sha256:7ee34506cac6f7cd4fbbc343c57c8fba312fb1d04cab7f3a8e70e7dc2f004427');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',15,'effect.committed','refund','{"entry_id": "ef-1dad8a128171802c93dc191a", "tool": "payments.refund", "receipt": "sha256:13fd24ca4401d6e147cd207f9e2f1c03415c3306d4e91772d8a9a8b1408f1bd9"}',1795925616943,'sha256:7ee34506cac6f7cd4fbbc343c57c8fba312fb1d04cab7f3a8e70e7dc2f004427','sha256:ee037252be543d405f40e3229b4e1cb1ce62436a0b3496822f1653bea2f396e9');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',16,'effect.claimed','restock','{"entry_id": "ef-d5cd4ec2d1e7e4dcf7c5578d", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:f265da003ad6ef9a3ef72b0c023499638c1889f1f924cd0a5561c4bb3fbec8a0"}',1795925617037,'sha256:ee037252be543d405f40e3229b4e1cb1ce62436a0b3496822f1653bea2f396e9','sha256:bccd7ae11915934e79c9eec2dee21e85324d5beedfd568aaf85cad74c8ad54dc');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',17,'effect.committed','restock','{"entry_id": "ef-d5cd4ec2d1e7e4dcf7c5578d", "tool": "inventory.restock", "receipt": "sha256:eb636fbced3996cfc99415825558040667b49ef6b50a6282988c9a11eca8adf3"}',1795925617061,'sha256:bccd7ae11915934e79c9eec2dee21e85324d5beedfd568aaf85cad74c8ad54dc','sha256:903dec1bcaa3838cec1de407631d18ac15b66bbf865ffa0810713eb29927fa10');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',18,'effect.claimed','mail','{"entry_id": "ef-509c5a84e7087ced6863fd4e", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:a28a091badb54c6bb62621a3f434170bc39d193859e6475060afb96b397af881"}',1795925617319,'sha256:903dec1bcaa3838cec1de407631d18ac15b66bbf865ffa0810713eb29927fa10','sha256:4d557044ca27ee842519f3a3bcf6aa0bc5b078828504fb2120885393141873c2');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',19,'effect.committed','mail','{"entry_id": "ef-509c5a84e7087ced6863fd4e", "tool": "mail.send", "receipt": "sha256:9f09680ad95b1891b92c63cc9123694c779c0009d7a89815ce2ea733fce28e51"}',1795925617340,'sha256:4d557044ca27ee842519f3a3bcf6aa0bc5b078828504fb2120885393141873c2','sha256:754131b706f5b720faf9563b265b522ee2a34a50cf66b0e2bac1d14e4387837f');
INSERT INTO "events" VALUES('default','run-688e7aa288a2',20,'run.completed',NULL,'{}',1795925617505,'sha256:754131b706f5b720faf9563b265b522ee2a34a50cf66b0e2bac1d14e4387837f','sha256:72377996219b822a5626949329f4e552f951e2f13dad21204b8679bf6e6fdf61');
INSERT INTO "events" VALUES('default','run-e681ce958715',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:1884bd5e8e4ffb4885dbd6b560bd901258b9b51868f9ee98f7db06143e821593", "gated": ["refund"], "store": "0cf5db7496ce4a9396d633fe683c6f20"}',1795925617970,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:3013a5eebab122e3c016afb64498bd0da2c6a03cb11e96c7dcd36107761ba5f6');
INSERT INTO "events" VALUES('default','run-e681ce958715',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795925618082,'sha256:3013a5eebab122e3c016afb64498bd0da2c6a03cb11e96c7dcd36107761ba5f6','sha256:aba7fce7fd2c25a95a53771fe5c0aa3fc69c627f4dc124146461c981003d7059');
INSERT INTO "events" VALUES('default','run-e681ce958715',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795925618226,'sha256:aba7fce7fd2c25a95a53771fe5c0aa3fc69c627f4dc124146461c981003d7059','sha256:38dfffa6b53ea9c99fc52499ffdfedaee2ee1ba9b620f7b883f23e5776c5c53c');
INSERT INTO "events" VALUES('default','run-e681ce958715',4,'approval.requested','refund','{"approval_id": "run-e681ce958715/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:e347067839d24c2da5efc25fb6803dac6646ef68b3d242513f06293bd83cce0b", "expires_ms": 1796012018317, "assurance": "open", "quorum": 1}',1795925618317,'sha256:38dfffa6b53ea9c99fc52499ffdfedaee2ee1ba9b620f7b883f23e5776c5c53c','sha256:c63ff792b3cf3c73d6575854b70a8248d1074040968dcaa349532e5a34c93d96');
INSERT INTO "events" VALUES('default','run-e681ce958715',5,'decision.refused','refund','{"decision_id": "run-e681ce958715#01a22582-2bf7-789d-9ce5-7eb50c931073.1", "approval_id": "run-e681ce958715/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "reason": "wrong_hash"}',1795925618530,'sha256:c63ff792b3cf3c73d6575854b70a8248d1074040968dcaa349532e5a34c93d96','sha256:ee6794a1468f55528c6d2ba65d60867df33673b3687403edaadc577863c1f406');
INSERT INTO "events" VALUES('default','run-e681ce958715',6,'decision.refused',NULL,'{"decision_id": "run-e681ce958715#01a22582-2bf7-789d-9ce5-7eb50c931073.2", "approval_id": "", "verified": false, "proof": "open", "reason": "malformed"}',1795925618690,'sha256:ee6794a1468f55528c6d2ba65d60867df33673b3687403edaadc577863c1f406','sha256:c3b0fd42a277f29a072e9e98c7135fccfa73978ceff175d96265f50ba119c442');
CREATE TABLE grants (
	tenant_id VARCHAR(80) NOT NULL, 
	principal VARCHAR(200) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(80) NOT NULL, 
	granted_ms BIGINT NOT NULL, 
	revoked_ms BIGINT, 
	CONSTRAINT pk_grants PRIMARY KEY (tenant_id, principal, kind, name), 
	CONSTRAINT ck_grants_kind CHECK (kind IN ('role', 'permission')), 
	CONSTRAINT fk_grants_principals FOREIGN KEY(tenant_id, principal) REFERENCES principals (tenant_id, principal)
);
CREATE TABLE halt_votes (
	tenant_id VARCHAR(80) NOT NULL, 
	vote_id VARCHAR(40) NOT NULL, 
	halt_id VARCHAR(40) NOT NULL, 
	approver VARCHAR(200) NOT NULL, 
	params_hash VARCHAR(200) NOT NULL, 
	signature TEXT, 
	kid VARCHAR(80), 
	nonce VARCHAR(100), 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_halt_votes PRIMARY KEY (tenant_id, vote_id)
);
CREATE TABLE halts (
	tenant_id VARCHAR(80) NOT NULL, 
	halt_id VARCHAR(40) NOT NULL, 
	tool VARCHAR(120), 
	run_id VARCHAR(255), 
	undo_too BOOLEAN NOT NULL, 
	reason TEXT NOT NULL, 
	halted_by VARCHAR(200) NOT NULL, 
	halted_ms BIGINT NOT NULL, 
	needs JSON, 
	lifted_by VARCHAR(200), 
	lifted_ms BIGINT, 
	CONSTRAINT pk_halts PRIMARY KEY (tenant_id, halt_id), 
	CONSTRAINT ck_halts_lifted_whole CHECK ((lifted_ms IS NULL) = (lifted_by IS NULL))
);
CREATE TABLE holds (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	kept_by VARCHAR(200) NOT NULL, 
	reason TEXT NOT NULL, 
	kept_ms BIGINT NOT NULL, 
	CONSTRAINT pk_holds PRIMARY KEY (tenant_id, run_id), 
	CONSTRAINT fk_holds_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
CREATE TABLE in_hand (
	worker VARCHAR(200) NOT NULL, 
	workflow_id VARCHAR(255) NOT NULL, 
	namespace VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_in_hand PRIMARY KEY (worker, workflow_id)
);
CREATE TABLE interventions (
	tenant_id VARCHAR(80) NOT NULL, 
	intervention_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	entry_id VARCHAR(80) NOT NULL, 
	number INTEGER NOT NULL, 
	rule VARCHAR(32) NOT NULL, 
	question TEXT NOT NULL, 
	undo JSON, 
	state VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	actor VARCHAR(200), 
	evidence TEXT, 
	resolution_id VARCHAR(400), 
	opened_ms BIGINT NOT NULL, 
	settled_ms BIGINT, 
	CONSTRAINT pk_interventions PRIMARY KEY (tenant_id, intervention_id), 
	CONSTRAINT fk_interventions_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_interventions_state CHECK (state IN ('open', 'settled')), 
	CONSTRAINT ck_interventions_settled_whole CHECK ((state = 'settled') = (outcome IS NOT NULL AND actor IS NOT NULL))
);
INSERT INTO "interventions" VALUES('default','iv-1dad8a128171802c93dc191a-1','run-688e7aa288a2','refund','ef-1dad8a128171802c93dc191a',1,'unknown','payments.refund refund:order-f603012e3b95: RemoteProtocolError: Server disconnected without sending a response.. Did it happen? Settled as undo, payments.cancel_refund takes it back.',NULL,'settled','not_happened','oscar','','run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.2',1795925611279,1795925616682);
CREATE TABLE leases (
	tenant_id VARCHAR(80) NOT NULL, 
	resource VARCHAR(400) NOT NULL, 
	fencing_token BIGINT NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	tool VARCHAR(120) NOT NULL, 
	holder VARCHAR(400), 
	lease_until_ms BIGINT, 
	lease_ms BIGINT NOT NULL, 
	others_after_ms BIGINT NOT NULL, 
	acquired_ms BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (tenant_id, resource), 
	CONSTRAINT fk_leases_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_leases_held_until CHECK ((holder IS NULL) = (lease_until_ms IS NULL)), 
	CONSTRAINT ck_leases_fencing_token CHECK (fencing_token >= 1)
);
CREATE TABLE limit_uses (
	tenant_id VARCHAR(80) NOT NULL, 
	entry_id VARCHAR(80) NOT NULL, 
	limit_name VARCHAR(60) NOT NULL, 
	group_hash VARCHAR(80) NOT NULL, 
	amount BIGINT NOT NULL, 
	counted_ms BIGINT NOT NULL, 
	CONSTRAINT pk_limit_uses PRIMARY KEY (tenant_id, entry_id, limit_name), 
	CONSTRAINT ck_limit_uses_amount CHECK (amount >= 0)
);
CREATE TABLE notifications (
	tenant_id VARCHAR(80) NOT NULL, 
	notification_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80), 
	kind VARCHAR(32) NOT NULL, 
	subject VARCHAR(400) NOT NULL, 
	number INTEGER NOT NULL, 
	channel VARCHAR(200) NOT NULL, 
	facts JSON NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	due_ms BIGINT NOT NULL, 
	attempts INTEGER NOT NULL, 
	error TEXT, 
	written_ms BIGINT NOT NULL, 
	sent_ms BIGINT, 
	message VARCHAR(200), 
	CONSTRAINT pk_notifications PRIMARY KEY (tenant_id, notification_id), 
	CONSTRAINT fk_notifications_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_notifications_state CHECK (state IN ('pending', 'sent', 'failed', 'void')), 
	CONSTRAINT ck_notifications_sent_at_a_time CHECK ((state = 'sent') = (sent_ms IS NOT NULL)), 
	CONSTRAINT ck_notifications_counts CHECK (number >= 0 AND attempts >= 0), 
	CONSTRAINT uq_notifications_tenant_id_kind_subject_number_channel UNIQUE (tenant_id, kind, subject, number, channel)
);
CREATE TABLE plans (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	plan_version INTEGER NOT NULL, 
	"plan" JSON NOT NULL, 
	tools JSON NOT NULL, 
	stored_ms BIGINT NOT NULL, 
	CONSTRAINT pk_plans PRIMARY KEY (tenant_id, run_id, plan_version), 
	CONSTRAINT fk_plans_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "plans" VALUES('default','run-bd623aa423c9',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-21dee23246e7"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795925606656);
INSERT INTO "plans" VALUES('default','run-fa0c9f169e73',1,'{"name": "refund-fails", "goal": "Refund a returned order and close the customer''s ticket", "input": {"order_id": "order-b8a4d056197b", "ticket_id": "ticket-78"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "close", "tool": "tickets.close", "ask": null, "plan": null, "params": {"ticket_id": "${input.ticket_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "tickets.close": {"name": "tickets.close", "version": "1", "schema_hash": "sha256:15350cfdb0fde1a53f5e840629d8690924b304c3d4cdecaa2c35bc86a6225f65", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Close a customer''s ticket.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795925607795);
INSERT INTO "plans" VALUES('default','run-65c5a091043d',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-b1edf35d8a08"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": ["order"], "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}}',1795925609372);
INSERT INTO "plans" VALUES('default','run-688e7aa288a2',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-f603012e3b95"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "human", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": null, "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795925610763);
INSERT INTO "plans" VALUES('default','run-e681ce958715',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-1d19f65560cb"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795925617970);
CREATE TABLE principal_changes (
	tenant_id VARCHAR(80) NOT NULL, 
	change_id VARCHAR(40) NOT NULL, 
	principal VARCHAR(200) NOT NULL, 
	change VARCHAR(32) NOT NULL, 
	what VARCHAR(100) NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_principal_changes PRIMARY KEY (tenant_id, change_id), 
	CONSTRAINT fk_principal_changes_principals FOREIGN KEY(tenant_id, principal) REFERENCES principals (tenant_id, principal)
);
CREATE TABLE principal_keys (
	tenant_id VARCHAR(80) NOT NULL, 
	kid VARCHAR(80) NOT NULL, 
	principal VARCHAR(200) NOT NULL, 
	public_key JSON NOT NULL, 
	passkey JSON, 
	added_ms BIGINT NOT NULL, 
	revoked_ms BIGINT, 
	CONSTRAINT pk_principal_keys PRIMARY KEY (tenant_id, kid), 
	CONSTRAINT fk_principal_keys_principals FOREIGN KEY(tenant_id, principal) REFERENCES principals (tenant_id, principal)
);
CREATE TABLE principals (
	tenant_id VARCHAR(80) NOT NULL, 
	principal VARCHAR(200) NOT NULL, 
	added_ms BIGINT NOT NULL, 
	CONSTRAINT pk_principals PRIMARY KEY (tenant_id, principal)
);
CREATE TABLE quota_usage (
	tenant_id VARCHAR(80) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	window_start_ms BIGINT NOT NULL, 
	used BIGINT NOT NULL, 
	CONSTRAINT pk_quota_usage PRIMARY KEY (tenant_id, kind, window_start_ms), 
	CONSTRAINT ck_quota_usage_kind CHECK (kind IN ('effects', 'tokens', 'money')), 
	CONSTRAINT ck_quota_usage_used CHECK (used >= 0)
);
CREATE TABLE quotas (
	tenant_id VARCHAR(80) NOT NULL, 
	open_runs INTEGER, 
	effects_per_hour INTEGER, 
	pending_approvals INTEGER, 
	tokens_per_day BIGINT, 
	money_per_day VARCHAR(40), 
	over VARCHAR(8) NOT NULL, 
	weight DOUBLE NOT NULL, 
	set_by VARCHAR(200) NOT NULL, 
	set_ms BIGINT NOT NULL, 
	CONSTRAINT pk_quotas PRIMARY KEY (tenant_id), 
	CONSTRAINT ck_quotas_over CHECK (over IN ('queue', 'reject')), 
	CONSTRAINT ck_quotas_weight CHECK (weight >= 0.001 AND weight <= 1000), 
	CONSTRAINT ck_quotas_at_least_nothing CHECK ((open_runs IS NULL OR open_runs >= 0) AND (effects_per_hour IS NULL OR effects_per_hour >= 0) AND (pending_approvals IS NULL OR pending_approvals >= 0) AND (tokens_per_day IS NULL OR tokens_per_day >= 0))
);
CREATE TABLE replays (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	entry_id VARCHAR(80) NOT NULL, 
	replayed_ms BIGINT NOT NULL, 
	CONSTRAINT pk_replays PRIMARY KEY (tenant_id, run_id, step_id, entry_id), 
	CONSTRAINT fk_replays_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
CREATE TABLE retention_rounds (
	tenant_id VARCHAR(80) NOT NULL, 
	whole_ms BIGINT NOT NULL, 
	CONSTRAINT pk_retention_rounds PRIMARY KEY (tenant_id)
);
CREATE TABLE run_keys (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	kek_id VARCHAR(80) NOT NULL, 
	wrapped BLOB, 
	created_ms BIGINT NOT NULL, 
	erased_ms BIGINT, 
	erased_by VARCHAR(200), 
	CONSTRAINT pk_run_keys PRIMARY KEY (tenant_id, run_id), 
	CONSTRAINT ck_run_keys_erased_at_a_time CHECK ((wrapped IS NULL) = (erased_ms IS NOT NULL)), 
	CONSTRAINT ck_run_keys_erased_by_somebody CHECK ((erased_ms IS NULL) = (erased_by IS NULL))
);
CREATE TABLE runs (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	first_execution VARCHAR(80) NOT NULL, 
	execution VARCHAR(80) NOT NULL, 
	parent_run_id VARCHAR(255), 
	parent_step_id VARCHAR(80), 
	linked_run_id VARCHAR(255), 
	user_id VARCHAR(200) NOT NULL, 
	started_by VARCHAR(200) NOT NULL, 
	start_signature TEXT, 
	start_kid VARCHAR(80), 
	start_nonce VARCHAR(100), 
	start_ms BIGINT NOT NULL, 
	plan_name VARCHAR(80) NOT NULL, 
	input JSON NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	error TEXT, 
	seq BIGINT NOT NULL, 
	head VARCHAR(80) NOT NULL, 
	opened_ms BIGINT NOT NULL, 
	admitted_ms BIGINT, 
	closed_ms BIGINT, 
	batch VARCHAR(400), 
	CONSTRAINT pk_runs PRIMARY KEY (tenant_id, run_id), 
	CONSTRAINT ck_runs_closed_when_ended CHECK ((closed_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))), 
	CONSTRAINT ck_runs_start_signed_whole CHECK ((start_signature IS NULL) = (start_kid IS NULL) AND (start_nonce IS NULL OR start_kid IS NOT NULL)), 
	CONSTRAINT ck_runs_parent_run_and_step CHECK ((parent_run_id IS NULL) = (parent_step_id IS NULL))
);
INSERT INTO "runs" VALUES('default','run-bd623aa423c9','01a22582-0090-7bb2-8301-7c6f1ff55fbc','01a22582-0090-7bb2-8301-7c6f1ff55fbc',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795925606544,'refund','{"order_id": "order-21dee23246e7"}','completed',NULL,14,'sha256:7a7dc8b6be79d9906576151aeb53845d716ff680a9afd3df14beb3060953cae9',1795925606656,1795925606656,1795925607444,NULL);
INSERT INTO "runs" VALUES('default','run-fa0c9f169e73','01a22582-04d5-7e59-beb2-4b4a2962a1d4','01a22582-04d5-7e59-beb2-4b4a2962a1d4',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795925607637,'refund-fails','{"order_id": "order-b8a4d056197b", "ticket_id": "ticket-78"}','failed','step close: tickets.close: HTTP 422 from POST /tickets/ticket-78/close (ToolFailed)',23,'sha256:358c84f0a92a67d034ba10cf21ac52ce5502cb68da7758034d83a77bcb77f4c3',1795925607795,1795925607795,1795925608877,NULL);
INSERT INTO "runs" VALUES('default','run-65c5a091043d','01a22582-0aaf-7dd3-98e7-63106e636e3f','01a22582-0aaf-7dd3-98e7-63106e636e3f',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795925609135,'refund','{"order_id": "order-b1edf35d8a08"}','failed','step refund: rejected by ann (unverified): too much',14,'sha256:108b6558c19d0e92e91e70fcc4b798453fffbc05865887d17d4a57f7b327aaee',1795925609372,1795925609372,1795925610347,NULL);
INSERT INTO "runs" VALUES('default','run-688e7aa288a2','01a22582-103e-7b4f-8aca-4ff8991411dd','01a22582-103e-7b4f-8aca-4ff8991411dd',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795925610558,'refund','{"order_id": "order-f603012e3b95"}','completed',NULL,20,'sha256:72377996219b822a5626949329f4e552f951e2f13dad21204b8679bf6e6fdf61',1795925610763,1795925610763,1795925617505,NULL);
INSERT INTO "runs" VALUES('default','run-e681ce958715','01a22582-2bf7-789d-9ce5-7eb50c931073','01a22582-2bf7-789d-9ce5-7eb50c931073',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795925617655,'refund','{"order_id": "order-1d19f65560cb"}','running',NULL,6,'sha256:c3b0fd42a277f29a072e9e98c7135fccfa73978ceff175d96265f50ba119c442',1795925617970,1795925617970,NULL,NULL);
CREATE TABLE standing_approvals (
	tenant_id VARCHAR(80) NOT NULL, 
	standing_id VARCHAR(40) NOT NULL, 
	granter VARCHAR(200) NOT NULL, 
	tool VARCHAR(120) NOT NULL, 
	tool_version VARCHAR(40) NOT NULL, 
	schema_hash VARCHAR(80) NOT NULL, 
	condition VARCHAR(500), 
	most_uses INTEGER, 
	total_of VARCHAR(200), 
	most_total VARCHAR(40), 
	foreign_too BOOLEAN NOT NULL, 
	until_ms BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	nonce VARCHAR(100) NOT NULL, 
	signature TEXT, 
	kid VARCHAR(80), 
	granted_ms BIGINT NOT NULL, 
	revoked_ms BIGINT, 
	revoked_by VARCHAR(200), 
	CONSTRAINT pk_standing_approvals PRIMARY KEY (tenant_id, standing_id), 
	CONSTRAINT ck_standing_approvals_signed_whole CHECK ((signature IS NULL) = (kid IS NULL)), 
	CONSTRAINT ck_standing_approvals_total_whole CHECK ((total_of IS NULL) = (most_total IS NULL)), 
	CONSTRAINT ck_standing_approvals_revoked_whole CHECK ((revoked_ms IS NULL) = (revoked_by IS NULL)), 
	CONSTRAINT ck_standing_approvals_most_uses CHECK (most_uses >= 1)
);
CREATE TABLE standing_uses (
	tenant_id VARCHAR(80) NOT NULL, 
	approval_id VARCHAR(400) NOT NULL, 
	standing_id VARCHAR(40) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	amount VARCHAR(80), 
	used_ms BIGINT NOT NULL, 
	returned_ms BIGINT, 
	CONSTRAINT pk_standing_uses PRIMARY KEY (tenant_id, approval_id, standing_id), 
	CONSTRAINT fk_standing_uses_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT fk_standing_uses_standing_approvals FOREIGN KEY(tenant_id, standing_id) REFERENCES standing_approvals (tenant_id, standing_id), 
	CONSTRAINT fk_standing_uses_approvals FOREIGN KEY(tenant_id, approval_id) REFERENCES approvals (tenant_id, approval_id)
);
CREATE TABLE steerings (
	tenant_id VARCHAR(80) NOT NULL, 
	steering_id VARCHAR(400) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	workflow_run_id VARCHAR(80) NOT NULL, 
	verb VARCHAR(16) NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	content JSON NOT NULL, 
	code VARCHAR(32) NOT NULL, 
	message TEXT NOT NULL, 
	verified BOOLEAN NOT NULL, 
	signature TEXT, 
	kid VARCHAR(80), 
	nonce VARCHAR(100), 
	forwarded_as VARCHAR(400), 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_steerings PRIMARY KEY (tenant_id, steering_id), 
	CONSTRAINT fk_steerings_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT ck_steerings_signed_whole CHECK ((kid IS NULL) = (nonce IS NULL)), 
	CONSTRAINT ck_steerings_verified_by_a_signature CHECK (NOT verified OR nonce IS NOT NULL)
);
INSERT INTO "steerings" VALUES('default','run-688e7aa288a2#01a22582-103e-7b4f-8aca-4ff8991411dd.2','run-688e7aa288a2','01a22582-103e-7b4f-8aca-4ff8991411dd','resolve','oscar','{"actor": "oscar", "intervention_id": "iv-1dad8a128171802c93dc191a-1", "outcome": "not_happened"}','accepted','accepted',0,NULL,NULL,NULL,NULL,1795925616544);
CREATE TABLE steps (
	tenant_id VARCHAR(80) NOT NULL, 
	run_id VARCHAR(255) NOT NULL, 
	step_id VARCHAR(80) NOT NULL, 
	attempt INTEGER NOT NULL, 
	tool VARCHAR(120) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	input JSON, 
	output JSON, 
	error TEXT, 
	error_class VARCHAR(32), 
	started_ms BIGINT, 
	ended_ms BIGINT, 
	holder VARCHAR(400), 
	CONSTRAINT pk_steps PRIMARY KEY (tenant_id, run_id, step_id, attempt), 
	CONSTRAINT ck_steps_state CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'skipped')), 
	CONSTRAINT ck_steps_attempt CHECK (attempt >= 0), 
	CONSTRAINT fk_steps_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "steps" VALUES('default','run-bd623aa423c9','order',1,'orders.read','succeeded','{"order_id": "order-21dee23246e7"}','{"order_id": "order-21dee23246e7", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-21dee23246e7", "quantity": 2}]}',NULL,NULL,1795925606714,1795925606830,'01a22582-0090-7bb2-8301-7c6f1ff55fbc:2:1:0648fdae503a4fbd88cfa13723441547');
INSERT INTO "steps" VALUES('default','run-bd623aa423c9','amount',1,'refunds.calculate','succeeded','{"order_id": "order-21dee23246e7", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795925606888,1795925606916,'01a22582-0090-7bb2-8301-7c6f1ff55fbc:3:1:5f6b44f5f56649c9ad93940f86e3d60c');
INSERT INTO "steps" VALUES('default','run-bd623aa423c9','refund',1,'payments.refund','succeeded','{"order_id": "order-21dee23246e7", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-39b0040a2c50", "order_id": "order-21dee23246e7", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795925607074,1795925607110,NULL);
INSERT INTO "steps" VALUES('default','run-bd623aa423c9','restock',1,'inventory.restock','succeeded','{"order_id": "order-21dee23246e7", "lines": [{"sku": "article-of-order-21dee23246e7", "quantity": 2}]}','{"restock_id": "restock-05fac2b72191", "order_id": "order-21dee23246e7", "lines": [{"sku": "article-of-order-21dee23246e7", "quantity": 2}]}',NULL,NULL,1795925607185,1795925607209,NULL);
INSERT INTO "steps" VALUES('default','run-bd623aa423c9','mail',1,'mail.send','succeeded','{"order_id": "order-21dee23246e7", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-21dee23246e7", "body": "We have refunded 120.00 EUR for order-21dee23246e7."}','{"mail_id": "mail-1ae9f2b78f90", "to": "ada@example.com"}',NULL,NULL,1795925607335,1795925607365,NULL);
INSERT INTO "steps" VALUES('default','run-fa0c9f169e73','order',1,'orders.read','succeeded','{"order_id": "order-b8a4d056197b"}','{"order_id": "order-b8a4d056197b", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-b8a4d056197b", "quantity": 2}]}',NULL,NULL,1795925607850,1795925607869,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:2:1:5cf40a3a88ef45d68af4f244d521c146');
INSERT INTO "steps" VALUES('default','run-fa0c9f169e73','amount',1,'refunds.calculate','succeeded','{"order_id": "order-b8a4d056197b", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795925607998,1795925608009,'01a22582-04d5-7e59-beb2-4b4a2962a1d4:3:1:8449b5956788432ea4fba9158af2a743');
INSERT INTO "steps" VALUES('default','run-fa0c9f169e73','refund',1,'payments.refund','succeeded','{"order_id": "order-b8a4d056197b", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-00a5d37b891c", "order_id": "order-b8a4d056197b", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795925608198,1795925608222,NULL);
INSERT INTO "steps" VALUES('default','run-fa0c9f169e73','restock',1,'inventory.restock','succeeded','{"order_id": "order-b8a4d056197b", "lines": [{"sku": "article-of-order-b8a4d056197b", "quantity": 2}]}','{"restock_id": "restock-52bff8a015ac", "order_id": "order-b8a4d056197b", "lines": [{"sku": "article-of-order-b8a4d056197b", "quantity": 2}]}',NULL,NULL,1795925608291,1795925608302,NULL);
INSERT INTO "steps" VALUES('default','run-fa0c9f169e73','close',1,'tickets.close','failed','{"ticket_id": "ticket-78"}',NULL,'HTTP 422 from POST /tickets/ticket-78/close','permanent',1795925608364,1795925608378,NULL);
INSERT INTO "steps" VALUES('default','run-65c5a091043d','order',1,'orders.read','succeeded','{"order_id": "order-b1edf35d8a08"}','{"order_id": "order-b1edf35d8a08", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-b1edf35d8a08", "quantity": 2}]}',NULL,NULL,1795925609469,1795925609478,'01a22582-0aaf-7dd3-98e7-63106e636e3f:2:1:0cbe027ade5247bb9f1fcacc36d6b6b6');
INSERT INTO "steps" VALUES('default','run-65c5a091043d','amount',1,'refunds.calculate','succeeded','{"order_id": "order-b1edf35d8a08", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795925609668,1795925609695,'01a22582-0aaf-7dd3-98e7-63106e636e3f:3:1:f76eab14008740c4b52d9198629ec5b7');
INSERT INTO "steps" VALUES('default','run-65c5a091043d','restock',1,'inventory.restock','succeeded','{"order_id": "order-b1edf35d8a08", "lines": [{"sku": "article-of-order-b1edf35d8a08", "quantity": 2}]}','{"restock_id": "restock-f6227737b156", "order_id": "order-b1edf35d8a08", "lines": [{"sku": "article-of-order-b1edf35d8a08", "quantity": 2}]}',NULL,NULL,1795925609672,1795925609753,NULL);
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','order',1,'orders.read','succeeded','{"order_id": "order-f603012e3b95"}','{"order_id": "order-f603012e3b95", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-f603012e3b95", "quantity": 2}]}',NULL,NULL,1795925610807,1795925610821,'01a22582-103e-7b4f-8aca-4ff8991411dd:2:1:a855b071875c404bb7e64d3326d2289e');
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','amount',1,'refunds.calculate','succeeded','{"order_id": "order-f603012e3b95", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795925610924,1795925610943,'01a22582-103e-7b4f-8aca-4ff8991411dd:3:1:a706a9f508c440288b3833a15c544bcd');
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','refund',1,'payments.refund','failed','{"order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'RemoteProtocolError: Server disconnected without sending a response.','in_doubt',1795925611216,1795925611240,NULL);
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','refund',2,'payments.refund','succeeded','{"order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-e7622226b258", "order_id": "order-f603012e3b95", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795925616873,1795925616943,NULL);
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','restock',1,'inventory.restock','succeeded','{"order_id": "order-f603012e3b95", "lines": [{"sku": "article-of-order-f603012e3b95", "quantity": 2}]}','{"restock_id": "restock-18f13859d421", "order_id": "order-f603012e3b95", "lines": [{"sku": "article-of-order-f603012e3b95", "quantity": 2}]}',NULL,NULL,1795925617037,1795925617061,NULL);
INSERT INTO "steps" VALUES('default','run-688e7aa288a2','mail',1,'mail.send','succeeded','{"order_id": "order-f603012e3b95", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-f603012e3b95", "body": "We have refunded 120.00 EUR for order-f603012e3b95."}','{"mail_id": "mail-896e0271bbe5", "to": "ada@example.com"}',NULL,NULL,1795925617319,1795925617340,NULL);
INSERT INTO "steps" VALUES('default','run-e681ce958715','order',1,'orders.read','succeeded','{"order_id": "order-1d19f65560cb"}','{"order_id": "order-1d19f65560cb", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-1d19f65560cb", "quantity": 2}]}',NULL,NULL,1795925618074,1795925618082,'01a22582-2bf7-789d-9ce5-7eb50c931073:2:1:f76669c5a5b74be9b3064d91860be192');
INSERT INTO "steps" VALUES('default','run-e681ce958715','amount',1,'refunds.calculate','succeeded','{"order_id": "order-1d19f65560cb", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795925618203,1795925618226,'01a22582-2bf7-789d-9ce5-7eb50c931073:3:1:90a667e6a7df4f519b6ce96fba4166e4');
CREATE TABLE tenants (
	tenant_id VARCHAR(80) NOT NULL, 
	cell VARCHAR(64) NOT NULL, 
	set_by VARCHAR(200) NOT NULL, 
	set_ms BIGINT NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (tenant_id)
);
CREATE INDEX ix_runs_parent ON runs (tenant_id, parent_run_id, parent_step_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX ix_runs_open ON runs (tenant_id, opened_ms) WHERE closed_ms IS NULL AND parent_run_id IS NULL;
CREATE INDEX ix_runs_linked ON runs (tenant_id, linked_run_id) WHERE linked_run_id IS NOT NULL;
CREATE INDEX ix_runs_closed ON runs (tenant_id, closed_ms) WHERE closed_ms IS NOT NULL AND parent_run_id IS NULL;
CREATE UNIQUE INDEX uq_runs_start_nonce ON runs (tenant_id, started_by, start_nonce) WHERE start_nonce IS NOT NULL;
CREATE INDEX ix_standing_approvals_tool ON standing_approvals (tenant_id, tool);
CREATE INDEX ix_limit_uses_group ON limit_uses (tenant_id, group_hash, counted_ms);
CREATE INDEX ix_halts_standing ON halts (tenant_id, halted_ms, halt_id) WHERE lifted_ms IS NULL;
CREATE UNIQUE INDEX uq_halt_votes_nonce ON halt_votes (tenant_id, approver, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX ix_halt_votes_halt ON halt_votes (tenant_id, halt_id);
CREATE INDEX ix_notifications_written ON notifications (tenant_id, written_ms);
CREATE INDEX ix_notifications_message ON notifications (tenant_id, channel) WHERE message IS NOT NULL;
CREATE INDEX ix_notifications_due ON notifications (tenant_id, channel, due_ms) WHERE state = 'pending';
CREATE INDEX ix_notifications_run ON notifications (tenant_id, run_id);
CREATE INDEX ix_effects_run ON effects (tenant_id, run_id, step_id);
CREATE UNIQUE INDEX uq_effects_live_key ON effects (tenant_id, tool, "key") WHERE state NOT IN ('failed', 'compensated');
CREATE INDEX ix_effects_undoes ON effects (tenant_id, undoes) WHERE undoes IS NOT NULL;
CREATE INDEX ix_effects_unsettled ON effects (tenant_id, claimed_ms, entry_id) WHERE state IN ('claimed', 'in_doubt', 'partial');
CREATE UNIQUE INDEX uq_effects_commit_no ON effects (tenant_id, commit_no);
CREATE UNIQUE INDEX uq_effects_undoes ON effects (tenant_id, undoes) WHERE undoes IS NOT NULL AND state != 'failed';
CREATE INDEX ix_replays_entry ON replays (tenant_id, entry_id);
CREATE INDEX ix_artifacts_sha256 ON artifacts (tenant_id, sha256);
CREATE INDEX ix_drafts_kept ON drafts (tenant_id) WHERE removed_ms IS NULL;
CREATE UNIQUE INDEX uq_drafts_under_way ON drafts (tenant_id, run_id, step_id) WHERE ended_ms IS NULL;
CREATE INDEX ix_leases_held ON leases (tenant_id, lease_until_ms) WHERE holder IS NOT NULL;
CREATE INDEX ix_events_at ON events (tenant_id, at_ms);
CREATE INDEX ix_events_replayed ON events (tenant_id, run_id) WHERE type = 'effect.replayed';
CREATE INDEX ix_events_foreign ON events (tenant_id, run_id) WHERE type = 'run.marked_foreign';
CREATE INDEX ix_approvals_asked ON approvals (tenant_id, asked_of, tool, expires_ms, approval_id) WHERE state = 'pending';
CREATE INDEX ix_approvals_remind ON approvals (tenant_id, remind_ms) WHERE state = 'pending' AND remind_ms IS NOT NULL;
CREATE INDEX ix_approvals_pending ON approvals (tenant_id, expires_ms, approval_id) WHERE state = 'pending';
CREATE INDEX ix_approvals_run ON approvals (tenant_id, run_id);
CREATE UNIQUE INDEX uq_decisions_vote ON decisions (tenant_id, approval_id, approver) WHERE verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL;
CREATE INDEX ix_decisions_run ON decisions (tenant_id, run_id);
CREATE INDEX ix_decisions_approval ON decisions (tenant_id, approval_id);
CREATE UNIQUE INDEX uq_decisions_nonce ON decisions (tenant_id, approver, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX ix_decisions_approver ON decisions (tenant_id, approver, at_ms, decision_id) WHERE standing_id IS NULL;
CREATE INDEX ix_steerings_actor ON steerings (tenant_id, actor, at_ms, steering_id) WHERE forwarded_as IS NULL AND verb IN ('answer', 'resolve');
CREATE UNIQUE INDEX uq_steerings_nonce ON steerings (tenant_id, run_id, workflow_run_id, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX ix_interventions_entry ON interventions (tenant_id, entry_id, number);
CREATE UNIQUE INDEX uq_interventions_open ON interventions (tenant_id, entry_id, run_id) WHERE state = 'open';
CREATE INDEX ix_interventions_run ON interventions (tenant_id, run_id, step_id);
CREATE INDEX ix_deputies_deputy ON deputies (tenant_id, deputy);
CREATE INDEX ix_deletions_going ON deletions (tenant_id, run_id) WHERE deleted_ms IS NULL;
CREATE INDEX ix_standing_uses_standing ON standing_uses (tenant_id, standing_id);
CREATE INDEX ix_standing_uses_run ON standing_uses (tenant_id, run_id, step_id);
CREATE TRIGGER halt_votes_no_update BEFORE UPDATE ON halt_votes BEGIN SELECT RAISE(ABORT, 'halt_votes are append-only'); END;
CREATE TRIGGER halt_votes_no_delete BEFORE DELETE ON halt_votes BEGIN SELECT RAISE(ABORT, 'halt_votes are append-only'); END;
CREATE TRIGGER principal_changes_no_update BEFORE UPDATE ON principal_changes BEGIN SELECT RAISE(ABORT, 'principal_changes are append-only'); END;
CREATE TRIGGER principal_changes_no_delete BEFORE DELETE ON principal_changes BEGIN SELECT RAISE(ABORT, 'principal_changes are append-only'); END;
CREATE TRIGGER approvals_no_delete BEFORE DELETE ON approvals BEGIN SELECT RAISE(ABORT, 'approvals are kept'); END;
CREATE TRIGGER approvals_kept BEFORE UPDATE OF approval_id, run_id, step_id, tool, tool_version, key, params_hash, user_id, editors, needs, asked_of, assurance, secret, requested_ms, expires_ms ON approvals BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER approvals_ended BEFORE UPDATE OF consumed_entry, consumed_generation ON approvals WHEN OLD.consumed_entry IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER deputies_no_delete BEFORE DELETE ON deputies BEGIN SELECT RAISE(ABORT, 'deputies are kept'); END;
CREATE TRIGGER deputies_kept BEFORE UPDATE OF deputy_id, principal, deputy, tool, amount_of, most, until_ms, named_ms, named_by ON deputies BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER deputies_ended BEFORE UPDATE OF revoked_ms, revoked_by ON deputies WHEN OLD.revoked_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER epochs_no_delete BEFORE DELETE ON epochs BEGIN SELECT RAISE(ABORT, 'epochs are kept'); END;
CREATE TRIGGER epochs_kept BEFORE UPDATE OF number, restored_to_ms, opened_ms, opened_by ON epochs BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER epochs_ended BEFORE UPDATE OF closed_ms, closed_by ON epochs WHEN OLD.closed_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER halts_no_delete BEFORE DELETE ON halts BEGIN SELECT RAISE(ABORT, 'halts are kept'); END;
CREATE TRIGGER halts_kept BEFORE UPDATE OF halt_id, tool, run_id, undo_too, reason, halted_by, halted_ms, needs ON halts BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER halts_ended BEFORE UPDATE OF lifted_ms, lifted_by ON halts WHEN OLD.lifted_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER run_keys_no_delete BEFORE DELETE ON run_keys BEGIN SELECT RAISE(ABORT, 'run_keys are kept'); END;
CREATE TRIGGER run_keys_kept BEFORE UPDATE OF run_id, created_ms ON run_keys BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER run_keys_ended BEFORE UPDATE OF erased_ms, erased_by ON run_keys WHEN OLD.erased_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER standing_approvals_no_delete BEFORE DELETE ON standing_approvals BEGIN SELECT RAISE(ABORT, 'standing_approvals are kept'); END;
CREATE TRIGGER standing_approvals_kept BEFORE UPDATE OF standing_id, granter, tool, tool_version, schema_hash, condition, most_uses, total_of, most_total, foreign_too, until_ms, reason, nonce, signature, kid, granted_ms ON standing_approvals BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER standing_approvals_ended BEFORE UPDATE OF revoked_ms, revoked_by ON standing_approvals WHEN OLD.revoked_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER standing_uses_no_delete BEFORE DELETE ON standing_uses BEGIN SELECT RAISE(ABORT, 'standing_uses are kept'); END;
CREATE TRIGGER standing_uses_kept BEFORE UPDATE OF approval_id, standing_id, run_id, step_id, amount, used_ms ON standing_uses BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER standing_uses_ended BEFORE UPDATE OF returned_ms ON standing_uses WHEN OLD.returned_ms IS NOT NULL BEGIN SELECT RAISE(ABORT, 'what has ended has ended'); END;
CREATE TRIGGER runs_kept BEFORE UPDATE OF parent_run_id, parent_step_id, linked_run_id ON runs BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed'); END;
CREATE TRIGGER approvals_moves BEFORE UPDATE OF state, decided_by, verified ON approvals WHEN (OLD.state = 'pending' OR (OLD.state = 'approved' AND NEW.state <> 'pending' AND OLD.consumed_entry IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'a request that was answered or closed is not answered again'); END;
CREATE TRIGGER bars_no_delete BEFORE DELETE ON bars WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'bars are never deleted'); END;
CREATE TRIGGER deletions_no_delete BEFORE DELETE ON deletions WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'deletions are never deleted'); END;
CREATE TRIGGER effects_no_delete BEFORE DELETE ON effects WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'effects are never deleted'); END;
CREATE TRIGGER leases_no_delete BEFORE DELETE ON leases WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'leases are never deleted'); END;
CREATE TRIGGER limit_uses_no_delete BEFORE DELETE ON limit_uses WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'limit_uses are never deleted'); END;
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'runs are never deleted'); END;
CREATE TRIGGER artifacts_no_delete BEFORE DELETE ON artifacts WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'artifacts are kept until their run is being deleted'); END;
CREATE TRIGGER checkpoints_no_delete BEFORE DELETE ON checkpoints WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'checkpoints are kept until their run is being deleted'); END;
CREATE TRIGGER decisions_no_update BEFORE UPDATE ON decisions WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'decisions are append-only'); END;
CREATE TRIGGER decisions_no_delete BEFORE DELETE ON decisions WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'decisions are append-only until their run is being deleted'); END;
CREATE TRIGGER drafts_no_delete BEFORE DELETE ON drafts WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'drafts are kept until their run is being deleted'); END;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'events are append-only until their run is being deleted'); END;
CREATE TRIGGER interventions_no_delete BEFORE DELETE ON interventions WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'interventions are kept until their run is being deleted'); END;
CREATE TRIGGER notifications_no_delete BEFORE DELETE ON notifications WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'notifications are kept until their run is being deleted'); END;
CREATE TRIGGER plans_no_delete BEFORE DELETE ON plans WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'plans are kept until their run is being deleted'); END;
CREATE TRIGGER replays_no_delete BEFORE DELETE ON replays WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'replays are kept until their run is being deleted'); END;
CREATE TRIGGER steerings_no_update BEFORE UPDATE ON steerings WHEN (1 = 0) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'steerings are append-only'); END;
CREATE TRIGGER steerings_no_delete BEFORE DELETE ON steerings WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'steerings are append-only until their run is being deleted'); END;
CREATE TRIGGER steps_no_delete BEFORE DELETE ON steps WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'steps are kept until their run is being deleted'); END;
CREATE TRIGGER approvals_emptied BEFORE UPDATE OF params, answers, description, undo, precondition ON approvals WHEN (EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed until its run is being deleted'); END;
CREATE TRIGGER effects_emptied BEFORE UPDATE OF content_deleted_ms ON effects WHEN (NEW.content_deleted_ms IS NULL OR EXISTS (SELECT 1 FROM deletions WHERE tenant_id = OLD.tenant_id AND run_id = OLD.run_id AND deleted_ms IS NULL)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'what was recorded is not changed until its run is being deleted'); END;
CREATE TRIGGER deletions_begun BEFORE INSERT ON deletions WHEN (NEW.deleted_ms IS NULL AND NEW.begun_ms >= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 60000 AND EXISTS (SELECT 1 FROM runs WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id AND closed_ms IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM holds WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id)) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'only what has ended is deleted, as of now, and nothing that is held'); END;
CREATE TRIGGER deletions_finished BEFORE UPDATE ON deletions WHEN (NEW.tenant_id = OLD.tenant_id AND NEW.run_id = OLD.run_id AND NEW.begun_ms = OLD.begun_ms AND NEW.begun_by = OLD.begun_by AND OLD.deleted_ms IS NULL) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'a deletion is finished once, and nothing goes back'); END;
CREATE TRIGGER halts_as_of_now BEFORE INSERT ON halts WHEN (NEW.halted_ms >= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 60000) IS NOT TRUE BEGIN SELECT RAISE(ABORT, 'calls are halted as of now'); END;
COMMIT;

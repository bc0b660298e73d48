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
	CONSTRAINT ck_approvals_decided_by_someone CHECK ((state IN ('approved', 'rejected', 'superseded')) = (decided_by IS NOT NULL)), 
	CONSTRAINT ck_approvals_assurance CHECK (assurance IN ('open', 'chat', 'signed', 'passkey', 'device_passkey')), 
	CONSTRAINT ck_approvals_only_approved_is_consumed CHECK (consumed_entry IS NULL OR state = 'approved'), 
	CONSTRAINT ck_approvals_state CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'superseded', 'void')), 
	CONSTRAINT ck_approvals_consumed_whole CHECK ((consumed_entry IS NULL) = (consumed_generation IS NULL)), 
	CONSTRAINT fk_approvals_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "approvals" VALUES('default','run-d7da2051bf19/refund/1','run-d7da2051bf19','refund','payments.refund','1','refund:order-138d61a79ac0','sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8','{"order_id": "order-138d61a79ac0", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-138d61a79ac0','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795959711969,1796046111969,'ann',0,'ef-ba83f2660f1acf93e38c961d',1,NULL);
INSERT INTO "approvals" VALUES('default','run-9f7fb50498fc/refund/1','run-9f7fb50498fc','refund','payments.refund','1','refund:order-93a816e9ef50','sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929','{"order_id": "order-93a816e9ef50", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-93a816e9ef50','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795959714008,1796046114008,'ann',0,'ef-e3f06b7bd2b7118e5e8b646c',1,NULL);
INSERT INTO "approvals" VALUES('default','run-30c172311896/refund/1','run-30c172311896','refund','payments.refund','1','refund:order-a1c4cac70b3b','sha256:36c89fab71cea3e7d71e85b8b5c199e5ac30880341ffd300f35a78691865feb3','{"order_id": "order-a1c4cac70b3b", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-a1c4cac70b3b','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'rejected',1795959716579,1796046116579,'ann',0,NULL,NULL,NULL);
INSERT INTO "approvals" VALUES('default','run-cf0d217ce0e5/refund/1','run-cf0d217ce0e5','refund','payments.refund','1','refund:order-c283df8e5dfb','sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932','{"order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-c283df8e5dfb','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795959717985,1796046117985,'ann',0,'ef-2f12e81cc59b969a6e32a933',1,NULL);
INSERT INTO "approvals" VALUES('default','run-3e436ba73d2a/refund/1','run-3e436ba73d2a','refund','payments.refund','1','refund:order-c96191efea87','sha256:a55f03ed885a8ae93fa76ff6804110148c1376ab69674213bb3a6e89e29301ff','{"order_id": "order-c96191efea87", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-c96191efea87','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'pending',1795959725381,1796046125381,NULL,NULL,NULL,NULL,NULL);
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
INSERT INTO "bars" VALUES('default','run-9f7fb50498fc','*',1795959714913);
INSERT INTO "bars" VALUES('default','run-9f7fb50498fc','restock',1795959715081);
INSERT INTO "bars" VALUES('default','run-9f7fb50498fc','refund',1795959715375);
INSERT INTO "bars" VALUES('default','run-30c172311896','*',1795959716827);
INSERT INTO "bars" VALUES('default','run-30c172311896','restock',1795959716890);
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
	CONSTRAINT ck_decisions_verified_by_a_signature CHECK (verified = (kid IS NOT NULL AND nonce IS NOT NULL)), 
	CONSTRAINT fk_decisions_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "decisions" VALUES('default','run-d7da2051bf19#01a2278a-6676-74a5-a5e3-91570cdf6556.1','run-d7da2051bf19','run-d7da2051bf19/refund/1','ann','approve','sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795959712158,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-9f7fb50498fc#01a2278a-6c8e-7528-b57e-a1763cb68405.1','run-9f7fb50498fc','run-9f7fb50498fc/refund/1','ann','approve','sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795959714224,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-30c172311896#01a2278a-7885-7afa-86a0-b70a8c5dc484.1','run-30c172311896','run-30c172311896/refund/1','ann','reject','sha256:36c89fab71cea3e7d71e85b8b5c199e5ac30880341ffd300f35a78691865feb3','too much','accepted','rejected by ann',0,NULL,NULL,NULL,NULL,1795959716729,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.1','run-cf0d217ce0e5','run-cf0d217ce0e5/refund/1','ann','approve','sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795959718113,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-3e436ba73d2a#01a2278a-9a84-74be-bb25-6b6e9165f5c1.1','run-3e436ba73d2a','run-3e436ba73d2a/refund/1','ann','approve','sha256:0000000000000000000000000000000000000000000000000000000000000000','','wrong_hash','the decision is for params sha256:0000000000000000000000000000000000000000000000000000000000000000, the request for others: see `python starter.py show run-3e436ba73d2a`',0,NULL,NULL,NULL,NULL,1795959725604,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-3e436ba73d2a#01a2278a-9a84-74be-bb25-6b6e9165f5c1.2','run-3e436ba73d2a','','','','','','malformed','decision: must be a JSON object with approval_id, params_hash, outcome, approver',0,NULL,NULL,NULL,NULL,1795959725861,NULL,NULL);
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
	CONSTRAINT ck_drafts_removed_at_a_time CHECK ((tail IS NULL) = (removed_ms IS NOT NULL)), 
	CONSTRAINT ck_drafts_counts CHECK (number >= 1 AND bytes >= 0), 
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
	CONSTRAINT ck_effects_committed_has_number CHECK ((commit_no IS NOT NULL) OR state NOT IN ('committed', 'compensating', 'compensated')), 
	CONSTRAINT ck_effects_leased_while_claimed CHECK ((state = 'claimed') = (lease_until_ms IS NOT NULL)), 
	CONSTRAINT ck_effects_undos_have_their_own_keys CHECK ((undoes IS NOT NULL) = (substr(key, 1, 5) = 'undo:')), 
	CONSTRAINT ck_effects_recovering_until_settled CHECK (recovering_ms IS NULL OR state IN ('claimed', 'in_doubt', 'partial')), 
	CONSTRAINT ck_effects_state CHECK (state IN ('claimed', 'committed', 'failed', 'in_doubt', 'partial', 'compensating', 'compensated')), 
	CONSTRAINT ck_effects_counts CHECK (generation >= 1 AND fencing_token >= 1 AND calls >= 1), 
	CONSTRAINT fk_effects_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT uq_effects_tenant_id_tool_key_generation UNIQUE (tenant_id, tool, "key", generation)
);
INSERT INTO "effects" VALUES('default','ef-ba83f2660f1acf93e38c961d','payments.refund','1','refund:order-138d61a79ac0',1,'sha256:3aae73e676202517926737525c0b45a03efe8bfe06b8cb6521b4562b23192f6e','sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8','{"order_id": "order-138d61a79ac0", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-d7da2051bf19','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',1,'01a2278a-6676-74a5-a5e3-91570cdf6556:6:1:43c5ca66a0aa437582a93927f96b4453','01a2278a-6676-74a5-a5e3-91570cdf6556:6',NULL,3000,1795959717245,5000,1000,NULL,1795959712245,0,NULL,0,1,'{}','run-d7da2051bf19/refund/1',NULL,'{"refund_id": "refund-5b1b24eddf85", "order_id": "order-138d61a79ac0", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,1,NULL,1795959712245,1795959712287,NULL);
INSERT INTO "effects" VALUES('default','ef-66ed17a231bf28b379818c0f','inventory.restock','1','restock:order-138d61a79ac0',1,'sha256:712db0bf106bff10952e2a31fc6c620fe273af408147e988e41683b57ce09916','sha256:d351c72f879344f9e63a05eca8e50f31598f89b883da7a57ee4a400771469846','{"order_id": "order-138d61a79ac0", "lines": [{"sku": "article-of-order-138d61a79ac0", "quantity": 2}]}','run-d7da2051bf19','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a2278a-6676-74a5-a5e3-91570cdf6556:7:1:4c0d88b1a4bc46778f6b50e18400efe7','01a2278a-6676-74a5-a5e3-91570cdf6556:7',NULL,3000,1795959717421,5000,1000,NULL,1795959712421,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-c510bf3c11f1", "order_id": "order-138d61a79ac0", "lines": [{"sku": "article-of-order-138d61a79ac0", "quantity": 2}]}',0,NULL,NULL,NULL,2,NULL,1795959712421,1795959712445,NULL);
INSERT INTO "effects" VALUES('default','ef-7097b59787c60d99bd5d5798','mail.send','1','mail:order-138d61a79ac0:refund_notice',1,'sha256:7909a137aa9f092d3de8d60230d26fdc67cb1bdc03f52839615d74733b3893f8','sha256:91538867f9eff520a4af3e722e42f83413969bbdb2e0620143703adb74933cb9','{"order_id": "order-138d61a79ac0", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-138d61a79ac0", "body": "We have refunded 120.00 EUR for order-138d61a79ac0."}','run-d7da2051bf19','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a2278a-6676-74a5-a5e3-91570cdf6556:8:1:9359846e755e40ee9b0cd1b4dd133132','01a2278a-6676-74a5-a5e3-91570cdf6556:8',NULL,3000,1795959717569,5000,NULL,86395000,1795959712569,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-e60c2903c358", "to": "ada@example.com"}',0,NULL,NULL,NULL,3,NULL,1795959712569,1795959712592,NULL);
INSERT INTO "effects" VALUES('default','ef-e3f06b7bd2b7118e5e8b646c','payments.refund','1','refund:order-93a816e9ef50',1,'sha256:c034ba399d814794de24941678057a506b065b7d787cc8aefe7f2b3a03183ead','sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929','{"order_id": "order-93a816e9ef50", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-9f7fb50498fc','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'compensated',1,'01a2278a-6c8e-7528-b57e-a1763cb68405:6:1:4b6ac3bf264c422d93bd567df2116b1a','01a2278a-6c8e-7528-b57e-a1763cb68405:6',NULL,3000,1795959719324,5000,1000,NULL,1795959714324,0,NULL,0,1,'{}','run-9f7fb50498fc/refund/1',NULL,'{"refund_id": "refund-4456092ce421", "order_id": "order-93a816e9ef50", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,4,NULL,1795959714324,1795959715445,NULL);
INSERT INTO "effects" VALUES('default','ef-9a29f2b578b5f9e3dc77e8e7','inventory.restock','1','restock:order-93a816e9ef50',1,'sha256:13d5f5a2c7c3e913dbf6ec3f047b628639e2a0befcfeb80b6e4e9f16cec5b546','sha256:c9e92311809f199bc8b06d15739d2aa8d456425118dc45219414d29c50a6918d','{"order_id": "order-93a816e9ef50", "lines": [{"sku": "article-of-order-93a816e9ef50", "quantity": 2}]}','run-9f7fb50498fc','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a2278a-6c8e-7528-b57e-a1763cb68405:7:1:e0c5e5fa238f4529af371684d991e9b2','01a2278a-6c8e-7528-b57e-a1763cb68405:7',NULL,3000,1795959719522,5000,1000,NULL,1795959714522,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-d2421bd9baee", "order_id": "order-93a816e9ef50", "lines": [{"sku": "article-of-order-93a816e9ef50", "quantity": 2}]}',0,NULL,NULL,NULL,5,NULL,1795959714522,1795959715213,NULL);
INSERT INTO "effects" VALUES('default','ef-04d8db0af162d4f9d2d079a6','tickets.close','1','close-ticket:ticket-78',1,'sha256:2f60be35bec1dc45b157384297ef2feb4293a2ebaa01fff81d5b9993b165bdae','sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe','{"ticket_id": "ticket-78"}','run-9f7fb50498fc','close','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'failed',1,'01a2278a-6c8e-7528-b57e-a1763cb68405:8:1:d9fbfda401a7496aa9c2aa2bee7bb17b','01a2278a-6c8e-7528-b57e-a1763cb68405:8',NULL,3000,1795959719699,5000,NULL,86395000,1795959714699,0,NULL,0,1,'{"permanent": 1}',NULL,NULL,NULL,0,NULL,NULL,'HTTP 422 from POST /tickets/ticket-78/close',NULL,NULL,1795959714699,1795959714725,NULL);
INSERT INTO "effects" VALUES('default','ef-135cb29183987e9131af47af','inventory.undo_restock','1','undo:ef-9a29f2b578b5f9e3dc77e8e7',1,'sha256:24e41c76d44bf351fffd609e842fd47da230478f26680f52068cac259a7ce5c4','sha256:c8ae2530bc17db8d5429790051a3a747008f20cd624d7bfd23a63d061857d631','{"restock_id": "restock-d2421bd9baee"}','run-9f7fb50498fc','restock',NULL,'ef-9a29f2b578b5f9e3dc77e8e7','committed',1,'01a2278a-6c8e-7528-b57e-a1763cb68405:10:1:bd3a7fab1922482087ae46982e0e3177','01a2278a-6c8e-7528-b57e-a1763cb68405:10',NULL,3000,1795959720160,5000,1000,NULL,1795959715160,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-7c44e91e5a46", "restock_id": "restock-d2421bd9baee"}',0,NULL,NULL,NULL,6,NULL,1795959715160,1795959715213,NULL);
INSERT INTO "effects" VALUES('default','ef-96e550b0265d98dcf04259d1','payments.cancel_refund','1','undo:ef-e3f06b7bd2b7118e5e8b646c',1,'sha256:4861e2418b474506c1eddd5d14e6a2bbbeab99c50d8de4c8d0dd5a38f188ca02','sha256:14980650c53699c82f7a9f9fbdaa31db09956de237c5fbe6fe8076e588e448da','{"refund_id": "refund-4456092ce421", "order_id": "order-93a816e9ef50"}','run-9f7fb50498fc','refund',NULL,'ef-e3f06b7bd2b7118e5e8b646c','committed',1,'01a2278a-6c8e-7528-b57e-a1763cb68405:11:1:8e42d43bab7b431fb90fa976d428d0ec','01a2278a-6c8e-7528-b57e-a1763cb68405:11',NULL,3000,1795959720392,5000,1000,86394000,1795959715392,0,NULL,0,1,'{}',NULL,NULL,'{"cancellation_id": "cancellation-95db3e1b051d", "refund_id": "refund-4456092ce421", "amount": "120.00"}',0,NULL,NULL,NULL,7,NULL,1795959715392,1795959715445,NULL);
INSERT INTO "effects" VALUES('default','ef-9e3de665c5a15354998136e1','inventory.restock','1','restock:order-a1c4cac70b3b',1,'sha256:9ed5d9823e655672f856f0ec5467769f93dc9f30b81a8e42a352571079eabc8f','sha256:52fec2e7a958c972c3d902ce8289a4b2951eb224c2c722c21e1df647ef9ab710','{"order_id": "order-a1c4cac70b3b", "lines": [{"sku": "article-of-order-a1c4cac70b3b", "quantity": 2}]}','run-30c172311896','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a2278a-7885-7afa-86a0-b70a8c5dc484:4:1:3808a6d05fa94bb1960089b7020a6fec','01a2278a-7885-7afa-86a0-b70a8c5dc484:4',NULL,3000,1795959721481,5000,1000,NULL,1795959716481,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-ed70a4ae8806", "order_id": "order-a1c4cac70b3b", "lines": [{"sku": "article-of-order-a1c4cac70b3b", "quantity": 2}]}',0,NULL,NULL,NULL,8,NULL,1795959716481,1795959716963,NULL);
INSERT INTO "effects" VALUES('default','ef-4d54546962067ea3b020e31e','inventory.undo_restock','1','undo:ef-9e3de665c5a15354998136e1',1,'sha256:2925f98ebac7e609028a3be9c21162626ddc9f834b4346f491b5c954191c9340','sha256:17173e9162a53b339b5a5bba6f980cd92a653c502de5c0a638206ea03634b26d','{"restock_id": "restock-ed70a4ae8806"}','run-30c172311896','restock',NULL,'ef-9e3de665c5a15354998136e1','committed',1,'01a2278a-7885-7afa-86a0-b70a8c5dc484:8:1:2321d54c94fe4a0bb6b0d36da597e65b','01a2278a-7885-7afa-86a0-b70a8c5dc484:8',NULL,3000,1795959721918,5000,1000,NULL,1795959716918,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-d31c6c51c235", "restock_id": "restock-ed70a4ae8806"}',0,NULL,NULL,NULL,9,NULL,1795959716918,1795959716963,NULL);
INSERT INTO "effects" VALUES('default','ef-2f12e81cc59b969a6e32a933','payments.refund','1','refund:order-c283df8e5dfb',1,'sha256:4190210c4852b9bebacc9647c90a3b2784f47ae7589482d9f070e3bbe4d4ad80','sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932','{"order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-cf0d217ce0e5','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',3,'01a2278a-7e13-70be-884b-80a3af269f0a:9:1:ec67c420970d424abdc24f08e389595b','01a2278a-7e13-70be-884b-80a3af269f0a:9',NULL,3000,1795959728775,5000,NULL,NULL,1795959718188,0,NULL,0,2,'{"in_doubt": 1}','run-cf0d217ce0e5/refund/1',NULL,'{"refund_id": "refund-e40c6b4b3ec7", "order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,'RemoteProtocolError: Server disconnected without sending a response.',10,NULL,1795959718188,1795959723846,NULL);
INSERT INTO "effects" VALUES('default','ef-56ee5b365e0de773cfbd03ea','inventory.restock','1','restock:order-c283df8e5dfb',1,'sha256:de89fe018fa5bbafcb343f8a3f48acf52c5341b913d5c523000e2ff1d330f3aa','sha256:fe8c8d19dd3a21fef2657a7b2ae0e09335ec683bcddbab84ce4966cf761817d5','{"order_id": "order-c283df8e5dfb", "lines": [{"sku": "article-of-order-c283df8e5dfb", "quantity": 2}]}','run-cf0d217ce0e5','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a2278a-7e13-70be-884b-80a3af269f0a:10:1:94383242834e433b8e0465603956e92f','01a2278a-7e13-70be-884b-80a3af269f0a:10',NULL,3000,1795959728976,5000,1000,NULL,1795959723976,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-85071c44277b", "order_id": "order-c283df8e5dfb", "lines": [{"sku": "article-of-order-c283df8e5dfb", "quantity": 2}]}',0,NULL,NULL,NULL,11,NULL,1795959723976,1795959724017,NULL);
INSERT INTO "effects" VALUES('default','ef-17640d3dc3ea21a51f1ffb83','mail.send','1','mail:order-c283df8e5dfb:refund_notice',1,'sha256:b4f0361b6858a1d122bd3b2ab44fc89f337b083caca6bf65a5825c045fa903b3','sha256:425c4f264086f1a0d4a84c889a78a27a0ba4b4fb3acdf3fefcc7cb03563808dd','{"order_id": "order-c283df8e5dfb", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-c283df8e5dfb", "body": "We have refunded 120.00 EUR for order-c283df8e5dfb."}','run-cf0d217ce0e5','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a2278a-7e13-70be-884b-80a3af269f0a:11:1:37b4ca914caf49e5a8892abbe89ff66a','01a2278a-7e13-70be-884b-80a3af269f0a:11',NULL,3000,1795959729233,5000,NULL,86395000,1795959724233,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-f1ef58358418", "to": "ada@example.com"}',0,NULL,NULL,NULL,12,NULL,1795959724233,1795959724289,NULL);
CREATE TABLE epochs (
	number INTEGER NOT NULL, 
	restored_to_ms BIGINT NOT NULL, 
	opened_ms BIGINT NOT NULL, 
	opened_by VARCHAR(200) NOT NULL, 
	closed_ms BIGINT, 
	closed_by VARCHAR(200), 
	CONSTRAINT pk_epochs PRIMARY KEY (number), 
	CONSTRAINT ck_epochs_closed_whole CHECK ((closed_ms IS NULL) = (closed_by IS NULL)), 
	CONSTRAINT ck_epochs_number CHECK (number >= 1), 
	CONSTRAINT ck_epochs_opened_later CHECK (restored_to_ms <= opened_ms)
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
INSERT INTO "events" VALUES('default','run-d7da2051bf19',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:45fb386a376fa77a7615b8d2c0ed09ead9b9ff37af558e88a90663fbeb4bb2dc", "gated": ["refund"], "store": "42dba914d9cb429b97cefd6ecd4f85b5"}',1795959711578,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:2348feafd6bcdbb80fe45dae5c49c6a554a947c9506c339b4e65d8a464729d63');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795959711723,'sha256:2348feafd6bcdbb80fe45dae5c49c6a554a947c9506c339b4e65d8a464729d63','sha256:48365781c041fc7cb6b973947a69298a69674be9d124d5f8b72929af7b132f2a');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795959711871,'sha256:48365781c041fc7cb6b973947a69298a69674be9d124d5f8b72929af7b132f2a','sha256:2271cc861f9a511193f3c046ab93bcbb2eed037a3856cb0ff082fac23369bef8');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',4,'approval.requested','refund','{"approval_id": "run-d7da2051bf19/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8", "expires_ms": 1796046111969, "assurance": "open", "quorum": 1}',1795959711969,'sha256:2271cc861f9a511193f3c046ab93bcbb2eed037a3856cb0ff082fac23369bef8','sha256:9a16db563fbee9a5e28f1c8fe5cdf2b36bf27f0e1bbe017ebdd8e7eb2be5dbb2');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',5,'decision.accepted','refund','{"decision_id": "run-d7da2051bf19#01a2278a-6676-74a5-a5e3-91570cdf6556.1", "approval_id": "run-d7da2051bf19/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 189}',1795959712158,'sha256:9a16db563fbee9a5e28f1c8fe5cdf2b36bf27f0e1bbe017ebdd8e7eb2be5dbb2','sha256:db9a7f0c87ba4edc843f33c7726e59000fd1cfebdc79485edbb61428c18c3f11');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',6,'approval.approved','refund','{"approval_id": "run-d7da2051bf19/refund/1", "params_hash": "sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8", "verified": false}',1795959712158,'sha256:db9a7f0c87ba4edc843f33c7726e59000fd1cfebdc79485edbb61428c18c3f11','sha256:9e0935a5028dba44e49372726ae2b6fed855a81a696895410ee69dcc29c47a19');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',7,'approval.consumed','refund','{"approval_id": "run-d7da2051bf19/refund/1", "params_hash": "sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8", "entry_id": "ef-ba83f2660f1acf93e38c961d", "generation": 1}',1795959712245,'sha256:9e0935a5028dba44e49372726ae2b6fed855a81a696895410ee69dcc29c47a19','sha256:a0d0ac5a665afb2db92bf095b65bbf4aca4b6be6a38d1d2b714ee1e6525237d8');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',8,'effect.claimed','refund','{"entry_id": "ef-ba83f2660f1acf93e38c961d", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:40ad9357253c6b6cf63fab652c91ba01a8ad150e4146e5af4f9e3a6e89686ce8", "approval_id": "run-d7da2051bf19/refund/1"}',1795959712245,'sha256:a0d0ac5a665afb2db92bf095b65bbf4aca4b6be6a38d1d2b714ee1e6525237d8','sha256:690be381bec4aa6c651fc0a0ff3f95ffcb473571e8afaf02a6f5b70db4532864');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',9,'effect.committed','refund','{"entry_id": "ef-ba83f2660f1acf93e38c961d", "tool": "payments.refund", "receipt": "sha256:5343037ce31ba61c83b2cd5a4c0a0840309358ca9b5e316b753c234f8570571a"}',1795959712287,'sha256:690be381bec4aa6c651fc0a0ff3f95ffcb473571e8afaf02a6f5b70db4532864','sha256:ccf1263b4cb6d38ed2f575191e5e75e2a4b8c04fb17b386135baf9db50a5aca2');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',10,'effect.claimed','restock','{"entry_id": "ef-66ed17a231bf28b379818c0f", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:d351c72f879344f9e63a05eca8e50f31598f89b883da7a57ee4a400771469846"}',1795959712421,'sha256:ccf1263b4cb6d38ed2f575191e5e75e2a4b8c04fb17b386135baf9db50a5aca2','sha256:8a74fa91a8bd78e774e89797b4b06db309f3b11f309aa89fe2a50204d1ae3247');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',11,'effect.committed','restock','{"entry_id": "ef-66ed17a231bf28b379818c0f", "tool": "inventory.restock", "receipt": "sha256:22d073fa2aa45e66d3c604b0fd8f167f7bdc24bd57dcd25ab5561778e9ea2c6b"}',1795959712445,'sha256:8a74fa91a8bd78e774e89797b4b06db309f3b11f309aa89fe2a50204d1ae3247','sha256:71e72f8c4d63f441528793c7ba6703111cc3e1b2f289ceb4699c1be52de3816e');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',12,'effect.claimed','mail','{"entry_id": "ef-7097b59787c60d99bd5d5798", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:91538867f9eff520a4af3e722e42f83413969bbdb2e0620143703adb74933cb9"}',1795959712569,'sha256:71e72f8c4d63f441528793c7ba6703111cc3e1b2f289ceb4699c1be52de3816e','sha256:9648f3f89e76c10eb4321584a80291ed51eb0cbcc83935417d2f277d43aa1900');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',13,'effect.committed','mail','{"entry_id": "ef-7097b59787c60d99bd5d5798", "tool": "mail.send", "receipt": "sha256:1c9de29fec8051ac4a9c75a731eafd6af2665f4e0f12fd61d53b9a420ba76758"}',1795959712592,'sha256:9648f3f89e76c10eb4321584a80291ed51eb0cbcc83935417d2f277d43aa1900','sha256:625f5f1729e14631db8a5ed3c7a7f243bb0f0105411845bf5030ef9aca63430a');
INSERT INTO "events" VALUES('default','run-d7da2051bf19',14,'run.completed',NULL,'{}',1795959712720,'sha256:625f5f1729e14631db8a5ed3c7a7f243bb0f0105411845bf5030ef9aca63430a','sha256:57df39e05c6d7c57f6e3514467302846eee09a963d6b5558794ac3039f0d1b9e');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund-fails", "plan_digest": "sha256:a274ddd4dd68e3f2a5353af34e685382e363a014009c0dc23984af31eb516ab1", "gated": ["refund"], "store": "a16b0a57e61b4284a0c54895b149a34e"}',1795959713112,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:ee21bcee91bd786424c0a69a72fb11a514dc99ae7741fa88b169ccc507eb4762');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795959713245,'sha256:ee21bcee91bd786424c0a69a72fb11a514dc99ae7741fa88b169ccc507eb4762','sha256:19f7853416266abc4849e2d82f700b415300a66e48817705d88fd530027be063');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795959713717,'sha256:19f7853416266abc4849e2d82f700b415300a66e48817705d88fd530027be063','sha256:6921a5e5b5f661de0cc062a0c8399f9ddaf8e39e8e79f41f28a147e1e073a5c1');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',4,'approval.requested','refund','{"approval_id": "run-9f7fb50498fc/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929", "expires_ms": 1796046114008, "assurance": "open", "quorum": 1}',1795959714008,'sha256:6921a5e5b5f661de0cc062a0c8399f9ddaf8e39e8e79f41f28a147e1e073a5c1','sha256:669ef15c265720d309d347113e191913bddb15ce5533f5ff832fc0611bd4cd0b');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',5,'decision.accepted','refund','{"decision_id": "run-9f7fb50498fc#01a2278a-6c8e-7528-b57e-a1763cb68405.1", "approval_id": "run-9f7fb50498fc/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 216}',1795959714224,'sha256:669ef15c265720d309d347113e191913bddb15ce5533f5ff832fc0611bd4cd0b','sha256:77fa4ad0221f9a2ca0cecef8bc00cce915622d5b18793872ba99ed4e595fef62');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',6,'approval.approved','refund','{"approval_id": "run-9f7fb50498fc/refund/1", "params_hash": "sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929", "verified": false}',1795959714224,'sha256:77fa4ad0221f9a2ca0cecef8bc00cce915622d5b18793872ba99ed4e595fef62','sha256:056fbd3abf9c841eea3f529fe29699791271cdee358486f4c7172559ed057688');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',7,'approval.consumed','refund','{"approval_id": "run-9f7fb50498fc/refund/1", "params_hash": "sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929", "entry_id": "ef-e3f06b7bd2b7118e5e8b646c", "generation": 1}',1795959714324,'sha256:056fbd3abf9c841eea3f529fe29699791271cdee358486f4c7172559ed057688','sha256:188c8b516acd85f56cb947df445a9e4a3de9b8da3a08101767f2b63acf986e27');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',8,'effect.claimed','refund','{"entry_id": "ef-e3f06b7bd2b7118e5e8b646c", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:8052851b9cee878146dc6919181f6ff72e56cd04830f4584aaf6446487e13929", "approval_id": "run-9f7fb50498fc/refund/1"}',1795959714324,'sha256:188c8b516acd85f56cb947df445a9e4a3de9b8da3a08101767f2b63acf986e27','sha256:3f9c8ad4d5e5134309be56674d770a77ff3121f5987f17a1de7770618acd4089');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',9,'effect.committed','refund','{"entry_id": "ef-e3f06b7bd2b7118e5e8b646c", "tool": "payments.refund", "receipt": "sha256:9e0a2db39c11893bbbebb5341deeeefcca83f794ac0a010ee1bbd16c7b9670cc"}',1795959714365,'sha256:3f9c8ad4d5e5134309be56674d770a77ff3121f5987f17a1de7770618acd4089','sha256:901fa6e4dd07e4f2e3384f169a02e03d39ded04700d2410ee74992ac93982fe0');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',10,'effect.claimed','restock','{"entry_id": "ef-9a29f2b578b5f9e3dc77e8e7", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:c9e92311809f199bc8b06d15739d2aa8d456425118dc45219414d29c50a6918d"}',1795959714522,'sha256:901fa6e4dd07e4f2e3384f169a02e03d39ded04700d2410ee74992ac93982fe0','sha256:dc9979d549fa844c6a51d54839e52bab4ce31bcc77cd1b8fa4784c0bf1ab68a2');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',11,'effect.committed','restock','{"entry_id": "ef-9a29f2b578b5f9e3dc77e8e7", "tool": "inventory.restock", "receipt": "sha256:93dcf6ad61b3e2ff3355fe8b54431336b5ba66d0f55ed7d581a8e9906fdee727"}',1795959714569,'sha256:dc9979d549fa844c6a51d54839e52bab4ce31bcc77cd1b8fa4784c0bf1ab68a2','sha256:08bdca1068ca836d8ae76457875de46ad20dc2b3316325ba88eec5efa0946573');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',12,'effect.claimed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe"}',1795959714699,'sha256:08bdca1068ca836d8ae76457875de46ad20dc2b3316325ba88eec5efa0946573','sha256:fb3c70aa7f846a01c40a7479ffcfeba2f37b34e5e06c7ac5c26754a2cb1f5514');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',13,'effect.failed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "failure_class": "permanent", "failures": 1}',1795959714725,'sha256:fb3c70aa7f846a01c40a7479ffcfeba2f37b34e5e06c7ac5c26754a2cb1f5514','sha256:69280a7a1e3dca5cf1630b4830b64150fa98357a516954881a96ec5dfc14e34c');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',14,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795959714913,'sha256:69280a7a1e3dca5cf1630b4830b64150fa98357a516954881a96ec5dfc14e34c','sha256:25f6faa0ad4a0503524b1d10fcbc90c8a7c00fbecb33bba05c3bb8586ad53ee9');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',15,'step.barred','restock','{"action": "refuse_late_attempts"}',1795959715081,'sha256:25f6faa0ad4a0503524b1d10fcbc90c8a7c00fbecb33bba05c3bb8586ad53ee9','sha256:a0c822cb7910d39ec94777f8c2aa0cd6ba574964777fe429b4c8a2095d892441');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',16,'effect.claimed','restock','{"entry_id": "ef-135cb29183987e9131af47af", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:c8ae2530bc17db8d5429790051a3a747008f20cd624d7bfd23a63d061857d631", "undoes": "ef-9a29f2b578b5f9e3dc77e8e7"}',1795959715160,'sha256:a0c822cb7910d39ec94777f8c2aa0cd6ba574964777fe429b4c8a2095d892441','sha256:e6b39f5aa739d022383fde957da6adf7d33f7fda4acf2944cdc43fe2228a828c');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',17,'effect.committed','restock','{"entry_id": "ef-135cb29183987e9131af47af", "tool": "inventory.undo_restock", "receipt": "sha256:df596a534ea592fcf42fd6af50c15c7ee5deb19cf5f9bf284cd9759d95cc0d6d"}',1795959715213,'sha256:e6b39f5aa739d022383fde957da6adf7d33f7fda4acf2944cdc43fe2228a828c','sha256:12f73bc163fd6f40462a723e11b9f0fc17dd0b54c3464f1dac3dd21a58946076');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',18,'effect.compensated','restock','{"entry_id": "ef-9a29f2b578b5f9e3dc77e8e7", "tool": "inventory.undo_restock", "by": "ef-135cb29183987e9131af47af"}',1795959715213,'sha256:12f73bc163fd6f40462a723e11b9f0fc17dd0b54c3464f1dac3dd21a58946076','sha256:f481b3291eae9153c415cbcf3af72a81bedab018a8f6292a103b2aaa248779b7');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',19,'step.barred','refund','{"action": "refuse_late_attempts"}',1795959715375,'sha256:f481b3291eae9153c415cbcf3af72a81bedab018a8f6292a103b2aaa248779b7','sha256:99c0aff73be26af6cd854b13e9024ad43d06908cebe8ee5f0969bbb1551a7884');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',20,'effect.claimed','refund','{"entry_id": "ef-96e550b0265d98dcf04259d1", "tool": "payments.cancel_refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:14980650c53699c82f7a9f9fbdaa31db09956de237c5fbe6fe8076e588e448da", "undoes": "ef-e3f06b7bd2b7118e5e8b646c"}',1795959715392,'sha256:99c0aff73be26af6cd854b13e9024ad43d06908cebe8ee5f0969bbb1551a7884','sha256:bad7c5f9655a3d58d9042319d12a079201c16beb972db423d85e8d46cf0cf8ff');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',21,'effect.committed','refund','{"entry_id": "ef-96e550b0265d98dcf04259d1", "tool": "payments.cancel_refund", "receipt": "sha256:f7c61985a4e7631df68bab1f43410cf9a48bb3f8ae82afe06a19e7011feb4585"}',1795959715445,'sha256:bad7c5f9655a3d58d9042319d12a079201c16beb972db423d85e8d46cf0cf8ff','sha256:b5aa6d4d9e9dac0183fa2f57f2e7985df4418a4ecb3c269774bb1973b4df5807');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',22,'effect.compensated','refund','{"entry_id": "ef-e3f06b7bd2b7118e5e8b646c", "tool": "payments.cancel_refund", "by": "ef-96e550b0265d98dcf04259d1"}',1795959715445,'sha256:b5aa6d4d9e9dac0183fa2f57f2e7985df4418a4ecb3c269774bb1973b4df5807','sha256:64ec0ae3a403a243334404f67057de11c27dcd9940d03ae1fa0a86d1b447efca');
INSERT INTO "events" VALUES('default','run-9f7fb50498fc',23,'run.failed',NULL,'{"error": true}',1795959715677,'sha256:64ec0ae3a403a243334404f67057de11c27dcd9940d03ae1fa0a86d1b447efca','sha256:43fa36bfe0b2fcb593fe01bcbd2a3814d43873880dbb733767d83b99623aabc2');
INSERT INTO "events" VALUES('default','run-30c172311896',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:117dad4899c42cbded6c9ac7919bb8aa817bf5aa30c18d32d8e5df99c1c5bcf4", "gated": ["refund"], "store": "f482a0201c714e93815663d082e0e250"}',1795959716216,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:e70ebe976fb56c8e5750f19d09a5297e05c3a4b5ac4c65e177120e52d33a131c');
INSERT INTO "events" VALUES('default','run-30c172311896',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795959716329,'sha256:e70ebe976fb56c8e5750f19d09a5297e05c3a4b5ac4c65e177120e52d33a131c','sha256:a50d7c255f9a20c7a1fa2b21a2a1d615ce7bd914ca144c2371584f91e80bb11b');
INSERT INTO "events" VALUES('default','run-30c172311896',3,'effect.claimed','restock','{"entry_id": "ef-9e3de665c5a15354998136e1", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:52fec2e7a958c972c3d902ce8289a4b2951eb224c2c722c21e1df647ef9ab710"}',1795959716481,'sha256:a50d7c255f9a20c7a1fa2b21a2a1d615ce7bd914ca144c2371584f91e80bb11b','sha256:46fdb8575925dc4f477c83757fb883aa85bf79f62ad4cf5d0fb80a7d50e51a69');
INSERT INTO "events" VALUES('default','run-30c172311896',4,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795959716504,'sha256:46fdb8575925dc4f477c83757fb883aa85bf79f62ad4cf5d0fb80a7d50e51a69','sha256:ce0cb0e27056f07485e8048384aa433623372db95c40fc0ff4c87ae40b1a5851');
INSERT INTO "events" VALUES('default','run-30c172311896',5,'effect.committed','restock','{"entry_id": "ef-9e3de665c5a15354998136e1", "tool": "inventory.restock", "receipt": "sha256:dc7df804f10f3b0650a091a61e896f8c629ea4df6dba1e3b489447df55339f5c"}',1795959716527,'sha256:ce0cb0e27056f07485e8048384aa433623372db95c40fc0ff4c87ae40b1a5851','sha256:8fc78e81612f3a8efb4dc1e149041349cb0ce069be49b0e3888c3a60d1201244');
INSERT INTO "events" VALUES('default','run-30c172311896',6,'approval.requested','refund','{"approval_id": "run-30c172311896/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:36c89fab71cea3e7d71e85b8b5c199e5ac30880341ffd300f35a78691865feb3", "expires_ms": 1796046116579, "assurance": "open", "quorum": 1}',1795959716579,'sha256:8fc78e81612f3a8efb4dc1e149041349cb0ce069be49b0e3888c3a60d1201244','sha256:5e0bcdf350e57c8ff6ae275e48e5a0e4d6b8619c5068b324b9e70bd44bfec5b5');
INSERT INTO "events" VALUES('default','run-30c172311896',7,'decision.accepted','refund','{"decision_id": "run-30c172311896#01a2278a-7885-7afa-86a0-b70a8c5dc484.1", "approval_id": "run-30c172311896/refund/1", "outcome": "reject", "approver": "ann", "verified": false, "proof": "open", "value_by": "ann", "tool": "payments.refund", "waited_ms": 150}',1795959716729,'sha256:5e0bcdf350e57c8ff6ae275e48e5a0e4d6b8619c5068b324b9e70bd44bfec5b5','sha256:d84c95b41f872b82d3bc9f85e4485bb62c80bc676a6cef40afff5b82d293c1a1');
INSERT INTO "events" VALUES('default','run-30c172311896',8,'approval.rejected','refund','{"approval_id": "run-30c172311896/refund/1", "params_hash": "sha256:36c89fab71cea3e7d71e85b8b5c199e5ac30880341ffd300f35a78691865feb3", "verified": false}',1795959716729,'sha256:d84c95b41f872b82d3bc9f85e4485bb62c80bc676a6cef40afff5b82d293c1a1','sha256:3e01d156f70fb9dca296d86ca786fead15d756e19cb0a45b4a6b19e1252647dc');
INSERT INTO "events" VALUES('default','run-30c172311896',9,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795959716827,'sha256:3e01d156f70fb9dca296d86ca786fead15d756e19cb0a45b4a6b19e1252647dc','sha256:1fbdf48ba20a7ada567f2b81685fd212ec597578eaa0bf13472086c31089f304');
INSERT INTO "events" VALUES('default','run-30c172311896',10,'step.barred','restock','{"action": "refuse_late_attempts"}',1795959716890,'sha256:1fbdf48ba20a7ada567f2b81685fd212ec597578eaa0bf13472086c31089f304','sha256:fd90ffdad1349fce92f78ce29d582eeae58b7442fe67747d2ebf1e7b17f68304');
INSERT INTO "events" VALUES('default','run-30c172311896',11,'effect.claimed','restock','{"entry_id": "ef-4d54546962067ea3b020e31e", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:17173e9162a53b339b5a5bba6f980cd92a653c502de5c0a638206ea03634b26d", "undoes": "ef-9e3de665c5a15354998136e1"}',1795959716918,'sha256:fd90ffdad1349fce92f78ce29d582eeae58b7442fe67747d2ebf1e7b17f68304','sha256:68107d5ff20f38095245bbb97c0de464518f267e1ad428b271104a417ff18008');
INSERT INTO "events" VALUES('default','run-30c172311896',12,'effect.committed','restock','{"entry_id": "ef-4d54546962067ea3b020e31e", "tool": "inventory.undo_restock", "receipt": "sha256:943e11bb9c39052c566170d6552e9b585555f7a94c17ad0c257a87d139d89113"}',1795959716963,'sha256:68107d5ff20f38095245bbb97c0de464518f267e1ad428b271104a417ff18008','sha256:0de7ebfabd7f2cca6ad8cc90df54fd658bfa3e4772504c07fc4935a4a4c2179e');
INSERT INTO "events" VALUES('default','run-30c172311896',13,'effect.compensated','restock','{"entry_id": "ef-9e3de665c5a15354998136e1", "tool": "inventory.undo_restock", "by": "ef-4d54546962067ea3b020e31e"}',1795959716963,'sha256:0de7ebfabd7f2cca6ad8cc90df54fd658bfa3e4772504c07fc4935a4a4c2179e','sha256:0457da460e6434a95e0d4d4da8c465414ab5c6530b7b518ccad4414b9951b05a');
INSERT INTO "events" VALUES('default','run-30c172311896',14,'run.failed',NULL,'{"error": true}',1795959717158,'sha256:0457da460e6434a95e0d4d4da8c465414ab5c6530b7b518ccad4414b9951b05a','sha256:bf3a417b608582285de03db04d09ee00dfddcfc78ce7bc23f60c9da61c949410');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:f4d6c2f96b88e73d65e3cf73af9766feb0d9af7f8e64088251edbafc39e7f72c", "gated": ["refund"], "store": "84548c26526e460cb507545d87580b08"}',1795959717607,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:f80b0a3c156df8b996343ae87d450df02e0e2a55ae29985b232d4c39895fc13f');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795959717764,'sha256:f80b0a3c156df8b996343ae87d450df02e0e2a55ae29985b232d4c39895fc13f','sha256:39d8f364ecb545f3a393ef732882fee28f16f2687a539b24d52d8a60cc41fb85');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795959717918,'sha256:39d8f364ecb545f3a393ef732882fee28f16f2687a539b24d52d8a60cc41fb85','sha256:904fe51369750d8de5c32330d2a319ba9f57399d5f545ab5e20687ef6b64f8bc');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',4,'approval.requested','refund','{"approval_id": "run-cf0d217ce0e5/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932", "expires_ms": 1796046117985, "assurance": "open", "quorum": 1}',1795959717985,'sha256:904fe51369750d8de5c32330d2a319ba9f57399d5f545ab5e20687ef6b64f8bc','sha256:9ab142ff79e405fce9c25f7d49e0a319ca91fb8876e7aa895e09761c4892d97e');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',5,'decision.accepted','refund','{"decision_id": "run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.1", "approval_id": "run-cf0d217ce0e5/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 128}',1795959718113,'sha256:9ab142ff79e405fce9c25f7d49e0a319ca91fb8876e7aa895e09761c4892d97e','sha256:3f3475eb1bd7ce0327ab86ed451492277a8faa63fdc32df06c7a866efd9cdc1f');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',6,'approval.approved','refund','{"approval_id": "run-cf0d217ce0e5/refund/1", "params_hash": "sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932", "verified": false}',1795959718113,'sha256:3f3475eb1bd7ce0327ab86ed451492277a8faa63fdc32df06c7a866efd9cdc1f','sha256:75451029b8d3a19711e95fcbb30d4e76cb5b449b38dfefd2cbdb1beb0848e816');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',7,'approval.consumed','refund','{"approval_id": "run-cf0d217ce0e5/refund/1", "params_hash": "sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932", "entry_id": "ef-2f12e81cc59b969a6e32a933", "generation": 1}',1795959718188,'sha256:75451029b8d3a19711e95fcbb30d4e76cb5b449b38dfefd2cbdb1beb0848e816','sha256:ab64d91709794eda42a6df7752b19eb41aac709e97734e39d3eeac54ec754883');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',8,'effect.claimed','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932", "approval_id": "run-cf0d217ce0e5/refund/1"}',1795959718188,'sha256:ab64d91709794eda42a6df7752b19eb41aac709e97734e39d3eeac54ec754883','sha256:3e6b993965000d633bae947ceebef06733175a6c31a02727bb2d433c42615400');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',9,'effect.in_doubt','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "rule": "call_ended_without_an_outcome", "evidence": "sha256:002eb782e444690bd1a0cd3a9806f6463b79d1e5cbc4de69b99968543f5ccb0d", "action": "reconcile"}',1795959718222,'sha256:3e6b993965000d633bae947ceebef06733175a6c31a02727bb2d433c42615400','sha256:552e9e8a7bfab3ffee803f24f85a5a64975abc7f1854681e49208b05f1917be0');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',10,'intervention.opened','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "intervention_id": "iv-2f12e81cc59b969a6e32a933-1", "rule": "unknown", "action": "ask_human"}',1795959718269,'sha256:552e9e8a7bfab3ffee803f24f85a5a64975abc7f1854681e49208b05f1917be0','sha256:abce7e21e3d86456798c5f0387bc9847f9981f00473b2c6769da075e2ecb75c9');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',11,'steering.accepted',NULL,'{"steering_id": "run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.2", "verb": "resolve", "actor": "oscar", "content": "sha256:d340a0ae10f6b975d64b7c79d22b13cc808ceb93822aadbc540cc8887a02acbf", "verified": false}',1795959723482,'sha256:abce7e21e3d86456798c5f0387bc9847f9981f00473b2c6769da075e2ecb75c9','sha256:dbbd599ad582198574c0839252e8317a1d76089d9e84dbaf1fa20ad28f50c5e5');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',12,'intervention.settled','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "intervention_id": "iv-2f12e81cc59b969a6e32a933-1", "rule": "unknown", "outcome": "not_happened", "actor": "oscar", "resolution_id": "run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.2", "action": "failed"}',1795959723600,'sha256:dbbd599ad582198574c0839252e8317a1d76089d9e84dbaf1fa20ad28f50c5e5','sha256:611cda78058a7af5b75f8ffd17badc060ebd165b3f411e948da7551c94bd53ef');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',13,'recovery.verified','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "outcome": "failed", "action": "human", "calls": 1, "took_ms": 5378}',1795959723600,'sha256:611cda78058a7af5b75f8ffd17badc060ebd165b3f411e948da7551c94bd53ef','sha256:fd5788e4f4a13ff1188b7fde6d6711c5304ff20806b0b84b5d0fd3aa55bd9d4e');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',14,'effect.claimed','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "generation": 1, "fencing_token": 3, "attempt": 2, "params_hash": "sha256:b203812eefbe357d692b016a423399837855e4702a7e31c364191afb72f42932", "approval_id": "run-cf0d217ce0e5/refund/1"}',1795959723775,'sha256:fd5788e4f4a13ff1188b7fde6d6711c5304ff20806b0b84b5d0fd3aa55bd9d4e','sha256:57d889b31ad2867a6742c6986d9a5e406fef9d558a748cd7c03593bceb3ac363');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',15,'effect.committed','refund','{"entry_id": "ef-2f12e81cc59b969a6e32a933", "tool": "payments.refund", "receipt": "sha256:e018ac8449fecb18c5fc6311dfbb0661749235cc4732497c115fa8abc36c7a57"}',1795959723846,'sha256:57d889b31ad2867a6742c6986d9a5e406fef9d558a748cd7c03593bceb3ac363','sha256:ebfb5718c1e358ed2b700cbe7fcdfcb1606a597cc824bf792e4e1881490a8407');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',16,'effect.claimed','restock','{"entry_id": "ef-56ee5b365e0de773cfbd03ea", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:fe8c8d19dd3a21fef2657a7b2ae0e09335ec683bcddbab84ce4966cf761817d5"}',1795959723976,'sha256:ebfb5718c1e358ed2b700cbe7fcdfcb1606a597cc824bf792e4e1881490a8407','sha256:001a2ffed162e54b2b8bf0e041379ff918ca2d7aa21c5403e626a99334b3ec5c');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',17,'effect.committed','restock','{"entry_id": "ef-56ee5b365e0de773cfbd03ea", "tool": "inventory.restock", "receipt": "sha256:8ab1c9285c852bde13cac4945012ef5e9476e4b0b740233a831554bc24064f56"}',1795959724017,'sha256:001a2ffed162e54b2b8bf0e041379ff918ca2d7aa21c5403e626a99334b3ec5c','sha256:e2556a0792832c26e0e5bd2850c2da491b4ee3138cac6bd759cfa04fce1c3dac');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',18,'effect.claimed','mail','{"entry_id": "ef-17640d3dc3ea21a51f1ffb83", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:425c4f264086f1a0d4a84c889a78a27a0ba4b4fb3acdf3fefcc7cb03563808dd"}',1795959724233,'sha256:e2556a0792832c26e0e5bd2850c2da491b4ee3138cac6bd759cfa04fce1c3dac','sha256:3d0934bd6b16a22369951fd75e2c8b414b941b7e75756ebf2ffd9ab7ea0939e8');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',19,'effect.committed','mail','{"entry_id": "ef-17640d3dc3ea21a51f1ffb83", "tool": "mail.send", "receipt": "sha256:7b1791ee7d9ae6dd339f1a31fabeb7216951d66723b04a98400fdef8aa348061"}',1795959724289,'sha256:3d0934bd6b16a22369951fd75e2c8b414b941b7e75756ebf2ffd9ab7ea0939e8','sha256:8377eb8a79300fd0dc4fe465ed6c4e0e69c1f8d527632a11890478859c3cf200');
INSERT INTO "events" VALUES('default','run-cf0d217ce0e5',20,'run.completed',NULL,'{}',1795959724434,'sha256:8377eb8a79300fd0dc4fe465ed6c4e0e69c1f8d527632a11890478859c3cf200','sha256:355c555ee12b696ff7579fd3f838ee223673698b33fc03da68db0a083e49d621');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:8778f720183043d99f45d9786797e760d50d9e823c5cbfd4cc7deedb24c3d9aa", "gated": ["refund"], "store": "37cf57c0099741d7a8e92364a8af68a5"}',1795959724974,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:a3766c3ed58331c424881b5f57ac2ab2c10d877c081519152e90f6a2cbb83bff');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795959725112,'sha256:a3766c3ed58331c424881b5f57ac2ab2c10d877c081519152e90f6a2cbb83bff','sha256:0b385926e3faef198780f817d2c64a2b116510cfc74155e00c5e81122d984994');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795959725278,'sha256:0b385926e3faef198780f817d2c64a2b116510cfc74155e00c5e81122d984994','sha256:a8132c4fee887769b2753931bc826a2137d8a5daf66edde5d4d968974b5a7d6b');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',4,'approval.requested','refund','{"approval_id": "run-3e436ba73d2a/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:a55f03ed885a8ae93fa76ff6804110148c1376ab69674213bb3a6e89e29301ff", "expires_ms": 1796046125381, "assurance": "open", "quorum": 1}',1795959725381,'sha256:a8132c4fee887769b2753931bc826a2137d8a5daf66edde5d4d968974b5a7d6b','sha256:5d0ef49a21410dffaf7aed396df9d47334a496335b6c72fde43429100fc13f70');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',5,'decision.refused','refund','{"decision_id": "run-3e436ba73d2a#01a2278a-9a84-74be-bb25-6b6e9165f5c1.1", "approval_id": "run-3e436ba73d2a/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "reason": "wrong_hash"}',1795959725604,'sha256:5d0ef49a21410dffaf7aed396df9d47334a496335b6c72fde43429100fc13f70','sha256:0ed46d01a3e0ce4702b59956bd845cc63f165ca1bdf53ffa1d95a77ca8fc7fba');
INSERT INTO "events" VALUES('default','run-3e436ba73d2a',6,'decision.refused',NULL,'{"decision_id": "run-3e436ba73d2a#01a2278a-9a84-74be-bb25-6b6e9165f5c1.2", "approval_id": "", "verified": false, "proof": "open", "reason": "malformed"}',1795959725861,'sha256:0ed46d01a3e0ce4702b59956bd845cc63f165ca1bdf53ffa1d95a77ca8fc7fba','sha256:501a64b8b332590b0b920a32701c1756d83b4e60ef093488b98d15e1358e52ed');
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
	CONSTRAINT ck_interventions_settled_whole CHECK ((state = 'settled') = (outcome IS NOT NULL AND actor IS NOT NULL)), 
	CONSTRAINT ck_interventions_state CHECK (state IN ('open', 'settled')), 
	CONSTRAINT fk_interventions_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "interventions" VALUES('default','iv-2f12e81cc59b969a6e32a933-1','run-cf0d217ce0e5','refund','ef-2f12e81cc59b969a6e32a933',1,'unknown','payments.refund refund:order-c283df8e5dfb: RemoteProtocolError: Server disconnected without sending a response. Did it happen? If so, payments.cancel_refund can undo it.',NULL,'settled','not_happened','oscar','','run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.2',1795959718269,1795959723600);
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
	CONSTRAINT ck_leases_held_until CHECK ((holder IS NULL) = (lease_until_ms IS NULL)), 
	CONSTRAINT ck_leases_fencing_token CHECK (fencing_token >= 1), 
	CONSTRAINT fk_leases_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
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
	CONSTRAINT ck_notifications_sent_at_a_time CHECK ((state = 'sent') = (sent_ms IS NOT NULL)), 
	CONSTRAINT ck_notifications_state CHECK (state IN ('pending', 'sent', 'failed', 'void')), 
	CONSTRAINT ck_notifications_counts CHECK (number >= 0 AND attempts >= 0), 
	CONSTRAINT fk_notifications_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
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
INSERT INTO "plans" VALUES('default','run-d7da2051bf19',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-138d61a79ac0"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795959711578);
INSERT INTO "plans" VALUES('default','run-9f7fb50498fc',1,'{"name": "refund-fails", "goal": "Refund a returned order and close the customer''s ticket", "input": {"order_id": "order-93a816e9ef50", "ticket_id": "ticket-78"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "close", "tool": "tickets.close", "ask": null, "plan": null, "params": {"ticket_id": "${input.ticket_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "tickets.close": {"name": "tickets.close", "version": "1", "schema_hash": "sha256:15350cfdb0fde1a53f5e840629d8690924b304c3d4cdecaa2c35bc86a6225f65", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Close a customer''s ticket.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795959713112);
INSERT INTO "plans" VALUES('default','run-30c172311896',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-a1c4cac70b3b"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": ["order"], "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}}',1795959716216);
INSERT INTO "plans" VALUES('default','run-cf0d217ce0e5',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-c283df8e5dfb"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "human", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": null, "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795959717607);
INSERT INTO "plans" VALUES('default','run-3e436ba73d2a',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-c96191efea87"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795959724974);
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
	CONSTRAINT ck_quotas_at_least_nothing CHECK ((open_runs IS NULL OR open_runs >= 0) AND (effects_per_hour IS NULL OR effects_per_hour >= 0) AND (pending_approvals IS NULL OR pending_approvals >= 0) AND (tokens_per_day IS NULL OR tokens_per_day >= 0)), 
	CONSTRAINT ck_quotas_weight CHECK (weight >= 0.001 AND weight <= 1000)
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
	CONSTRAINT ck_run_keys_erased_by_somebody CHECK ((erased_ms IS NULL) = (erased_by IS NULL)), 
	CONSTRAINT ck_run_keys_erased_at_a_time CHECK ((wrapped IS NULL) = (erased_ms IS NOT NULL))
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
	CONSTRAINT ck_runs_parent_run_and_step CHECK ((parent_run_id IS NULL) = (parent_step_id IS NULL)), 
	CONSTRAINT ck_runs_start_signed_whole CHECK ((start_signature IS NULL) = (start_kid IS NULL) AND (start_nonce IS NULL OR start_kid IS NOT NULL))
);
INSERT INTO "runs" VALUES('default','run-d7da2051bf19','01a2278a-6676-74a5-a5e3-91570cdf6556','01a2278a-6676-74a5-a5e3-91570cdf6556',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795959711350,'refund','{"order_id": "order-138d61a79ac0"}','completed',NULL,14,'sha256:57df39e05c6d7c57f6e3514467302846eee09a963d6b5558794ac3039f0d1b9e',1795959711578,1795959711578,1795959712720,NULL);
INSERT INTO "runs" VALUES('default','run-9f7fb50498fc','01a2278a-6c8e-7528-b57e-a1763cb68405','01a2278a-6c8e-7528-b57e-a1763cb68405',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795959712910,'refund-fails','{"order_id": "order-93a816e9ef50", "ticket_id": "ticket-78"}','failed','step close: tickets.close: HTTP 422 from POST /tickets/ticket-78/close (ToolFailed)',23,'sha256:43fa36bfe0b2fcb593fe01bcbd2a3814d43873880dbb733767d83b99623aabc2',1795959713112,1795959713112,1795959715677,NULL);
INSERT INTO "runs" VALUES('default','run-30c172311896','01a2278a-7885-7afa-86a0-b70a8c5dc484','01a2278a-7885-7afa-86a0-b70a8c5dc484',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795959715973,'refund','{"order_id": "order-a1c4cac70b3b"}','failed','step refund: rejected by ann (unverified): too much',14,'sha256:bf3a417b608582285de03db04d09ee00dfddcfc78ce7bc23f60c9da61c949410',1795959716216,1795959716216,1795959717158,NULL);
INSERT INTO "runs" VALUES('default','run-cf0d217ce0e5','01a2278a-7e13-70be-884b-80a3af269f0a','01a2278a-7e13-70be-884b-80a3af269f0a',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795959717395,'refund','{"order_id": "order-c283df8e5dfb"}','completed',NULL,20,'sha256:355c555ee12b696ff7579fd3f838ee223673698b33fc03da68db0a083e49d621',1795959717607,1795959717607,1795959724434,NULL);
INSERT INTO "runs" VALUES('default','run-3e436ba73d2a','01a2278a-9a84-74be-bb25-6b6e9165f5c1','01a2278a-9a84-74be-bb25-6b6e9165f5c1',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795959724676,'refund','{"order_id": "order-c96191efea87"}','running',NULL,6,'sha256:501a64b8b332590b0b920a32701c1756d83b4e60ef093488b98d15e1358e52ed',1795959724974,1795959724974,NULL,NULL);
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
	CONSTRAINT ck_standing_approvals_revoked_whole CHECK ((revoked_ms IS NULL) = (revoked_by IS NULL)), 
	CONSTRAINT ck_standing_approvals_signed_whole CHECK ((signature IS NULL) = (kid IS NULL)), 
	CONSTRAINT ck_standing_approvals_total_whole CHECK ((total_of IS NULL) = (most_total IS NULL)), 
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
	CONSTRAINT fk_standing_uses_approvals FOREIGN KEY(tenant_id, approval_id) REFERENCES approvals (tenant_id, approval_id), 
	CONSTRAINT fk_standing_uses_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id), 
	CONSTRAINT fk_standing_uses_standing_approvals FOREIGN KEY(tenant_id, standing_id) REFERENCES standing_approvals (tenant_id, standing_id)
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
	CONSTRAINT ck_steerings_signed_whole CHECK ((kid IS NULL) = (nonce IS NULL)), 
	CONSTRAINT ck_steerings_verified_by_a_signature CHECK (NOT verified OR nonce IS NOT NULL), 
	CONSTRAINT fk_steerings_runs FOREIGN KEY(tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
);
INSERT INTO "steerings" VALUES('default','run-cf0d217ce0e5#01a2278a-7e13-70be-884b-80a3af269f0a.2','run-cf0d217ce0e5','01a2278a-7e13-70be-884b-80a3af269f0a','resolve','oscar','{"actor": "oscar", "intervention_id": "iv-2f12e81cc59b969a6e32a933-1", "outcome": "not_happened"}','accepted','accepted',0,NULL,NULL,NULL,NULL,1795959723482);
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
INSERT INTO "steps" VALUES('default','run-d7da2051bf19','order',1,'orders.read','succeeded','{"order_id": "order-138d61a79ac0"}','{"order_id": "order-138d61a79ac0", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-138d61a79ac0", "quantity": 2}]}',NULL,NULL,1795959711678,1795959711723,'01a2278a-6676-74a5-a5e3-91570cdf6556:2:1:85e6f518dff24e57b0b9d785bdc91ef2');
INSERT INTO "steps" VALUES('default','run-d7da2051bf19','amount',1,'refunds.calculate','succeeded','{"order_id": "order-138d61a79ac0", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795959711838,1795959711871,'01a2278a-6676-74a5-a5e3-91570cdf6556:3:1:810b9e08babf412a86fd9fd96bd5615e');
INSERT INTO "steps" VALUES('default','run-d7da2051bf19','refund',1,'payments.refund','succeeded','{"order_id": "order-138d61a79ac0", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-5b1b24eddf85", "order_id": "order-138d61a79ac0", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795959712245,1795959712287,NULL);
INSERT INTO "steps" VALUES('default','run-d7da2051bf19','restock',1,'inventory.restock','succeeded','{"order_id": "order-138d61a79ac0", "lines": [{"sku": "article-of-order-138d61a79ac0", "quantity": 2}]}','{"restock_id": "restock-c510bf3c11f1", "order_id": "order-138d61a79ac0", "lines": [{"sku": "article-of-order-138d61a79ac0", "quantity": 2}]}',NULL,NULL,1795959712421,1795959712445,NULL);
INSERT INTO "steps" VALUES('default','run-d7da2051bf19','mail',1,'mail.send','succeeded','{"order_id": "order-138d61a79ac0", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-138d61a79ac0", "body": "We have refunded 120.00 EUR for order-138d61a79ac0."}','{"mail_id": "mail-e60c2903c358", "to": "ada@example.com"}',NULL,NULL,1795959712569,1795959712592,NULL);
INSERT INTO "steps" VALUES('default','run-9f7fb50498fc','order',1,'orders.read','succeeded','{"order_id": "order-93a816e9ef50"}','{"order_id": "order-93a816e9ef50", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-93a816e9ef50", "quantity": 2}]}',NULL,NULL,1795959713212,1795959713245,'01a2278a-6c8e-7528-b57e-a1763cb68405:2:1:70ef7075ea7f4607b4106fe0c959b257');
INSERT INTO "steps" VALUES('default','run-9f7fb50498fc','amount',1,'refunds.calculate','succeeded','{"order_id": "order-93a816e9ef50", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795959713599,1795959713717,'01a2278a-6c8e-7528-b57e-a1763cb68405:3:1:9f0c994c13f7400d9710279c56c8da0c');
INSERT INTO "steps" VALUES('default','run-9f7fb50498fc','refund',1,'payments.refund','succeeded','{"order_id": "order-93a816e9ef50", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-4456092ce421", "order_id": "order-93a816e9ef50", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795959714324,1795959714365,NULL);
INSERT INTO "steps" VALUES('default','run-9f7fb50498fc','restock',1,'inventory.restock','succeeded','{"order_id": "order-93a816e9ef50", "lines": [{"sku": "article-of-order-93a816e9ef50", "quantity": 2}]}','{"restock_id": "restock-d2421bd9baee", "order_id": "order-93a816e9ef50", "lines": [{"sku": "article-of-order-93a816e9ef50", "quantity": 2}]}',NULL,NULL,1795959714522,1795959714569,NULL);
INSERT INTO "steps" VALUES('default','run-9f7fb50498fc','close',1,'tickets.close','failed','{"ticket_id": "ticket-78"}',NULL,'HTTP 422 from POST /tickets/ticket-78/close','permanent',1795959714699,1795959714725,NULL);
INSERT INTO "steps" VALUES('default','run-30c172311896','order',1,'orders.read','succeeded','{"order_id": "order-a1c4cac70b3b"}','{"order_id": "order-a1c4cac70b3b", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-a1c4cac70b3b", "quantity": 2}]}',NULL,NULL,1795959716296,1795959716329,'01a2278a-7885-7afa-86a0-b70a8c5dc484:2:1:f3a09c71017c4b358d8ed68190703674');
INSERT INTO "steps" VALUES('default','run-30c172311896','amount',1,'refunds.calculate','succeeded','{"order_id": "order-a1c4cac70b3b", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795959716471,1795959716504,'01a2278a-7885-7afa-86a0-b70a8c5dc484:3:1:0da075b3f2e34ed9860347c4f686203e');
INSERT INTO "steps" VALUES('default','run-30c172311896','restock',1,'inventory.restock','succeeded','{"order_id": "order-a1c4cac70b3b", "lines": [{"sku": "article-of-order-a1c4cac70b3b", "quantity": 2}]}','{"restock_id": "restock-ed70a4ae8806", "order_id": "order-a1c4cac70b3b", "lines": [{"sku": "article-of-order-a1c4cac70b3b", "quantity": 2}]}',NULL,NULL,1795959716481,1795959716527,NULL);
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','order',1,'orders.read','succeeded','{"order_id": "order-c283df8e5dfb"}','{"order_id": "order-c283df8e5dfb", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-c283df8e5dfb", "quantity": 2}]}',NULL,NULL,1795959717722,1795959717764,'01a2278a-7e13-70be-884b-80a3af269f0a:2:1:092f83ef9cdd4cd7ae2b66cdd4b3d220');
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','amount',1,'refunds.calculate','succeeded','{"order_id": "order-c283df8e5dfb", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795959717888,1795959717918,'01a2278a-7e13-70be-884b-80a3af269f0a:3:1:f401cf6a208249d19f6353aa6f563299');
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','refund',1,'payments.refund','failed','{"order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'RemoteProtocolError: Server disconnected without sending a response.','in_doubt',1795959718188,1795959718222,NULL);
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','refund',2,'payments.refund','succeeded','{"order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-e40c6b4b3ec7", "order_id": "order-c283df8e5dfb", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795959723775,1795959723846,NULL);
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','restock',1,'inventory.restock','succeeded','{"order_id": "order-c283df8e5dfb", "lines": [{"sku": "article-of-order-c283df8e5dfb", "quantity": 2}]}','{"restock_id": "restock-85071c44277b", "order_id": "order-c283df8e5dfb", "lines": [{"sku": "article-of-order-c283df8e5dfb", "quantity": 2}]}',NULL,NULL,1795959723976,1795959724017,NULL);
INSERT INTO "steps" VALUES('default','run-cf0d217ce0e5','mail',1,'mail.send','succeeded','{"order_id": "order-c283df8e5dfb", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-c283df8e5dfb", "body": "We have refunded 120.00 EUR for order-c283df8e5dfb."}','{"mail_id": "mail-f1ef58358418", "to": "ada@example.com"}',NULL,NULL,1795959724233,1795959724289,NULL);
INSERT INTO "steps" VALUES('default','run-3e436ba73d2a','order',1,'orders.read','succeeded','{"order_id": "order-c96191efea87"}','{"order_id": "order-c96191efea87", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-c96191efea87", "quantity": 2}]}',NULL,NULL,1795959725083,1795959725112,'01a2278a-9a84-74be-bb25-6b6e9165f5c1:2:1:c2464d6a71c7484791bf37e4247dcf4a');
INSERT INTO "steps" VALUES('default','run-3e436ba73d2a','amount',1,'refunds.calculate','succeeded','{"order_id": "order-c96191efea87", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795959725262,1795959725278,'01a2278a-9a84-74be-bb25-6b6e9165f5c1:3:1:fecad5dd10ed486da84061c8a7e6eaf4');
CREATE TABLE tenants (
	tenant_id VARCHAR(80) NOT NULL, 
	cell VARCHAR(64) NOT NULL, 
	set_by VARCHAR(200) NOT NULL, 
	set_ms BIGINT NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (tenant_id)
);
CREATE INDEX ix_halt_votes_halt ON halt_votes (tenant_id, halt_id);
CREATE UNIQUE INDEX uq_halt_votes_nonce ON halt_votes (tenant_id, approver, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX ix_halts_standing ON halts (tenant_id, halted_ms, halt_id) WHERE lifted_ms IS NULL;
CREATE INDEX ix_limit_uses_group ON limit_uses (tenant_id, group_hash, counted_ms);
CREATE INDEX ix_runs_closed ON runs (tenant_id, closed_ms) WHERE closed_ms IS NOT NULL AND parent_run_id IS NULL;
CREATE INDEX ix_runs_linked ON runs (tenant_id, linked_run_id) WHERE linked_run_id IS NOT NULL;
CREATE INDEX ix_runs_open ON runs (tenant_id, opened_ms) WHERE closed_ms IS NULL AND parent_run_id IS NULL;
CREATE INDEX ix_runs_parent ON runs (tenant_id, parent_run_id, parent_step_id) WHERE parent_run_id IS NOT NULL;
CREATE UNIQUE INDEX uq_runs_start_nonce ON runs (tenant_id, started_by, start_nonce) WHERE start_nonce IS NOT NULL;
CREATE INDEX ix_standing_approvals_tool ON standing_approvals (tenant_id, tool);
CREATE INDEX ix_approvals_asked ON approvals (tenant_id, asked_of, tool, expires_ms, approval_id) WHERE state = 'pending';
CREATE INDEX ix_approvals_pending ON approvals (tenant_id, expires_ms, approval_id) WHERE state = 'pending';
CREATE INDEX ix_approvals_remind ON approvals (tenant_id, remind_ms) WHERE state = 'pending' AND remind_ms IS NOT NULL;
CREATE INDEX ix_approvals_run ON approvals (tenant_id, run_id);
CREATE INDEX ix_artifacts_sha256 ON artifacts (tenant_id, sha256);
CREATE INDEX ix_decisions_approval ON decisions (tenant_id, approval_id);
CREATE INDEX ix_decisions_approver ON decisions (tenant_id, approver, at_ms, decision_id) WHERE standing_id IS NULL;
CREATE INDEX ix_decisions_run ON decisions (tenant_id, run_id);
CREATE UNIQUE INDEX uq_decisions_nonce ON decisions (tenant_id, approver, nonce) WHERE nonce IS NOT NULL;
CREATE UNIQUE INDEX uq_decisions_vote ON decisions (tenant_id, approval_id, approver) WHERE verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL;
CREATE INDEX ix_deletions_going ON deletions (tenant_id, run_id) WHERE deleted_ms IS NULL;
CREATE INDEX ix_deputies_deputy ON deputies (tenant_id, deputy);
CREATE INDEX ix_drafts_kept ON drafts (tenant_id) WHERE removed_ms IS NULL;
CREATE UNIQUE INDEX uq_drafts_under_way ON drafts (tenant_id, run_id, step_id) WHERE ended_ms IS NULL;
CREATE INDEX ix_effects_run ON effects (tenant_id, run_id, step_id);
CREATE INDEX ix_effects_undoes ON effects (tenant_id, undoes) WHERE undoes IS NOT NULL;
CREATE INDEX ix_effects_unsettled ON effects (tenant_id, claimed_ms, entry_id) WHERE state IN ('claimed', 'in_doubt', 'partial');
CREATE UNIQUE INDEX uq_effects_commit_no ON effects (tenant_id, commit_no);
CREATE UNIQUE INDEX uq_effects_live_key ON effects (tenant_id, tool, "key") WHERE state NOT IN ('failed', 'compensated');
CREATE UNIQUE INDEX uq_effects_undoes ON effects (tenant_id, undoes) WHERE undoes IS NOT NULL AND state != 'failed';
CREATE INDEX ix_events_at ON events (tenant_id, at_ms);
CREATE INDEX ix_events_foreign ON events (tenant_id, run_id) WHERE type = 'run.marked_foreign';
CREATE INDEX ix_events_replayed ON events (tenant_id, run_id) WHERE type = 'effect.replayed';
CREATE INDEX ix_interventions_entry ON interventions (tenant_id, entry_id, number);
CREATE INDEX ix_interventions_run ON interventions (tenant_id, run_id, step_id);
CREATE UNIQUE INDEX uq_interventions_open ON interventions (tenant_id, entry_id, run_id) WHERE state = 'open';
CREATE INDEX ix_leases_held ON leases (tenant_id, lease_until_ms) WHERE holder IS NOT NULL;
CREATE INDEX ix_notifications_due ON notifications (tenant_id, channel, due_ms) WHERE state = 'pending';
CREATE INDEX ix_notifications_message ON notifications (tenant_id, channel) WHERE message IS NOT NULL;
CREATE INDEX ix_notifications_run ON notifications (tenant_id, run_id);
CREATE INDEX ix_notifications_written ON notifications (tenant_id, written_ms);
CREATE INDEX ix_replays_entry ON replays (tenant_id, entry_id);
CREATE INDEX ix_steerings_actor ON steerings (tenant_id, actor, at_ms, steering_id) WHERE forwarded_as IS NULL AND verb IN ('answer', 'resolve');
CREATE UNIQUE INDEX uq_steerings_nonce ON steerings (tenant_id, run_id, workflow_run_id, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX ix_standing_uses_run ON standing_uses (tenant_id, run_id, step_id);
CREATE INDEX ix_standing_uses_standing ON standing_uses (tenant_id, standing_id);
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

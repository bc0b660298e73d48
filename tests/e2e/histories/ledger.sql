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
INSERT INTO "approvals" VALUES('default','run-3305f135b1d2/refund/1','run-3305f135b1d2','refund','payments.refund','1','refund:order-b437528b1e76','sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25','{"order_id": "order-b437528b1e76", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-b437528b1e76','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795957429497,1796043829497,'ann',0,'ef-6502365cc4ab9d6f30fe9754',1,NULL);
INSERT INTO "approvals" VALUES('default','run-7ba16ad05a1d/refund/1','run-7ba16ad05a1d','refund','payments.refund','1','refund:order-93dc5d159afa','sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05','{"order_id": "order-93dc5d159afa", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-93dc5d159afa','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795957431162,1796043831162,'ann',0,'ef-a1aa1fd2087fb992f3652650',1,NULL);
INSERT INTO "approvals" VALUES('default','run-86eedd99161a/refund/1','run-86eedd99161a','refund','payments.refund','1','refund:order-06ff49e4122a','sha256:b4a97631fa4de2bb3606553d1d75aab6a98d5d1220aa9f699a1f40ddde08b793','{"order_id": "order-06ff49e4122a", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-06ff49e4122a','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'rejected',1795957433319,1796043833319,'ann',0,NULL,NULL,NULL);
INSERT INTO "approvals" VALUES('default','run-f61815e76e28/refund/1','run-f61815e76e28','refund','payments.refund','1','refund:order-2bc11dce00a1','sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd','{"order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-2bc11dce00a1','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'approved',1795957434640,1796043834640,'ann',0,'ef-01d0eb3d9e8a36e2acc1b1b1',1,NULL);
INSERT INTO "approvals" VALUES('default','run-99b02b80aedd/refund/1','run-99b02b80aedd','refund','payments.refund','1','refund:order-5a1e345bb061','sha256:f34c63106d90af821551c5db03b747443222f568ee07f86d46519235fed7ca13','{"order_id": "order-5a1e345bb061", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'Refund 120.00 EUR for order-5a1e345bb061','undone by payments.cancel_refund (version 1)','uma','[]','{"requirements": [{"quorum": 1, "roles": [], "four_eyes": false, "may_edit": [], "escalate": null}], "expires_in": "P1D", "on_expiry": "deny", "remind_every": null, "escalated_to": null, "standing": true, "proof": "open"}','','open',NULL,0,'pending',1795957441895,1796043841895,NULL,NULL,NULL,NULL,NULL);
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
INSERT INTO "bars" VALUES('default','run-7ba16ad05a1d','*',1795957431920);
INSERT INTO "bars" VALUES('default','run-7ba16ad05a1d','restock',1795957431985);
INSERT INTO "bars" VALUES('default','run-7ba16ad05a1d','refund',1795957432182);
INSERT INTO "bars" VALUES('default','run-86eedd99161a','*',1795957433629);
INSERT INTO "bars" VALUES('default','run-86eedd99161a','restock',1795957433687);
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
INSERT INTO "decisions" VALUES('default','run-3305f135b1d2#01a22767-9288-740a-a4ab-b069f74588a6.1','run-3305f135b1d2','run-3305f135b1d2/refund/1','ann','approve','sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795957429706,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-7ba16ad05a1d#01a22767-98f1-7d43-b6d0-b08343c830e2.1','run-7ba16ad05a1d','run-7ba16ad05a1d/refund/1','ann','approve','sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795957431324,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-86eedd99161a#01a22767-a11e-76bc-98ce-5f69d83ac1d2.1','run-86eedd99161a','run-86eedd99161a/refund/1','ann','reject','sha256:b4a97631fa4de2bb3606553d1d75aab6a98d5d1220aa9f699a1f40ddde08b793','too much','accepted','rejected by ann',0,NULL,NULL,NULL,NULL,1795957433554,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.1','run-f61815e76e28','run-f61815e76e28/refund/1','ann','approve','sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd','','accepted','approved by ann',0,NULL,NULL,NULL,NULL,1795957434839,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-99b02b80aedd#01a22767-c2d2-7915-a051-87f1880a342a.1','run-99b02b80aedd','run-99b02b80aedd/refund/1','ann','approve','sha256:0000000000000000000000000000000000000000000000000000000000000000','','wrong_hash','the decision is for params sha256:0000000000000000000000000000000000000000000000000000000000000000, asked is sha256:f34c63106d90af821551c5db03b747443222f568ee07f86d46519235fed7ca13',0,NULL,NULL,NULL,NULL,1795957442081,NULL,NULL);
INSERT INTO "decisions" VALUES('default','run-99b02b80aedd#01a22767-c2d2-7915-a051-87f1880a342a.2','run-99b02b80aedd','','','','','','malformed','decision: must be a JSON object with approval_id, params_hash, outcome, approver',0,NULL,NULL,NULL,NULL,1795957442234,NULL,NULL);
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
INSERT INTO "effects" VALUES('default','ef-6502365cc4ab9d6f30fe9754','payments.refund','1','refund:order-b437528b1e76',1,'sha256:91be54dcd77ef62bf23096030b48c7d015ecbfbf24c7ac25a0f6bdc385ff3999','sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25','{"order_id": "order-b437528b1e76", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-3305f135b1d2','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',1,'01a22767-9288-740a-a4ab-b069f74588a6:6:1:317c74427c854da9be696e4a90561467','01a22767-9288-740a-a4ab-b069f74588a6:6',NULL,3000,1795957434774,5000,1000,NULL,1795957429774,0,NULL,0,1,'{}','run-3305f135b1d2/refund/1',NULL,'{"refund_id": "refund-f7c633d009be", "order_id": "order-b437528b1e76", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,1,NULL,1795957429774,1795957429836,NULL);
INSERT INTO "effects" VALUES('default','ef-cd3fc96c26038b9f9bc097ac','inventory.restock','1','restock:order-b437528b1e76',1,'sha256:d564dbd86d78e17039c26e62e1005da4ca9ae04a732b4d8af392c03073fd0b71','sha256:3459f304df41994c36b455fa7dc799af9dda4a30295fa05068805e2b1a25b9b5','{"order_id": "order-b437528b1e76", "lines": [{"sku": "article-of-order-b437528b1e76", "quantity": 2}]}','run-3305f135b1d2','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a22767-9288-740a-a4ab-b069f74588a6:7:1:0fb84e888c8d4a908b1d40ac2c65928d','01a22767-9288-740a-a4ab-b069f74588a6:7',NULL,3000,1795957434991,5000,1000,NULL,1795957429991,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-e87433c80f59", "order_id": "order-b437528b1e76", "lines": [{"sku": "article-of-order-b437528b1e76", "quantity": 2}]}',0,NULL,NULL,NULL,2,NULL,1795957429991,1795957430013,NULL);
INSERT INTO "effects" VALUES('default','ef-9d5611ef46488c8e4445fd31','mail.send','1','mail:order-b437528b1e76:refund_notice',1,'sha256:5f041f3ec966c28ed09d0ec3cd7a3106e7bf1eb5a84bf04724f4203b2571a424','sha256:25a9c0475b26d0397a7985e96e08f3042532bcfb562249f47ac1d993db20979a','{"order_id": "order-b437528b1e76", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-b437528b1e76", "body": "We have refunded 120.00 EUR for order-b437528b1e76."}','run-3305f135b1d2','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a22767-9288-740a-a4ab-b069f74588a6:8:1:6961d0e0214a415e83c8f2f4f2323cbe','01a22767-9288-740a-a4ab-b069f74588a6:8',NULL,3000,1795957435147,5000,NULL,86395000,1795957430147,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-2877033a494a", "to": "ada@example.com"}',0,NULL,NULL,NULL,3,NULL,1795957430147,1795957430169,NULL);
INSERT INTO "effects" VALUES('default','ef-a1aa1fd2087fb992f3652650','payments.refund','1','refund:order-93dc5d159afa',1,'sha256:4ccab74fedca467a45f4115f96d18b2e0fdf6ce9dedb42b53d3e89b06b558e49','sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05','{"order_id": "order-93dc5d159afa", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-7ba16ad05a1d','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'compensated',1,'01a22767-98f1-7d43-b6d0-b08343c830e2:6:1:f6744c424086489a80c8c372cbe2da9d','01a22767-98f1-7d43-b6d0-b08343c830e2:6',NULL,3000,1795957436391,5000,1000,NULL,1795957431391,0,NULL,0,1,'{}','run-7ba16ad05a1d/refund/1',NULL,'{"refund_id": "refund-9b31e3202f6c", "order_id": "order-93dc5d159afa", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,NULL,4,NULL,1795957431391,1795957432237,NULL);
INSERT INTO "effects" VALUES('default','ef-b6d85a7f02378c3fdb2114bf','inventory.restock','1','restock:order-93dc5d159afa',1,'sha256:e34681e2e5db4f3aabb0ab138aa190d3599ae2701be7f057717ae2a1b9eceba6','sha256:39f0d4e3f2480bf62e9d21d4e8c7fef4d355e3703d4773b25547fd0c68936cc6','{"order_id": "order-93dc5d159afa", "lines": [{"sku": "article-of-order-93dc5d159afa", "quantity": 2}]}','run-7ba16ad05a1d','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a22767-98f1-7d43-b6d0-b08343c830e2:7:1:cb03dfd945c8460db38f794f72e49daf','01a22767-98f1-7d43-b6d0-b08343c830e2:7',NULL,3000,1795957436561,5000,1000,NULL,1795957431561,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-8f037f7f10e0", "order_id": "order-93dc5d159afa", "lines": [{"sku": "article-of-order-93dc5d159afa", "quantity": 2}]}',0,NULL,NULL,NULL,5,NULL,1795957431561,1795957432062,NULL);
INSERT INTO "effects" VALUES('default','ef-04d8db0af162d4f9d2d079a6','tickets.close','1','close-ticket:ticket-78',1,'sha256:2f60be35bec1dc45b157384297ef2feb4293a2ebaa01fff81d5b9993b165bdae','sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe','{"ticket_id": "ticket-78"}','run-7ba16ad05a1d','close','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'failed',1,'01a22767-98f1-7d43-b6d0-b08343c830e2:8:1:2f9c11949e1142c8b93e60cbe0cb1cad','01a22767-98f1-7d43-b6d0-b08343c830e2:8',NULL,3000,1795957436759,5000,NULL,86395000,1795957431759,0,NULL,0,1,'{"permanent": 1}',NULL,NULL,NULL,0,NULL,NULL,'HTTP 422 from POST /tickets/ticket-78/close',NULL,NULL,1795957431759,1795957431786,NULL);
INSERT INTO "effects" VALUES('default','ef-74649b8462cc9e29f312b63d','inventory.undo_restock','1','undo:ef-b6d85a7f02378c3fdb2114bf',1,'sha256:31dbd60f8ecd8c8418d3850ca9ba6d2d96407bb6fd1d0784d26db275b633beb3','sha256:39ab966b2c2a966d314db5007817d1d55bfd391372d881d898dd106bdc06136e','{"restock_id": "restock-8f037f7f10e0"}','run-7ba16ad05a1d','restock',NULL,'ef-b6d85a7f02378c3fdb2114bf','committed',1,'01a22767-98f1-7d43-b6d0-b08343c830e2:10:1:d4c9c56a83dc49e5acbb1964a09c98c8','01a22767-98f1-7d43-b6d0-b08343c830e2:10',NULL,3000,1795957437015,5000,1000,NULL,1795957432015,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-a83e12ab839b", "restock_id": "restock-8f037f7f10e0"}',0,NULL,NULL,NULL,6,NULL,1795957432015,1795957432062,NULL);
INSERT INTO "effects" VALUES('default','ef-dc49611988b1a1d562b8d697','payments.cancel_refund','1','undo:ef-a1aa1fd2087fb992f3652650',1,'sha256:098be9e3099b4c9cc803904e2ed2a565f68774fba7f49e0276ad3cc98a3da1a3','sha256:4f5a468f01a8d2249bc69a161846fa7a47b3120de844157a341218b09fdfe44d','{"refund_id": "refund-9b31e3202f6c", "order_id": "order-93dc5d159afa"}','run-7ba16ad05a1d','refund',NULL,'ef-a1aa1fd2087fb992f3652650','committed',1,'01a22767-98f1-7d43-b6d0-b08343c830e2:11:1:337ec64279064b06993d55984aea8253','01a22767-98f1-7d43-b6d0-b08343c830e2:11',NULL,3000,1795957437200,5000,1000,86394000,1795957432200,0,NULL,0,1,'{}',NULL,NULL,'{"cancellation_id": "cancellation-2de3b4e0983b", "refund_id": "refund-9b31e3202f6c", "amount": "120.00"}',0,NULL,NULL,NULL,7,NULL,1795957432200,1795957432237,NULL);
INSERT INTO "effects" VALUES('default','ef-aae080243a253e66f926d24e','inventory.restock','1','restock:order-06ff49e4122a',1,'sha256:7aa9e3637e870f4be260cb560bd68a3a9d4bb2f90ecacefd95e95d1b1856ee55','sha256:ea464248c2977406649759f10be2592a9c39e63fce03dc1ea2f5d37642fc22c1','{"order_id": "order-06ff49e4122a", "lines": [{"sku": "article-of-order-06ff49e4122a", "quantity": 2}]}','run-86eedd99161a','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'compensated',1,'01a22767-a11e-76bc-98ce-5f69d83ac1d2:4:1:65942c4dd8174ac3bf024b2b9689537c','01a22767-a11e-76bc-98ce-5f69d83ac1d2:4',NULL,3000,1795957438185,5000,1000,NULL,1795957433185,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-1aa940ffb134", "order_id": "order-06ff49e4122a", "lines": [{"sku": "article-of-order-06ff49e4122a", "quantity": 2}]}',0,NULL,NULL,NULL,8,NULL,1795957433185,1795957433744,NULL);
INSERT INTO "effects" VALUES('default','ef-d6d25af9fdbd444d9e12f67d','inventory.undo_restock','1','undo:ef-aae080243a253e66f926d24e',1,'sha256:0448a1cbd55c3cd28fa72b126f9600151035feeaa552e74a64075712cadb916a','sha256:a51c43454f9062dc33f9c8af17bb7b5909a08a16a935a63106c1a2a5c185cd3d','{"restock_id": "restock-1aa940ffb134"}','run-86eedd99161a','restock',NULL,'ef-aae080243a253e66f926d24e','committed',1,'01a22767-a11e-76bc-98ce-5f69d83ac1d2:8:1:b8b64dc752194992a7ace2b4e65e105b','01a22767-a11e-76bc-98ce-5f69d83ac1d2:8',NULL,3000,1795957438709,5000,1000,NULL,1795957433709,0,NULL,0,1,'{}',NULL,NULL,'{"undo_id": "undo-084a9c89c7dd", "restock_id": "restock-1aa940ffb134"}',0,NULL,NULL,NULL,9,NULL,1795957433709,1795957433744,NULL);
INSERT INTO "effects" VALUES('default','ef-01d0eb3d9e8a36e2acc1b1b1','payments.refund','1','refund:order-2bc11dce00a1',1,'sha256:6e2ef7378dd62aea261cd2bf05f2e204116143f3061e2ac2ed471ce537603ff1','sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd','{"order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR", "reason": "returned"}','run-f61815e76e28','refund','{"version": "1", "compensate": {"name": "payments.cancel_refund", "version": "1", "schema_hash": "sha256:ceba4e7e2c7bac929f80fddef8ed96589632eada3e34dbe6cfd7f50115dd185d", "params_version": "", "only_if": false}, "cleanup": null, "approved": true, "irreversible": false}',NULL,'committed',3,'01a22767-a6da-7609-991e-768726ec9a76:9:1:e11139c633fb4647ba76f412abee7f33','01a22767-a6da-7609-991e-768726ec9a76:9',NULL,3000,1795957445520,5000,NULL,NULL,1795957434918,0,NULL,0,2,'{"in_doubt": 1}','run-f61815e76e28/refund/1',NULL,'{"refund_id": "refund-3d339f8717a3", "order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR"}',0,NULL,NULL,'RemoteProtocolError: Server disconnected without sending a response.',10,NULL,1795957434918,1795957440645,NULL);
INSERT INTO "effects" VALUES('default','ef-edfccc97670f367188e3006e','inventory.restock','1','restock:order-2bc11dce00a1',1,'sha256:a0b8926c8a4c65b7592e277af23f16c9d8eba29af6191739120c8ba2b1baf80c','sha256:d8e19b5b6e85405026ead2593f3189fd3be028a8440f025e3913ba98c52f0153','{"order_id": "order-2bc11dce00a1", "lines": [{"sku": "article-of-order-2bc11dce00a1", "quantity": 2}]}','run-f61815e76e28','restock','{"version": "1", "compensate": {"name": "inventory.undo_restock", "version": "1", "schema_hash": "sha256:9617dc10da2847a084de720b7213b6c396a5a502d3717d74ef16b0a39939f1e0", "params_version": "", "only_if": false}, "cleanup": null, "approved": false, "irreversible": false}',NULL,'committed',1,'01a22767-a6da-7609-991e-768726ec9a76:10:1:bf2e578578304304b4da8589c65cd4be','01a22767-a6da-7609-991e-768726ec9a76:10',NULL,3000,1795957445774,5000,1000,NULL,1795957440774,0,NULL,0,1,'{}',NULL,NULL,'{"restock_id": "restock-4faae9dc3758", "order_id": "order-2bc11dce00a1", "lines": [{"sku": "article-of-order-2bc11dce00a1", "quantity": 2}]}',0,NULL,NULL,NULL,11,NULL,1795957440774,1795957440808,NULL);
INSERT INTO "effects" VALUES('default','ef-3a700960c70a2fca5f419aaf','mail.send','1','mail:order-2bc11dce00a1:refund_notice',1,'sha256:785d5e3d1868f42d892ad5c1b2a385a9ae63f3fd1c68c394bd3cc6fbcdca8c00','sha256:711f6d88b1b4170f67270007094d2fc996a37bcec9fc7e15fd56e0994f085607','{"order_id": "order-2bc11dce00a1", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-2bc11dce00a1", "body": "We have refunded 120.00 EUR for order-2bc11dce00a1."}','run-f61815e76e28','mail','{"version": "1", "compensate": null, "cleanup": null, "approved": false, "irreversible": true}',NULL,'committed',1,'01a22767-a6da-7609-991e-768726ec9a76:11:1:16e7f60717c8413b9e8fd7f90c065476','01a22767-a6da-7609-991e-768726ec9a76:11',NULL,3000,1795957445904,5000,NULL,86395000,1795957440904,0,NULL,0,1,'{}',NULL,NULL,'{"mail_id": "mail-6de37b6081a8", "to": "ada@example.com"}',0,NULL,NULL,NULL,12,NULL,1795957440904,1795957440928,NULL);
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
INSERT INTO "events" VALUES('default','run-3305f135b1d2',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:7c739fa325b032566627422992ae6e13df7b958f32ccc213d09236db65be9c1d", "gated": ["refund"], "store": "62c6bfa5aba541baa3fc64255f4c80e8"}',1795957429102,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:88b49f78bef1d34edfad7c10acd5531f9d342ceeee073909960ab0b606e38f97');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795957429276,'sha256:88b49f78bef1d34edfad7c10acd5531f9d342ceeee073909960ab0b606e38f97','sha256:88914d048e873e7314da2023097f7733b1c24b81b77a6555d2608403c24361c2');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795957429422,'sha256:88914d048e873e7314da2023097f7733b1c24b81b77a6555d2608403c24361c2','sha256:3727350e85634b55e23f1d56d63a4e877397444f3821407ff66b172ee1ff72cb');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',4,'approval.requested','refund','{"approval_id": "run-3305f135b1d2/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25", "expires_ms": 1796043829497, "assurance": "open", "quorum": 1}',1795957429497,'sha256:3727350e85634b55e23f1d56d63a4e877397444f3821407ff66b172ee1ff72cb','sha256:e8e2ee5d701da660af2585a0f6f21211f09178203d311bc84c1daa1e8ffd59a2');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',5,'decision.accepted','refund','{"decision_id": "run-3305f135b1d2#01a22767-9288-740a-a4ab-b069f74588a6.1", "approval_id": "run-3305f135b1d2/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 209}',1795957429706,'sha256:e8e2ee5d701da660af2585a0f6f21211f09178203d311bc84c1daa1e8ffd59a2','sha256:cd954a2b53c22a90b70aa5d109cca9841da0e97547e2a68125152c6235322aae');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',6,'approval.approved','refund','{"approval_id": "run-3305f135b1d2/refund/1", "params_hash": "sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25", "verified": false}',1795957429706,'sha256:cd954a2b53c22a90b70aa5d109cca9841da0e97547e2a68125152c6235322aae','sha256:8618fe4b429e1c868481f23479ae3a1f8d329390a32a383e2a1d5f960fd733d9');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',7,'approval.consumed','refund','{"approval_id": "run-3305f135b1d2/refund/1", "params_hash": "sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25", "entry_id": "ef-6502365cc4ab9d6f30fe9754", "generation": 1}',1795957429774,'sha256:8618fe4b429e1c868481f23479ae3a1f8d329390a32a383e2a1d5f960fd733d9','sha256:3e6995e9b831aef297a66d870dee224c33783cb96bf91936bec329b41b96198c');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',8,'effect.claimed','refund','{"entry_id": "ef-6502365cc4ab9d6f30fe9754", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:45dd7c0d1201712b829adc8397df7dd7f59815634352b58ffb79539b50f32b25", "approval_id": "run-3305f135b1d2/refund/1"}',1795957429774,'sha256:3e6995e9b831aef297a66d870dee224c33783cb96bf91936bec329b41b96198c','sha256:a2157a28f280833d170ae1ed3c66c21dbe34da16b218201f98c039cbe9cf415c');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',9,'effect.committed','refund','{"entry_id": "ef-6502365cc4ab9d6f30fe9754", "tool": "payments.refund", "receipt": "sha256:89c661e3c34c6e34209566f4edebc96166855c11568637dc0ba2c4e48a670b10"}',1795957429836,'sha256:a2157a28f280833d170ae1ed3c66c21dbe34da16b218201f98c039cbe9cf415c','sha256:5bdb0d90e1da2bcb977799dc542755386d35329680edc054d9721a404cf7957e');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',10,'effect.claimed','restock','{"entry_id": "ef-cd3fc96c26038b9f9bc097ac", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:3459f304df41994c36b455fa7dc799af9dda4a30295fa05068805e2b1a25b9b5"}',1795957429991,'sha256:5bdb0d90e1da2bcb977799dc542755386d35329680edc054d9721a404cf7957e','sha256:956174ddb13fb63205389b2877a0349841640c66dfaf4f0e700b51ccab301e3c');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',11,'effect.committed','restock','{"entry_id": "ef-cd3fc96c26038b9f9bc097ac", "tool": "inventory.restock", "receipt": "sha256:adcbf0a58025f33ba91e632c000a84e18e7fbe434611fc879015da0a1e2d0850"}',1795957430013,'sha256:956174ddb13fb63205389b2877a0349841640c66dfaf4f0e700b51ccab301e3c','sha256:d397426b062d2edf71e87a84c7f88344acc75d298a7914411c387467ea0c4209');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',12,'effect.claimed','mail','{"entry_id": "ef-9d5611ef46488c8e4445fd31", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:25a9c0475b26d0397a7985e96e08f3042532bcfb562249f47ac1d993db20979a"}',1795957430147,'sha256:d397426b062d2edf71e87a84c7f88344acc75d298a7914411c387467ea0c4209','sha256:71758baea541c0dc13f92b25f7b23dc75655a2a2a237b1aba5bbcf5dc958c136');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',13,'effect.committed','mail','{"entry_id": "ef-9d5611ef46488c8e4445fd31", "tool": "mail.send", "receipt": "sha256:e5ca1fc1518bccdb898efd595c799ec305d6ad5e1c50b0c99be9a18988666a81"}',1795957430169,'sha256:71758baea541c0dc13f92b25f7b23dc75655a2a2a237b1aba5bbcf5dc958c136','sha256:1ffa096302018144dd0016136f651892da7140a1f7b40e1199554104f2179bd8');
INSERT INTO "events" VALUES('default','run-3305f135b1d2',14,'run.completed',NULL,'{}',1795957430279,'sha256:1ffa096302018144dd0016136f651892da7140a1f7b40e1199554104f2179bd8','sha256:ba5d3667872a1b99533f0fd9736239f2785e79b29dcc465544eb47779a69c183');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund-fails", "plan_digest": "sha256:47aefb9601111157aff5fe6c326f9d49e883b2a61e84e753044ea3f6f544bdc6", "gated": ["refund"], "store": "76817ced0de14d3bbd7bed76b020885d"}',1795957430767,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:763396f9f71fdac8a3a9f339ce26c81f1946e3e835db535500c019c779040659');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795957430927,'sha256:763396f9f71fdac8a3a9f339ce26c81f1946e3e835db535500c019c779040659','sha256:9fd52768231e4dc14292afc04dc0b7fd21daf553eda985c617fa55d99c281999');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795957431081,'sha256:9fd52768231e4dc14292afc04dc0b7fd21daf553eda985c617fa55d99c281999','sha256:d8deb68c2476a8f5d49a972674b35f93ad4064806d207c94a5520ba1a9d720f2');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',4,'approval.requested','refund','{"approval_id": "run-7ba16ad05a1d/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05", "expires_ms": 1796043831162, "assurance": "open", "quorum": 1}',1795957431162,'sha256:d8deb68c2476a8f5d49a972674b35f93ad4064806d207c94a5520ba1a9d720f2','sha256:8959ca7ab80eb76b2c5e0a37dc5da812e4ef44d3c54c34a67157e2474ac81042');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',5,'decision.accepted','refund','{"decision_id": "run-7ba16ad05a1d#01a22767-98f1-7d43-b6d0-b08343c830e2.1", "approval_id": "run-7ba16ad05a1d/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 162}',1795957431324,'sha256:8959ca7ab80eb76b2c5e0a37dc5da812e4ef44d3c54c34a67157e2474ac81042','sha256:7f7e5106415fef658395e133c3cac9b615f0a1abc1ee47e265371fe34a6c57e3');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',6,'approval.approved','refund','{"approval_id": "run-7ba16ad05a1d/refund/1", "params_hash": "sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05", "verified": false}',1795957431324,'sha256:7f7e5106415fef658395e133c3cac9b615f0a1abc1ee47e265371fe34a6c57e3','sha256:72791ad362e7815d0b9ff57442c68cdb110903c274211dfa18cbaf9efd7dfd41');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',7,'approval.consumed','refund','{"approval_id": "run-7ba16ad05a1d/refund/1", "params_hash": "sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05", "entry_id": "ef-a1aa1fd2087fb992f3652650", "generation": 1}',1795957431391,'sha256:72791ad362e7815d0b9ff57442c68cdb110903c274211dfa18cbaf9efd7dfd41','sha256:7daff570bcd44a6f85c189b49c4b892564f823c680cec27119c3160c0b596183');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',8,'effect.claimed','refund','{"entry_id": "ef-a1aa1fd2087fb992f3652650", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:5d4c510c052c9f9bca7ae5f732fd51115079248adb02f0c1781a35056d01cd05", "approval_id": "run-7ba16ad05a1d/refund/1"}',1795957431391,'sha256:7daff570bcd44a6f85c189b49c4b892564f823c680cec27119c3160c0b596183','sha256:9ecb92bde850dd8dc04495c2934cfbe452b49b053dd4cfc1b215c474e01df522');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',9,'effect.committed','refund','{"entry_id": "ef-a1aa1fd2087fb992f3652650", "tool": "payments.refund", "receipt": "sha256:3c47872b11fa7f63d334e2fa80aeb716f5b4f6026818d9576faff59588be635c"}',1795957431433,'sha256:9ecb92bde850dd8dc04495c2934cfbe452b49b053dd4cfc1b215c474e01df522','sha256:1f0abf4cd7b40a9ecacb8d952fc424ab37b4647d834329c28287a1fd66485e4d');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',10,'effect.claimed','restock','{"entry_id": "ef-b6d85a7f02378c3fdb2114bf", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:39f0d4e3f2480bf62e9d21d4e8c7fef4d355e3703d4773b25547fd0c68936cc6"}',1795957431561,'sha256:1f0abf4cd7b40a9ecacb8d952fc424ab37b4647d834329c28287a1fd66485e4d','sha256:01d53939e8f3521b988d64161797d23b9fec292a34a70e8d9d0d060caffa6b2d');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',11,'effect.committed','restock','{"entry_id": "ef-b6d85a7f02378c3fdb2114bf", "tool": "inventory.restock", "receipt": "sha256:6bbfa32d9874f4154d77b683f95cfa82f099921f7082840263b9369b32aed1b7"}',1795957431593,'sha256:01d53939e8f3521b988d64161797d23b9fec292a34a70e8d9d0d060caffa6b2d','sha256:b52e28e42a543d26c5e4f1090921adccd846c5e0c83a268048d0f7ef3625bc14');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',12,'effect.claimed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:ff0d2323c8b4ec0e783fdca57a6212614698058fc3c4df85b17db71f4f83ccfe"}',1795957431759,'sha256:b52e28e42a543d26c5e4f1090921adccd846c5e0c83a268048d0f7ef3625bc14','sha256:7d11dc8ac418a9aeb2408e7664b8869af1e849b0aefb6731ee7e2ea1ee85f738');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',13,'effect.failed','close','{"entry_id": "ef-04d8db0af162d4f9d2d079a6", "tool": "tickets.close", "failure_class": "permanent", "failures": 1}',1795957431786,'sha256:7d11dc8ac418a9aeb2408e7664b8869af1e849b0aefb6731ee7e2ea1ee85f738','sha256:47bc8ae145bb31eac04e1330d6f073b338e61da730805bcc1249028734c7426b');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',14,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795957431920,'sha256:47bc8ae145bb31eac04e1330d6f073b338e61da730805bcc1249028734c7426b','sha256:85dce287974b404e9b707c7771a900e1a0e801b65d07ef169f20cb300081b891');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',15,'step.barred','restock','{"action": "refuse_late_attempts"}',1795957431985,'sha256:85dce287974b404e9b707c7771a900e1a0e801b65d07ef169f20cb300081b891','sha256:714362a3a36abcc6cbdade484649683d8f8a30f537554a43c806ea2a3724027c');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',16,'effect.claimed','restock','{"entry_id": "ef-74649b8462cc9e29f312b63d", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:39ab966b2c2a966d314db5007817d1d55bfd391372d881d898dd106bdc06136e", "undoes": "ef-b6d85a7f02378c3fdb2114bf"}',1795957432015,'sha256:714362a3a36abcc6cbdade484649683d8f8a30f537554a43c806ea2a3724027c','sha256:caedfbfb8ad0ad82cb24c75c306984452219f67002449c35669743179da61798');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',17,'effect.committed','restock','{"entry_id": "ef-74649b8462cc9e29f312b63d", "tool": "inventory.undo_restock", "receipt": "sha256:983567feae7e6e3415e6654c4fd850a3f9dade3b702305ade14862664c676171"}',1795957432062,'sha256:caedfbfb8ad0ad82cb24c75c306984452219f67002449c35669743179da61798','sha256:76afd436f62ab33a111a6039a5a48fcc96d94a92bbe6cc28f27a75e6da7cdc47');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',18,'effect.compensated','restock','{"entry_id": "ef-b6d85a7f02378c3fdb2114bf", "tool": "inventory.undo_restock", "by": "ef-74649b8462cc9e29f312b63d"}',1795957432062,'sha256:76afd436f62ab33a111a6039a5a48fcc96d94a92bbe6cc28f27a75e6da7cdc47','sha256:727cadb3b008928830a34c6a63f58746b1e30fe257e4eb0d2d2d7136b1359e02');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',19,'step.barred','refund','{"action": "refuse_late_attempts"}',1795957432182,'sha256:727cadb3b008928830a34c6a63f58746b1e30fe257e4eb0d2d2d7136b1359e02','sha256:a2e38be70eb6ddc42c5148c709742e5fddd8bc32a82f6200b84a72091a58a38a');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',20,'effect.claimed','refund','{"entry_id": "ef-dc49611988b1a1d562b8d697", "tool": "payments.cancel_refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:4f5a468f01a8d2249bc69a161846fa7a47b3120de844157a341218b09fdfe44d", "undoes": "ef-a1aa1fd2087fb992f3652650"}',1795957432200,'sha256:a2e38be70eb6ddc42c5148c709742e5fddd8bc32a82f6200b84a72091a58a38a','sha256:cbba36ed3bb70abb6ba03b7303d40a6c8f401e983b9015b19587113856de8f7d');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',21,'effect.committed','refund','{"entry_id": "ef-dc49611988b1a1d562b8d697", "tool": "payments.cancel_refund", "receipt": "sha256:22658266e18e49d0082794ffd3d63bc0105d08269255bf12e94fc73c0bc8f558"}',1795957432237,'sha256:cbba36ed3bb70abb6ba03b7303d40a6c8f401e983b9015b19587113856de8f7d','sha256:82018b6607736038a40baa26c93f057334c1fe19ecacdff663e7590a1181847a');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',22,'effect.compensated','refund','{"entry_id": "ef-a1aa1fd2087fb992f3652650", "tool": "payments.cancel_refund", "by": "ef-dc49611988b1a1d562b8d697"}',1795957432237,'sha256:82018b6607736038a40baa26c93f057334c1fe19ecacdff663e7590a1181847a','sha256:dd4769294dd44728c3f5cadfdefe618a3cc84e5890683d0a1a0d7ba3bf2f20f9');
INSERT INTO "events" VALUES('default','run-7ba16ad05a1d',23,'run.failed',NULL,'{"error": true}',1795957432379,'sha256:dd4769294dd44728c3f5cadfdefe618a3cc84e5890683d0a1a0d7ba3bf2f20f9','sha256:57f6c92b6fed84d8e1beed05920d18b91df39a52d79e7fb23bb09e8fd8aba44e');
INSERT INTO "events" VALUES('default','run-86eedd99161a',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:b1753611f80e7be2605980f26952d1f3e6bba39a366e2d6dd3ef79abb6bb737b", "gated": ["refund"], "store": "d375427c603e4442a5e965db7e77a8ab"}',1795957432926,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:1bf35c33bb580ed28b6c49db35106294f99aaabd812e5d0b55d23f99c84751f7');
INSERT INTO "events" VALUES('default','run-86eedd99161a',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795957433050,'sha256:1bf35c33bb580ed28b6c49db35106294f99aaabd812e5d0b55d23f99c84751f7','sha256:667f3c4dd81b348a7443e5f21a4fa064f469447e7ec3dbe89095b892ef0ca20d');
INSERT INTO "events" VALUES('default','run-86eedd99161a',3,'effect.claimed','restock','{"entry_id": "ef-aae080243a253e66f926d24e", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:ea464248c2977406649759f10be2592a9c39e63fce03dc1ea2f5d37642fc22c1"}',1795957433185,'sha256:667f3c4dd81b348a7443e5f21a4fa064f469447e7ec3dbe89095b892ef0ca20d','sha256:70ee9e7aea5a087a2e26b8faf501a6e82f5e1ee98c38fe8124a2a6abd4c84ff3');
INSERT INTO "events" VALUES('default','run-86eedd99161a',4,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795957433212,'sha256:70ee9e7aea5a087a2e26b8faf501a6e82f5e1ee98c38fe8124a2a6abd4c84ff3','sha256:038fa24086bdf578773faa75c80df7c9941375960307b864fb0dceeb7532520e');
INSERT INTO "events" VALUES('default','run-86eedd99161a',5,'effect.committed','restock','{"entry_id": "ef-aae080243a253e66f926d24e", "tool": "inventory.restock", "receipt": "sha256:092724fa41b9771aedc25ff4676ec691f15a4a76f797b34ce6d1842948f1d7ea"}',1795957433237,'sha256:038fa24086bdf578773faa75c80df7c9941375960307b864fb0dceeb7532520e','sha256:d73a41d13d9a053403cd06ca494fa91c8f66b98c3f7ff834e74316401535dfba');
INSERT INTO "events" VALUES('default','run-86eedd99161a',6,'approval.requested','refund','{"approval_id": "run-86eedd99161a/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:b4a97631fa4de2bb3606553d1d75aab6a98d5d1220aa9f699a1f40ddde08b793", "expires_ms": 1796043833319, "assurance": "open", "quorum": 1}',1795957433319,'sha256:d73a41d13d9a053403cd06ca494fa91c8f66b98c3f7ff834e74316401535dfba','sha256:759909db3a96ec5415a03de05671125aeebb8fc568a0f521e1d6985c27d81ce3');
INSERT INTO "events" VALUES('default','run-86eedd99161a',7,'decision.accepted','refund','{"decision_id": "run-86eedd99161a#01a22767-a11e-76bc-98ce-5f69d83ac1d2.1", "approval_id": "run-86eedd99161a/refund/1", "outcome": "reject", "approver": "ann", "verified": false, "proof": "open", "value_by": "ann", "tool": "payments.refund", "waited_ms": 235}',1795957433554,'sha256:759909db3a96ec5415a03de05671125aeebb8fc568a0f521e1d6985c27d81ce3','sha256:f89ba5762127c590f26f6447277c51aa8649482ae92eb8f09a78fd2257ee994c');
INSERT INTO "events" VALUES('default','run-86eedd99161a',8,'approval.rejected','refund','{"approval_id": "run-86eedd99161a/refund/1", "params_hash": "sha256:b4a97631fa4de2bb3606553d1d75aab6a98d5d1220aa9f699a1f40ddde08b793", "verified": false}',1795957433554,'sha256:f89ba5762127c590f26f6447277c51aa8649482ae92eb8f09a78fd2257ee994c','sha256:216317b90a1d8680e194a5217683794d59d6851a410bfc1a3febab97f0384954');
INSERT INTO "events" VALUES('default','run-86eedd99161a',9,'run.barred',NULL,'{"action": "refuse_late_attempts"}',1795957433629,'sha256:216317b90a1d8680e194a5217683794d59d6851a410bfc1a3febab97f0384954','sha256:cc28b16eb5635a6c26f11073e1f18029310553eafdb8f614448966f2233776c1');
INSERT INTO "events" VALUES('default','run-86eedd99161a',10,'step.barred','restock','{"action": "refuse_late_attempts"}',1795957433687,'sha256:cc28b16eb5635a6c26f11073e1f18029310553eafdb8f614448966f2233776c1','sha256:5cc7eec70f9e7ec0efdd47401c9f83e7ede1458cbf56b0de5a4106b1b36a115d');
INSERT INTO "events" VALUES('default','run-86eedd99161a',11,'effect.claimed','restock','{"entry_id": "ef-d6d25af9fdbd444d9e12f67d", "tool": "inventory.undo_restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:a51c43454f9062dc33f9c8af17bb7b5909a08a16a935a63106c1a2a5c185cd3d", "undoes": "ef-aae080243a253e66f926d24e"}',1795957433709,'sha256:5cc7eec70f9e7ec0efdd47401c9f83e7ede1458cbf56b0de5a4106b1b36a115d','sha256:ed8dc86af11a4454b79a07bcf0ab0f42931818e9974273ae8c886e8d56bc7586');
INSERT INTO "events" VALUES('default','run-86eedd99161a',12,'effect.committed','restock','{"entry_id": "ef-d6d25af9fdbd444d9e12f67d", "tool": "inventory.undo_restock", "receipt": "sha256:2b8b3babc54a4ec6fe1153397a31c41f373ebcceb7a14b88ce063479efdc3dfd"}',1795957433744,'sha256:ed8dc86af11a4454b79a07bcf0ab0f42931818e9974273ae8c886e8d56bc7586','sha256:29c003c9bb78db003190e5909c264a346bb1ea9f64d0dbab472fedb33a27fc6e');
INSERT INTO "events" VALUES('default','run-86eedd99161a',13,'effect.compensated','restock','{"entry_id": "ef-aae080243a253e66f926d24e", "tool": "inventory.undo_restock", "by": "ef-d6d25af9fdbd444d9e12f67d"}',1795957433744,'sha256:29c003c9bb78db003190e5909c264a346bb1ea9f64d0dbab472fedb33a27fc6e','sha256:d37b9bb27aafac139889c5a9a1c6f25f0ce04773fd8b208ec73376678ad8b833');
INSERT INTO "events" VALUES('default','run-86eedd99161a',14,'run.failed',NULL,'{"error": true}',1795957433883,'sha256:d37b9bb27aafac139889c5a9a1c6f25f0ce04773fd8b208ec73376678ad8b833','sha256:1c47d3ec99b4b504f420200d1d8c703d2f5a3d5f2dc6b1e13b92f6be6fe4ec75');
INSERT INTO "events" VALUES('default','run-f61815e76e28',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:ba6c33640c2e9f2e4f07105a63fceb8a9f8d8c49ad7bec31e73e4640c61f660b", "gated": ["refund"], "store": "1c8595dd407143e08f9166eb99122bc1"}',1795957434246,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:9ee08c6542a29840dbd991ccbddd276cdd2142643f6438b22667e47e15dfb7f9');
INSERT INTO "events" VALUES('default','run-f61815e76e28',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795957434370,'sha256:9ee08c6542a29840dbd991ccbddd276cdd2142643f6438b22667e47e15dfb7f9','sha256:b2a533b0e7873b2339ce1e285a4c720bb8e9ef587f85e8ab646c86d246eb73ac');
INSERT INTO "events" VALUES('default','run-f61815e76e28',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795957434568,'sha256:b2a533b0e7873b2339ce1e285a4c720bb8e9ef587f85e8ab646c86d246eb73ac','sha256:318dd5f836721daec20bff635423b33e3bf8f87a3a88243ebbbb7ffdb7576d23');
INSERT INTO "events" VALUES('default','run-f61815e76e28',4,'approval.requested','refund','{"approval_id": "run-f61815e76e28/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd", "expires_ms": 1796043834640, "assurance": "open", "quorum": 1}',1795957434640,'sha256:318dd5f836721daec20bff635423b33e3bf8f87a3a88243ebbbb7ffdb7576d23','sha256:fac36653d41004918aa8620dd0ee652f9f4823bb784ef4a2d852ae12f1de17ab');
INSERT INTO "events" VALUES('default','run-f61815e76e28',5,'decision.accepted','refund','{"decision_id": "run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.1", "approval_id": "run-f61815e76e28/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "tool": "payments.refund", "waited_ms": 199}',1795957434839,'sha256:fac36653d41004918aa8620dd0ee652f9f4823bb784ef4a2d852ae12f1de17ab','sha256:a2f1621d7f03a54586389d9f0e54564c7ed2f4c8ba9c6da1d66726ce7a5709b4');
INSERT INTO "events" VALUES('default','run-f61815e76e28',6,'approval.approved','refund','{"approval_id": "run-f61815e76e28/refund/1", "params_hash": "sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd", "verified": false}',1795957434839,'sha256:a2f1621d7f03a54586389d9f0e54564c7ed2f4c8ba9c6da1d66726ce7a5709b4','sha256:ee3702066adfd1b6b03694fe48de02f18cb747d759f2533381ba62c14cabf0d8');
INSERT INTO "events" VALUES('default','run-f61815e76e28',7,'approval.consumed','refund','{"approval_id": "run-f61815e76e28/refund/1", "params_hash": "sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd", "entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "generation": 1}',1795957434918,'sha256:ee3702066adfd1b6b03694fe48de02f18cb747d759f2533381ba62c14cabf0d8','sha256:c69a64ddcf9861023a415c01dbc65886549b6c5210ae245dc356a748d38a2805');
INSERT INTO "events" VALUES('default','run-f61815e76e28',8,'effect.claimed','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd", "approval_id": "run-f61815e76e28/refund/1"}',1795957434918,'sha256:c69a64ddcf9861023a415c01dbc65886549b6c5210ae245dc356a748d38a2805','sha256:bb41b5668f78e0bc84b926e6aa89e87f42bf97cf93090452be6ed7103e0d841e');
INSERT INTO "events" VALUES('default','run-f61815e76e28',9,'effect.in_doubt','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "rule": "call_ended_without_an_outcome", "evidence": "sha256:002eb782e444690bd1a0cd3a9806f6463b79d1e5cbc4de69b99968543f5ccb0d", "action": "reconcile"}',1795957434934,'sha256:bb41b5668f78e0bc84b926e6aa89e87f42bf97cf93090452be6ed7103e0d841e','sha256:513d06134fdaece23bb5884acbc7da131cda743918a93268a372ee379a97257b');
INSERT INTO "events" VALUES('default','run-f61815e76e28',10,'intervention.opened','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "intervention_id": "iv-01d0eb3d9e8a36e2acc1b1b1-1", "rule": "unknown", "action": "ask_human"}',1795957434952,'sha256:513d06134fdaece23bb5884acbc7da131cda743918a93268a372ee379a97257b','sha256:241577b152431f8eaf4bcb1be991e6c33506c2975d1b21bbb7a5d1da1cc64140');
INSERT INTO "events" VALUES('default','run-f61815e76e28',11,'steering.accepted',NULL,'{"steering_id": "run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.2", "verb": "resolve", "actor": "oscar", "content": "sha256:0be262a0d1851ac4b3075a07d3fd7ec16be55175884aea2b13a1d542ee2cd18b", "verified": false}',1795957440125,'sha256:241577b152431f8eaf4bcb1be991e6c33506c2975d1b21bbb7a5d1da1cc64140','sha256:0d863a545d8fc13d466cad077221ed1ae9b91cdefeb00166752b0b7dcc29d1eb');
INSERT INTO "events" VALUES('default','run-f61815e76e28',12,'intervention.settled','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "intervention_id": "iv-01d0eb3d9e8a36e2acc1b1b1-1", "rule": "unknown", "outcome": "not_happened", "actor": "oscar", "resolution_id": "run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.2", "action": "failed"}',1795957440301,'sha256:0d863a545d8fc13d466cad077221ed1ae9b91cdefeb00166752b0b7dcc29d1eb','sha256:5f5136f42fcdcd83bf5ad46c91a443235deeffb302fe85f63c163e722eab074a');
INSERT INTO "events" VALUES('default','run-f61815e76e28',13,'recovery.verified','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "outcome": "failed", "action": "human", "calls": 1, "took_ms": 5367}',1795957440301,'sha256:5f5136f42fcdcd83bf5ad46c91a443235deeffb302fe85f63c163e722eab074a','sha256:e6dbf47f6012872f20f48f53459f9dbdef2be779006fdf0c75673f5a29d0e9cb');
INSERT INTO "events" VALUES('default','run-f61815e76e28',14,'effect.claimed','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "generation": 1, "fencing_token": 3, "attempt": 2, "params_hash": "sha256:1ec8c6b1beef0c29af783ff0e7191c74fd12cb1d586c14475de4c2ca2d4d75cd", "approval_id": "run-f61815e76e28/refund/1"}',1795957440520,'sha256:e6dbf47f6012872f20f48f53459f9dbdef2be779006fdf0c75673f5a29d0e9cb','sha256:8f894899b428076142a1d61f7c0f0282721aebd303d4dc07b2a677f6a22c85e0');
INSERT INTO "events" VALUES('default','run-f61815e76e28',15,'effect.committed','refund','{"entry_id": "ef-01d0eb3d9e8a36e2acc1b1b1", "tool": "payments.refund", "receipt": "sha256:c3c3e6d692b2fb7372574b615aa50a0bcebfde766a9d8ec337ce1f95f5e2c2a5"}',1795957440645,'sha256:8f894899b428076142a1d61f7c0f0282721aebd303d4dc07b2a677f6a22c85e0','sha256:ed94967a0fb399b438000a5df9489969a576eb0efc4fc6f6434523574639e6b7');
INSERT INTO "events" VALUES('default','run-f61815e76e28',16,'effect.claimed','restock','{"entry_id": "ef-edfccc97670f367188e3006e", "tool": "inventory.restock", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:d8e19b5b6e85405026ead2593f3189fd3be028a8440f025e3913ba98c52f0153"}',1795957440774,'sha256:ed94967a0fb399b438000a5df9489969a576eb0efc4fc6f6434523574639e6b7','sha256:c2bcb634c326d4a5758f7eb9520729f341f8a36e1bbbf129389f5f70e9a5fdcd');
INSERT INTO "events" VALUES('default','run-f61815e76e28',17,'effect.committed','restock','{"entry_id": "ef-edfccc97670f367188e3006e", "tool": "inventory.restock", "receipt": "sha256:3c6a3040077aa30a3dc551e867aa77b8d9cb1c8c37ab1933969aeddf1a969cf2"}',1795957440808,'sha256:c2bcb634c326d4a5758f7eb9520729f341f8a36e1bbbf129389f5f70e9a5fdcd','sha256:ae2f111ae34d400b37053c6bb2c937ca85addb40629688e9bf5deea920128c52');
INSERT INTO "events" VALUES('default','run-f61815e76e28',18,'effect.claimed','mail','{"entry_id": "ef-3a700960c70a2fca5f419aaf", "tool": "mail.send", "generation": 1, "fencing_token": 1, "attempt": 1, "params_hash": "sha256:711f6d88b1b4170f67270007094d2fc996a37bcec9fc7e15fd56e0994f085607"}',1795957440904,'sha256:ae2f111ae34d400b37053c6bb2c937ca85addb40629688e9bf5deea920128c52','sha256:7dd58c215a49f0b9a2d15da844a2b6f795a316db61c373dd7cfdedab08dab950');
INSERT INTO "events" VALUES('default','run-f61815e76e28',19,'effect.committed','mail','{"entry_id": "ef-3a700960c70a2fca5f419aaf", "tool": "mail.send", "receipt": "sha256:bfe226efa68965e57eccb341190051a835e9d89edf3c13419a88939a46a42cf3"}',1795957440928,'sha256:7dd58c215a49f0b9a2d15da844a2b6f795a316db61c373dd7cfdedab08dab950','sha256:d6ff64f3b60357a876f42cca1b8b677b2d424d9ac96bf6a28aca9c09ae9cf63c');
INSERT INTO "events" VALUES('default','run-f61815e76e28',20,'run.completed',NULL,'{}',1795957441036,'sha256:d6ff64f3b60357a876f42cca1b8b677b2d424d9ac96bf6a28aca9c09ae9cf63c','sha256:35dcfb112898e062d6ba1ce3d7ade57d2a065eecd6d2c6ad1c89ba3aef421e3b');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',1,'run.opened',NULL,'{"user": "uma", "started_by": "uma", "verified": false, "plan": "refund", "plan_digest": "sha256:e0d5dd7389b32502e067ff9e56807cd71362a4e37b837780287efcd6cc9f9ddf", "gated": ["refund"], "store": "618de2876588481ca5ce42d4d9f915f8"}',1795957441466,'sha256:0000000000000000000000000000000000000000000000000000000000000000','sha256:ae0ed37af1d78d5bcad495c228adf52a142df040fab2bcd518d7075bf3f8354b');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',2,'step.succeeded','order','{"tool": "orders.read", "attempt": 1}',1795957441584,'sha256:ae0ed37af1d78d5bcad495c228adf52a142df040fab2bcd518d7075bf3f8354b','sha256:513f80dd662294f91fd1210f5f6963a8fefbf16438f1c00dd87a0fbbbe46c428');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',3,'step.succeeded','amount','{"tool": "refunds.calculate", "attempt": 1}',1795957441742,'sha256:513f80dd662294f91fd1210f5f6963a8fefbf16438f1c00dd87a0fbbbe46c428','sha256:9b2935ed4f9c4fa3ffa5ee182e0788e9c8e71bfa62f956392d1897eb9d834779');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',4,'approval.requested','refund','{"approval_id": "run-99b02b80aedd/refund/1", "tool": "payments.refund", "version": "1", "params_hash": "sha256:f34c63106d90af821551c5db03b747443222f568ee07f86d46519235fed7ca13", "expires_ms": 1796043841895, "assurance": "open", "quorum": 1}',1795957441895,'sha256:9b2935ed4f9c4fa3ffa5ee182e0788e9c8e71bfa62f956392d1897eb9d834779','sha256:db11d03a2d1060ce64fde511f8598442f80d5e742562c84447fd780b10b1bd92');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',5,'decision.refused','refund','{"decision_id": "run-99b02b80aedd#01a22767-c2d2-7915-a051-87f1880a342a.1", "approval_id": "run-99b02b80aedd/refund/1", "outcome": "approve", "approver": "ann", "verified": false, "proof": "open", "reason": "wrong_hash"}',1795957442081,'sha256:db11d03a2d1060ce64fde511f8598442f80d5e742562c84447fd780b10b1bd92','sha256:1617a8ef530d035fd01fb5e4d63b5b5161d906c4ef4f14038795b0ee1b3efb6e');
INSERT INTO "events" VALUES('default','run-99b02b80aedd',6,'decision.refused',NULL,'{"decision_id": "run-99b02b80aedd#01a22767-c2d2-7915-a051-87f1880a342a.2", "approval_id": "", "verified": false, "proof": "open", "reason": "malformed"}',1795957442234,'sha256:1617a8ef530d035fd01fb5e4d63b5b5161d906c4ef4f14038795b0ee1b3efb6e','sha256:e86e8d067cb7eb5fffbbda8121a50a0362eb3ecf107f0fa072aacccae9812183');
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
INSERT INTO "interventions" VALUES('default','iv-01d0eb3d9e8a36e2acc1b1b1-1','run-f61815e76e28','refund','ef-01d0eb3d9e8a36e2acc1b1b1',1,'unknown','payments.refund refund:order-2bc11dce00a1: RemoteProtocolError: Server disconnected without sending a response. Did it happen? If so, payments.cancel_refund can undo it.',NULL,'settled','not_happened','oscar','','run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.2',1795957434952,1795957440301);
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
INSERT INTO "plans" VALUES('default','run-3305f135b1d2',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-b437528b1e76"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795957429102);
INSERT INTO "plans" VALUES('default','run-7ba16ad05a1d',1,'{"name": "refund-fails", "goal": "Refund a returned order and close the customer''s ticket", "input": {"order_id": "order-93dc5d159afa", "ticket_id": "ticket-78"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "close", "tool": "tickets.close", "ask": null, "plan": null, "params": {"ticket_id": "${input.ticket_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "tickets.close": {"name": "tickets.close", "version": "1", "schema_hash": "sha256:15350cfdb0fde1a53f5e840629d8690924b304c3d4cdecaa2c35bc86a6225f65", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Close a customer''s ticket.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795957430767);
INSERT INTO "plans" VALUES('default','run-86eedd99161a',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-06ff49e4122a"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": ["order"], "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}}',1795957432926);
INSERT INTO "plans" VALUES('default','run-f61815e76e28',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-2bc11dce00a1"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "human", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": null, "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795957434246);
INSERT INTO "plans" VALUES('default','run-99b02b80aedd',1,'{"name": "refund", "goal": "Refund a returned order, put its articles back on the shelf and tell the customer", "input": {"order_id": "order-5a1e345bb061"}, "defaults": {"approval": null, "on_no": "fail", "on_failure": "compensate", "on_reject": "compensate", "interrupt": []}, "interrupts": {"before": [], "after": []}, "budget": {"steps": null, "tokens": null, "money": null, "time": null}, "priority": null, "durability": null, "code": null, "agent": null, "model": null, "tools": [], "steps": [{"id": "order", "tool": "orders.read", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "amount", "tool": "refunds.calculate", "ask": null, "plan": null, "params": {"order_id": "${order.order_id}", "paid": "${order.paid}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "refund", "tool": "payments.refund", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "amount": "${amount.amount}", "currency": "${order.currency}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "restock", "tool": "inventory.restock", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "lines": "${order.lines}"}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}, {"id": "mail", "tool": "mail.send", "ask": null, "plan": null, "params": {"order_id": "${input.order_id}", "kind": "refund_notice", "to": "${order.customer_email}", "subject": "Your refund for ${input.order_id}", "body": "We have refunded ${refund.amount} ${refund.currency} for ${input.order_id}."}, "wait": null, "when": null, "for_each": null, "item": "item", "parallel": 1, "fallback": null, "after": null, "approval": null, "on_no": null, "on_failure": null, "on_reject": null, "interrupt": null, "time_limit": null}]}','{"orders.read": {"name": "orders.read", "version": "1", "schema_hash": "sha256:89393c9a393df5533f031771af68e583b5089108ad8619c31c6ae9e85061676a", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Read an order.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "refunds.calculate": {"name": "refunds.calculate", "version": "1", "schema_hash": "sha256:e8891dfb4a538b3f8c08cf6f15c39f5a6c713b35e123f9595b857a0a0be239e9", "effect": "READ", "recovery": "read", "timeout": "PT5S", "description": "Calculate what a returned order is refunded with.", "settle": null, "compensation": null, "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}, "payments.refund": {"name": "payments.refund", "version": "1", "schema_hash": "sha256:ac381e49a271c8a65f4f60f4ed3129d9bd200538a22904ff2a68fd1f2df0335e", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Pay money back to the customer of an order.", "settle": "PT1S", "compensation": "payments.cancel_refund", "cleanup": null, "irreversible": false, "approval": {"expires_in": "P1D", "quorum": 1, "roles": [], "four_eyes": false, "on_expiry": null, "remind_every": null, "may_edit": [], "rules": [], "standing": true, "proof": "open"}, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "inventory.restock": {"name": "inventory.restock", "version": "1", "schema_hash": "sha256:7d2c3d159cc427aa79e0331840781df9003e1c77d4098219acf3ab47a9c11e75", "effect": "WRITE", "recovery": "lookup", "timeout": "PT5S", "description": "Put the articles of a returned order back on the shelf.", "settle": "PT1S", "compensation": "inventory.undo_restock", "cleanup": null, "irreversible": false, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 2}, "mail.send": {"name": "mail.send", "version": "1", "schema_hash": "sha256:23605cde23afe68c89f1fc1cec67acebff5231987a13f5f9093304c7fb1369b0", "effect": "WRITE", "recovery": "dedupes", "timeout": "PT5S", "description": "Send a mail to a customer.", "settle": null, "compensation": null, "cleanup": null, "irreversible": true, "approval": null, "permission": null, "fresh_for": null, "foreign": false, "secret_params": false, "lookups": 0}}',1795957441466);
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
INSERT INTO "runs" VALUES('default','run-3305f135b1d2','01a22767-9288-740a-a4ab-b069f74588a6','01a22767-9288-740a-a4ab-b069f74588a6',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795957428872,'refund','{"order_id": "order-b437528b1e76"}','completed',NULL,14,'sha256:ba5d3667872a1b99533f0fd9736239f2785e79b29dcc465544eb47779a69c183',1795957429102,1795957429102,1795957430279,NULL);
INSERT INTO "runs" VALUES('default','run-7ba16ad05a1d','01a22767-98f1-7d43-b6d0-b08343c830e2','01a22767-98f1-7d43-b6d0-b08343c830e2',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795957430513,'refund-fails','{"order_id": "order-93dc5d159afa", "ticket_id": "ticket-78"}','failed','step close: tickets.close: HTTP 422 from POST /tickets/ticket-78/close (ToolFailed)',23,'sha256:57f6c92b6fed84d8e1beed05920d18b91df39a52d79e7fb23bb09e8fd8aba44e',1795957430767,1795957430767,1795957432379,NULL);
INSERT INTO "runs" VALUES('default','run-86eedd99161a','01a22767-a11e-76bc-98ce-5f69d83ac1d2','01a22767-a11e-76bc-98ce-5f69d83ac1d2',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795957432606,'refund','{"order_id": "order-06ff49e4122a"}','failed','step refund: rejected by ann (unverified): too much',14,'sha256:1c47d3ec99b4b504f420200d1d8c703d2f5a3d5f2dc6b1e13b92f6be6fe4ec75',1795957432926,1795957432926,1795957433883,NULL);
INSERT INTO "runs" VALUES('default','run-f61815e76e28','01a22767-a6da-7609-991e-768726ec9a76','01a22767-a6da-7609-991e-768726ec9a76',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795957434074,'refund','{"order_id": "order-2bc11dce00a1"}','completed',NULL,20,'sha256:35dcfb112898e062d6ba1ce3d7ade57d2a065eecd6d2c6ad1c89ba3aef421e3b',1795957434246,1795957434246,1795957441036,NULL);
INSERT INTO "runs" VALUES('default','run-99b02b80aedd','01a22767-c2d2-7915-a051-87f1880a342a','01a22767-c2d2-7915-a051-87f1880a342a',NULL,NULL,NULL,'uma','uma',NULL,NULL,NULL,1795957441234,'refund','{"order_id": "order-5a1e345bb061"}','running',NULL,6,'sha256:e86e8d067cb7eb5fffbbda8121a50a0362eb3ecf107f0fa072aacccae9812183',1795957441466,1795957441466,NULL,NULL);
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
INSERT INTO "steerings" VALUES('default','run-f61815e76e28#01a22767-a6da-7609-991e-768726ec9a76.2','run-f61815e76e28','01a22767-a6da-7609-991e-768726ec9a76','resolve','oscar','{"actor": "oscar", "intervention_id": "iv-01d0eb3d9e8a36e2acc1b1b1-1", "outcome": "not_happened"}','accepted','accepted',0,NULL,NULL,NULL,NULL,1795957440125);
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
INSERT INTO "steps" VALUES('default','run-3305f135b1d2','order',1,'orders.read','succeeded','{"order_id": "order-b437528b1e76"}','{"order_id": "order-b437528b1e76", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-b437528b1e76", "quantity": 2}]}',NULL,NULL,1795957429186,1795957429276,'01a22767-9288-740a-a4ab-b069f74588a6:2:1:5225fbe1449042bea99c8a08efc7bb5c');
INSERT INTO "steps" VALUES('default','run-3305f135b1d2','amount',1,'refunds.calculate','succeeded','{"order_id": "order-b437528b1e76", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795957429405,1795957429422,'01a22767-9288-740a-a4ab-b069f74588a6:3:1:76d31fa4dd744f5ebf7b989a08731267');
INSERT INTO "steps" VALUES('default','run-3305f135b1d2','refund',1,'payments.refund','succeeded','{"order_id": "order-b437528b1e76", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-f7c633d009be", "order_id": "order-b437528b1e76", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795957429774,1795957429836,NULL);
INSERT INTO "steps" VALUES('default','run-3305f135b1d2','restock',1,'inventory.restock','succeeded','{"order_id": "order-b437528b1e76", "lines": [{"sku": "article-of-order-b437528b1e76", "quantity": 2}]}','{"restock_id": "restock-e87433c80f59", "order_id": "order-b437528b1e76", "lines": [{"sku": "article-of-order-b437528b1e76", "quantity": 2}]}',NULL,NULL,1795957429991,1795957430013,NULL);
INSERT INTO "steps" VALUES('default','run-3305f135b1d2','mail',1,'mail.send','succeeded','{"order_id": "order-b437528b1e76", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-b437528b1e76", "body": "We have refunded 120.00 EUR for order-b437528b1e76."}','{"mail_id": "mail-2877033a494a", "to": "ada@example.com"}',NULL,NULL,1795957430147,1795957430169,NULL);
INSERT INTO "steps" VALUES('default','run-7ba16ad05a1d','order',1,'orders.read','succeeded','{"order_id": "order-93dc5d159afa"}','{"order_id": "order-93dc5d159afa", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-93dc5d159afa", "quantity": 2}]}',NULL,NULL,1795957430908,1795957430927,'01a22767-98f1-7d43-b6d0-b08343c830e2:2:1:78a7c363d85d4b3c8a2a15e2911384b5');
INSERT INTO "steps" VALUES('default','run-7ba16ad05a1d','amount',1,'refunds.calculate','succeeded','{"order_id": "order-93dc5d159afa", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795957431065,1795957431081,'01a22767-98f1-7d43-b6d0-b08343c830e2:3:1:210b35c37aa54ed7bb6533b8d29c92aa');
INSERT INTO "steps" VALUES('default','run-7ba16ad05a1d','refund',1,'payments.refund','succeeded','{"order_id": "order-93dc5d159afa", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-9b31e3202f6c", "order_id": "order-93dc5d159afa", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795957431391,1795957431433,NULL);
INSERT INTO "steps" VALUES('default','run-7ba16ad05a1d','restock',1,'inventory.restock','succeeded','{"order_id": "order-93dc5d159afa", "lines": [{"sku": "article-of-order-93dc5d159afa", "quantity": 2}]}','{"restock_id": "restock-8f037f7f10e0", "order_id": "order-93dc5d159afa", "lines": [{"sku": "article-of-order-93dc5d159afa", "quantity": 2}]}',NULL,NULL,1795957431561,1795957431593,NULL);
INSERT INTO "steps" VALUES('default','run-7ba16ad05a1d','close',1,'tickets.close','failed','{"ticket_id": "ticket-78"}',NULL,'HTTP 422 from POST /tickets/ticket-78/close','permanent',1795957431759,1795957431786,NULL);
INSERT INTO "steps" VALUES('default','run-86eedd99161a','order',1,'orders.read','succeeded','{"order_id": "order-06ff49e4122a"}','{"order_id": "order-06ff49e4122a", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-06ff49e4122a", "quantity": 2}]}',NULL,NULL,1795957433040,1795957433050,'01a22767-a11e-76bc-98ce-5f69d83ac1d2:2:1:5a8c02813fae44bbbbebccaf02212c14');
INSERT INTO "steps" VALUES('default','run-86eedd99161a','amount',1,'refunds.calculate','succeeded','{"order_id": "order-06ff49e4122a", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795957433175,1795957433212,'01a22767-a11e-76bc-98ce-5f69d83ac1d2:3:1:6e847a43c1ed448bbe19723fd66e2c9c');
INSERT INTO "steps" VALUES('default','run-86eedd99161a','restock',1,'inventory.restock','succeeded','{"order_id": "order-06ff49e4122a", "lines": [{"sku": "article-of-order-06ff49e4122a", "quantity": 2}]}','{"restock_id": "restock-1aa940ffb134", "order_id": "order-06ff49e4122a", "lines": [{"sku": "article-of-order-06ff49e4122a", "quantity": 2}]}',NULL,NULL,1795957433185,1795957433237,NULL);
INSERT INTO "steps" VALUES('default','run-f61815e76e28','order',1,'orders.read','succeeded','{"order_id": "order-2bc11dce00a1"}','{"order_id": "order-2bc11dce00a1", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-2bc11dce00a1", "quantity": 2}]}',NULL,NULL,1795957434349,1795957434370,'01a22767-a6da-7609-991e-768726ec9a76:2:1:ab75c7fb848745a7bffe0ffb57374bfd');
INSERT INTO "steps" VALUES('default','run-f61815e76e28','amount',1,'refunds.calculate','succeeded','{"order_id": "order-2bc11dce00a1", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795957434553,1795957434568,'01a22767-a6da-7609-991e-768726ec9a76:3:1:92dcf55692fc4c7690b6ef015214f5a1');
INSERT INTO "steps" VALUES('default','run-f61815e76e28','refund',1,'payments.refund','failed','{"order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR", "reason": "returned"}',NULL,'RemoteProtocolError: Server disconnected without sending a response.','in_doubt',1795957434918,1795957434934,NULL);
INSERT INTO "steps" VALUES('default','run-f61815e76e28','refund',2,'payments.refund','succeeded','{"order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR", "reason": "returned"}','{"refund_id": "refund-3d339f8717a3", "order_id": "order-2bc11dce00a1", "amount": "120.00", "currency": "EUR"}',NULL,NULL,1795957440520,1795957440645,NULL);
INSERT INTO "steps" VALUES('default','run-f61815e76e28','restock',1,'inventory.restock','succeeded','{"order_id": "order-2bc11dce00a1", "lines": [{"sku": "article-of-order-2bc11dce00a1", "quantity": 2}]}','{"restock_id": "restock-4faae9dc3758", "order_id": "order-2bc11dce00a1", "lines": [{"sku": "article-of-order-2bc11dce00a1", "quantity": 2}]}',NULL,NULL,1795957440774,1795957440808,NULL);
INSERT INTO "steps" VALUES('default','run-f61815e76e28','mail',1,'mail.send','succeeded','{"order_id": "order-2bc11dce00a1", "kind": "refund_notice", "to": "ada@example.com", "subject": "Your refund for order-2bc11dce00a1", "body": "We have refunded 120.00 EUR for order-2bc11dce00a1."}','{"mail_id": "mail-6de37b6081a8", "to": "ada@example.com"}',NULL,NULL,1795957440904,1795957440928,NULL);
INSERT INTO "steps" VALUES('default','run-99b02b80aedd','order',1,'orders.read','succeeded','{"order_id": "order-5a1e345bb061"}','{"order_id": "order-5a1e345bb061", "status": "paid", "currency": "EUR", "paid": "120.00", "refunded": "0.00", "customer_email": "ada@example.com", "lines": [{"sku": "article-of-order-5a1e345bb061", "quantity": 2}]}',NULL,NULL,1795957441572,1795957441584,'01a22767-c2d2-7915-a051-87f1880a342a:2:1:de0f3d5bd0cf4a8d8ee50f437a971963');
INSERT INTO "steps" VALUES('default','run-99b02b80aedd','amount',1,'refunds.calculate','succeeded','{"order_id": "order-5a1e345bb061", "paid": "120.00"}','{"amount": "120.00"}',NULL,NULL,1795957441730,1795957441742,'01a22767-c2d2-7915-a051-87f1880a342a:3:1:d8533e74c20a4394903d223fedef0215');
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

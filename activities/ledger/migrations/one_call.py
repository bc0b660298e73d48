"""PostgreSQL's functions that do a whole transaction of the hot path in one call.

Each inner statement has a snapshot of its own, as the statements of a transaction have, so what is
read after a lock is taken is what was committed before. Where anything is in the way of a plain
write or read, they write nothing and return NULL: the general way finds out what it is.

Released migrations rest on it: what it emits never changes.
"""

from __future__ import annotations

from typing import Final

from surehand.activities.ledger.migrations.protection import make_function

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

#: Chains events behind a run's head, as ``core/transaction.py`` says: the hash is of what
#: canonical JSON makes of an event, whose members come in alphabetical order.
_APPEND_EVENTS: Final = """
append_events(
    of_tenant text, of_run text, run_json text, at_time bigint,
    types text[], step_ids text[], steps_json text[], bodies text[],
    OUT last_seq bigint, OUT last_hash text
) AS $$
DECLARE
    before_it text;
BEGIN
    SELECT seq, head INTO last_seq, last_hash FROM runs
        WHERE tenant_id = of_tenant AND run_id = of_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR number IN 1 .. coalesce(cardinality(types), 0) LOOP
        before_it := last_hash;
        last_seq := last_seq + 1;
        last_hash := 'sha256:' || encode(sha256(convert_to(
            before_it || E'\\n{"at_ms":' || at_time || ',"body":' || bodies[number]
            || ',"run_id":' || run_json || ',"seq":' || last_seq || ',"step_id":'
            || steps_json[number] || ',"type":"' || types[number] || '"}', 'UTF8')), 'hex');
        INSERT INTO events (tenant_id, run_id, seq, type, step_id, body, at_ms, previous, hash)
            VALUES (of_tenant, of_run, last_seq, types[number], step_ids[number],
                bodies[number]::json, at_time, before_it, last_hash);
    END LOOP;
    UPDATE runs SET seq = last_seq, head = last_hash
        WHERE tenant_id = of_tenant AND run_id = of_run;
END $$
"""

#: What each call begins with: whose transaction it is, and how long it waits for a lock.
_BEGIN: Final = f"""
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM set_config('surehand.tenant', of_tenant, true),
        set_config('lock_timeout', patience, true),
        set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
    at_time := {_NOW};
"""

#: As ``claim_entry.py`` looks around: hardly ever is there anything.
_IN_THE_WAY: Final = """
    EXISTS (SELECT FROM bars WHERE tenant_id = of_tenant AND run_id = of_run
        AND step_id IN (of_step, '*'))
    OR EXISTS (SELECT FROM runs WHERE tenant_id = of_tenant AND run_id = of_run
        AND (batch <> of_batch OR execution <> of_execution))
    OR EXISTS (SELECT FROM interventions WHERE tenant_id = of_tenant AND run_id = of_run
        AND rule = 'undone' AND state = 'open')
    OR EXISTS (SELECT FROM effects WHERE tenant_id = of_tenant AND tool = of_tool AND key = of_key)
    OR EXISTS (SELECT FROM epochs WHERE closed_ms IS NULL)
    OR done_entry IS NOT NULL AND EXISTS (SELECT FROM quotas WHERE tenant_id = of_tenant
        AND (effects_per_hour IS NOT NULL OR tokens_per_day IS NOT NULL
            OR money_per_day IS NOT NULL))
"""

#: Whether the day's tokens or money of a tenant are used up, as ``quotas/usage.py`` counts them.
_SPENT: Final = """
    EXISTS (SELECT FROM quotas AS may WHERE may.tenant_id = of_tenant AND (
        coalesce((SELECT used FROM quota_usage WHERE tenant_id = of_tenant AND kind = 'tokens'
            AND window_start_ms = at_time - at_time % 86400000), 0) >= may.tokens_per_day
        OR coalesce((SELECT used FROM quota_usage WHERE tenant_id = of_tenant AND kind = 'money'
            AND window_start_ms = at_time - at_time % 86400000), 0)
            >= may.money_per_day::numeric * 1000000000))
"""

#: Counts one effect more, if the tenant's quotas leave room for it; as ``room_for_effect`` does.
#: It waits for the tenant's turn, under which what others have counted is read. Nothing that others
#: wait for while they have it is locked by then: a claim alone has written nothing.
_COUNT_EFFECT: Final = f"""
count_effect(of_tenant text, INOUT at_time bigint, OUT has_room boolean)
AS $$
DECLARE
    is_limited boolean;
BEGIN
    SELECT effects_per_hour IS NOT NULL INTO is_limited FROM quotas WHERE tenant_id = of_tenant;
    has_room := true;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF is_limited THEN
        PERFORM pg_advisory_xact_lock(
            hashtextextended('quota:' || of_tenant || ':' || 'effects_per_hour', 0));
        at_time := greatest(at_time, {_NOW});
    END IF;
    IF {_SPENT} THEN
        has_room := false;
    ELSIF is_limited THEN
        INSERT INTO quota_usage AS counted (tenant_id, kind, window_start_ms, used)
            SELECT of_tenant, 'effects', at_time - at_time % 3600000, 1 FROM quotas
                WHERE tenant_id = of_tenant AND effects_per_hour > 0
            ON CONFLICT (tenant_id, kind, window_start_ms) DO UPDATE SET used = counted.used + 1
                WHERE counted.used < (SELECT effects_per_hour FROM quotas
                    WHERE tenant_id = of_tenant);
        has_room := FOUND;
    END IF;
END $$
"""

_LOCKED: Final = """
    pg_try_advisory_xact_lock_shared(
        hashtextextended('run:' || of_tenant || ':' || of_run, 0))
    AND pg_try_advisory_xact_lock(
        hashtextextended('step:' || of_tenant || ':' || of_run || ':' || of_step, 0))
    AND pg_try_advisory_xact_lock(
        hashtextextended('key:' || of_tenant || ':' || of_tool || ':' || of_key, 0))
"""

#: Records the outcome of a plain write, claims another one, or both. A claim's times are given as
#: from its own time on. Params come beside their rows: what makes a row of JSON refuses a NUL in
#: its texts.
_RECORD_WRITE: Final = f"""
record_write(
    of_tenant text, patience text, of_run text, run_json text,
    done_entry text, done_token bigint, done_receipt json,
    done_step text, done_attempt integer, done_output json,
    of_step text, of_tool text, of_key text, of_execution text, of_batch text,
    the_effect json, the_params json, the_attempt json, the_input json,
    types text[], step_ids text[], steps_json text[], bodies text[],
    OUT at_time bigint, OUT done_number bigint, OUT is_claimed boolean,
    OUT last_seq bigint, OUT last_hash text
) AS $$
DECLARE
    new_effect effects;
    new_attempt steps;
BEGIN
    {_BEGIN}
    IF done_entry IS NOT NULL THEN
        UPDATE effects SET state = 'committed', receipt = done_receipt, evidence = NULL,
                lease_until_ms = NULL, settled_ms = at_time,
                commit_no = nextval('effects_commit_no')
            WHERE tenant_id = of_tenant AND entry_id = done_entry AND run_id = of_run
                AND state = 'claimed' AND fencing_token = done_token AND recovering_ms IS NULL
            RETURNING commit_no INTO done_number;
        IF NOT FOUND THEN
            at_time := NULL;
            RETURN;
        END IF;
        UPDATE steps SET state = 'succeeded', output = done_output, error = NULL,
                error_class = NULL, ended_ms = at_time
            WHERE tenant_id = of_tenant AND run_id = of_run AND step_id = done_step
                AND attempt = done_attempt;
    END IF;
    is_claimed := false;
    IF of_key IS NOT NULL AND {_LOCKED} THEN
        is_claimed := NOT ({_IN_THE_WAY});
    END IF;
    IF is_claimed AND done_entry IS NULL THEN
        SELECT q.at_time, q.has_room INTO at_time, is_claimed
            FROM count_effect(of_tenant, at_time) AS q;
    END IF;
    IF is_claimed THEN
        new_effect := json_populate_record(NULL::effects, the_effect);
        new_effect.params := the_params;
        new_effect.first_call_ms := at_time;
        new_effect.claimed_ms := at_time;
        new_effect.lease_until_ms := at_time + new_effect.lease_until_ms;
        new_effect.deadline_ms := at_time + new_effect.deadline_ms;
        INSERT INTO effects SELECT new_effect.*;
        new_attempt := json_populate_record(NULL::steps, the_attempt);
        new_attempt.input := the_input;
        new_attempt.started_ms := at_time;
        INSERT INTO steps SELECT new_attempt.*
            ON CONFLICT (tenant_id, run_id, step_id, attempt) DO UPDATE SET
                tool = excluded.tool, state = excluded.state, input = excluded.input,
                started_ms = excluded.started_ms, holder = excluded.holder,
                output = NULL, error = NULL, error_class = NULL, ended_ms = NULL;
    ELSIF done_entry IS NULL THEN
        at_time := NULL;
        RETURN;
    ELSIF of_key IS NOT NULL THEN
        types := types[1:1];
    END IF;
    SELECT e.last_seq, e.last_hash INTO last_seq, last_hash
        FROM append_events(of_tenant, of_run, run_json, at_time,
            types, step_ids, steps_json, bodies) AS e;
END $$
"""

#: Begins the first attempt at a read of which nothing is there.
_BEGIN_READ: Final = f"""
begin_read(
    of_tenant text, patience text, the_attempt json, the_input json, OUT at_time bigint
) AS $$
DECLARE
    new_attempt steps;
BEGIN
    {_BEGIN}
    IF {_SPENT} THEN
        at_time := NULL;
        RETURN;
    END IF;
    new_attempt := json_populate_record(NULL::steps, the_attempt);
    new_attempt.input := the_input;
    new_attempt.started_ms := at_time;
    INSERT INTO steps SELECT new_attempt.* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        at_time := NULL;
    END IF;
END $$
"""

#: Records the answer of a read whose attempt still counts.
_RECORD_READ: Final = f"""
record_read(
    of_tenant text, patience text, of_run text, run_json text,
    of_step text, of_attempt integer, of_holder text, of_batch text, the_output json,
    types text[], step_ids text[], steps_json text[], bodies text[],
    OUT at_time bigint, OUT last_seq bigint, OUT last_hash text
) AS $$
BEGIN
    {_BEGIN}
    UPDATE steps SET state = 'succeeded', output = the_output, error = NULL, error_class = NULL,
            ended_ms = at_time
        WHERE tenant_id = of_tenant AND run_id = of_run AND step_id = of_step
            AND attempt = of_attempt AND holder = of_holder AND state = 'running'
            AND NOT EXISTS (SELECT FROM runs WHERE tenant_id = of_tenant AND run_id = of_run
                AND batch <> of_batch);
    IF NOT FOUND THEN
        at_time := NULL;
        RETURN;
    END IF;
    SELECT e.last_seq, e.last_hash INTO last_seq, last_hash
        FROM append_events(of_tenant, of_run, run_json, at_time,
            types, step_ids, steps_json, bodies) AS e;
END $$
"""


def make_functions() -> None:
    """Make the functions: PostgreSQL's alone."""
    for function in (_APPEND_EVENTS, _COUNT_EFFECT, _RECORD_WRITE, _BEGIN_READ, _RECORD_READ):
        make_function(function)

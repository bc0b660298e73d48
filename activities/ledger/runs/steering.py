"""Who may steer a run: judged when it arrives, once, and recorded; and what a run has asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, assert_never

from pydantic import JsonValue

from surehand import verify
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import events, grants, runs, steerings
from surehand.activities.ledger.halts import LOOK, list_halts, stood_still
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.people import principals, signatures
from surehand.activities.ledger.people.proofs import verify_proof
from surehand.activities.ledger.steps import attempts
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.process.json_schemas import problems
from surehand.verify import BadKey, BadSignature
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance, ResumeClaims, SteeringClaims, audience
from surehand.workflows.contracts.runs import LARGEST_EVENT
from surehand.workflows.contracts.steering import (
    LARGEST_ANSWER,
    AnswerInterrupts,
    GivenAnswer,
    Interrupt,
    InterruptKind,
    RecordInterrupt,
    Steer,
    SteeringCode,
    Verb,
)
from surehand.workflows.plan.plan import ASKING, WAITING

#: What whoever a run acts for may do with it; the rest changes what it may spend, or what happened.
OWNERS: Final = frozenset({Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.ANSWER})
#: The permission to steer in every way; ``steer:cancel`` and so on are for one verb.
STEER: Final = "steer"


@dataclass(frozen=True)
class SteeringVerdict:
    """Whether something that was sent to a run counts."""

    code: SteeringCode
    message: str
    verified: bool


@dataclass(frozen=True)
class _Proof:
    """What proves who has sent it, if anything does."""

    kid: str | None = None
    nonce: str | None = None
    verified: bool = False


class _Refused(Exception):
    def __init__(self, code: SteeringCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def judge_steering(tx: Transaction, asked: Steer, assurance: Assurance) -> SteeringVerdict:
    """Judge something that was sent to a run, and record that; the same delivery is judged once."""
    recorded = tx.one(rows_of(steerings, steering_id=asked.steering_id))
    if recorded is not None:
        said = recorded["verb"], recorded["actor"], recorded["content"]
        if said != (asked.verb.value, asked.actor, asked.content):
            # Nothing is to lend its number to something else.
            other = "another message was judged under its number: send it again"
            return SteeringVerdict(SteeringCode.NOT_PERMITTED, other, verified=False)
        code = SteeringCode(recorded["code"])
        return SteeringVerdict(code, recorded["message"], recorded["verified"])
    proof = _Proof()
    try:
        if asked.forwarded_as is not None:
            _require_taken_by_parent(tx, asked)
        else:
            proof = _prove_sender(tx, asked)
            _require_permission(tx, asked, proof, assurance)
        _require_fit(asked)
        judged = SteeringVerdict(SteeringCode.ACCEPTED, "accepted", proof.verified)
    except _Refused as refused:
        judged = SteeringVerdict(refused.code, str(refused), proof.verified)
    _record_steering(tx, asked, judged, proof)
    if judged.code is SteeringCode.ACCEPTED:
        for given in asked.answers:
            if not given.elsewhere:
                record_answer(tx, asked, given)
    return judged


def _require_taken_by_parent(tx: Transaction, asked: Steer) -> None:
    """Make sure that a run's parent has taken exactly this: then it counts here, too."""
    by, accepted = asked.forwarded_by, SteeringCode.ACCEPTED.value
    row = tx.one(rows_of(steerings, steering_id=asked.forwarded_as, run_id=by, code=accepted))
    taken = row["content"] if row is not None else {}
    if asked.verb is Verb.ANSWER and row is not None and by is not None:
        own = rows_of(runs, runs.c.parent_step_id, run_id=asked.run_id, parent_run_id=by)
        step_id = tx.value(own) or ""
        taken = AnswerInterrupts.model_validate(taken).inside(step_id).content()
    said = (asked.verb.value, asked.actor, asked.content)
    if row is None or (row["verb"], row["actor"], taken) != said:
        raise _Refused(SteeringCode.NOT_PERMITTED, "the parent run has not taken this")
    # Once in each life of the child, as a signature is: what was paused since stays paused.
    life = asked.steering_id.rpartition(".")[0]
    counted = tx.one(
        rows_of(events, events.c.seq, run_id=asked.run_id, type="steering.accepted").where(
            events.c.body["forwarded_as"].as_string() == asked.forwarded_as,
            events.c.body["steering_id"].as_string().startswith(f"{life}.", autoescape=True),
        )
    )
    if counted is not None:
        raise _Refused(SteeringCode.USED_SIGNATURE, "the parent run has handed this on once")


def _prove_sender(tx: Transaction, asked: Steer) -> _Proof:
    if asked.content.get("proof") is not None:
        return _prove_by_token(tx, asked)
    if asked.signature is None:
        return _Proof()
    try:
        key, claims = verify_proof(tx, asked.signature, asked.actor, SteeringClaims)
    except BadSignature as error:
        raise _Refused(SteeringCode.BAD_SIGNATURE, str(error)) from error
    bound = {
        "another tenant": (claims.aud, audience(asked.tenant)),
        "another run": (claims.run_id, asked.run_id),
        "another verb": (claims.verb, asked.verb.value),
        "another actor": (claims.sub, asked.actor),
        "other content": (claims.content, signatures.digest_signed(asked.content)),
    }
    differs = signatures.find_difference(bound)
    if differs is not None:
        raise _Refused(SteeringCode.BAD_SIGNATURE, differs)
    _refuse_used(tx, asked, claims.jti)
    return _Proof(key.kid, claims.jti, verified=True)


def _prove_by_token(tx: Transaction, asked: Steer) -> _Proof:
    """Verify that the sender has the resume token that the run has out, for what waits now."""
    token = asked.token
    if token is None:
        raise _Refused(SteeringCode.BAD_TOKEN, "this run has no resume token out: it was used")
    if token.user != asked.actor:
        raise _Refused(SteeringCode.BAD_TOKEN, f"the resume token is {token.user}'s")
    if token.expires_at.timestamp() * 1000 <= tx.now_ms:
        raise _Refused(SteeringCode.BAD_TOKEN, "the resume token has expired")
    if token.calls != asked.calls:
        reason = "other calls are waiting than when the resume token was made"
        raise _Refused(SteeringCode.BAD_TOKEN, reason)
    proof = str(asked.content["proof"])
    try:
        key = verify.check_jwk(token.public_key)
        claims = signatures.verify_in_time(proof, key, ResumeClaims, now_s=tx.now_ms // 1000)
    except (BadSignature, BadKey) as error:
        reason = f"the resume token is not this run's, or void: {error}"
        raise _Refused(SteeringCode.BAD_TOKEN, reason) from error
    sent = {name: part for name, part in asked.content.items() if name != "proof"}
    content = signatures.digest_signed(sent)
    expected = (audience(asked.tenant), asked.actor, asked.run_id, content)
    if (claims.aud, claims.sub, claims.run_id, claims.content) != expected:
        raise _Refused(SteeringCode.BAD_TOKEN, "the resume token was used for something else")
    _refuse_used(tx, asked, claims.jti)
    return _Proof(verify.kid_of(key), claims.jti, verified=token.verified)


def _refuse_used(tx: Transaction, asked: Steer, nonce: str) -> None:
    # A run that was reset is sent the same once more, and has to take it once more.
    lives = [asked.workflow_run_id, *asked.lives]
    same = rows_of(steerings, steerings.c.steering_id, run_id=asked.run_id, nonce=nonce)
    if tx.has(same.where(steerings.c.workflow_run_id.in_(lives))):
        used_up = "this signature was judged before: sign again"
        raise _Refused(SteeringCode.USED_SIGNATURE, used_up)


def _require_permission(tx: Transaction, asked: Steer, proof: _Proof, assurance: Assurance) -> None:
    """Look whether the actor may do this to the run now."""
    if assurance is not Assurance.OPEN and not proof.verified:
        raise _Refused(SteeringCode.UNSIGNED, "only what is signed counts here: use --key")
    run = tx.read_run(asked.run_id, runs.c.user_id)
    if asked.verb in OWNERS and run["user_id"] == asked.actor:
        return
    wanted = {STEER, f"{STEER}:{asked.verb}"}
    if assurance is Assurance.OPEN:
        given = rows_of(grants, grants.c.principal, kind="permission", revoked_ms=None)
        if not tx.has(given.where(grants.c.name.in_(wanted)).limit(1)):
            return  # Nobody was appointed, and no name is proven anyway.
    if principals.find_principal(tx, asked.actor).permissions.isdisjoint(wanted):
        reason = f"{asked.actor} may not {asked.verb} this run: permission {STEER}:{asked.verb}"
        raise _Refused(SteeringCode.NOT_PERMITTED, f"{reason} is needed")


def _require_fit(asked: Steer) -> None:
    """Look whether all of it is what the run waits for."""
    if asked.refused is not None:
        raise _Refused(SteeringCode.NOT_WAITING, asked.refused)
    largest = LARGEST_EVENT + 2048 if asked.verb is Verb.EVENT else LARGEST_ANSWER * 4
    # How large an amended plan may be, its run has looked at (``LARGEST_PLAN``).
    if asked.verb is not Verb.AMEND and len(json.dumps(asked.content)) > largest:
        raise _Refused(SteeringCode.BAD_ANSWER, f"it is too large for a {asked.verb}")
    for given in asked.answers:
        wrong = _find_wrong(given.value, given.interrupt.answer_schema)
        if wrong:
            raise _Refused(SteeringCode.BAD_ANSWER, f"{given.interrupt.interrupt_id}: {wrong}")


def _find_wrong(value: JsonValue, schema: dict[str, JsonValue]) -> str:
    """Return what is wrong with an answer; an empty one counts only if its schema names it."""
    if len(json.dumps(value)) > LARGEST_ANSWER:
        return f"at most {LARGEST_ANSWER} characters of JSON"
    blank = not value.strip() if isinstance(value, str) else value is None and not schema
    if blank and schema.keys().isdisjoint({"minLength", "enum", "const"}):
        return "the answer is empty"
    return "; ".join(problems(schema, value))


def _record_steering(tx: Transaction, asked: Steer, judged: SteeringVerdict, proof: _Proof) -> None:
    tx.insert_row(
        steerings,
        steering_id=asked.steering_id,
        run_id=asked.run_id,
        workflow_run_id=asked.workflow_run_id,
        verb=asked.verb.value,
        actor=asked.actor,
        content=asked.content,
        code=judged.code.value,
        message=judged.message,
        verified=judged.verified,
        signature=asked.signature if proof.nonce else None,
        kid=proof.kid,
        nonce=proof.nonce,
        forwarded_as=asked.forwarded_as,
        at_ms=tx.now_ms,
    )
    accepted = judged.code is SteeringCode.ACCEPTED
    tx.event(
        asked.run_id,
        "steering.accepted" if accepted else "steering.refused",
        steering_id=asked.steering_id,
        verb=asked.verb.value,
        actor=asked.actor,
        content=signatures.digest_signed(asked.content),
        verified=judged.verified,
        kid=proof.kid,
        forwarded_as=asked.forwarded_as,
        reason=None if accepted else judged.code.value,
        value_by=asked.actor if accepted and _gives_value(asked) else None,
    )


def _gives_value(asked: Steer) -> bool:
    """Return whether what was sent may come into the params of a call, as it was sent."""
    match asked.verb:
        case Verb.EVENT:
            return True
        case Verb.RESUME:
            return asked.content.get("params") is not None
        case Verb.CANCEL:  # The code that has started a child run is told why that was cancelled.
            return bool(asked.content.get("reason"))
        case Verb.PAUSE | Verb.TOP_UP:
            return False
        case Verb.AMEND | Verb.ANSWER | Verb.RESOLVE | Verb.DECIDE:
            return False  # The event of what follows says it.
        case _:
            assert_never(asked.verb)


def record_interrupt(tx: Transaction, asked: RecordInterrupt) -> timedelta | None:
    """Record that a question was asked, or that nobody has answered it; the same twice is once.

    Its time stands still while calls are halted: then it has not expired, and what is returned is
    how long it still waits.
    """
    interrupt = asked.interrupt
    told = tx.list_told(asked.run_id, interrupt.step_id, f"interrupt.{asked.what}")
    if any(body["interrupt_id"] == interrupt.interrupt_id for body in told):
        return None
    if asked.what == "expired" and (left := _time_left(tx, asked.run_id, interrupt)) is not None:
        return left
    row = _question_attempt(asked.run_id, interrupt)
    if interrupt.kind.is_whole_step:
        if asked.what == "opened":
            attempts.start_attempt(tx, row)
        elif asked.what == "expired" and asked.output is None:
            why = "nobody has answered"
            attempts.finish_attempt(tx, row, "failed", error=why, error_class="expired")
        else:
            attempts.finish_attempt(tx, row, "succeeded", output=asked.output)
    if asked.what != "opened":
        notification_rows.drop_question(tx, asked.run_id, interrupt)
    elif interrupt.kind is not InterruptKind.EVENT:
        notification_rows.write_question(tx, asked.run_id, interrupt)
    about = {"interrupt_id": interrupt.interrupt_id, "kind": interrupt.kind.value}
    body = {**about, "question": _digest_value(interrupt.question)}
    tx.event(asked.run_id, f"interrupt.{asked.what}", step_id=interrupt.step_id, **body)
    return None


def _time_left(tx: Transaction, run_id: str, interrupt: Interrupt) -> timedelta | None:
    """Return how long a question waits that its run holds to be over; ``None``: it is over."""
    if interrupt.expires_at is None:
        return None
    opened = tx.all(
        rows_of(events, "at_ms", "body", run_id=run_id, step_id=interrupt.step_id)
        .where(events.c.type == "interrupt.opened")
        .order_by(events.c.seq)
    )
    since = [
        one["at_ms"] for one in opened if one["body"]["interrupt_id"] == interrupt.interrupt_id
    ]
    still_ms = stood_still(tx, None, run_id, since[0]) if since else 0
    left_ms = round(interrupt.expires_at.timestamp() * 1000) + still_ms - tx.now_ms
    # By two clocks: without a halt it is over as its run says.
    if not still_ms or left_ms <= 0:
        return None
    left = timedelta(milliseconds=left_ms)
    # While a halt stands, nothing of it is used up: the run need not look more often than others.
    standing = any(one.covers(None, run_id) for one in list_halts(tx, standing=True))
    return max(left, LOOK) if standing else left


def record_answer(tx: Transaction, asked: Steer, given: GivenAnswer) -> None:
    interrupt = given.interrupt
    notification_rows.drop_question(tx, asked.run_id, interrupt)
    if interrupt.kind is InterruptKind.ASK:
        row = _question_attempt(asked.run_id, interrupt)
        attempts.finish_attempt(tx, row, "succeeded", output=given.value)
    tx.event(
        asked.run_id,
        "interrupt.answered",
        step_id=interrupt.step_id,
        interrupt_id=interrupt.interrupt_id,
        kind=interrupt.kind.value,
        actor=asked.actor,
        answer=_digest_value(given.value),
        steering_id=asked.steering_id,
        value_by=asked.actor if interrupt.kind.gives_value(given.value) else None,
    )


def _question_attempt(run_id: str, interrupt: Interrupt) -> StepAttempt:
    asked = {"question": interrupt.question, "answer": interrupt.answer_schema}
    does = WAITING if interrupt.kind is InterruptKind.EVENT else ASKING
    return StepAttempt(run_id, interrupt.step_id, 1, does, asked)


def _digest_value(value: JsonValue) -> str:
    return signatures.digest_signed(value) or digest(str(value))

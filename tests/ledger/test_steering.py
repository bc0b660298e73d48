"""Who may steer a run: whoever it acts for, and whoever is appointed; proven where it must be."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey
from sqlalchemy import select

from surehand.activities.ledger.core.tables import events, steerings
from surehand.activities.ledger.runs import steering
from surehand.activities.ledger.runs.steering import SteeringVerdict
from surehand.client.messages import ResumeToken, fresh_claims, new_token, read_token, sign
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance, Claims, DecisionClaims, SteeringClaims
from surehand.workflows.contracts.runs import Parent
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelRun,
    IssuedToken,
    PauseRun,
    ResumeRun,
    Steer,
    Steering,
    SteeringCode,
    Verb,
)
from surehand.workflows.identity import child_run_id
from tests.ledger.people import key_of, person, revoked
from tests.ledger.scene import OTHER_RUN, RUN, Scene

_numbers = itertools.count(1)
#: Whoever the scene's runs act for.
OWNER = "ada"
CHILD = child_run_id(RUN, "pay", 2)
CALLS = digest({"refund": "sha256:1"})


def sent(scene: Scene, message: Steering, verb: Verb = Verb.CANCEL, **changes: Any) -> Steer:
    values = {
        "tenant": scene.tenant,
        "run_id": RUN,
        "steering_id": f"{RUN}#first.s{next(_numbers)}",
        "workflow_run_id": "first",
        "verb": verb,
        "actor": message.actor,
        "content": message.content(),
        "signature": message.signature,
    }
    return Steer.model_validate(values | changes)


def judge(scene: Scene, asked: Steer, assurance: Assurance = Assurance.OPEN) -> SteeringVerdict:
    with scene.tx() as tx:
        return steering.judge_steering(tx, asked, assurance)


def signed(scene: Scene, key: Ed25519PrivateKey, message: Steering, **changes: Any) -> Steering:
    claims = {
        **fresh_claims(message.actor, scene.tenant, int(time.time())),
        "run_id": RUN,
        "verb": Verb.CANCEL.value,
        "content": digest(message.content()),
    }
    return message.model_copy(update={"signature": sign(key, SteeringClaims(**claims | changes))})


def test_where_nobody_is_appointed_anybody_steers_and_nothing_proves_the_name(scene: Scene) -> None:
    judged = judge(scene, sent(scene, CancelRun(actor="eve")))

    assert (judged.code, judged.verified) == ("accepted", False)


@pytest.mark.parametrize("permission", ["steer", "steer:cancel"])
def test_where_somebody_is_appointed_others_need_permission(scene: Scene, permission: str) -> None:
    person(scene, "olga", permissions=(permission,))
    person(scene, "eve", permissions=("steer:pause", "refunds"))

    codes = {
        actor: (judge(scene, sent(scene, CancelRun(actor=actor)))).code
        for actor in ("olga", OWNER, "eve", "nobody")
    }
    assert codes == {
        "olga": "accepted",
        OWNER: "accepted",
        "eve": "not_permitted",
        "nobody": "not_permitted",
    }


def test_the_owner_does_not_settle_what_happened_where_somebody_is_appointed(scene: Scene) -> None:
    person(scene, "olga", permissions=("steer:resolve",))

    judged = judge(scene, sent(scene, Steering(actor=OWNER), Verb.RESOLVE))

    assert judged.code == "not_permitted"


def test_where_signatures_are_asked_for_nothing_unsigned_counts(scene: Scene) -> None:
    person(scene, OWNER)
    key = key_of(scene, OWNER)
    bare = CancelRun(actor=OWNER)

    refused = judge(scene, sent(scene, bare), Assurance.SIGNED)
    taken = judge(scene, sent(scene, signed(scene, key, bare)), Assurance.SIGNED)

    assert (refused.code, refused.verified) == ("unsigned", False)
    assert (taken.code, taken.verified) == ("accepted", True)


def test_without_appointments_only_the_owner_steers_where_proof_is_asked(scene: Scene) -> None:
    person(scene, "eve")
    key = key_of(scene, "eve")

    asked = sent(scene, signed(scene, key, CancelRun(actor="eve")))

    assert (judge(scene, asked, Assurance.SIGNED)).code == "not_permitted"


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": OTHER_RUN},
        {"verb": "pause"},
        {"content": digest(CancelRun(actor=OWNER, reason="another").content())},
        {"aud": "surehand:another"},
        {"exp": int(time.time()) - 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_signature_for_something_else_is_refused(scene: Scene, changes: dict[str, Any]) -> None:
    person(scene, OWNER)
    key = key_of(scene, OWNER)
    message = signed(scene, key, CancelRun(actor=OWNER), **changes)

    judged = judge(scene, sent(scene, message), Assurance.SIGNED)

    assert (judged.code, judged.verified) == ("bad_signature", False)


def test_anothers_signature_under_the_owners_name_is_refused(scene: Scene) -> None:
    for name in (OWNER, "eve"):
        person(scene, name)
    key = key_of(scene, "eve")
    message = signed(scene, key, CancelRun(actor=OWNER))

    assert (judge(scene, sent(scene, message))).code == "bad_signature"


def test_a_signed_decision_is_no_signature_that_steers(scene: Scene) -> None:
    person(scene, OWNER)
    key = key_of(scene, OWNER)
    claims: Claims = DecisionClaims(
        **fresh_claims(OWNER, scene.tenant, int(time.time())),
        approval_id=f"{RUN}/refund/1",
        run_id=RUN,
        params_hash="sha256:1",
        outcome="approve",  # type: ignore[arg-type]  # as it comes
    )
    message = CancelRun(actor=OWNER, signature=sign(key, claims))

    assert (judge(scene, sent(scene, message))).code == "bad_signature"


def test_a_captured_signature_steers_once(scene: Scene) -> None:
    person(scene, OWNER)
    message = signed(scene, key_of(scene, OWNER), CancelRun(actor=OWNER))

    codes = [(judge(scene, sent(scene, message))).code for _ in "12"]

    assert codes == ["accepted", "used_signature"]


def test_a_run_that_was_reset_takes_what_it_had_taken_before(scene: Scene) -> None:
    person(scene, OWNER)
    message = signed(scene, key_of(scene, OWNER), CancelRun(actor=OWNER))
    judge(scene, sent(scene, message))

    again = judge(scene, sent(scene, message, workflow_run_id="second"))

    assert again.code == "accepted"


def test_the_same_delivery_is_judged_and_recorded_once(scene: Scene) -> None:
    asked = sent(scene, CancelRun(actor="eve", reason="no more"))

    judged = [judge(scene, asked) for _ in "12"]

    assert judged[0] == judged[1]
    with scene.tx() as tx:
        rows = tx.all(select(steerings).where(steerings.c.tenant_id == scene.tenant))
        told = tx.all(
            select(events).where(
                events.c.tenant_id == scene.tenant, events.c.type == "steering.accepted"
            )
        )
    assert [row["content"]["reason"] for row in rows] == ["no more"]
    assert [row["body"]["actor"] for row in told] == ["eve"]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("other", "verb"),
    [
        (CancelRun(actor="eve", reason="all well"), Verb.CANCEL),
        (CancelRun(actor="mallory", reason="no more"), Verb.CANCEL),
        (PauseRun(actor="eve", reason="no more"), Verb.PAUSE),
    ],
    ids=["another reason", "another actor", "another verb"],
)
def test_each_message_has_its_own_number(scene: Scene, other: Steering, verb: Verb) -> None:
    asked = sent(scene, CancelRun(actor="eve", reason="no more"))
    assert judge(scene, asked).code is SteeringCode.ACCEPTED

    judged = judge(scene, sent(scene, other, verb, steering_id=asked.steering_id))

    assert judged.code is SteeringCode.NOT_PERMITTED
    assert "send it again" in judged.message
    assert judge(scene, asked).code is SteeringCode.ACCEPTED


class TestResumeTokens:
    """A token is good once, for its user, its run, and what waited when it was made."""

    @staticmethod
    def made(scene: Scene, user: str = OWNER) -> tuple[ResumeToken, IssuedToken]:
        text, key = new_token(scene.tenant, RUN, user)
        issued = IssuedToken(
            user=user,
            public_key=key.public_key,
            expires_at=datetime.now(UTC) + key.lasts,
            calls=CALLS,
            verified=True,
        )
        return read_token(text, scene.tenant, RUN), issued

    @staticmethod
    def resume(
        scene: Scene, held: ResumeToken, issued: IssuedToken | None, **changes: Any
    ) -> Steer:
        message = held.proof_of(ResumeRun(actor=changes.pop("actor", OWNER)))
        return sent(scene, message, Verb.RESUME, **{"token": issued, "calls": CALLS, **changes})

    def test_resumes_without_a_key(self, scene: Scene) -> None:
        token, issued = self.made(scene)

        judged = judge(scene, self.resume(scene, token, issued), Assurance.SIGNED)

        assert (judged.code, judged.verified) == ("accepted", True)

    def test_is_worth_what_its_pause_was_worth(self, scene: Scene) -> None:
        token, issued = self.made(scene)
        unproven = issued.model_copy(update={"verified": False})

        assert (judge(scene, self.resume(scene, token, unproven))).verified is False
        asked = self.resume(scene, token, unproven)
        assert (judge(scene, asked, Assurance.SIGNED)).code == "unsigned"

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"actor": "eve"}, "is ada's"),
            ({"calls": digest({"refund": "sha256:2"})}, "other calls are waiting"),
            ({"token": None}, "no resume token out"),
        ],
    )
    def test_is_refused(self, scene: Scene, changes: dict[str, Any], why: str) -> None:
        token, issued = self.made(scene)

        judged = judge(scene, self.resume(scene, token, issued, **changes))

        assert judged.code == "bad_token" and why in judged.message

    def test_is_refused_once_it_has_expired(self, scene: Scene) -> None:
        token, issued = self.made(scene)
        with scene.tx(after=timedelta(hours=1)) as tx:
            judged = steering.judge_steering(tx, self.resume(scene, token, issued), Assurance.OPEN)

        assert judged.code == "bad_token" and "expired" in judged.message

    def test_is_void_once_another_is_out(self, scene: Scene) -> None:
        old, _ = self.made(scene)
        _, issued = self.made(scene)

        judged = judge(scene, self.resume(scene, old, issued))

        assert judged.code == "bad_token" and "void" in judged.message

    def test_is_for_one_run(self, scene: Scene) -> None:
        scene.open_run(OTHER_RUN)
        token, issued = self.made(scene)

        judged = judge(scene, self.resume(scene, token, issued, run_id=OTHER_RUN))

        assert judged.code == "bad_token"

    def test_cannot_be_used_by_who_may_not_resume_any_more(self, scene: Scene) -> None:
        person(scene, "olga", permissions=("steer",))
        person(scene, "oscar", permissions=("steer",))
        token, issued = self.made(scene, "olga")
        revoked(scene, "olga", "permission", "steer")

        asked = self.resume(scene, token, issued, actor="olga")

        assert (judge(scene, asked)).code == "not_permitted"

    def test_its_proof_counts_once(self, scene: Scene) -> None:
        token, issued = self.made(scene)
        asked = self.resume(scene, token, issued)
        again = asked.model_copy(update={"steering_id": f"{RUN}#first.s{next(_numbers)}"})

        codes = [(judge(scene, one)).code for one in (asked, again)]

        assert codes == ["accepted", "used_signature"]

    def test_the_run_keeps_the_public_half_only(self, scene: Scene) -> None:
        token, issued = self.made(scene)

        assert token.seed not in issued.model_dump_json()
        key = OKPKey.import_key({**issued.public_key})  # type: ignore[arg-type]  # plain JSON
        assert not key.is_private


class TestWhatAParentHandsOn:
    """It counts in the child as the parent has taken it, once, and only what is for the child."""

    @staticmethod
    def handed_on(scene: Scene, taken: Steer, message: Steering) -> Steer:
        return sent(
            scene,
            message,
            taken.verb,
            run_id=CHILD,
            steering_id=f"{CHILD}#first.s{next(_numbers)}",
            forwarded_by=RUN,
            forwarded_as=taken.steering_id,
        )

    def test_a_resume_of_yesterday_does_not_end_the_pause_of_today(self, scene: Scene) -> None:
        scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
        taken = sent(scene, ResumeRun(actor=OWNER), Verb.RESUME)
        judge(scene, taken)
        twice = [self.handed_on(scene, taken, ResumeRun(actor=OWNER)) for _ in range(2)]

        codes = [(judge(scene, one)).code for one in twice]

        assert codes == ["accepted", "used_signature"]

    def test_a_child_that_was_reset_takes_it_once_more(self, scene: Scene) -> None:
        scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
        taken = sent(scene, ResumeRun(actor=OWNER), Verb.RESUME)
        judge(scene, taken)
        first = self.handed_on(scene, taken, ResumeRun(actor=OWNER))
        reset = first.model_copy(update={"steering_id": f"{CHILD}#reset.s1"})

        assert [(judge(scene, one)).code for one in (first, reset)] == ["accepted"] * 2

    @pytest.mark.parametrize(
        ("inside", "code"), [({"x.1": "yes"}, "accepted"), ({"y.1": "yes"}, "not_permitted")]
    )
    def test_an_answer_is_for_the_question_that_it_names(
        self, scene: Scene, inside: dict[str, Any], code: str
    ) -> None:
        scene.open_run(CHILD, parent=Parent(run_id=RUN, step_id="pay"))
        answers: dict[str, Any] = {"pay/x.1": "yes", "y.1": "yes"}
        taken = sent(scene, AnswerInterrupts(actor=OWNER, answers=answers), Verb.ANSWER)
        judge(scene, taken)
        message = AnswerInterrupts(actor=OWNER, answers=inside)

        assert (judge(scene, self.handed_on(scene, taken, message))).code == code


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("schema", "value", "code"),
    [
        ({}, "", "bad_answer"),
        ({}, None, "bad_answer"),
        ({"type": "string"}, " \n", "bad_answer"),
        ({}, False, "accepted"),
        ({"type": "string", "minLength": 0}, "", "accepted"),
        ({"enum": ["", "none"]}, "", "accepted"),
        ({"type": ["string", "null"]}, None, "accepted"),
    ],
)
def test_an_empty_answer_counts_only_if_the_questions_schema_names_it(
    scene: Scene, schema: dict[str, Any], value: Any, code: str
) -> None:
    asked = {"interrupt_id": "why.1", "step_id": "why", "kind": "ask", "question": "Why?"}
    given = [{"interrupt": {**asked, "answer_schema": schema}, "value": value}]
    message = AnswerInterrupts(actor=OWNER, answers={"why.1": value})

    judged = judge(scene, sent(scene, message, Verb.ANSWER, answers=given))

    assert judged.code == code
    assert (judged.message == "why.1: the answer is empty") is (code == "bad_answer")


def test_a_proof_that_was_seen_is_for_what_it_was_sent_with(scene: Scene) -> None:
    token, issued = TestResumeTokens.made(scene)
    asked = TestResumeTokens.resume(scene, token, issued)
    other = asked.model_copy(update={"content": {**asked.content, "way": "compensate"}})

    assert (judge(scene, other)).code == "bad_token"

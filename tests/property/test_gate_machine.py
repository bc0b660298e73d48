"""G3 under any sequence of events: what reached the world outside was approved when it was claimed.

The real activities over a real ledger, by the test's clock; the oracle is ``model_gate``. People
decide for themselves and in others' names, signed and not, twice and with nonces that were used;
roles and keys come and go; requests expire and are edited; attempts die at crash points, answers to
commits are lost, and workers restart with other policies and settings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import BaseModel
from sqlalchemy import make_url, select
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from surehand.activities.approvals import ApprovalActivities
from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import LedgerUnavailable
from surehand.activities.ledger.core.tables import effects as effect_rows
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.tools.failures import OutcomeUnknown, Permanent
from surehand.activities.tools.tool import Dedupes, Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.messages import claims_for, sign, sign_start
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import (
    ApprovalAsked,
    ApprovalClosed,
    Assurance,
    CloseApproval,
    Decision,
    DecisionOutcome,
    RequestApproval,
    VerdictReached,
    VerifyDecision,
)
from surehand.workflows.contracts.runs import OpenRun, StartRun
from surehand.workflows.contracts.tools import Batch, ToolCall
from surehand.workflows.identity import approval_id, params_hash
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy
from tests.ledger_databases import OWNER
from tests.property.attempts import Attempt, Clock, ClockedLedger, DyingCrash, Killed
from tests.property.conftest import Place
from tests.property.gate_moves import (
    AMOUNTS,
    ANSWERS,
    KEYS,
    MEANWHILE,
    PEOPLE,
    POLICIES,
    REQUESTER,
    ROLES,
    RUN,
    STEPS,
    STRICTER,
    VOTES,
    Vote,
    policy_of,
)
from tests.property.model_gate import (
    Asks,
    People,
    Request,
    Sent,
    Token,
    same_person,
    together,
    why_not,
)
from tests.property.search import search

pytestmark = pytest.mark.property

T = TypeVar("T")

#: Real seconds that a move may take.
STUCK_S: Final = 20.0
_tenants = itertools.count(1)


class Stuck(BaseException):
    """A move does not end: no failure that hypothesis would try again, to make it smaller."""


class Payment(BaseModel):
    """What the gate guards."""

    step: str
    amount: int


class GateMachine(RuleBasedStateMachine):
    """Anything that can happen to the approvals of a few steps."""

    loop: asyncio.AbstractEventLoop
    engine: Any
    owner: Any
    clock: Clock
    reached: Counter[str]
    """What happened in all examples: a search that reaches nothing proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.people = People(planners={REQUESTER})
        self.requests: list[Request] = []
        self.tokens: list[tuple[Token, str]] = []
        self.wrong: list[str] = []
        self.deliveries = itertools.count(1)
        self.attempts: Counter[str] = Counter()
        self.under_way: tuple[Request | None, str, str] | None = None

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, which must end by itself.

        Raises:
            Stuck: It does not.
        """

        async def in_time() -> T:
            try:
                async with asyncio.timeout(STUCK_S):
                    return await work
            except TimeoutError:
                raise Stuck(f"not done after {STUCK_S} s: {work}") from None

        return self.loop.run_until_complete(in_time())

    @initialize(
        plan=st.sampled_from([None, *POLICIES]),
        own=st.sampled_from(POLICIES),
        strict=st.booleans(),
        without=st.sets(st.sampled_from([(p, r) for p in PEOPLE for r in ROLES]), max_size=2),
    )
    def begin(
        self, plan: Asks | None, own: Asks, strict: bool, without: set[tuple[str, str]]
    ) -> None:
        roles = {(name, role) for name in PEOPLE for role in ROLES} - without
        self.tenant = f"gate-{next(_tenants)}"
        self.ledger = ClockedLedger(self.engine, self.clock)
        self.administration = ClockedLedger(self.owner, self.clock)
        self.plan, self.recorded = plan, own
        self._work_with(own, strict)
        self.spec = self.tool.spec()
        self._open(sorted(roles))

    def _work_with(self, own: Asks, strict: bool) -> None:
        self.own, self.strict = own, strict
        self.tool = self._tool(policy_of(own))
        self.context = WorkerContext(
            self.ledger,
            Toolbox([self.tool]),
            ArtifactStore("memory:///", self.ledger, largest_inline=8192),
            DyingCrash(),
            lease=timedelta(minutes=2),
            renew_every=timedelta(days=1),
            assurance=Assurance.SIGNED if strict else Assurance.OPEN,
        )

    def _tool(self, policy: ApprovalPolicy) -> Tool:
        async def pay(params: Payment, ctx: ToolContext) -> dict[str, str]:
            return self._arrives(params, ctx.idempotency_key)

        made: Tool = tool(
            "gate.pay",
            effect=WRITE,
            timeout=timedelta(minutes=1),
            key=lambda params: params.step,
            dedupes=Dedupes(timedelta(days=1)),
            irreversible=True,
            approval=policy,
        )(pay)
        return made

    def _arrives(self, params: Payment, key: str) -> dict[str, str]:
        """Count a call that reached the world outside, and ask the oracle about it."""
        assert self.under_way is not None
        request, step, answer = self.under_way
        policies = [p for p in (self.plan, self.recorded, self.own) if p is not None]
        why = why_not(
            *(request, params.step, params.amount, key),
            *(self.people, self.clock.now_ms, policies),
            strict=self.strict,
        )
        named = request.id if request else "no request"
        if why or params.step != step:
            self.wrong.append(f"{step}: {params.amount} was paid under {named}: {why}")
        if request is not None:
            request.used_for.add(key)
        self.reached["calls"] += 1
        if answer == "permanent":
            raise Permanent("refused by the provider")
        if answer == "answer lost":
            raise OutcomeUnknown("cut off")
        return {"id": key}

    def _open(self, roles: list[tuple[str, str]]) -> None:
        plan = Plan.model_validate([{"id": step, "tool": "gate.pay"} for step in STEPS])
        start = StartRun(run_id=RUN, tenant=self.tenant, user=REQUESTER, plan=plan)
        with self.administration.transaction(self.tenant) as tx:
            for name in PEOPLE:
                principals.add_principal(tx, name, "root")
                kid, public, _ = KEYS[name, 1]
                principals.add_key(tx, name, kid, public, "root")
                self.people.owners[kid] = name
            for name, role in roles:
                principals.give_grant(tx, name, "role", role, "root")
                self.people.roles[name].add(role)
        _, _, key = KEYS[REQUESTER, 1]
        signed = sign_start(start, key, self.clock.now_ms // 1000)
        opening = OpenRun(request=signed, execution=RUN)
        with self.ledger.transaction(self.tenant) as tx:
            tools = {"gate.pay": self.spec}
            run_rows.open_run(tx, opening, tools, self.context.assurance)

    # What the run does

    @rule(step=st.sampled_from(STEPS), amount=st.sampled_from(AMOUNTS), twice=st.booleans())
    def ask(self, step: str, amount: int, twice: bool) -> None:
        self._ask(step, amount, (), late=False, twice=twice)

    def _ask(
        self, step: str, amount: int, editors: tuple[str, ...], *, late: bool, twice: bool
    ) -> None:
        number = 1 + sum(request.step == step for request in self.requests)
        asked = RequestApproval(
            call=self._call(step, amount, None),
            number=number,
            editors=editors,
            escalated_to="boss" if late else None,
        )
        activity = ApprovalActivities(self.context).request_approval
        got: ApprovalAsked = self._activity(activity, asked, twice=twice)
        policies = [p for p in (self.plan, self.recorded, self.own) if p is not None]
        needed = together(policies, amount, late=late)
        if not needed or got.request is None:
            assert not needed or self._entry(step)[0] == "committed", "nobody was asked"
            assert got.request is None, "somebody was asked for nothing"
            return
        self.requests.append(
            Request(
                approval_id(RUN, step, number), step, amount, needed, late,
                self.strict,
                int(got.request.expires_at.timestamp() * 1000),
            )
        )  # fmt: skip

    @rule(
        nth=st.sampled_from([0, 0, 0, 1, 2, 5, None]),
        amount=st.sampled_from(["as asked"] * 6 + ["another"]),
        step=st.sampled_from(["as asked"] * 8 + ["the other"]),
        crash_at=st.sampled_from([None] * 6 + [p for p in CrashPoint if p != "during_call"]),
        loses=st.sampled_from([0, 0, 0, 0, 1, 2]),
        answer=ANSWERS,
    )
    def attempt(
        self,
        nth: int | None,
        amount: str,
        step: str,
        crash_at: CrashPoint | None,
        loses: int,
        answer: str,
    ) -> None:
        """Make a call under one of the requests, mostly the newest and as it was asked about."""
        if nth is None or not self.requests:
            self._attempt(None, STEPS[0], AMOUNTS[0], crash_at, loses, answer)
            return
        request = self._request(nth)
        named = request.step if step == "as asked" else STEPS[1 - STEPS.index(request.step)]
        other = AMOUNTS[AMOUNTS.index(request.amount) - 1]
        paid = request.amount if amount == "as asked" else other
        self._attempt(request, named, paid, crash_at, loses, answer)

    @precondition(lambda self: any(request.used_for for request in self.requests))
    @rule(answer=ANSWERS)
    def use_again(self, answer: str) -> None:
        """Make the call of an approval that was used, whatever was approved and called since."""
        request = next(request for request in self.requests if request.used_for)
        self._attempt(request, request.step, request.amount, None, 0, answer)

    @rule(
        step=st.sampled_from(STEPS),
        amounts=st.lists(st.sampled_from(AMOUNTS), min_size=1, max_size=3, unique=True),
        first=st.sampled_from([REQUESTER, *PEOPLE]),
        between=st.one_of(st.none(), MEANWHILE, STRICTER, STRICTER),
        answer=ANSWERS,
    )
    def as_usual(
        self,
        step: str,
        amounts: list[int],
        first: str,
        between: tuple[str, Any, Any] | None,
        answer: str,
    ) -> None:
        """Ask, let everybody say yes, and make the call; something happens before the last one."""
        for number, amount in enumerate(amounts, start=1):
            asked = len(self.requests)
            self._ask(step, amount, (), late=False, twice=False)
            if len(self.requests) == asked:
                return
            self._all_say_yes(self.requests[-1], first)
            if between is not None and number == len(amounts):
                self._meanwhile(*between)
            self._attempt(self.requests[-1], step, amount, None, 0, answer)

    def _attempt(
        self,
        request: Request | None,
        step: str,
        amount: int,
        crash_at: CrashPoint | None,
        loses: int,
        answer: str,
    ) -> None:
        entry = self._entry(step)[0]
        before = self.reached["calls"]
        policies = [p for p in (self.plan, self.recorded, self.own) if p is not None]
        may = why_not(
            *(request, step, amount, "", self.people, self.clock.now_ms + 1, policies),
            strict=self.strict,
        )
        call = self._call(step, amount, request.id if request else None)
        self.under_way = (request, step, answer)
        activity = ToolActivities(self.context).execute_tools
        self._activity(activity, Batch(first=call), crash_at=crash_at, loses=loses)
        self.under_way = None
        called = self.reached["calls"] > before
        died_before = crash_at in (CrashPoint.BEFORE_CLAIM, CrashPoint.AFTER_CLAIM)
        if may is None and entry == "" and not died_before:
            assert called, f"{step} was approved, and not called"
        if may is None and entry == "" and crash_at is CrashPoint.AFTER_CLAIM and request:
            request.used_for.add(self._entry(step)[1])

    def _call(self, step: str, amount: int, approval: str | None) -> ToolCall:
        return ToolCall(
            tenant=self.tenant,
            run_id=RUN,
            step_id=step,
            plan_version=1,
            user=REQUESTER,
            tool=self.spec,
            params={"step": step, "amount": amount},
            policies=() if self.plan is None else (policy_of(self.plan),),
            approval_id=approval,
        )

    def _entry(self, step: str) -> tuple[str, str]:
        """Return the state of a step's newest entry, and its provider key."""
        query = select(effect_rows).where(
            effect_rows.c.tenant_id == self.tenant, effect_rows.c.key == step
        )
        with self.ledger.transaction(self.tenant) as tx:
            row = tx.one(query.order_by(effect_rows.c.generation.desc()).limit(1))
        return ("", "") if row is None else (row["state"], Entry.from_row(row).provider_key)

    @precondition(lambda self: self.requests)
    @rule(nth=st.integers(0, 3), to=st.sampled_from(["expired", "expired", "void"]))
    def close(self, nth: int, to: Any) -> None:
        """The run notices that the time is over, or stops asking."""
        request = self._request(nth)
        asked = CloseApproval(tenant=self.tenant, run_id=RUN, approval_id=request.id, to=to)
        activity = ApprovalActivities(self.context).close_approval
        closed: ApprovalClosed = self._activity(activity, asked)
        open_ = request.state == "pending" or (request.state == "approved" and not request.used_for)
        over = to == "void" or self.clock.now_ms >= request.until_ms
        request.state = to if open_ and over else request.state
        assert closed.state == request.state
        if to == "expired" and open_ and over and any(a.boss_when_late for a in request.asked):
            self._ask(request.step, request.amount, (), late=True, twice=False)

    def _activity(self, activity: Any, asked: Any, *, twice: bool = False, **how: Any) -> Any:
        """Run an activity in an attempt of its own; one whose answer was lost is made again."""
        return self.drive(self._run(activity, asked, twice, how))

    async def _run(self, activity: Any, asked: Any, twice: bool, how: dict[str, Any]) -> Any:
        step = getattr(asked, "step_id", "")
        for _ in range(3):
            self.attempts[step] += 1
            environment = ActivityEnvironment()
            environment.info = dataclasses.replace(
                environment.info,
                workflow_run_id=RUN,
                activity_id=f"{activity.__name__} {step}",
                attempt=self.attempts[step],
            )
            attempt = Attempt("one", how.get("crash_at"), how.get("loses", 0), hasty=True)
            await attempt.begin(environment.run(activity, asked))
            error = attempt.task.exception()
            if isinstance(error, LedgerUnavailable):
                how = {}
                continue
            if isinstance(error, (Killed, ApplicationError)):
                return None
            if twice:
                twice = False
                continue
            return attempt.task.result()
        raise AssertionError("the ledger does not answer")

    # What people do

    @precondition(lambda self: self.requests)
    @rule(nth=st.sampled_from([0, 0, 0, 1, 2]), votes=st.lists(VOTES, min_size=1, max_size=4))
    def decide(self, nth: int, votes: list[Vote]) -> None:
        request = self._asked(nth)
        for vote in votes:
            self._decide(request, vote)

    @precondition(lambda self: self.requests)
    @rule(nth=st.sampled_from([0, 0, 1]), first=st.sampled_from(PEOPLE))
    def all_say_yes(self, nth: int, first: str) -> None:
        self._all_say_yes(self._asked(nth), first)

    def _all_say_yes(self, request: Request, first: str) -> None:
        for approver in (first, *(name for name in PEOPLE if name != first)):
            if request.state == "pending":
                self._decide(request, Vote(approver=approver))

    def _request(self, nth: int) -> Request:
        """Return the nth request, counted from the newest."""
        return self.requests[-1 - nth % len(self.requests)]

    def _asked(self, nth: int) -> Request:
        """Return the nth request: those that wait first, the newest first."""
        newest = sorted(reversed(self.requests), key=lambda request: request.state != "pending")
        return newest[nth % len(newest)]

    def _decide(self, request: Request, vote: Vote) -> None:
        outcome, approver, amount = vote.outcome, vote.approver, vote.amount
        params: dict[str, Any] = {"step": request.step, "amount": amount}
        shown = request.amount if vote.right_hash else request.amount + 1
        shown_params = {"step": request.step, "amount": shown}
        decision = Decision(
            approval_id=request.id,
            params_hash=params_hash("gate.pay", "1", shown_params),
            outcome=DecisionOutcome(outcome),
            approver=approver,
            reason=vote.reason,
            params=params if outcome == "edit" else None,
        )
        told = (str(decision.params), vote.reason)
        content = (request.id, decision.params_hash, outcome, approver, *told)
        token, signature = self._signature(decision, content, vote.how)
        sent = Sent(
            request, outcome, approver, vote.right_hash, token, content, amount, vote.reason
        )
        taken = outcome == "edit" and self._entry(request.step)[0] not in ("", "failed")
        counts = self.people.counts(sent, self.clock.now_ms + 1, strict=self.strict, taken=taken)
        asked = VerifyDecision(
            tenant=self.tenant,
            run_id=RUN,
            decision_id=f"{RUN}#{next(self.deliveries)}",
            decision=decision.model_copy(update={"signature": signature}),
        )
        activity = ApprovalActivities(self.context).verify_decision
        reached: VerdictReached = self._activity(activity, asked, loses=vote.loses)
        code = reached.verdict.code
        assert (code == "accepted") == counts, f"{sent}: {code}, {reached.verdict.message}"
        self.people.heard(sent, self.clock.now_ms + 1)
        if counts:
            self.reached[outcome] += 1
            self.people.took(sent, strict=self.strict)
        state = request.state
        if counts and not self.people.enough(request, request.asked, strict=self.strict):
            state = "pending" if outcome == "approve" else state
        assert reached.verdict.state == state, sent
        if counts and outcome == "edit":
            self._ask(request.step, amount, (approver,), late=False, twice=False)

    def _signature(
        self, decision: Decision, content: tuple[str, ...], how: str
    ) -> tuple[Token | None, str | None]:
        signers = {same_person(name): name for name in PEOPLE}
        signer = signers.get(same_person(decision.approver), "bob")
        if how == "unsigned":
            return None, None
        if how == "an earlier signature" and self.tokens:
            return self.tokens[-1]
        if how == "by another's key":
            signer = PEOPLE[PEOPLE.index(signer) - 1]
        kid, _, key = KEYS[signer, 2 if how == "by the other key" else 1]
        now_s = self.clock.now_ms // 1000
        edited = None if decision.params is None else digest(decision.params)
        claims = claims_for(decision, self.tenant, RUN, now_s, edited=edited)
        mine = [nonce for name, nonce in sorted(self.people.nonces) if name == decision.approver]
        nonce = mine[-1] if how == "used nonce" and mine else f"nonce-{next(self.deliveries):012d}"
        made = Token(kid, now_s, nonce, content)
        signature = sign(key, claims.model_copy(update={"jti": nonce}))
        self.tokens.append((made, signature))
        return made, signature

    @rule(what=MEANWHILE)
    def meanwhile(self, what: tuple[str, Any, Any]) -> None:
        self._meanwhile(*what)

    def _meanwhile(self, what: str, first: Any, second: Any) -> None:
        match what:
            case "give role":
                self._change_role(first, second, True)
            case "take role":
                self._change_role(first, second, False)
            case "change key":
                self._change_key(first, *KEYS[first, second][:2])
            case "minutes pass":
                self.clock.now_ms += first * 60_000
            case "restart":
                # Another worker: its tool may ask for other people, its setting for proof.
                self._work_with(first, second)

    def _change_role(self, name: str, role: str, give: bool) -> None:
        with self.administration.transaction(self.tenant) as tx:
            change = principals.give_grant if give else principals.revoke_grant
            change(tx, name, "role", role, "root")
        (self.people.roles[name].add if give else self.people.roles[name].discard)(role)

    def _change_key(self, name: str, kid: str, public: dict[str, Any]) -> None:
        """Revoke a key, or register one that nobody has had."""
        with self.administration.transaction(self.tenant) as tx:
            if kid not in self.people.owners:
                principals.add_key(tx, name, kid, public, "root")
                self.people.owners[kid] = name
            else:
                principals.revoke_key(tx, name, kid, "root")
                self.people.revoked.add(kid)

    @invariant()
    def holds(self) -> None:
        assert not self.wrong, self.wrong


@pytest.fixture
def machine(place: Place, ledger_url: str) -> Iterator[type[GateMachine]]:
    GateMachine.loop, GateMachine.engine, GateMachine.clock = place
    GateMachine.owner, GateMachine.reached = place.engine, Counter()
    if not ledger_url.startswith("sqlite"):
        owner = make_url(ledger_url).set(username=OWNER)
        GateMachine.owner = make_engine(owner.render_as_string(hide_password=False))
    yield GateMachine
    GateMachine.owner.dispose()


@pytest.mark.parametrize("database", ["sqlite"])
def test_on_sqlite_nothing_runs_unapproved(machine: type[GateMachine]) -> None:
    run_state_machine_as_test(machine, settings=search(150, stateful_step_count=20))
    assert machine.reached["calls"] > 100, machine.reached


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"])
def test_on_postgresql_nothing_runs_unapproved(machine: type[GateMachine]) -> None:
    run_state_machine_as_test(machine, settings=search(8, stateful_step_count=20))


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("asks", "first", "between"),
    [
        (Asks(roles=("fin",)), "ann", ("take role", "ann", "fin")),
        (Asks(), "ann", ("change key", "ann", 1)),
        (Asks(), "ann", ("minutes pass", 11, None)),
        (Asks(), "ann", ("restart", Asks(quorum=2), False)),
        # Seldom drawn: nothing but the claim knows that whoever asked may not have said yes.
        (Asks(), REQUESTER, ("restart", Asks(four_eyes=True), False)),
    ],
)
def test_what_changes_between_the_last_yes_and_the_claim_stops_the_call(
    machine: type[GateMachine], asks: Asks, first: str, between: tuple[str, Any, Any]
) -> None:
    story = machine()
    story.begin(plan=None, own=asks, strict=False, without=set())

    story.as_usual(step="a", amounts=[20], first=first, between=between, answer="done")

    story.holds()
    assert machine.reached == {"approve": 1}

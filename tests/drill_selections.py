"""What ``make drill-full`` plays: plans, the kinds of their tools, and the rounds of its soak."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.drill.report import ForcedWait, Operation
from surehand.workflows.plan.plan import Durability
from tests.e2e.kinds import DEDUPES, LOOKUP, NEITHER, SHOPS
from tests.e2e.plans import UNGATED

SHOP: Final = "surehand.examples.shop.drill"
CREDITS: Final = "tests.variants.credits"
#: Each plan, its steps, and the module that makes and looks at its world.
PLANS: Final = {
    "examples/refund.yaml": (("order", "amount", "refund", "restock", "mail"), SHOP),
    "examples/refund_fails.yaml": (("order", "amount", "refund", "restock", "close"), SHOP),
    "tests/variants/credits.yaml": (("add", "refuse"), CREDITS),
}
NEWEST: Final = "tests.variants.newest"
#: The same of plans with child runs and lists, and of one whose read does not say the same again:
#: for what operators do.
OPERATED: Final = {
    "tests/variants/parent.yaml": (("order", "pay", "mail"), SHOP),
    "tests/variants/parent_fails.yaml": (("order", "pay", "close"), SHOP),
    "tests/variants/newest.yaml": (("newest", "refund"), NEWEST),
}
#: Modules with an agent ``refunds`` of each framework, whose model is a script.
AGENTS: Final = {
    "pydantic-ai": "tests.variants.agents",
    "openai-agents": "tests.variants.openai_agents",
    "langchain": "tests.variants.langchain_agents",
}
AGENT_PLAN: Final = "tests/variants/agent.yaml"
_AGENT_WORLD: Final = "tests.variants.agents_drill"
#: The shop's steps that only read.
READS: Final = ("order", "amount")
#: How a crash in the refund is settled, and the tools that do it.
KINDS: Final = {"lookup": LOOKUP, "dedupes": DEDUPES, "human": NEITHER}
#: The longest that a slow shop takes: below what a call may.
SLOWEST_S: Final = 2.0
#: The tools of selections that are played for one thing only.
PATIENT: Final = "tests.variants.refund_patient"
_OWN: Final = {
    **dict.fromkeys(AGENTS, LOOKUP),
    **{"ungated": UNGATED, "patient": PATIENT, "newest": NEWEST},
}
#: Of two calls that go out at once, the one that is claimed first is committed last.
_LATE: Final = {"refunds": {"delay_after_s": 1.5}}
#: A dead worker's call arrives when the next one's timeout is long over, and not its own.
_LONG: Final = {"refunds": {"delay_before_s": 25, "ignore_keys": True}}


@dataclass(frozen=True)
class Selection:
    """What one drill plays: a plan, the kind of its tools, steps, points and modes."""

    plan: str
    kind: str
    steps: tuple[str, ...] = ()
    """Empty for all."""
    points: tuple[str, ...] = ()
    """Empty for all."""
    slow: Mapping[str, Any] = field(default_factory=dict)
    """How slow the shop is, and how mean beside what the tools allow, by endpoint."""
    modes: tuple[str, ...] = ()
    """Empty for the first one."""

    @property
    def name(self) -> str:
        """Return what it is called among the selections and its report files."""
        plan = self.plan.rpartition("/")[2].removesuffix(".yaml")
        return "-".join([plan, self.kind, *self.modes])

    @property
    def tools(self) -> str:
        return {**KINDS, **_OWN}.get(self.kind, CREDITS)

    @property
    def variables(self) -> dict[str, str]:
        """Return the workers' variables: where tools and agents are."""
        return {
            "SUREHAND_TOOL_MODULES": self.tools,
            "SUREHAND_AGENT_MODULES": AGENTS.get(self.kind, ""),
        }

    def faults(self) -> dict[str, dict[str, Any]]:
        """Return how the shop behaves: as mean as the tools allow."""
        mean = {
            "refunds": SHOPS.get(self.tools, {}),
            "restocks": {"ignore_keys": True},
            "mails": {"ignore_lookup": True},
        }
        return {name: {**fault, **self.slow.get(name, {})} for name, fault in mean.items()}

    def arguments(self) -> list[str]:
        """Return what ``surehand drill`` is told of it."""
        _, world = {**PLANS, **OPERATED, AGENT_PLAN: ((), _AGENT_WORLD)}[self.plan]
        agent = AGENTS.get(self.kind)
        return [
            self.plan,
            *("--world", f"{world}:world", "--fresh", f"{world}:fresh"),
            *(("--set", f"agent={agent}:refunds") if agent else ()),
            *(("--steps", ",".join(self.steps)) if self.steps else ()),
            *(("--points", ",".join(self.points)) if self.points else ()),
            *(("--modes", ",".join(self.modes)) if self.modes else ()),
        ]

    def __str__(self) -> str:
        slow = json.dumps(self.slow) if self.slow else "not slow"
        steps = ", ".join(self.steps) or "every step"
        where = f"{steps} at {', '.join(self.points) or 'every point'}"
        return f"{self.name}, {where}, shop {slow}"


def kinds_of(plan: str) -> list[str]:
    """Return the kinds of tools that a plan is drilled with."""
    return list(KINDS) if PLANS[plan][1] == SHOP else ["transactional"]


def operated(plan: str, kind: str, modes: Sequence[str] = tuple(Durability)) -> Selection:
    """Return what operators do to a plan's runs, in those modes."""
    steps, _ = {**PLANS, **OPERATED}[plan]
    slow = _LATE if kind == "ungated" else {}
    return Selection(plan, kind, steps, tuple(Operation), slow, tuple(modes))


SELECTIONS: Final = [
    # The kinds differ in the refund only.
    *(
        Selection(plan, kind, ("refund",) if kind in ("dedupes", "human") else steps)
        for plan, (steps, _) in PLANS.items()
        for kind in kinds_of(plan)
    ),
    # Kills and forced waits are enough in one mode.
    *(operated(plan, kinds_of(plan)[0], [*Durability][1:]) for plan in PLANS),
    *(
        selection
        for framework in AGENTS
        for selection in (
            Selection(AGENT_PLAN, framework, points=tuple(CrashPoint), modes=tuple(Durability)),
            Selection(AGENT_PLAN, framework, points=(*ForcedWait, *Operation)),
        )
    ),
    operated("tests/variants/parent.yaml", "lookup"),
    operated("tests/variants/parent_fails.yaml", "ungated"),
    operated("tests/variants/newest.yaml", "newest"),
    Selection("examples/refund.yaml", "patient", ("refund",), (Operation.DEPLOY.value,), _LONG),
]


def round_of(seed: int, number: int) -> Selection:
    """Return a round of the soak: the same one for the same seed and number."""
    dice = random.Random(f"{seed}-{number}")
    plan = dice.choice(list(PLANS))
    kind = dice.choice(kinds_of(plan))
    step = dice.choice(PLANS[plan][0])
    point = dice.choice(READ_POINTS if step in READS else list(CrashPoint))
    slow = {}
    for endpoint in ("refunds", "restocks", "mails"):
        when = dice.choice([None, "delay_before_s", "delay_after_s"])
        if when is not None and kind in KINDS:
            slow[endpoint] = {when: round(dice.uniform(0, SLOWEST_S), 2)}
    return Selection(plan, kind, (step,), (point.value,), slow)

"""The effects of a run and of all runs below it, and what a run takes over from another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
)

from surehand.activities.ledger.core.statements import PreparedStatement, ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import bars, effects, events, plans, replays, runs
from surehand.activities.ledger.steps.acting import EVERY_STEP, bar_name, is_barred
from surehand.activities.ledger.steps.entries import Entry
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.identity import root_run_id, standing_digest
from surehand.workflows.plan.plan import ITERATION, Plan
from surehand.workflows.plan.references import descendants

#: Entries in these states may have happened and are not undone.
REMAINING: Final = ("claimed", "committed", "in_doubt", "partial", "compensating")
#: Effects that one answer lists: the server takes 2 MiB in one message.
PAGE: Final = 200


@dataclass(frozen=True)
class Cursor:
    """The place of an effect in the order of their undoing."""

    commit_no: int | None
    claimed_ms: int
    entry_id: str

    @classmethod
    def read(cls, text: str) -> Self:
        number, claimed_ms, entry_id = text.split(":", 2)
        return cls(int(number) if number else None, int(claimed_ms), entry_id)

    def __str__(self) -> str:
        return f"{self.commit_no or ''}:{self.claimed_ms}:{self.entry_id}"

    @property
    def behind(self) -> ColumnElement[bool]:
        """The condition that an effect is undone after this one."""
        if self.commit_no is not None:
            return effects.c.commit_no < self.commit_no
        earlier = tuple_(effects.c.claimed_ms, effects.c.entry_id) < tuple_(
            literal(self.claimed_ms), literal(self.entry_id)
        )
        return or_(effects.c.commit_no.is_not(None), earlier)


@dataclass(frozen=True)
class Made:
    """An effect of a tree, as the run at its top sees it."""

    entry: Entry
    child: str | None
    """The child run of that run by which it was made, or under which."""
    inside: str | None
    """The step of that run which the child run does."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(Entry.from_row(row), row["child"], row["inside"])

    @property
    def remains(self) -> bool:
        """Whether it may have happened, and is not undone; undos themselves never are."""
        return self.entry.undoes is None and self.entry.state in REMAINING

    def view(self) -> EffectView:
        """Return it as people see it who look at the run at the top."""
        run_id = self.entry.run_id if self.child is not None else None
        return self.entry.view().model_copy(update={"run_id": run_id, "inside": self.inside})


@dataclass(frozen=True)
class Page:
    """Effects in the order of their undoing."""

    effects: list[Made]
    following: Cursor | None
    """Where the next page begins; ``None``: there is none."""


def tree_values(run_id: str, step_id: str | None = None) -> dict[str, str | None]:
    """Return the values of a statement on ``TREE``, whole or of one step and below."""
    return {_TOP.key: run_id, _ONLY.key: step_id}


def _build_tree() -> CTE:
    only = cast(_ONLY, String(80)).label("step_id")
    nobody, nothing = cast(null(), String(255)), cast(null(), String(80))
    own = (runs.c.run_id, only, nobody.label("child"), nothing.label("inside"))
    found = rows_of(runs, *own, run_id=_TOP).cte("tree", recursive=True)
    child = runs.alias("child")
    first = func.coalesce(found.c.child, child.c.run_id)
    inside = func.coalesce(found.c.inside, child.c.parent_step_id)
    below = rows_of(child, child.c.run_id, nothing, first, inside, parent_run_id=found.c.run_id)
    of_step = or_(found.c.step_id.is_(None), found.c.step_id == child.c.parent_step_id)
    return found.union(below.where(of_step))


_TOP: Final = bindparam("tree_top", type_=String(255))
_ONLY: Final = bindparam("tree_step", type_=String(80))
#: The runs of a tree, each with the step to which it is narrowed down, if it is; and with the child
#: of the run at its top, and that one's step, from which it comes. Built once: it takes longer to
#: build than to run.
TREE: Final = _build_tree()


def _tree_effects(*columns: Any) -> Select[Any]:
    mine = and_(
        effects.c.run_id == TREE.c.run_id,
        or_(TREE.c.step_id.is_(None), TREE.c.step_id == effects.c.step_id),
    )
    return rows_of(effects, *columns, undoes=None).join(TREE, mine)


#: The ids of a tree's runs.
RUNS: Final = select(TREE.c.run_id)
_OPEN_BELOW: Final = (
    rows_of(runs, runs.c.run_id, closed_ms=None)
    .where(runs.c.run_id.in_(RUNS.where(TREE.c.child.is_not(None))))
    .order_by(runs.c.run_id)
)
_BY_COMMIT: Final = _tree_effects(effects, TREE.c.child, TREE.c.inside).order_by(
    effects.c.commit_no.is_(None).desc(),
    effects.c.commit_no.desc(),
    effects.c.claimed_ms.desc(),
    effects.c.entry_id.desc(),
)
_LAST_FIRST: Final = _BY_COMMIT.where(effects.c.state.in_(REMAINING))
_OR_UNDONE: Final = _BY_COMMIT.where(effects.c.state.in_((*REMAINING, "compensated")))
_HOW_MANY_REMAIN: Final = _tree_effects(func.count()).where(effects.c.state.in_(REMAINING))
_UNDER_WAY: Final = and_(effects.c.state == "compensating", effects.c.left_because.is_(None))
_LATEST_MS: Final = 2**62
#: What a run has done at most, from what harms least.
_HIGHEST: Final = ("read", "undoable", "irreversible")
_KINDS_MADE: Final = (
    _tree_effects(effects.c.undo["compensate"].as_string().is_not(None).label("undoable"))
    .where(
        effects.c.state.not_in(("failed", "compensated")),
        effects.c.entry_id != bindparam("but_entry"),
        effects.c.claimed_ms <= bindparam("until_ms"),
    )
    .distinct()
)
#: What ``digest_standing`` has to know of each effect that remains, and of each run below the top.
_STANDING: Final = _tree_effects(
    effects.c.entry_id,
    TREE.c.child,
    _UNDER_WAY.label("undoing"),
).where(effects.c.state.in_(REMAINING))
_BARRED: Final = rows_of(bars, run_id=runs.c.run_id, step_id=EVERY_STEP).exists()
_BELOW: Final = (
    rows_of(
        runs,
        runs.c.run_id,
        (runs.c.run_id == TREE.c.child).label("direct"),
        runs.c.closed_ms,
        and_(runs.c.state == "completed", _BARRED).label("unwound"),
    )
    .join(TREE, runs.c.run_id == TREE.c.run_id)
    .where(TREE.c.child.is_not(None))
)
_MADE_IN: Final = effects.c.run_id == TREE.c.run_id
_HOW_MANY: Final = rows_of(effects, func.count()).join(TREE, _MADE_IN)
_NEWEST: Final = PreparedStatement(
    rows_of(effects, effects, TREE.c.child, TREE.c.inside)
    .join(TREE, _MADE_IN)
    .order_by(effects.c.claimed_ms.desc(), effects.c.entry_id.desc())
    .limit(bindparam("tree_most", type_=Integer))
)


def list_remaining(
    tx: Transaction,
    run_id: str,
    step_id: str | None = None,
    *,
    after: Cursor | None = None,
    limit: int = PAGE,
    undone: bool = False,
) -> Page:
    """Return what a run, or a step of it, and its child runs have to undo, last commit first.

    What has no recorded commit comes first: if it happened, it happened last. With ``undone`` it
    lists what was undone, too.
    """
    query = _OR_UNDONE if undone else _LAST_FIRST
    query = query if after is None else query.where(after.behind)
    rows = tx.all(query.limit(limit + 1), **tree_values(run_id, step_id))
    page = [Made.from_row(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(page, None)
    last = rows[limit - 1]
    return Page(page, Cursor(last["commit_no"], last["claimed_ms"], last["entry_id"]))


def find_highest(tx: Transaction, run_id: str, entry_id: str, until_ms: int = _LATEST_MS) -> str:
    """Return the highest kind of what a run's whole tree has made until then, but for one entry.

    What is under way or in doubt is made; what did not happen, or was undone, is not. A claim looks
    at all there is: a clock that was set back would hide what was made before.
    """
    values = tree_values(root_run_id(run_id)) | {"but_entry": entry_id, "until_ms": until_ms}
    made = tx.read_column(_KINDS_MADE, **values)
    return _HIGHEST[0 if not made else 1 if all(made) else 2]


def has_made_more(
    tx: Transaction, run_id: str, at_most: str, entry_id: str, until_ms: int = _LATEST_MS
) -> bool:
    """Return whether a run's whole tree has made more than ``at_most`` (see ``find_highest``)."""
    made = find_highest(tx, run_id, entry_id, until_ms)
    return _HIGHEST.index(made) > _HIGHEST.index(at_most)


def used_in(tx: Transaction, run_id: str, made: Iterable[Made]) -> dict[str, list[str]]:
    """Return by effect the child runs of a run that go on with it, themselves or below them."""
    used: dict[str, list[str]] = {one.entry.entry_id: [] for one in made}
    if not used:
        return used
    columns = (replays.c.entry_id, TREE.c.child)
    query = rows_of(replays, *columns).join(TREE, replays.c.run_id == TREE.c.run_id)
    query = query.where(replays.c.entry_id.in_(list(used)), TREE.c.child.is_not(None))
    for row in tx.all(query.distinct().order_by(*columns), **tree_values(run_id)):
        used[row["entry_id"]].append(row["child"])
    return used


def find_users(tx: Transaction, entry: Entry) -> list[Entry]:
    """Return the effects that remain and have used what an effect has returned, last commit first.

    By the references of its run's plan, and of the plans above. What code or an agent does with an
    output, no plan says. A step of the same tree that has replayed it has returned it as well.
    """
    users = dict[str, Entry]()
    for (run_id, step_id), returned_ms in _returned_by(tx, entry).items():
        for user in _find_users_of(tx, entry, run_id, step_id, returned_ms):
            users.setdefault(user.entry_id, user)
    return list(users.values())


def _returned_by(tx: Transaction, entry: Entry) -> dict[tuple[str, str], int]:
    """Return the steps of a tree that have returned an effect's receipt, its own one first.

    Each with when it has last done so, or when it claimed the effect.
    """
    found = {(entry.run_id, entry.step_id): entry.claimed_ms}
    root, body = root_run_id(entry.run_id), events.c.body["entry_id"].as_string()
    # Written out: by a parameter the database could not use the index, which has these rows alone.
    replayed = events.c.type == literal_column("'effect.replayed'")
    own = rows_of(events, "run_id", "step_id", "at_ms", run_id=entry.run_id).where(replayed)
    # Of replays by other runs there are rows.
    at_ms = replays.c.replayed_ms.label("at_ms")
    others = rows_of(replays, "run_id", "step_id", at_ms, entry_id=entry.entry_id)
    for row in (
        *tx.all(own.where(body == entry.entry_id).order_by(events.c.seq)),
        *tx.all(others.order_by(replays.c.run_id, replays.c.step_id)),
    ):
        if row["step_id"] is not None and root_run_id(row["run_id"]) == root:
            place = (row["run_id"], row["step_id"])
            found[place] = max(found.get(place, 0), row["at_ms"])
    return found


def _find_users_of(
    tx: Transaction, entry: Entry, by_run: str, by_step: str, returned_ms: int
) -> list[Entry]:
    """Return what remains and has used an effect's receipt as the output of one step."""
    run_id: str | None = by_run
    step_id, found = by_step, list[Entry]()
    while run_id is not None:
        columns = (plans.c.plan, runs.c.parent_run_id, runs.c.parent_step_id)
        of_run = rows_of(plans, *columns, run_id=run_id)
        rows = tx.all(of_run.join(runs, ours(runs, run_id=plans.c.run_id)))
        later, lists, base = set[str](), set[str](), ITERATION.sub("", step_id)
        for plan in (Plan.model_validate(row["plan"]) for row in rows):
            if base in plan.uses:
                later |= descendants(plan.uses, base)
                lists |= plan.lists
        if later:
            step = func.coalesce(TREE.c.inside, effects.c.step_id)
            items = [step.startswith(f"{one}[", autoescape=True) for one in later & lists]
            made_later = or_(effects.c.commit_no.is_(None), effects.c.commit_no > entry.commit_no)
            query = _LAST_FIRST.where(or_(step.in_(sorted(later)), *items), made_later)
            found += [Entry.from_row(row) for row in tx.all(query, **tree_values(run_id))]
        run_id, step_id = None, ""
        if rows and rows[0]["parent_run_id"] is not None:
            run_id, step_id = rows[0]["parent_run_id"], rows[0]["parent_step_id"]
    if not found:
        return found
    # Of a step that has made another one since, in another life of its run, later steps use that.
    made = effects.c
    tied = and_(made.claimed_ms == returned_ms, made.commit_no > entry.commit_no)
    since = tx.one(
        rows_of(effects, run_id=by_run, step_id=by_step, undoes=None)
        .where(made.commit_no.is_not(None), or_(made.claimed_ms > returned_ms, tied))
        .order_by(made.claimed_ms, made.commit_no)
        .limit(1)
    )
    if since is None:
        return found
    return [one for one in found if _is_older(one, since["claimed_ms"], since["commit_no"])]


def _is_older(entry: Entry, claimed_ms: int, commit_no: int) -> bool:
    """Return whether an effect may have been made before another one was.

    One that was in doubt has the number of when it was settled, or none yet.
    """
    numbered = entry.commit_no is not None and entry.commit_no < commit_no
    return numbered or entry.claimed_ms < claimed_ms


def find_unwound(tx: Transaction, run_id: str) -> dict[str, str]:
    """Return the completed child runs of a run of which something was undone after their end.

    Each with the step that it is.
    """
    own = effects.c
    columns = (runs.c.run_id, runs.c.parent_step_id, bars.c.barred_ms)
    rows = tx.all(
        rows_of(runs, *columns, parent_run_id=run_id, state="completed")
        # By whoever undoes the run above it: one that has completed has no reason to.
        .join(bars, ours(bars, run_id=runs.c.run_id, step_id=EVERY_STEP))
        .order_by(runs.c.run_id)
    )
    found = dict[str, str]()
    for row in rows:
        done = and_(own.state == "compensated", own.settled_ms >= row["barred_ms"])
        query = _tree_effects(own.entry_id).where(or_(done, _UNDER_WAY)).limit(1)
        if tx.has(query, **tree_values(row["run_id"])):
            found[row["run_id"]] = row["parent_step_id"]
    return found


def how_many_remain(tx: Transaction, run_id: str) -> int:
    return tx.count(_HOW_MANY_REMAIN, **tree_values(run_id))


@dataclass(frozen=True)
class TreeEffects:
    """What a run and its child runs have made, as far as one message can tell it."""

    made: list[Made]
    """The newest, undos included, in the order of their claims."""
    more: int
    """How many others there are."""
    remaining: list[Made]
    """Those that remain, in the order of their claims."""
    more_remaining: int
    """How many others remain."""


def effects_of_tree(tx: Transaction, run_id: str, newest: int) -> TreeEffects:
    """Return the newest effects of a run and its child runs, and those that remain.

    Mostly one statement tells both: few trees have made more than one message can list.
    """
    rows = tx.all(_NEWEST, **tree_values(run_id), tree_most=newest + 1)
    made = [Made.from_row(row) for row in reversed(rows[:newest])]
    if len(rows) <= newest:
        return TreeEffects(made, 0, [one for one in made if one.remains], 0)
    remaining_ = list_remaining(tx, run_id, limit=newest).effects
    return TreeEffects(
        made,
        tx.count(_HOW_MANY, **tree_values(run_id)) - newest,
        sorted(remaining_, key=lambda one: (one.entry.claimed_ms, one.entry.entry_id)),
        how_many_remain(tx, run_id) - len(remaining_),
    )


def digest_standing(
    tx: Transaction, run_id: str, told: TreeEffects, *, has_children: bool
) -> str | None:
    """Return the digest of what stands of a run, as the run itself tells it; ``None``: not all.

    Something is being undone then, or may be, or a child run is open. Whether that is in order, a
    run finds out by looking at each effect. ``told`` is what its tree has made.
    """
    below = tx.all(_BELOW, **tree_values(run_id)) if has_children else []
    if any(row["closed_ms"] is None or (row["direct"] and row["unwound"]) for row in below):
        return None
    if told.more_remaining:
        rows = tx.all(_STANDING, **tree_values(run_id))
        found = [(row["entry_id"], row["child"], row["undoing"]) for row in rows]
    else:
        found = [
            (one.entry.entry_id, one.child, one.entry.is_being_undone) for one in told.remaining
        ]
    if any(undoing for *_, undoing in found):
        return None
    # What a child run has made is known by the child run.
    own = [entry_id for entry_id, child, _ in found if child is None]
    return standing_digest(own, [row["run_id"] for row in below if row["direct"]])


def bar_tree(tx: Transaction, run_id: str, step_id: str | None = None) -> None:
    """Refuse what is claimed from now on in a run and its child runs, or under one step of it.

    Claims share the runs' locks: one that is being made is waited for, and seen afterwards. Before
    every other lock of the transaction.
    """
    locked = list[str]()
    tree = tree_values(run_id, step_id)
    while new := sorted({*tx.read_column(RUNS, **tree)} - {*locked}):
        # A child run that is being opened meanwhile holds the lock of its parent.
        for one in new:
            tx.lock_run(one)
        locked += new
    for one in locked:
        if one != run_id or step_id is None:
            _bar_run(tx, one)
    if step_id is not None:
        tx.lock_step(run_id, step_id)
        bar_step(tx, run_id, step_id)


def open_below(tx: Transaction, run_id: str, step_id: str | None = None) -> list[str]:
    """Return the child runs of a run, or of one step of it, that the ledger has as open."""
    return tx.read_column(_OPEN_BELOW, **tree_values(run_id, step_id))


def bar_step(tx: Transaction, run_id: str, step_id: str) -> None:
    """Refuse a step's late attempts from now on; the step's lock is held."""
    if bar_name(tx, run_id, step_id):
        tx.event(run_id, "step.barred", step_id=step_id, action="refuse_late_attempts")


def bar_with_parent(tx: Transaction, run_id: str, parent: str, step_id: str) -> None:
    """Bar a child run that is being opened where its parent, or its parent's step, is barred.

    The parent's lock is held.
    """
    if is_barred(tx, parent, EVERY_STEP, step_id):
        _bar_run(tx, run_id)


def note_left(tx: Transaction, run_id: str, entry_ids: Iterable[str], reason: str) -> None:
    """Note why effects of a run's tree are left as they are."""
    tx.execute(
        update_rows(effects)
        .where(effects.c.entry_id.in_(list(entry_ids)), effects.c.state.in_(REMAINING))
        .values(left_because=reason)
        .execution_options(of_run=run_id)
    )


def _bar_run(tx: Transaction, run_id: str) -> None:
    if bar_name(tx, run_id, EVERY_STEP):
        tx.event(run_id, "run.barred", action="refuse_late_attempts")


#: States of an effect that does not remain, or not for long.
_UNDONE = frozenset({"compensated", "compensating"})


class TakesOverUndone(Exception):
    """The effect of a step whose output another run would take over has been undone."""


#: Entries that are locked, and rows that are written, in one statement.
_BATCH: Final = 500

_OWN: Final = rows_of(
    effects,
    effects.c.entry_id,
    func.coalesce(TREE.c.inside, effects.c.step_id).label("step_id"),
    undoes=None,
).join(TREE, TREE.c.run_id == effects.c.run_id)
_USED: Final = rows_of(
    replays,
    replays.c.entry_id,
    func.coalesce(TREE.c.inside, replays.c.step_id).label("step_id"),
).join(TREE, TREE.c.run_id == replays.c.run_id)


@dataclass(frozen=True)
class Fact:
    """An effect that comes with a step that is taken over."""

    step_id: str
    entry_id: str


def effects_behind(tx: Transaction, run_id: str, steps: Iterable[str]) -> list[Fact]:
    """Return what remains behind steps of a run, its child runs' effects too, and lock that.

    Nobody begins to undo any of it until the transaction ends: by then ``watch`` has noted who is
    to be told.
    """
    wanted = set(steps)
    tree, made = tree_values(run_id), dict[Fact, None]()
    for row in [*tx.all(_OWN, **tree), *tx.all(_USED, **tree)]:
        step_id = ITERATION.sub("", row["step_id"])
        if step_id in wanted:
            made[Fact(step_id, row["entry_id"])] = None
    entry_ids, remaining = sorted({fact.entry_id for fact in made}), set[str]()
    for start in range(0, len(entry_ids), _BATCH):
        locked = tx.all(
            rows_of(effects, effects.c.entry_id, effects.c.state)
            .where(effects.c.entry_id.in_(entry_ids[start : start + _BATCH]))
            .order_by(effects.c.entry_id)
            .with_for_update(read=True)
        )
        remaining |= {row["entry_id"] for row in locked if row["state"] in REMAINING}
    return [fact for fact in made if fact.entry_id in remaining]


def watch_effects(tx: Transaction, run_id: str, facts: Sequence[Fact]) -> None:
    """Have a run told when what it has taken over is undone."""
    own = {"run_id": run_id, "replayed_ms": tx.now_ms}
    for start in range(0, len(facts), _BATCH):
        tx.insert_new(replays, *({**own, **vars(fact)} for fact in facts[start : start + _BATCH]))


def must_stand(tx: Transaction, run_id: str, steps: Iterable[str]) -> None:
    """Raise ``TakesOverUndone`` if anything that steps of a run have done has been undone."""
    wanted, seen = set(steps), set[str]()
    while wanted and run_id not in seen:
        seen.add(run_id)
        undone = sorted(wanted & _find_undone_steps(tx, run_id))
        if undone:
            raise TakesOverUndone(
                f"what step {undone[0]} of run {run_id} has done or taken over has been undone: its"
                f" output is no fact any more; begin at {undone[0]}, or before it"
            )
        opened = tx.opening(run_id)
        # What that run has itself taken over, another one has made.
        body = opened.body if opened is not None else {}
        wanted &= set(body.get("taken_over") or ())
        run_id = body.get("linked") or run_id


def _find_undone_steps(tx: Transaction, run_id: str) -> set[str]:
    """Return the steps of a run whose effects, or whose child runs' effects, have been undone."""
    made = rows_of(effects, effects.c.step_id, effects.c.state, run_id=run_id, undoes=None)
    used = rows_of(replays, replays.c.step_id, effects.c.state, run_id=run_id).join(
        effects, ours(effects, entry_id=replays.c.entry_id)
    )
    states: defaultdict[str, set[str]] = defaultdict(set)
    for row in [*tx.all(made), *tx.all(used)]:
        states[row["step_id"]].add(row["state"])
    # Of a step that has made two, in two lives of its run, the other one is the fact.
    found = {
        ITERATION.sub("", step_id)
        for step_id, its in states.items()
        if its & _UNDONE and not its & {"committed"}
    }
    # What a child run has undone of its own, and has completed without, is no part of its output.
    below = find_unwound(tx, run_id)
    return found.union(ITERATION.sub("", step_id) for step_id in below.values())

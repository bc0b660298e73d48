"""One run's page: its steps, its questions, doubts, story and artifacts.

Tools, models and strangers have written what is in an artifact. So it is handed out as bytes to be
saved under a name of ours, under a content policy that lets it do nothing.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.reads import Shelf, artifact_page, one_artifact
from surehand.activities.ledger.history.run_display import Doubt
from surehand.activities.ledger.people.principals import Key, Principal
from surehand.activities.tools.call_reports import LARGEST_ARTIFACT
from surehand.cli.approvals_server.approvals import ON_A_PAGE, own_keys
from surehand.cli.approvals_server.pages import as_text, error, iso, link_more, page, utc
from surehand.client.client import others_of
from surehand.client.messages import find_run_id
from surehand.process.exits import NoSuchRun, WrongUse
from surehand.process.program import shared_program
from surehand.workflows.contracts.base import Artifact, StepState, TimelineLine, Waiting, WaitKind
from surehand.workflows.contracts.runs import RunView, StepView
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.plan.plan import Goto, Plan, Step
from surehand.workflows.plan.references import REFERENCE, ancestors

#: The states of runs and steps in words, each with how it is coloured.
_STATES: Final = {
    "pending": ("not started", "ahead"),
    "running": ("under way", "warn"),
    "waiting_approval": ("waits for approval", "warn"),
    "waiting_input": ("asks a question", "warn"),
    "waiting_event": ("waits for an event", "warn"),
    "waiting_rate_limit": ("waits for its turn", "warn"),
    "waiting_quota": ("waits for its turn", "warn"),
    "halted": ("halted by somebody", "danger"),
    "paused_user": ("paused by somebody", "warn"),
    "paused_budget": ("out of budget", "warn"),
    "paused_failure": ("paused by a failure", "warn"),
    "paused_permission": ("lacks a permission", "warn"),
    "needs_intervention": ("outcome unknown", "danger"),
    "compensating": ("being undone", "warn"),
    "completed": ("done", "good"),
    "succeeded": ("done", "good"),
    "failed": ("failed", "danger"),
    "cancelled": ("cancelled", "danger"),
    "skipped": ("skipped", "ahead"),
}
#: What else a run waits for: what it is called in a list, and what lets it go on.
_PAUSES: Final = {
    WaitKind.PAUSE: ("paused_user", "To let it go on, run"),
    WaitKind.BUDGET: ("paused_budget", "To add to its budget, run"),
    WaitKind.FAILURE: ("paused_failure", "To try again, run"),
    WaitKind.PERMISSION: ("paused_permission", "Once it has the permission, run"),
    WaitKind.INTERVENTION: ("needs_intervention", ""),
}
#: The states in which a run waits for people otherwise than by an approval.
WAITING_STATES: Final = ("waiting_input", *(state for state, _ in _PAUSES.values()))
#: What an event in a doubt's past means.
_EVENTS: Final = {
    "effect.observed": "Looked up before the call",
    "effect.in_doubt": "Its outcome became unknown",
    "effect.reconciled": "A way to settle it was chosen",
    "effect.late_receipt": "A receipt came too late: it is among the run's files",
}
#: In place of the pages' own policy: nothing loads, nothing runs, and its origin is nobody's.
ARTIFACT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "sandbox",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: Endings of files that no program runs, and no browser shows as a page.
_ENDINGS: Final = frozenset((".json", ".txt", ".csv", ".pdf", ".png", ".jpg", ".gif", ".webp"))
#: How a browser says that it asks for a file, and not for a part of a page.
_ASKED_FOR: Final = ("document", "empty")
_LONGEST_ID: Final = 80
_LONGEST_NAME: Final = 100
#: Contents that are read at a time: each is in memory as a whole, and twice while it is opened.
_AT_ONCE: Final = asyncio.Semaphore(4)
_SHA256: Final = re.compile("[0-9a-f]{64}")

#: Opens the artifact store when it is first needed.
OpenStore = Callable[[], ArtifactStore]


def run_document(
    view: RunView, doubts: Mapping[str, Doubt], me: Principal, keys: list[Key], *, tenant: str
) -> dict[str, Any]:
    """Return what a run's page is drawn from; ``doubts``: by their interventions' ids."""
    result = view.result
    words, kind = _STATES[result.state.value]
    by = view.started_by
    return {
        "tenant": tenant,
        "principal": me.name,
        **own_keys(keys),
        "run_id": result.run_id,
        "title": view.plan.goal or result.run_id,
        "state": f"{words[0].upper()}{words[1:]}{f': {result.error}' if result.error else '.'}",
        "kind": kind,
        "started": f"Started for {view.user}{f' by {by}' if by not in ('', view.user) else ''}.",
        "steps": list_steps(view.plan, result.steps),
        "approvals": [{"id": one.approval_id, "text": one.description} for one in view.pending],
        "questions": [_describe_question(one) for one in view.interrupts],
        "doubts": [
            describe_doubt(one, doubts.get(one.id), result.run_id)
            for one in result.waiting_for
            if one.kind is WaitKind.INTERVENTION
        ],
        "pauses": [
            {
                "text": one.question,
                "remedy": _PAUSES[one.kind][1],
                "command": f"{shared_program()} {verb} {result.run_id} --as NAME",
            }
            for one in others_of(view)
            if one.kind is not WaitKind.INTERVENTION
            for verb in ["top-up" if one.kind is WaitKind.BUDGET else "resume"]
        ],
        "story": story(view),
    }


def question_lines(view: RunView) -> Iterator[dict[str, Any]]:
    """Yield a line for each thing but an approval that a run waits for people for."""
    told = [("waiting_input", one.question) for one in view.interrupts]
    told += [(_PAUSES[one.kind][0], one.question) for one in others_of(view)]
    for state, text in told:
        words, kind = _STATES[state]
        about = {"run_id": view.result.run_id, "goal": view.plan.goal or view.result.run_id}
        yield {**about, "text": text or words, "what": words, "kind": kind}


def silent_line(run_id: str, state: str) -> dict[str, Any]:
    """Return the line of a run that does not answer: no worker is there to say more."""
    words, kind = _STATES[state]
    return {"run_id": run_id, "goal": "", "text": run_id, "what": words, "kind": kind}


def _describe_question(one: Interrupt) -> dict[str, Any]:
    asked = one.model_dump(mode="json")
    value = None if one.value is None else as_text(one.value)
    return {**asked, "value": value, "answer_schema": as_text(asked["answer_schema"])}


def story(view: RunView) -> list[dict[str, Any]]:
    """Return what has happened as people are told it; refused decisions stand at their request."""
    told = (line for line in view.timeline if not line.text.startswith("decision refused ("))
    return [{"at": utc(line.at), **_tell_line(line, view.result.run_id)} for line in told]


def _tell_line(line: TimelineLine, run_id: str) -> dict[str, Any]:
    """Return a line as its step and a text; what people have said names no ids."""
    decided = re.fullmatch(rf"{re.escape(run_id)}/([^/ ]+)/\d+: (.*)", line.text, re.DOTALL)
    if line.step_id is None and decided:
        return {"step": decided[1], "text": decided[2]}
    answered = re.fullmatch(r"answer by (.+): answered (\S+)\.\d+", line.text)
    if line.step_id is None and answered:
        return {"step": answered[2], "text": f"answered by {answered[1]}"}
    return {"step": line.step_id, "text": line.text}


def describe_doubt(asked: Waiting, known: Doubt | None, run_id: str) -> dict[str, Any]:
    evidence, part, elsewhere, later, call = list[tuple[str, str]](), None, None, None, None
    outcomes: Sequence[str] = []
    if known is not None:
        evidence, outcomes = list(_evidence_lines(known)), known.outcomes
        part = None if known.part is None else as_text(known.part)
        if known.params is not None:
            call = dict[str, Any](tool=known.tool, version=known.version, params=known.params)
        elsewhere = None if known.run_id == run_id or known.outcomes else known.run_id
        later = {"outcomes": known.later, "left_ms": known.left_ms} if known.later else None
    return {
        "id": asked.id,
        "step": asked.step_id,
        "text": asked.question,
        "evidence": evidence,
        "part": part,
        "call": None if call is None else as_text({**call, "answers": []}),
        "elsewhere": elsewhere,
        "outcomes": outcomes,
        # By itself: a change of the time left alone does not make it another doubt.
        "later": later,
    }


def _evidence_lines(known: Doubt) -> Iterator[tuple[str, str]]:
    yield "Calls", f"{known.calls}"
    if known.called_ms is not None:
        yield "First call", iso(known.called_ms)
    if known.error:
        yield "Last error", known.error
    if known.key is not None:
        yield "Business key", f"{known.key} (no. {known.generation})"
    yield "Key sent to the outside system", known.provider_key
    yield "Ledger entry", f"{known.entry_id}: {known.state}"
    for one in known.told:
        yield iso(one.at_ms), _EVENTS[one.type] + (f": {one.evidence}" if one.evidence else "")


def list_steps(plan: Plan, steps: Sequence[StepView]) -> list[dict[str, Any]]:
    """Return a run's steps with what each waits for, without what others imply, and its gotos.

    Steps that no plan names (of code, of lists) follow the others.
    """
    views, lines = {one.id: one for one in steps}, list[dict[str, Any]]()
    for step in plan.steps:
        needs = plan.dependencies[step.id]
        direct = needs - ancestors(plan.dependencies, *needs)
        ends = {
            "on_no": plan.on_no(step),
            "on_failure": plan.on_failure(step),
            "on_reject": plan.on_reject(step),
        }
        jumps = dict[str, list[str]]()
        for end, follows in ends.items():
            if isinstance(follows, Goto):
                jumps.setdefault(follows.goto, []).append(end)
        lines.append(
            {
                **_describe_state(step.id, _describe_step(step), views.pop(step.id, None)),
                "after": [one.id for one in plan.steps if one.id in direct],
                "jumps": [{"to": to, "on": on} for to, on in jumps.items()],
                "when": step.when,
            }
        )
    none: dict[str, Any] = {"after": [], "jumps": [], "when": None}
    return lines + [{**_describe_state(one.id, one.tool, one), **none} for one in views.values()]


def _describe_step(step: Step) -> str:
    if step.plan is not None:
        return step.plan.name
    if step.ask is not None:
        return REFERENCE.sub("…", step.ask.question)
    return step.tool if step.wait is None else step.wait.event


def _describe_state(step_id: str, does: str, view: StepView | None) -> dict[str, Any]:
    state = StepState.PENDING if view is None else view.state
    words, kind = _STATES[state.value]
    notes = [] if view is None else [view.error, view.undone and f"undone {view.undone}"]
    return {
        "id": step_id,
        "does": does,
        "state": state.value,
        "words": words,
        "kind": kind,
        "notes": [note for note in notes if note],
        "child": None if view is None else view.child,
    }


async def show_artifacts(ledger: Ledger, tenant: str, request: Request, me: str) -> Response:
    run_id = find_run_id(tenant, request.query_params.get("id", ""))
    after = _parse_shelf(request.query_params.get("after"))
    found = await ledger.transact(tenant, artifact_page, run_id, most=ON_A_PAGE, after=after)
    more = link_more("/artifacts", found.more, id=run_id)
    lines = [_describe_artifact(run_id, row) for row in found.rows]
    return page("artifacts", me=me, run_id=run_id, lines=lines, more=more)


async def hand_out(
    ledger: Ledger,
    open_store: OpenStore | None,
    tenant: str,
    request: Request,
    me: str,
    *,
    record: Callable[[str, str], Awaitable[None]],
) -> Response:
    """Return one artifact's content as a file to be saved.

    ``record`` is told run and step before anything of it is handed out.
    """
    if request.headers.get("sec-fetch-dest", "empty") not in _ASKED_FOR:
        return error(request, 403, "An artifact is saved as a file. It is no part of a page.", me)
    run_id = find_run_id(tenant, request.query_params.get("run", ""))
    wanted = request.query_params.get("id", "")

    known = 0 < len(wanted) <= _LONGEST_ID and wanted.isprintable()
    row = await ledger.transact(tenant, one_artifact, run_id, wanted) if known else None
    if row is None:
        raise NoSuchRun("This run has no such artifact.")
    if row["bytes"] > LARGEST_ARTIFACT:  # each is verified before its first byte is sent
        raise WrongUse("It is too large for this page: use `artifacts` in the shell.")
    if open_store is None:
        raise WrongUse("This server has no artifact store.")
    await record(run_id, row["step_id"])
    async with _AT_ONCE:
        content = await open_store().read_bytes(tenant, run_id, Artifact.model_validate({**row}))
    return Response(
        content,
        # Never its own type: the list says as text what it is.
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{file_name(row)}"',
            "Content-Security-Policy": ARTIFACT_POLICY,
        },
    )


def file_name(row: Mapping[str, Any]) -> str:
    """Return the name to save an artifact under: no path, nothing hidden, nothing that runs."""
    ending = mimetypes.guess_extension(str(row["type"]).partition(";")[0].strip()) or ""
    stem = re.sub("[^A-Za-z0-9_-]+", "_", f"{row['step_id']}-{row['artifact_id']}").strip("_-")
    return f"{stem[:_LONGEST_NAME] or 'artifact'}{ending if ending in _ENDINGS else '.bin'}"


def _describe_artifact(run_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    query = urlencode({"run": run_id, "id": row["artifact_id"]})
    return {
        "name": file_name(row),
        "href": f"/artifact?{query}",
        "step_id": row["step_id"],
        "type": row["type"],
        "size": f"{row['bytes']:,}",
        "too_large": row["bytes"] > LARGEST_ARTIFACT,
        "sealed": row["sealed_for"] is not None,
        "sha256": row["sha256"],
        "at": iso(row["created_ms"]),
    }


def _parse_shelf(text: str | None) -> Shelf | None:
    if text is None:
        return None
    step_id, _, sha256 = text.partition(":")
    if not _SHA256.fullmatch(sha256) or not 0 < len(step_id) <= _LONGEST_ID or "\0" in step_id:
        raise WrongUse("there is no such page of artifacts")
    return Shelf(step_id, sha256)

"""The user's API: ``@tool`` makes a typed function into a tool; ``load_toolbox`` collects them.

A tool is a function of ``(params, ctx)`` whose params are a pydantic model. What it can do to get
an unknown outcome settled (``dedupes``, ``lookup``, ``recovery="human"``) is said at the decorator
and decides what happens after a crash. There is no global registry: the decorator returns a frozen
``Tool``, and a worker loads the modules that its settings name.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel

from surehand.activities import expressions
from surehand.activities.tools.tool import (
    Dedupes,
    LookupBy,
    LookupFunction,
    PreconditionFunction,
    Tool,
    ToolFunction,
    Undo,
)
from surehand.process.exits import WrongUse
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.effects import UndoSpec, UndoTool
from surehand.workflows.contracts.tools import MODEL, Effect, Recovery, ToolSpec
from surehand.workflows.plan.policy import ROLE_FORM, ApprovalPolicy

if TYPE_CHECKING:
    from surehand.activities.ledger.steps.entries import Entry
    from surehand.activities.tools.failures import Declared
    from surehand.workflows.run.agent_run import BaseRun


READ: Final = Effect.READ
WRITE: Final = Effect.WRITE

#: Deadline of one call where the tool sets none: longer than most APIs take, shorter than a human
#: waits for a stuck step.
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
#: A transactional tool holds the ledger's row, and on SQLite its only writer, while it runs: other
#: calls must be able to renew their leases behind it.
TRANSACTION_TIMEOUT: Final = timedelta(seconds=1)
LONGEST_TRANSACTION: Final = timedelta(seconds=2)

#: As long as the ledger's columns are.
LONGEST_NAME: Final = 120
LONGEST_VERSION: Final = 40


class ToolboxError(WrongUse):
    """A module of the user's cannot be used; the message says which, where and what to do."""


def derive_recovery(
    effect: Effect,
    *,
    dedupes: bool,
    lookup: bool,
    transactional: bool,
    human: bool,
) -> Recovery | None:
    """Return how an unknown outcome is settled, from what the tool can do.

    ``None`` means that nothing can settle it and that the author has not said a human shall.
    """
    if effect is Effect.READ:
        return Recovery.READ
    if transactional:
        return Recovery.TRANSACTIONAL
    if dedupes:
        return Recovery.DEDUPES
    if lookup:
        return Recovery.LOOKUP
    return Recovery.HUMAN if human else None


def tool(
    name: str,
    *,
    effect: Effect,
    version: str = "1",
    timeout: timedelta | None = None,
    key: Callable[[Any], str] | None = None,
    dedupes: Dedupes | None = None,
    lookup: LookupFunction | None = None,
    lookup_by: LookupBy = "key",
    settle: timedelta | None = None,
    transactional: bool = False,
    recovery: Literal["human"] | None = None,
    compensate: Undo | None = None,
    cleanup: Undo | None = None,
    irreversible: bool = False,
    approval: ApprovalPolicy | None = None,
    permission: str | None = None,
    precondition: PreconditionFunction | None = None,
    describe: Callable[[Any], str] | None = None,
    errors: Declared | None = None,
    health: Callable[[], Awaitable[bool]] | None = None,
    resource: Callable[[Any], str | list[str]] | None = None,
    fresh_for: timedelta | None = None,
    foreign: bool | Literal["lookup"] = False,
    secret_params: bool = False,
) -> Callable[[ToolFunction], Tool]:
    """Make an async function of ``(params: a pydantic model, ctx: ToolContext)`` into a tool.

    Args:
        name: Unique in the toolbox, by convention ``noun.verb``.
        effect: ``READ`` or ``WRITE``.
        version: Raise it when the meaning of a call changes; approvals are bound to it.
        timeout: Deadline of one call; default 30 s, for transactional tools 1 s (at most 2 s).
        key: Business idempotency key from the params, such as ``refund:order-1001``. Without one,
            run and step are the key: that protects against crashes, but not against a second run
            for the same fact.
        dedupes: The provider honours ``ctx.idempotency_key``.
        lookup: Asks the outside system whether the effect of this key happened.
        lookup_by: ``"key"``: the lookup finds our own call, by ``ctx.idempotency_key``.
            ``"state"``: it asks how the world is ("is the flight changed?"). It is then asked
            before each call, too. If it did not answer ``NotFound`` there, it proves nothing after
            a crash, and a human is asked.
        settle: How long after a call's deadline its effect may still appear; without it a lookup
            that finds nothing proves nothing.
        transactional: The effect is made in the ledger's database, through ``ctx.session``; it
            commits together with its outcome.
        recovery: ``"human"``: only a human can settle an unknown outcome.
        compensate: How the effect is undone.
        cleanup: The undo that ``cancel --mode cleanup`` runs (drafts, temporary resources).
        irreversible: Says that nothing undoes the effect.
        approval: Who must approve a call, and for how long that counts.
        permission: What the acting user must be allowed (``principal grant --permission``), checked
            at each call; without it the run pauses.
        precondition: A fact in the outside world that an approval depends on, as JSON, such as the
            order's state. It is read for the request, and again right before the call. If it
            differs, people are asked again. If it raises ``Permanent``, the step fails and nobody
            is asked. Must answer within five seconds.
        describe: One line for the approver, made from the params. Without it, it names them all.
        errors: The failure class of each of the tool's exceptions. All classes but ``IN_DOUBT`` say
            that the effect was not applied. Other exceptions are classified as usual.
        health: Whether the outside system is up; asked before it is called again after
            ``DEPENDENCY_DOWN``. Must answer within a second.
        resource: One or more things that only one call may use at a time, from the params, such as
            ``account:7``. Calls that name the same resource never overlap, in any tool. A dead
            call keeps them for 30 s at most.
        fresh_for: How old a read's output may be when a paused run is resumed. An older one is read
            again. If it differs, approvals that rest on it are void.
        foreign: The output is content from outside, which strangers may have written: a web page, a
            mail, an issue. It marks the run, and policies can use the mark (``run.foreign``).
            ``"lookup"``: only receipts that its lookup finds are foreign.
        secret_params: Each look at a request's params on the approvers' pages is an event of the
            run (``approval.read``). Lists, mails and chats show what ``describe`` says, so it must
            contain no secrets. Without it they show no params.

    Raises:
        ToolboxError: If the declaration contradicts itself.

    Example:
        >>> @tool(
        ...     "shop.refund",
        ...     effect=WRITE,
        ...     key=lambda order: f"refund:{order.order_id}",
        ...     dedupes=Dedupes(timedelta(hours=24)),
        ...     irreversible=True,
        ... )
        ... async def refund(order: Order, ctx: ToolContext) -> str:
        ...     return f"re-{order.order_id}"
        >>> refund.key(Order(order_id="order-7"))
        'refund:order-7'
    """
    options: dict[str, Any] = {**locals()}  # a ``Tool`` has a field for each of them
    default = TRANSACTION_TIMEOUT if transactional else DEFAULT_TIMEOUT
    deadline = default if timeout is None else timeout
    settled_by = derive_recovery(
        effect,
        dedupes=dedupes is not None,
        lookup=lookup is not None,
        transactional=transactional,
        human=recovery == "human",
    )

    def find_contradictions() -> Iterator[str]:
        if not 0 < len(name) <= LONGEST_NAME or not 0 < len(version) <= LONGEST_VERSION:
            yield f"a name has 1 to {LONGEST_NAME} characters, a version 1 to {LONGEST_VERSION}"
        window = dedupes.window if dedupes else None
        for what, time in (("timeout", timeout), ("settle", settle), ("dedupes window", window)):
            if time is not None and time <= timedelta(0):
                yield f"its {what} has to be more than nothing: {time}"
        if settled_by is None:
            yield (
                "a WRITE needs a way to settle an unknown outcome: dedupes=, lookup=,"
                ' transactional=True, or recovery="human" to say that a human decides'
            )
        if transactional and (dedupes or lookup or recovery):
            yield "a transactional tool is never in doubt: it has no other recovery"
        if transactional and deadline > LONGEST_TRANSACTION:
            most = f"{LONGEST_TRANSACTION.total_seconds():g} s"
            yield f"a transactional call holds the ledger's locks: its timeout is at most {most}"
        if irreversible and compensate:
            yield "it is either irreversible or has compensate="
        for undo in filter(None, (compensate, cleanup)):
            asks = undo.only_if
            if not _takes(undo.params, {}, None):
                yield f"{undo.tool!r} as its undo: its params= takes (params, receipt)"
            if asks and not (inspect.iscoroutinefunction(asks) and _takes(asks, {}, None, None)):
                what = "an async function of (params, receipt, ctx)"
                yield f"{undo.tool!r} as its undo: its only_if= is {what}"
        if lookup_by not in typing.get_args(LookupBy) or (lookup_by == "state" and not lookup):
            yield "lookup_by= says of a lookup= what it goes by: 'key' or 'state'"
        if foreign == "lookup" and not lookup:
            yield "foreign='lookup' says of a lookup= what it returns"
        if effect is Effect.READ:
            if precondition is not None:
                yield "a READ has no precondition"
            if key or compensate or cleanup or dedupes or lookup or transactional:
                yield "a READ has no key, recovery or compensation"
        if fresh_for is not None and (effect is not Effect.READ or fresh_for < timedelta(0)):
            yield "fresh_for= is for a READ, and no less than nothing"
        if permission is not None and not re.fullmatch(ROLE_FORM, permission):
            yield f"permission {permission!r}: use 1 to 80 letters, digits, '_', '.', ':' and '-'"

    def decorate(fn: ToolFunction) -> Tool:
        if not isinstance(effect, Effect):
            raise ToolboxError(f"tool {name!r}: effect={effect!r}: use READ or WRITE of surehand")
        for problem in find_contradictions():
            raise ToolboxError(f"tool {name[:LONGEST_NAME]!r}: {problem}")
        model = _params_model(name, fn)
        for problem in expressions.problems([approval] if approval else [], model):
            raise ToolboxError(f"tool {name!r}: {problem}")
        schema = {"params": model.model_json_schema(), "effect": effect.value}
        made = {
            "timeout": deadline,
            "recovery": settled_by,
            "errors": dict(errors or {}),
            "foreign": bool(foreign) and foreign != "lookup",
            "lookup_foreign": foreign == "lookup",
            "description": (inspect.getdoc(fn) or name).splitlines()[0],
            "schema_hash": digest(schema),
        }
        return Tool(fn=fn, params_model=model, **{**options, **made})

    return decorate


def _takes(function: Callable[..., Any], *given: object) -> bool:
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        return False
    except ValueError:  # of no known signature, such as some built-in functions
        return True
    return True


def _params_model(name: str, fn: ToolFunction) -> type[BaseModel]:
    if not inspect.iscoroutinefunction(fn):
        raise ToolboxError(f"tool {name!r}: the function must be async")
    parameters = list(inspect.signature(fn).parameters)
    if len(parameters) != 2:
        raise ToolboxError(f"tool {name!r}: the function takes (params, ctx)")
    model = typing.get_type_hints(fn).get(parameters[0])
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ToolboxError(f"tool {name!r}: annotate {parameters[0]!r} with a pydantic model")
    return model


class Toolbox:
    """The tools of one worker, by name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if item.name in self._tools:
                raise ToolboxError(f"two tools are called {item.name!r}; names are unique")
            if item.name == MODEL:
                raise ToolboxError(f"a tool cannot be called {MODEL!r}: steps that ask a model are")
            self._tools[item.name] = item
        for item in self._tools.values():
            for undo in (item.compensate, item.cleanup):
                if undo is None:
                    continue
                other = self._tools.get(undo.tool)
                if other is None or other.effect is not Effect.WRITE:
                    raise ToolboxError(
                        f"tool {item.name!r}: its compensation {undo.tool!r} is not a loaded WRITE"
                    )

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def can_undo(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.compensate is not None

    def names(self) -> list[str]:
        return sorted(self._tools)

    def undoing(self) -> frozenset[str]:
        """Return the names of the tools that undo another one's effect."""
        undos = (undo for item in self._tools.values() for undo in (item.compensate, item.cleanup))
        return frozenset(undo.tool for undo in undos if undo is not None)

    def undo_spec(self, of: Tool, *, approved: bool) -> UndoSpec:
        """Return how a tool's effect is undone.

        ``approved``: whether people have approved a call of it that they were shown with this.
        """
        compensate, cleanup = map(self._undo_tool, (of.compensate, of.cleanup))
        return UndoSpec(
            version=of.version,
            compensate=compensate,
            cleanup=cleanup,
            approved=approved,
            irreversible=of.irreversible,
        )

    def undo_of(self, made: Entry) -> UndoSpec | None:
        """Return how an effect is undone by this worker; ``None``: its tool is not loaded."""
        tool = self.get(made.tool)
        return None if tool is None else self.undo_spec(tool, approved=True)

    def _undo_tool(self, undo: Undo | None) -> UndoTool | None:
        if undo is None:
            return None
        tool = self._tools[undo.tool]
        return UndoTool(
            name=tool.name,
            version=tool.version,
            schema_hash=tool.schema_hash,
            params_version=undo.version,
            only_if=undo.only_if is not None,
        )

    def specs(self) -> list[ToolSpec]:
        return [self._tools[name].spec() for name in self.names()]


def _where(error: BaseException) -> str:
    """Return the user's own line that failed, and what to do about a module that is not there."""
    ours = (__file__, importlib.__file__)
    lines = [
        f" ({frame.filename}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen ")
    ]
    missing = isinstance(error, ModuleNotFoundError)
    hint = "; install its package, or put the folder it lies in on PYTHONPATH" if missing else ""
    return f"{lines[-1] if lines else ''}{hint}"


def load_toolbox(modules: Iterable[str], more: Iterable[Tool] = ()) -> Toolbox:
    """Import the named modules and collect the tools they define or import."""
    found: dict[int, Tool] = {}
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except ToolboxError:
            raise
        except (Exception, SystemExit) as error:  # a script's way to say that a key is missing
            raise ToolboxError(
                f"tool module {module_name!r} (SUREHAND_TOOL_MODULES) cannot be imported: "
                f"{type(error).__name__}: {error}{_where(error)}"
            ) from error
        own = [value for value in vars(module).values() if isinstance(value, Tool)]
        if not own:
            raise ToolboxError(f"tool module {module_name!r} defines no tool (@tool)")
        found.update({id(item): item for item in own})
    return Toolbox([*found.values(), *more])


_KEY: Final = "idempotency_key"


def lookup_warning(tool: Tool) -> str | None:
    """Return what is odd about a lookup that is said to go by key, if anything is.

    It is odd that it never takes the key from its context. Where it hands its context on to another
    function, nobody can tell, and nothing is said.
    """
    if tool.lookup is None or tool.lookup_by != "key" or _may_use_key(tool.lookup):
        return None
    return (
        f"{tool.name}: its lookup does not use ctx.{_KEY}, so it may find what others have done;"
        ' if it asks how the world is, declare lookup_by="state"'
    )


def _may_use_key(function: Any) -> bool:
    whole = inspect.unwrap(function)
    try:
        code = ast.parse(dedent(inspect.getsource(whole))).body[0]
    except (OSError, TypeError, SyntaxError):
        return True  # it cannot be looked into
    if not isinstance(code, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    own = 1 if inspect.ismethod(whole) else 0
    names = [one.arg for one in (*code.args.posonlyargs, *code.args.args)]
    if len(names) != own + 2 or code.args.vararg or code.args.kwarg:
        return True
    return _uses(code, names[own + 1])


def _uses(code: ast.AST, context: str) -> bool:
    """Return whether code takes the key of its context, or does more than take other fields."""
    inside = [node for node in ast.walk(code) if not isinstance(node, ast.arg)]
    others = {
        id(node.value) for node in inside if isinstance(node, ast.Attribute) and node.attr != _KEY
    }
    return any(
        isinstance(node, ast.Name) and node.id == context and id(node) not in others
        for node in inside
    )


_PASSTHROUGH: Final = "SUREHAND_SANDBOX_PASSTHROUGH"


def load_workflows(modules: Iterable[str]) -> list[type[BaseRun]]:
    """Import the named modules and return the workflow classes that they define.

    Raises ``ToolboxError``.
    """
    # Here: who only defines tools does not load the engine of runs.
    from surehand.workflows.names import MODEL_RUN, WORKFLOW
    from surehand.workflows.run.agent_run import BaseRun

    found: dict[str, type[BaseRun]] = {}
    for module_name in modules:
        where = f"workflow module {module_name!r} (SUREHAND_WORKFLOW_MODULES)"
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            reason = f"cannot be imported: {type(error).__name__}: {error}"
            raise ToolboxError(f"{where} {reason}") from error
        own = {
            workflow_name(value): value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, BaseRun)
            and workflow_name(value) is not None
        }
        if not own:
            reason = "defines no workflow: a class of CodeRun with @workflow.defn"
            raise ToolboxError(f"{where} {reason}")
        for name, class_ in own.items():
            assert name is not None
            if name in (WORKFLOW, MODEL_RUN) or found.get(name, class_) is not class_:
                raise ToolboxError(f"{where}: there is a workflow {name!r} already")
            found[name] = class_
    return list(found.values())


def pass_through(modules: Sequence[str]) -> Sequence[str]:
    """Return the modules that the sandbox of the workflows does not load again."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ToolboxError(
                f"setting {_PASSTHROUGH}: there is no module {name!r}: it must be installed, or lie"
                " on PYTHONPATH"
            )
    if "anyio" in modules:
        # It imports this at its first use, which would be inside a workflow, where it must not.
        importlib.import_module("anyio._backends._asyncio")
    return modules


@contextmanager
def naming_what_the_sandbox_refuses(own: Iterable[type[BaseRun]]) -> Iterator[None]:
    """Say of a workflow that cannot be loaded into the sandbox what to do about it."""
    try:
        yield
    except RuntimeError as error:
        refused = error.__cause__
        name = str(error).rpartition(" ")[2]  # "Failed validating workflow NAME"
        of = {str(workflow_name(class_)): class_.__module__ for class_ in own}.get(name)
        if of is None or refused is None:
            raise
        reason = " ".join(f"{type(refused).__name__}: {refused}".split())
        raise ToolboxError(
            f"workflow {name} cannot be loaded into Temporal's sandbox; if what it imports is"
            f" deterministic, add {_imported_by(of, refused)} to {_PASSTHROUGH}: {reason}"
        ) from error


def _imported_by(module: str, error: BaseException) -> str:
    """Return the package that a workflow's module imports, and whose import has failed."""
    root, own = module.partition(".")[0], sys.modules[module].__file__
    files = {getattr(known, "__file__", None): name for name, known in [*sys.modules.items()]}
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    behind = frames[frames.index(own) + 1 :] if own in frames else frames
    chain = [files[file] for file in behind if file in files]
    packages = [name.partition(".")[0] for name in chain]
    foreign = [name for name in packages if name not in (root, "temporalio", "importlib")]
    return next(iter(foreign), root)


def workflow_name(class_: type) -> str | None:
    """Return the name under which Temporal knows a workflow's class; ``None`` if it is none."""
    definition = vars(class_).get("__temporal_workflow_definition")
    return None if definition is None else definition.name

"""Writes docs/reference/ from the code: ``python -m docs.reference``.

Nothing there is written by hand but ``wire.md``, and a test fails when a page is not what the code
says now. It also writes the JSON Schemas that the package has: of plans, and of the wire.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from docs import meanings
from docs.plan_schema import SHIPPED, describe, field_docstrings, own_docstrings, plan_schema
from surehand.process import PACKAGE
from surehand.process.program import INSTALLED, program

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
#: Where events are written.
WRITERS: Final = ROOT / "activities"

#: Where what a tool is made of is defined.
_OF_TOOLS: Final = ("surehand.activities.tools.", "surehand.workflows.plan.policy")
#: Classes whose parts another page lists.
_LISTED: Final[Mapping[str, str]] = {
    "ApprovalPolicy": "plan.md#approvalpolicy",
    "ApprovalRule": "plan.md#approvalrule",
    "FailureClass": "errors.md#failure-classes",
}
#: Classes whose methods a tool calls; nobody but Surehand calls those of the others.
_CALLED_BY_TOOLS: Final = ("Draft", "ToolContext")
_MADE: Final = "<!-- Written by `make reference`. Changes made here are lost. -->\n\n"
#: A call that writes an event, with its type.
_WRITES_EVENT: Final = re.compile(
    r'\b(?:event|tell|tell_lease|tell_busy)\(\s*[^()"]*?"([a-z_]+\.[a-z_]+)"'
)
_CONTRACTS: Final = "surehand.workflows.contracts"
#: Where the models lie that ``--json`` prints, beside those.
_SHAPE_MODULES: Final = (
    "surehand.cli.approvals_server.verbs",
    "surehand.cli.codec_server.verbs",
    "surehand.drill.agent_comparison",
    "surehand.drill.report",
    "surehand.activities.ledger.history.stats",
    "surehand.activities.ledger.quotas",
    "surehand.activities.ledger.runs.keys",
)


class Undescribed(Exception):
    """Code and ``docs/meanings.py`` do not have the same names; the message says which."""


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def cell(text: object) -> str:
    plain = " ".join(str(text).replace("``", "`").split())
    return plain.replace("|", "\\|").replace("<", "&lt;")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


def code(text: object) -> str:
    """Return a text as code, or nothing where there is none."""
    return f"`{text}`" if str(text) else ""


def same_names(what: str, described: Iterable[str], there: Iterable[str]) -> None:
    """Raise unless each name is described, and each description is of one."""
    wrong = sorted(set(described) ^ set(there))
    if wrong:
        raise Undescribed(f"{what}: {', '.join(wrong)} (docs/meanings.py)")


def type_of(schema: Mapping[str, Any]) -> str:
    """Return the type that a JSON Schema says, in a few words."""
    match schema:
        case {"$ref": str(ref)}:
            # Of two classes of one name, pydantic tells the modules as well.
            name = ref.rpartition("/")[2].rpartition("__")[2]
            return {"JsonValue": "JSON"}.get(name, name)
        case {"const": value}:
            return f"`{json.dumps(value)}`".replace('"', "")
        case {"enum": [*values]}:
            return ", ".join(f"`{value}`" for value in values)
        case {"anyOf": [*parts]} | {"allOf": [*parts]}:
            if any(part.get("examples") == ["90s", "15m", "24h", "7d"] for part in parts):
                return "duration"
            some = dict.fromkeys(type_of(part) for part in parts if part.get("type") != "null")
            return " or ".join(some)
        case {"type": "array", "items": items}:
            return f"list of {type_of(items)}"
        case {"type": "object", "additionalProperties": dict(value)}:
            return f"mapping to {type_of(value)}"
        case {"type": "string", "format": str(form)}:
            return form
        case {"type": str(name)}:
            return {"object": "mapping", "array": "list"}.get(name, name)
    return "JSON"


def fields(schema: Mapping[str, Any], texts: Mapping[str, str], *, defaults: bool) -> str:
    required = set(schema.get("required", ())) if defaults else set()
    rows = []
    for name, field in schema.get("properties", {}).items():
        meaning = field.get("description") or texts.get(name, "")
        default = own_docstrings_default(field) if defaults else ""
        meaning += f" Default `{default}`." if default else ""
        rows.append([code(name), type_of(field) + ", required" * (name in required), meaning])
    return table(["field", "type", "meaning"], rows)


def own_docstrings_default(schema: Mapping[str, Any]) -> str:
    """Return a default as a plan has it; nothing where that is nothing."""
    default = schema.get("default")
    if isinstance(default, dict | list) or default in (None, ""):
        return ""  # nothing, or a part with defaults of its own, which its table has
    return json.dumps(default).strip('"')


def plan_page() -> str:
    definitions = plan_schema()["$defs"]
    order = ("WholePlan", "Step", "ApprovalPolicy", "ApprovalRule", "Escalate", "Ask", "Wait")
    order += ("Fallback", "Goto", "Interrupts", "Budget", "Defaults")
    parts = [
        "# Plan fields\n\nA plan is YAML or JSON. A bare list of steps is a plan, too.\n"
        "[Write a plan](../howto/write-a-plan.md) shows how the fields are used.\n"
    ]
    for name in order:
        schema = definitions[name]
        title = {"WholePlan": "Plan"}.get(name, name)
        parts.append(f"## {title}\n\n{schema.get('description', '')}\n")
        parts.append(fields(schema, {}, defaults=True))
    modes = [
        (code(mode.value), text)
        for mode, text in _members("surehand.workflows.plan.plan.Durability")
    ]
    parts.append("## Durability\n\n" + table(["value", "meaning"], modes))
    return "\n".join(parts)


def mcp_file_page() -> str:
    models = module("surehand.activities.mcp.server_file")
    definitions = models.McpFile.model_json_schema()["$defs"]
    parts = [
        "# Fields of the MCP file\n\n`SUREHAND_MCP` names the file, usually `surehand.mcp.yaml`.\n"
        "Its `servers` are a mapping of names to servers. `desk.add_note` is the tool `add_note`\n"
        "of the server `desk`. [Call tools of MCP servers](../howto/mcp.md) shows such a file.\n"
        "An `ApprovalPolicy` is that of a [plan](plan.md#approvalpolicy).\n"
    ]
    for name in ("McpServer", "McpTool", "McpLookup", "McpUndo", "McpDedupes"):
        schema, texts = definitions[name], field_docstrings(getattr(models, name))
        parts.append(f"## {name}\n\n{_prose(schema['description'])}\n")
        parts.append(fields(schema, texts, defaults=True))
    return "\n".join(parts)


def _members(path: str) -> list[tuple[Any, str]]:
    name, _, class_name = path.rpartition(".")
    enum = getattr(module(name), class_name)
    texts = field_docstrings(enum)
    return [(member, texts.get(member.name, "")) for member in enum]


def settings_page() -> str:
    rows = []
    settings = module("surehand.activities.worker.settings").Settings
    texts = field_docstrings(settings)
    for name, field in settings.model_fields.items():
        rows.append([code(f"SUREHAND_{name.upper()}"), _default(field), texts.get(name, "")])
    return (
        "# Settings\n\nThe environment wins over `.env`.\n"
        "[Settings, how to](../howto/settings.md) has examples.\n\n"
        + table(["setting", "default", "meaning"], rows)
    )


def _default(field: Any) -> str:
    if field.is_required():
        return "must be set"
    if getattr(field.annotation, "__name__", "") == "SecretStr":
        return ""
    return code(_plain(field.get_default(call_default_factory=True)))


def _plain(value: Any) -> str:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
            if seconds and seconds % size == 0:
                return f"{seconds // size:g}{unit}"
        return f"{seconds:g}s"
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    return "" if value is None else str(value)


def verbs() -> dict[str, Any]:
    """Return each verb of the command line by its name, those of groups as ``plan check``."""
    from typer.main import get_command

    found: dict[str, Any] = {}
    for name, verb in get_command(module("surehand.cli.app").build()).commands.items():  # type: ignore[attr-defined]
        group = getattr(verb, "commands", None)
        found |= {f"{name} {part}": one for part, one in group.items()} if group else {name: verb}
    return found


def commands_page() -> str:
    same_names("verbs", meanings.SHAPES, verbs())
    parts = [
        "# Commands\n\n`surehand VERB --help` shows the same in a terminal.\n"
        "With `--json` stdout holds [one document](json.md), and everything else is on stderr.\n\n"
        "## Exit codes\n",
        table(
            ["code", "means"],
            [(f"{code:d}", code.meaning) for code in module("surehand.process.exits").ExitCode],
        ),
    ]
    for name, verb in verbs().items():
        parts.append(f"## {name}\n\n{_prose(verb.help)}\n")
        parts.append(f"```text\n{_typed(verb.epilog)}\n```\n")
        given = [_option(option) for option in verb.params if not option.hidden]
        parts.append(table(["argument or option", "meaning"], given) if given else "")
        shapes = ", ".join(f"[`{one}`](json.md#{one.lower()})" for one in meanings.SHAPES[name])
        parts.append(f"With `--json`: {shapes}.\n" if shapes else "")
    return "\n".join(parts)


def _typed(epilog: str | None) -> str:
    """Return a verb's example, as it is typed where Surehand is installed."""
    return (epilog or "").removeprefix("Example: ").replace(program(), INSTALLED)


def _prose(text: str | None) -> str:
    said = inspect.cleandoc(text or "").partition("\nArgs:")[0].partition("\n\nExample:")[0]
    return said.replace("``", "`").replace("<", "&lt;")


def _example(doc: str) -> str:
    shown = textwrap.dedent(doc.partition("\n\nExample:\n")[2])
    return f"\n```pycon\n{shown.strip()}\n```\n" if shown else ""


def _option(option: Any) -> list[str]:
    if not option.opts[0].startswith("-"):
        name = option.metavar or option.name.upper()
    else:
        value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
        name = ", ".join(f"`{one}{value}`" for one in (*option.opts, *option.secondary_opts))
        choices = "" if option.metavar else option.display_type(None).strip("<>")
        one_of = f" One of {choices.replace('|', ', ')}." if "|" in choices else ""
        again = " May be given again." if option.multiple else ""
        return [name, f"{option.help or ''}{one_of}{again}{_usual(option)}"]
    return [code(name), option.help or ""]


def _usual(option: Any) -> str:
    """Return what holds for an option that is not given, in the words of ``--help``."""
    said, default = option.show_default, option.default
    if said is False or default in (None, False, "", ()) or callable(default):
        return ""
    return f" Default `{said if isinstance(said, str) else default}`."


def json_page() -> str:
    from pydantic.json_schema import models_json_schema

    classes: dict[str, Any] = {}
    inside = [
        f"{package}.{name}"
        for package in (_CONTRACTS, "surehand.cli")
        for _, name, is_package in pkgutil.iter_modules(module(package).__path__)
        if not is_package
    ]
    for name in (*_SHAPE_MODULES, *inside):
        classes |= {k: v for k, v in vars(module(name)).items() if v.__class__ is not ModuleType}
    printed = dict.fromkeys(
        ["ErrorReport", *(one for all_ in meanings.SHAPES.values() for one in all_)]
    )
    roots = [(classes[name], "serialization") for name in printed]
    definitions = models_json_schema(roots, ref_template="#/$defs/{model}")[1]["$defs"]
    by_name = _models_in([model for model, _ in roots])
    used = {
        name: [verb for verb, all_ in meanings.SHAPES.items() if name in all_] for name in printed
    }
    parts = [
        "# JSON documents\n\nWhat verbs print with `--json`. Fields are only ever added.\n"
        "An error is an [`ErrorReport`](#errorreport) on stdout, and one line on stderr.\n"
    ]
    for name in (*printed, *sorted(set(definitions) - {*printed, "JsonValue"})):
        schema = definitions[name]
        by = ", ".join(f"`{verb}`" for verb in used.get(name, ()))
        parts.append(f"## {name}\n\n{_prose(schema.get('description'))}\n")
        parts.append(f"Printed by {by}.\n" if by else "")
        if "enum" in schema:
            texts = field_docstrings(by_name[name]) if name in by_name else {}
            rows = [(code(v), texts.get(str(v).upper(), "")) for v in schema["enum"]]
            parts.append(table(["value", "meaning"], rows))
        elif schema.get("properties"):
            texts = field_docstrings(by_name[name]) if name in by_name else {}
            parts.append(fields(schema, texts, defaults=False))
    return "\n".join(parts)


#: Where the schemas of the wire are shipped.
WIRE: Final = (PACKAGE / "client").resolve() / "wire.schema.json"
#: What a run gives itself when it starts a child run or goes on in another execution.
_OF_RUNS: Final = ("parent", "carried", "continue_after", "level", "room")


def wire_schema() -> dict[str, Any]:
    """Return the JSON Schemas of what goes between a run and people: ``docs/reference/wire.md``."""
    from pydantic.json_schema import models_json_schema

    approvals, runs = module(f"{_CONTRACTS}.approvals"), module(f"{_CONTRACTS}.runs")
    roots: list[Any] = [
        runs.StartRun,
        *module("surehand.workflows.run.deliveries").MESSAGES.values(),
    ]
    roots += [approvals.StartClaims, approvals.DecisionClaims, approvals.SteeringClaims]
    roots += [runs.RunView, runs.PlanError, approvals.Verdict]
    roots += [module(f"{_CONTRACTS}.base").Acknowledged]
    # One schema each: what has a default may be missing, also in an answer.
    found = models_json_schema([(root, "validation") for root in roots])[1]["$defs"]
    by_name = _models_in(roots)
    for name in set(found) & set(by_name):
        if "properties" in found[name]:
            describe(by_name[name], found[name])
    for internal in _OF_RUNS:
        del found["StartRun"]["properties"][internal]
    del found["Parent"]
    for definition in found.values():
        if "description" in definition:
            definition["description"] = definition["description"].partition("\n\nExample:")[0]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "The wire of Surehand", "$defs": found}


def _models_in(roots: Iterable[Any]) -> dict[str, type]:
    """Return all classes that the fields of models speak of, by name."""
    found: dict[str, type] = {}
    left = list(roots)
    while left:
        one = left.pop()
        left.extend(typing.get_args(one))
        if not isinstance(one, type) or one.__name__ in found:
            continue
        found[one.__name__] = one
        left.extend(f.annotation for f in getattr(one, "model_fields", {}).values())
        left.extend(typing.get_type_hints(one).values() if dataclasses.is_dataclass(one) else ())
    return found


def written_events() -> set[str]:
    """Return the types of the events that the code writes."""
    sources = "".join(file.read_text(encoding="utf-8") for file in WRITERS.rglob("*.py"))
    # Some are put together, such as ``f"approval.{state}"``.
    made = {
        name
        for name in meanings.EVENTS
        if f'"{name}"' in sources or f'f"{name.partition(".")[0]}.{{' in sources
    }
    return made | set(_WRITES_EVENT.findall(sources))


def events_page() -> str:
    same_names("events", meanings.EVENTS, written_events())
    rows = [(code(name), text) for name, text in sorted(meanings.EVENTS.items())]
    return (
        "# Events\n\n`surehand events RUN` lists them. Each has `run_id`, `seq`, `type`,\n"
        "`step_id`, `at_ms` and `body`, and is chained to the one before by its hash.\n"
        "What is not known is left out. Events hold digests and references, no params.\n\n"
        + table(["type", "meaning"], rows)
    )


def instruments() -> list[tuple[str, str, str]]:
    """Return our metrics: their names in the code, those at the endpoint, what they measure."""
    made: list[tuple[str, str, str]] = []

    class Meter:
        def create_counter(self, name: str, meaning: str) -> None:
            made.append((name, f"{name}_total", meaning))

        def create_histogram_float(self, name: str, meaning: str, unit: str) -> None:
            made.append((name, f"{name}_{unit}", meaning))

        def create_gauge(self, name: str, meaning: str, unit: str | None = None) -> None:
            made.append((name, f"{name}_{unit}" if unit else name, meaning))

    module("surehand.activities.worker.telemetry").Metrics(Meter())
    return made


def metrics_page() -> str:
    made = instruments()
    same_names("metrics", meanings.LABELS, [name for name, _, _ in made])
    rows = [(code(shown), meanings.LABELS[name], text) for name, shown, text in made]
    return (
        "# Metrics\n\n[Watch a worker](../howto/metrics.md) says how to get them. No label is a\n"
        "run, a key or a tenant. The Temporal SDK's own metrics begin with `temporal_`.\n\n"
        + table(["metric", "labels", "counts or measures"], rows)
    )


def errors_page() -> str:
    errors = module("surehand.workflows.names")
    verdicts = _members("surehand.workflows.contracts.approvals.VerdictCode")
    rows = [
        (code(error.value), "no" if error in errors.NON_RETRYABLE else "yes", text)
        for error, text in _members("surehand.workflows.names.ErrorType")
    ]
    failures = module("surehand.activities.tools.failures")
    raised = [
        (code(name), code(found.failure_class.value), _prose(found.__doc__))
        for name, found in vars(failures).items()
        if isinstance(found, type) and issubclass(found, failures.ToolFault)
        if name in module("surehand").__all__
    ]
    surehand = module("surehand")
    public = [getattr(surehand, name) for name in surehand.__all__]
    of_client = [
        (code(found.__name__), _prose(found.__doc__))
        for found in public
        if isinstance(found, type) and issubclass(found, surehand.SurehandError)
        if found is not surehand.SurehandError
    ]
    classes = _members("surehand.activities.tools.failures.FailureClass")
    states = [state.value for state in module("surehand.workflows.contracts.base").RunState]
    same_names("states", meanings.STATES, states)
    return (
        "# Errors and states\n\n## Error types\n\nThe `type` of an `ApplicationError`, as the\n"
        "Temporal history and `show` have it.\n\n"
        + table(["type", "tried again", "meaning"], rows)
        + "## What a tool may raise\n\nImport them from `surehand`.\n\n"
        + table(["exception", "failure class", "meaning"], raised)
        + "## Failure classes\n\n`FailureClass`, as `errors=` of a tool takes it.\n\n"
        + table(["class", "meaning"], [(code(one.value), text) for one, text in classes])
        + "## What the client raises\n\nEach is a `SurehandError` of `surehand`.\n\n"
        + table(["exception", "meaning"], of_client)
        + "## States of a run\n\nAlso the search attribute `RunState`.\n\n"
        + table(["state", "meaning"], [(code(one), meanings.STATES[one]) for one in states])
        + "## Verdicts on a decision\n\n"
        + table(["code", "meaning"], [(code(verdict.value), text) for verdict, text in verdicts])
    )


def tables_page() -> str:
    from sqlalchemy import CheckConstraint

    tables = module("surehand.activities.ledger.core.tables").metadata.tables
    kinds = module("surehand.activities.ledger.core.sealed")
    sealed = (kinds.Sealed, kinds.SealedText)
    same_names("tables", meanings.TABLES, tables)
    parts = [
        "# Tables\n\nThe ledger's tables, as the migrations make them. Times are milliseconds\n"
        "since 1970 by the database's clock (`_ms`). Every key begins with the tenant.\n"
        "*Sealed* columns are encrypted if workers have [keys](../howto/encrypt.md).\n"
    ]
    for name in sorted(tables):
        found = tables[name]
        parts.append(f"## {name}\n\n{meanings.TABLES[name]}\n")
        rows = [
            (
                code(c.name),
                str(c.type).lower() + (", sealed" if isinstance(c.type, sealed) else ""),
                "yes" if c.primary_key else "",
                "yes" if c.nullable else "",
            )
            for c in found.columns
        ]
        parts.append(table(["column", "type", "key", "may be empty"], rows))
        rules = sorted(
            (str(one.name), str(one.sqltext))
            for one in found.constraints
            if isinstance(one, CheckConstraint)
        )
        rules += sorted(
            (str(one.name), f"unique: {', '.join(c.name for c in one.columns)}{_where(one)}")
            for one in found.indexes
            if one.unique
        )
        parts.append(
            table(["rule", "says"], [(code(n), code(s)) for n, s in rules]) if rules else ""
        )
    return "\n".join(parts)


def _where(index: Any) -> str:
    where = index.dialect_options["postgresql"].get("where")
    return "" if where is None else f", where {where}"


def tools_page() -> str:
    public = module("surehand")
    tool = inspect.getdoc(public.tool) or ""
    parts = [
        "# Tools\n\nWhat a tool's module imports from `surehand`.\n"
        "[Write a tool](../howto/write-a-tool.md) shows one.\n\n## tool\n",
        f"{_prose(tool)}\n{_example(tool)}",
        "\n" + table(["argument", "meaning"], [(code(n), t) for n, t in _arguments(tool)]),
    ]
    for name in public.__all__:
        found = getattr(public, name)
        of_tools = getattr(found, "__module__", "").startswith(_OF_TOOLS)
        if not of_tools or not isinstance(found, type) or issubclass(found, Exception):
            continue
        doc = inspect.getdoc(found) or ""
        parts.append(f"## {name}\n\n{_prose(doc)}\n{_example(doc)}")
        if name in _LISTED:
            parts.append(f"[Its parts]({_LISTED[name]}).\n")
            continue
        shown = [
            (code(n), _prose(inspect.getdoc(getattr(found, n))).partition("\n\n")[0])
            for n in vars(found)
            if name in _CALLED_BY_TOOLS
            and not n.startswith("_")
            and (callable(getattr(found, n)) or isinstance(vars(found)[n], property))
            if inspect.getdoc(getattr(found, n))
        ]
        texts = [(code(n), t) for n, t in own_docstrings(found).items()]
        parts.append(table(["name", "meaning"], [*texts, *shown]) if texts or shown else "")
    return "\n".join(parts)


def _arguments(doc: str) -> list[tuple[str, str]]:
    """Return the arguments that a Google docstring lists."""
    listed = doc.partition("Args:")[2].partition("Raises:")[0].partition("Example:")[0]
    found: list[tuple[str, str]] = []
    for line in textwrap.dedent(listed).strip().splitlines():
        line = line[4:] if line.startswith("    ") and not found else line
        if line[:1].strip():
            name, _, text = line.partition(":")
            found.append((name, text))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "plan": plan_page,
    "tools": tools_page,
    "mcp-file": mcp_file_page,
    "commands": commands_page,
    "json": json_page,
    "settings": settings_page,
    "events": events_page,
    "metrics": metrics_page,
    "errors": errors_page,
    "tables": tables_page,
}


def page(name: str) -> str:
    """Return a page as its file has to be."""
    heading, _, rest = PAGES[name]().partition("\n")
    lines = f"{heading}\n\n{_MADE}{rest}".splitlines()
    kept = [line.rstrip() for n, line in enumerate(lines) if line.strip() or lines[n - 1].strip()]
    return "\n".join(kept).rstrip() + "\n"


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name in PAGES:
        (REFERENCE / f"{name}.md").write_text(page(name), encoding="utf-8")
    for file, schema in ((SHIPPED, plan_schema()), (WIRE, wire_schema())):
        file.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

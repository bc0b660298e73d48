"""The house does not grow: its figures, as limits that only fall."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("activities", "cli", "client", "drill", "process", "surehand", "workflows")
#: Where a name is made by a tool, or is the same in each folder.
NOT_OURS: Final = ("migrations", "templates")
#: Forms of verbs that do not end in "ed".
PARTICIPLES: Final = {
    "begun", "bound", "built", "done", "drawn", "found", "given", "gone", "held", "kept",
    "known", "left", "lost", "made", "meant", "met", "paid", "put", "read", "said", "seen",
    "sent", "set", "shown", "sold", "spent", "spoken", "stood", "struck", "taken", "thrown",
    "told", "understood", "won", "written",
}  # fmt: skip
#: Today's figures; lower one whenever you can.
LIMITS: Final = {
    "modules": 187,
    "lines": 63_855,
    "one-word functions, per mille": 300,
    "participles, per mille": 40,
    "class names defined twice": 7,
    "file names that repeat": 17,
    "classes with the same fields": 1,
    "modules with one importer": 19,
    "lines of imports, per mille": 70,
}
Tree = ast.Module
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not path.is_symlink() and not set(NOT_OURS) & set(path.parts):
                yield path


def _functions(trees: list[Tree]) -> list[str]:
    return [
        node.name.strip("_")
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, Function) and not node.name.startswith("__")
    ]


def _classes(trees: list[Tree]) -> list[ast.ClassDef]:
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def _fields(of: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    )


def _imported(tree: Tree) -> set[str]:
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def _import_lines(tree: Tree) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _repeated(names: list[str]) -> int:
    return sum(count > 1 for count in Counter(names).values())


def _share(part: int, whole: int) -> int:
    return round(1000 * part / whole)


def measure() -> dict[str, int]:
    files = {path: path.read_text() for path in _sources()}
    trees = list(map(ast.parse, files.values()))
    functions, classes = _functions(trees), _classes(trees)
    lines = sum(text.count("\n") for text in files.values())
    single = [name for name in functions if "_" not in name]
    participles = [name for name in single if name.endswith("ed") or name in PARTICIPLES]
    shapes = [fields for one in classes if len(fields := _fields(one)) >= 4]
    importers = Counter(itertools.chain.from_iterable(map(_imported, trees)))
    names = ["surehand." + ".".join(p.relative_to(ROOT).with_suffix("").parts) for p in files]
    return {
        "modules": sum(path.name != "__init__.py" for path in files),
        "lines": lines,
        "one-word functions, per mille": _share(len(single), len(functions)),
        "participles, per mille": _share(len(participles), len(functions)),
        "class names defined twice": _repeated([one.name for one in classes]),
        "file names that repeat": _repeated([p.name for p in files if p.name != "__init__.py"]),
        "classes with the same fields": sum(
            one == other for one, other in itertools.combinations(shapes, 2)
        ),
        "modules with one importer": sum(importers[name] == 1 for name in names),
        "lines of imports, per mille": _share(sum(map(_import_lines, trees)), lines),
    }


def test_the_house_does_not_become_harder_to_find_ones_way_in() -> None:
    more = {name: now for name, now in measure().items() if now > LIMITS[name]}

    assert more == {}, "these were enough before: " + str({name: LIMITS[name] for name in more})

"""The settings explained, from the code: each field with its default and the docstring below it."""

import ast
import inspect
import textwrap
from typing import Any

import msgspec

from qafel.tasks.settings import Learning


class Described(msgspec.Struct, frozen=True):
    """One setting."""

    name: str
    default: Any
    type: str
    meaning: str
    group: str
    """The heading of its section in the class."""


def describe(kind: type[Learning]) -> list[Described]:
    """Every setting of a class, in order."""
    described: dict[str, Described] = {}
    for part in reversed(kind.__mro__):
        if issubclass(part, Learning):
            described |= _of_class(part)
    return list(described.values())


def _of_class(part: type[Learning]) -> dict[str, Described]:
    source = textwrap.dedent(inspect.getsource(part))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    comments = [
        (number, line.strip("# ").strip())
        for number, line in enumerate(source.splitlines(), 1)
        if line.startswith("    # ")
    ]
    defaults = dict(zip(part.__struct_fields__, part.__struct_defaults__, strict=True))
    described = {}
    for place, statement in enumerate(tree.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, after = statement.target.id, tree.body[place + 1] if place + 1 < len(tree.body) else None
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        above = [text for number, text in comments if number < statement.lineno]
        group = (
            above[-1]
            if above
            else f"only of {'a simulation' if 'sim' in part.__module__ else 'a federation'}"
        )
        kind = ast.unparse(statement.annotation).replace(" | None", "").replace("Any", "")
        described[name] = Described(name, defaults[name], kind, meaning, group)
    return described

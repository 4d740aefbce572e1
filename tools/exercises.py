"""What the checks of exercises catch: `python tools/exercises.py` prints a table; tests call it.

Wrong answers are the known mistakes of each exercise, and right answers of `tests/exercises` with
one place changed: another operator, a number one larger or smaller, arguments exchanged, a step
left out. All have to be refused, the known mistakes by their names.
"""

import ast
import importlib
import sys
import warnings
from collections.abc import Iterator
from copy import copy, deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from minitransformer.exercises import check, checking
from minitransformer.exercises.checking import Exercise

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "tests" / "exercises" / "right_answers"
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
LEFT_OUT = {"sqrt", "softmax", "tril", "triu", "transpose", "exp", "mean", "cumsum", "flip", "relu"}
"""Calls that a mutant leaves out, giving what they are called on, or with."""
PATIENCE = 1.0
"""Seconds for a call of a changed answer, of which some never return."""


def exercises() -> Iterator[tuple[str, Exercise]]:
    """All exercises, each with its chapter."""
    for chapter in dir(check):
        for name in dir(getattr(check, chapter)):
            yield chapter, getattr(getattr(check, chapter), name)


def answers_to(chapter: str) -> ModuleType:
    """The right answers: functions called as the exercise, with a number behind."""
    sys.path.insert(0, str(ANSWERS))
    try:
        return importlib.import_module(f"answers_{chapter}")
    finally:
        sys.path.remove(str(ANSWERS))


def right_answers(chapter: str, exercise: Exercise) -> dict[str, Any]:
    """Those to one exercise, by name."""
    name = exercise.name.split(".")[1]
    found = vars(answers_to(chapter)).items()
    return {key: value for key, value in found if key.rstrip("0123456789") == f"{name}_"}


def mutants(source: str, name: str) -> Iterator[tuple[str, str]]:
    """A module's source with one place of one definition changed, and the changed line."""
    tree = ast.parse(source)
    places = [i for i, node in enumerate(tree.body) if getattr(node, "name", "") == name]
    if not places:
        return  # it is no function
    (place,) = places
    definition = tree.body[place]
    for index, original in enumerate(ast.walk(definition)):
        for kind in range(4):
            if change(copy(original), kind):
                tree.body[place] = deepcopy(definition)
                node = list(ast.walk(tree.body[place]))[index]
                change(node, kind)
                line = ast.unparse(node) if hasattr(node, "lineno") else ""
                yield ast.unparse(ast.fix_missing_locations(tree)), f"line {line}"


def change(node: ast.AST, kind: int) -> bool:
    """Change the node in one of some ways, but not what it holds; whether there is such a way."""
    match node, kind:
        case ((ast.BinOp() | ast.BoolOp()), 0) if type(node.op) in OPERATORS:
            node.op = OPERATORS[type(node.op)]()  # type: ignore[assignment]
        case ast.Compare(), 0 if type(node.ops[0]) in OPERATORS:
            node.ops = [OPERATORS[type(node.ops[0])](), *node.ops[1:]]  # type: ignore[list-item]
        case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not()), 0:
            node.op = ast.UAdd()
        case ast.Constant(value=int() | float()), (0 | 1) if not isinstance(node.value, bool):
            node.value += 1 - 2 * kind  # type: ignore[operator]
        case ast.Call(args=[first, second, *rest]), 2:
            node.args = [second, first, *rest]
        case ast.Call(func=ast.Attribute(attr=name)), 3 if name in LEFT_OUT:
            called_on = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            inner = node.args[0] if is_module(called_on) and node.args else called_on
            node.func, node.args, node.keywords = ast.Name("same", ast.Load()), [inner], []
        case ast.Attribute(attr="T" | "mT"), 3:
            node.attr = "real"
        case _:
            return False
    return True


def is_module(value: ast.expr) -> bool:
    """Whether it is a module, such as `torch` or `F`."""
    return isinstance(value, ast.Name) and value.id in {"F", "math", "np", "numpy", "torch"}


def same(value: Any) -> Any:
    """The value, in place of a call that was left out."""
    return value


def outcome(exercise: Exercise, answer: Any) -> str:
    """ "right", "refused", or "explained": refused with a reason."""
    with warnings.catch_warnings(), patch.object(checking, "SECONDS", PATIENCE):
        warnings.simplefilter("ignore")
        fault = exercise.fault_of(answer)
    if fault is None:
        return "right"
    return "explained" if fault.why or " raises " in fault.seen else "refused"


def mechanical(chapter: str, exercise: Exercise) -> Iterator[tuple[str, Any]]:
    """Changed right answers, by what was changed; one that cannot be made is no answer."""
    module = answers_to(chapter)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    for name in right_answers(chapter, exercise):
        for changed, line in mutants(source, name):
            namespace: dict[str, Any] = {"same": same}
            try:
                exec(compile(changed, name, "exec"), namespace)
            except Exception:
                continue
            if f"{name}: {line}" not in getattr(module, "SAME", ()):
                yield f"{name}: {line}", namespace[name]


def answer_of(exercise: Exercise, mistake: Any) -> Any:
    """A known mistake as an answer: what it gives, where the answer is no function."""
    return mistake() if not any(exercise.arguments()) else mistake


def main() -> None:
    """Print how many wrong answers were tried, refused and explained, for each exercise."""
    print(f"{'exercise':<42}{'tried':>7}{'refused':>9}{'explained':>11}")
    tried = refused = explained = 0
    for chapter, exercise in exercises():
        known = [(text, answer_of(exercise, x)) for text, x in exercise.mistakes.items()]
        answers = [*known, *mechanical(chapter, exercise)]
        results = [outcome(exercise, answer) for _, answer in answers]
        numbers = len(results), len(results) - results.count("right"), results.count("explained")
        tried, refused, explained = map(sum, zip((tried, refused, explained), numbers, strict=True))
        print(f"{exercise.name:<42}{numbers[0]:>7}{numbers[1]:>9}{numbers[2]:>11}", flush=True)
        for (text, _), result in zip(answers, results, strict=True):
            if result == "right":
                print(f"    passes: {text}")
    print(f"{'all':<42}{tried:>7}{refused:>9}{explained:>11} ({explained / tried:.0%})")


if __name__ == "__main__":
    main()

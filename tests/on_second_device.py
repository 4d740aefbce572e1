"""Run chapters' code on the second device, their trainings cut short.

    python tests/on_second_device.py                                  all that may use a GPU
    python tests/on_second_device.py chapters/04_attention.ipynb      one, its prints shown

What an `assert` claims is computed and not held against it: it is about a whole training.
"""

import ast
import functools
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import second_device

ROOT = Path(__file__).parents[1]
GPU = '"cuda" if torch.cuda.is_available() else "cpu"'
STEPS = 2
NEW_TOKENS = 12  # a model that has not learned to end its texts would go on


class Short(ast.NodeTransformer):
    """Cuts loops that train, and takes claims for mere expressions."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
        if any(isinstance(call, ast.Attribute) and call.attr == "backward" for call in calls):
            node.iter = ast.Call(ast.Name("first_steps", ast.Load()), [node.iter], [])
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        if node.arg == "steps":
            few = ast.Name("few", ast.Load())
            node.value = ast.Call(few, [node.value], [])
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and node.target.id == "max_new_tokens":
            node.value = ast.Constant(NEW_TOKENS)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Expr(self.generic_visit(node).test)  # type: ignore[attr-defined]


def few(steps: Any) -> Any:
    """At most two steps."""
    return min(steps, STEPS) if isinstance(steps, int) else steps


def cut_recipes() -> None:
    """Make every training of the package short, too, and the texts that it generates."""
    from minitransformer.inference import GenerationConfig
    from minitransformer.training import TrainingConfig

    GenerationConfig.__init__.__kwdefaults__["max_new_tokens"] = NEW_TOKENS
    whole = TrainingConfig.__init__

    @functools.wraps(whole)
    def short(self: Any, *args: Any, steps: int = 10**9, **others: Any) -> None:
        whole(self, *args, **others | {"steps": few(steps), "warmup_steps": 1})

    TrainingConfig.__init__ = short  # type: ignore[method-assign]


def run(path: str) -> None:
    """Run the cells of code, one after another."""
    from IPython.core.interactiveshell import InteractiveShell

    second_device.register()
    cut_recipes()
    scope: dict[str, Any] = {
        "__name__": "__main__",
        "get_ipython": InteractiveShell.instance,
        "first_steps": lambda steps: itertools.islice(steps, STEPS),
        "few": few,
    }
    for number, cell in enumerate(nbformat.read(path, 4).cells):
        if cell.cell_type != "code" or cell.source.startswith("%"):
            continue
        source = cell.source.replace(GPU, f'"{second_device.NAME}"')
        name = f"{Path(path).stem}, cell {number}"
        tree = ast.fix_missing_locations(Short().visit(ast.parse(source, name)))
        try:
            exec(compile(tree, name, "exec"), scope)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            # It looks for a word that is not written, or for the loss after the last step.
            if isinstance(error, TypeError) and "NoneType" not in str(error):
                raise
            print(f"{name} is left in the middle: {error}")


def sources(path: Path) -> str:
    """All that stands in a notebook's cells."""
    return "\n".join(cell.source for cell in nbformat.read(path, 4).cells)


def main() -> int:
    """Run the chapters named, or all, as many at once as there are cores."""
    if len(sys.argv) == 2:
        run(sys.argv[1])
        return 0
    notebooks = sorted((ROOT / "chapters").rglob("*.ipynb"))
    found = [path for path in notebooks if GPU in sources(path)]

    def one(path: Path) -> int:
        command = [sys.executable, __file__, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
        print(f"{path.stem:<40}{'FAILED' if done.returncode else 'ok'}", flush=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", flush=True)
        return done.returncode

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return int(any(pool.map(one, found)))


if __name__ == "__main__":
    sys.exit(main())

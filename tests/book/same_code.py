"""Compare definitions by what they do: their syntax trees without docstrings and annotations."""

import ast

from nbformat import NotebookNode

from notebooks import Definition, code_cells, definitions


class Bare(ast.NodeTransformer):
    """Remove docstrings and annotations, and nothing that Python acts on.

    `x: int = 1` in a function is `x = 1`. In a class body the annotation itself makes a
    dataclass field, so there it stays, emptied.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Strip a function."""
        node.returns = None
        body = [statement for statement in without_docstring(node) if not is_declaration(statement)]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Strip a class; its fields stay fields."""
        node.body = without_docstring(node) or [ast.Pass()]
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                statement.annotation = ast.Constant(...)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Strip a parameter."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Strip an annotated assignment, unless it is a field."""
        is_field = isinstance(node.annotation, ast.Constant) and node.annotation.value is ...
        if is_field or node.value is None:
            return self.generic_visit(node)
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value))


def without_docstring(node: Definition) -> list[ast.stmt]:
    """The body after the docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def is_declaration(statement: ast.stmt) -> bool:
    """Whether the statement only states a type."""
    return isinstance(statement, ast.AnnAssign) and statement.value is None


def bare(source: str) -> str:
    """What the definition does, as text one can compare and read."""
    stripped = Bare().visit(ast.parse(source))
    return ast.dump(ast.fix_missing_locations(stripped), indent=1)


def differing(nb: NotebookNode, package: dict[str, str]) -> list[str]:
    """The public names that the notebook defines otherwise than the package does."""
    return [
        name
        for cell in code_cells(nb)
        for name, node in definitions(cell.source).items()
        if name in package and bare(ast.unparse(node)) != bare(package[name])
    ]


def defines_none(nb: NotebookNode, package: dict[str, str]) -> list[str]:
    """The first lines of cells tagged `package` that define nothing public."""
    return [
        cell.source.split("\n")[0]
        for cell in code_cells(nb)
        if "package" in cell.metadata.get("tags", ())
        and not package.keys() & definitions(cell.source).keys()
    ]

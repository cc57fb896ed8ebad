"""What is changed in a source file: one small change of meaning a mutant, as a piece of its text.

No mutant is made of docstrings, annotations, decorators, raised errors, f-strings, logging, casts,
`__all__` and functions that only describe. Numbers are changed wherever they stand, in tables too.
"""

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.mutants.rooms import ROOT

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<", ast.Pow: "*",
}  # fmt: skip
_OTHER_CALL = {
    "min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil",
    "prod": "sum", "sorted": "list", "reversed": "tuple",
}  # fmt: skip
_QUIET_CALLS = ("cast", "TypeVar", "getLogger", "namedtuple", "NewType", "warn")
_DESCRIBING = ("__repr__", "__str__", "message", "describe", "explain", "hint")
_TEXT = (ast.List, ast.Tuple, ast.JoinedStr, ast.Dict, ast.Set, ast.ListComp)
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.List, ast.Dict)
_EMPTY = {"list": "[]", "List": "[]", "tuple": "()", "dict": "{}", "set": "set()"}


class Mutant(NamedTuple):
    """A file with one piece of its text replaced."""

    room: str
    file: str
    line: int
    """Where the changed piece starts."""
    first_line: int
    last_line: int
    """Of the statement; for a statement with a body, of its head."""
    start: int
    end: int
    """Of the replaced bytes in the file."""
    new: str
    kind: str
    names: tuple[str, ...] = ()
    """What a statement outside functions binds; empty inside of them."""

    def mutated(self, source: bytes) -> bytes:
        """Return the whole changed file; no line moves."""
        lines_lost = source[self.start : self.end].count(b"\n")
        piece = self.new.encode() + b"\\\n" * lines_lost
        if lines_lost and self.kind in _IN_BRACKETS:
            piece = b"(" + self.new.encode() + b"\n" * lines_lost + b")"
        return source[: self.start] + piece + source[self.end :]

    def lines(self, source: bytes) -> tuple[str, str]:
        """Return the changed lines, before and after, without indentation, each on one line."""
        head = source.rfind(b"\n", 0, self.start) + 1
        tail = source.find(b"\n", self.end)
        tail = len(source) if tail < 0 else tail
        old = source[head:tail].decode()
        new = (source[head : self.start] + self.new.encode() + source[self.end : tail]).decode()
        return " ".join(old.split()), " ".join(new.split())


_IN_BRACKETS = ("operand", "branch", "condition", "number", "returned", "filter")


class _Source:
    """A file's text, by the places that its syntax tree names."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = self.starts[node.lineno - 1] + node.col_offset
        return first, self.starts[node.end_lineno - 1] + node.end_col_offset

    def piece(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        text = self.text[start:end].decode()
        return text if isinstance(node, _ATOMS) else f"({text})"


Change = tuple[int, int, str, str]
"""First byte, last byte, new text, kind."""


def _between(source: _Source, left: ast.expr, right: ast.expr, new: str, kind: str) -> Change:
    """Return the change of an operator that stands between two operands."""
    start, end = source.span(left)[1], source.span(right)[0]
    gap = source.text[start:end].decode()
    word = gap.strip(" \n()")
    at = gap.index(word)
    return start + len(gap[:at].encode()), start + len(gap[: at + len(word)].encode()), new, kind


def _instead(source: _Source, node: ast.expr | ast.stmt, new: str, kind: str) -> Change:
    """Return the change of a whole node."""
    return (*source.span(node), new, kind)


def _of_binary(source: _Source, node: ast.BinOp) -> Iterator[Change]:
    if isinstance(node.left, _TEXT) or isinstance(node.right, _TEXT):
        return
    if any(
        isinstance(s, ast.Constant) and isinstance(s.value, str) for s in (node.left, node.right)
    ):
        return
    new = _ARITHMETIC.get(type(node.op))
    if new:
        yield _between(source, node.left, node.right, new, "arithmetic")
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Div | ast.BitOr):
        yield _instead(source, node, source.piece(node.left), "operand")
    if isinstance(node.op, ast.Add | ast.Mult | ast.BitOr):
        yield _instead(source, node, source.piece(node.right), "operand")


def _of_call(source: _Source, node: ast.Call) -> Iterator[Change]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _OTHER_CALL:
        yield _instead(source, node.func, _OTHER_CALL[name], "call")
    plain = [a for a in node.args if not isinstance(a, ast.Starred)]
    if name in ("min", "max") and len(plain) == len(node.args) >= 2:
        for argument in plain:
            yield _instead(source, node, source.piece(argument), "operand")
    if name == "abs":
        yield _instead(source, node, source.piece(node.args[0]), "operand")


def _of_number(source: _Source, node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield _instead(source, node, str(not value), "number")
    elif isinstance(value, int):
        yield _instead(source, node, str(value + 1), "number")
    elif isinstance(value, float):
        yield _instead(source, node, str(value * 2 if value else 1.0), "number")


def _of_condition(source: _Source, test: ast.expr) -> Iterator[Change]:
    for new in ("True", "False"):
        if source.piece(test) != new:
            yield _instead(source, test, new, "condition")


def _of_expression(source: _Source, node: ast.AST) -> Iterator[Change]:
    """Make the changes of one node, not of what is in it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield _between(source, left, right, _COMPARISONS[type(op)], "comparison")
        case ast.BinOp():
            yield from _of_binary(source, node)
        case ast.BoolOp(op=op, values=values):
            word = "or" if isinstance(op, ast.And) else "and"
            if len(values) == 2:
                yield _between(source, values[0], values[1], word, "comparison")
            for value in values:
                # Without this operand: the neutral value in its place.
                yield _instead(source, value, str(isinstance(op, ast.And)), "condition")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _instead(source, node, f"bool({source.piece(operand)})", "condition")
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield _instead(source, node, source.piece(operand), "operand")
        case ast.IfExp(body=body, orelse=other):
            yield _instead(source, node, source.piece(body), "branch")
            yield _instead(source, node, source.piece(other), "branch")
        case ast.Call():
            yield from _of_call(source, node)
        case ast.comprehension(ifs=ifs):
            for test in ifs:
                yield _instead(source, test, "True", "filter")
        case ast.Constant():
            yield from _of_number(source, node)


def _of_return(source: _Source, node: ast.Return, annotation: str) -> Iterator[Change]:
    value = node.value
    if value is None or isinstance(value, ast.Constant):
        return
    empty = _EMPTY.get(annotation.partition("[")[0])
    if annotation == "bool" and not isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield _instead(source, value, f"not {source.piece(value)}", "returned")
    elif annotation in ("int", "float") and not isinstance(value, ast.BinOp):
        yield _instead(source, value, f"{source.piece(value)} + 1", "returned")
    elif empty and source.piece(value) != empty:
        yield _instead(source, value, empty, "returned")
    elif "| None" in annotation:
        yield _instead(source, value, "None", "returned")


def _of_statement(source: _Source, node: ast.stmt, annotation: str) -> Iterator[Change]:
    match node:
        case ast.If(test=test):
            yield from _of_condition(source, test)
        case ast.Expr(value=ast.Call()):
            yield _instead(source, node, "pass", "statement")
        case ast.Continue() | ast.Break() | ast.Delete():
            yield _instead(source, node, "pass", "statement")
        case ast.AugAssign(op=op, target=target, value=value):
            yield _instead(source, node, "pass", "statement")
            new = _ARITHMETIC.get(type(op))
            if new:
                yield _between(source, target, value, f"{new}=", "arithmetic")
        case ast.Return():
            yield from _of_return(source, node, annotation)


def _is_quiet(node: ast.AST) -> bool:
    """Whether nothing in a node is worth a mutant."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _QUIET_CALLS or name.endswith(("Error", "Fault", "Warning", "fault"))
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), right=ast.Name() | ast.Subscript())):
            return True  # an alias of types
        case ast.FunctionDef(name=name):
            return any(word in name for word in _DESCRIBING)
        case ast.ClassDef(name=name):
            return name.endswith(("Error", "Fault"))
    return False


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Return what is in a node and may change: no annotations and decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # `zip` of equal lengths: a safeguard
        if field == "slice" and isinstance(node, ast.Subscript) and _names_a_type(node.value):
            continue
        yield from (
            v for v in (value if isinstance(value, list) else [value]) if isinstance(v, ast.AST)
        )


def _names_a_type(node: ast.expr) -> bool:
    """Whether a subscripted name is a generic type, as aliases of types have it."""
    name = (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )
    return (name[:1].isupper() and not name.isupper()) or name in ("tuple", "dict", "list", "type")


def _head_end(node: ast.stmt) -> int:
    """Return the last line of a statement, of its head if it has a body."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
        return max(node.lineno, body[0].lineno - 1)
    return node.end_lineno or node.lineno


def bound_names(node: ast.stmt) -> tuple[str, ...]:
    """Return the names that a statement binds."""
    match node:
        case ast.Assign(targets=targets):
            return tuple(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
    return ()


class _Walk:
    """Goes through a file and collects mutants."""

    def __init__(self, room: str, file: str, text: bytes) -> None:
        self.source = _Source(text)
        self.mutant = partial(Mutant, room, file)
        self.made: list[Mutant] = []

    def add(self, change: Change, statement: ast.stmt, names: tuple[str, ...]) -> None:
        start, end, new, kind = change
        line = self.source.text.count(b"\n", 0, start) + 1
        where = (line, statement.lineno, _head_end(statement))
        self.made.append(self.mutant(*where, start, end, new, kind, names))

    def expressions(self, node: ast.AST, statement: ast.stmt, names: tuple[str, ...]) -> None:
        """Take an expression and all that is in it."""
        if _is_quiet(node):
            return
        for change in _of_expression(self.source, node):
            self.add(change, statement, names)
        for part in _parts(node):
            self.expressions(part, statement, names)

    def statement(self, node: ast.stmt, annotation: str, outer: tuple[str, ...] | None) -> None:
        """Take a statement; `outer` names the classes around it, None within functions."""
        if _is_quiet(node):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Expr) and _is_quiet(node.value):
            return
        names = () if outer is None else (*bound_names(node), *outer)
        within = outer
        if isinstance(node, ast.FunctionDef):
            annotation, within = ast.unparse(node.returns) if node.returns else "", None
            names = (node.name,) if outer is not None else ()
        elif isinstance(node, ast.ClassDef):
            within = (*(outer or ()), node.name)
        for change in _of_statement(self.source, node, annotation):
            self.add(change, node, names)
        for part in _parts(node):
            if isinstance(part, ast.stmt):
                self.statement(part, annotation, within)
            elif isinstance(part, ast.match_case | ast.ExceptHandler):
                self.case(part, node, annotation, within)
            else:
                self.expressions(part, node, names)

    def case(
        self,
        case: ast.match_case | ast.ExceptHandler,
        node: ast.stmt,
        annotation: str,
        outer: tuple[str, ...] | None,
    ) -> None:
        """Take a case of a match, or a handler of errors; patterns stay."""
        if isinstance(case, ast.match_case) and case.guard is not None:
            for change in _of_condition(self.source, case.guard):
                self.add(change, node, ())
            self.expressions(case.guard, node, ())
        for inner in case.body:
            self.statement(inner, annotation, outer)


def mutants_of(room: str, path: Path) -> list[Mutant]:
    """Return every mutant of a file, no two alike."""
    return mutants_of_text(room, str(path.relative_to(ROOT)), path.read_bytes())


def mutants_of_text(room: str, file: str, text: bytes) -> list[Mutant]:
    """Return every mutant of a file's text, no two alike; some may be no valid Python."""
    walk = _Walk(room, file, text)
    for node in ast.parse(text).body:
        walk.statement(node, "", ())
    kept: dict[tuple[int, int, str], Mutant] = {}
    for mutant in walk.made:
        if mutant.new != text[mutant.start : mutant.end].decode():
            kept.setdefault((mutant.start, mutant.end, mutant.new), mutant)
    return list(kept.values())


def is_python(mutant: Mutant, source: bytes) -> bool:
    """Whether the changed file can be read."""
    try:
        ast.parse(mutant.mutated(source))
    except SyntaxError:
        return False
    return True

"""Mutants of an answer: its code with one small change, such as `<` for `<=`, a copy not made or a wait left out.

Changes are made in the source itself, so that all other lines stay as they were written. Only what stands between
BEGIN SOLUTION and END SOLUTION is changed. Annotations, f-strings and what an error says stay.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from autograder.lessons import names

Operator = Literal[
    "comparison at its boundary", "comparison reversed", "other arithmetic", "rounded up", "operand left out",
    "order swapped", "and for or, or for and", "other number", "True for False, False for True",
    "condition always or never true", "near function", "argument left out", "range off by one", "slice off by one",
    "index off by one", "copy left out", "conversion left out", "other dtype", "in place, or not in place",
    "replaced instead of added up", "statement left out", "loop ends or goes on", "context left out",
    "other exception", "wait or barrier left out", "other reduction", "next rank",
]  # fmt: skip
#: A node in place of the old one, or a text for a part of the source: from one (line, column) to another.
Change = ast.AST | tuple[tuple[int, int], tuple[int, int], str]

_BOUNDARIES = {"Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt"}
_REVERSED = {"Eq": "NotEq", "NotEq": "Eq", "Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE", "In": "NotIn",
             "NotIn": "In", "Is": "IsNot", "IsNot": "Is"}  # fmt: skip
_ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Div", "Mod": "FloorDiv",
               "Pow": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "BitXor": "BitOr"}  # fmt: skip
_NEAR = {"min": "max", "minimum": "maximum", "amin": "amax", "floor": "ceil", "any": "all", "argmin": "argmax",
         "sum": "mean", "zeros": "ones", "zeros_like": "ones_like", "append": "extend"}  # fmt: skip
_NEAR |= {other: name for name, other in _NEAR.items()} | {"isend": "send", "irecv": "recv", "round": "floor"}
_DTYPES = {"float64": "float32", "float32": "float64", "float16": "bfloat16", "bfloat16": "float16", "int64": "int32",
           "int32": "int64", "int8": "uint8", "uint8": "int8"}  # fmt: skip
_REDUCTIONS = {"SUM": "MAX", "MAX": "SUM", "MIN": "MAX", "AVG": "SUM", "PRODUCT": "SUM"}
#: Functions and methods that leave their argument or object, or something like it, when they are left out.
_COPIES = (
    r"list|tuple|dict|np\.(array|copy|asarray)|copy\.(copy|deepcopy)|torch\.(tensor|clone|empty_like|zeros_like)",
    r"copy|clone|detach|contiguous",
)
_CONVERSIONS = (
    r"int|float|bool|abs|sorted|reversed|set|math\.(sqrt|ceil|floor)",
    r"item|tolist|to|type|astype|float|double|abs|sqrt|flatten|exp|log",
)


class Mutant(NamedTuple):
    """A changed answer. operator: what kind of change it is. line: of the change in the cell, from 1."""

    operator: Operator
    line: int
    source: str


def mutants(source: str) -> list[Mutant]:
    """All mutants of a cell that compile, none twice, in the order of their lines.

    What would only raise a NameError, because it lacks the statement that defines a name, is left out.
    """
    tree, found = ast.parse(source), list[Mutant]()
    known, defined = {ast.dump(tree)}, _names_read(source) | vars(builtins).keys()
    inside = set[int]()
    for region in re.finditer(r"### BEGIN SOLUTION.*?### END SOLUTION", source, re.DOTALL):
        inside |= set(range(*(source.count("\n", 0, at) + 1 for at in region.span())))
    for node in _nodes(tree):
        for operator, change in _changes(node) if {node.lineno, node.end_lineno} <= inside else ():
            changed = _changed(source, node, change)
            dump = _dump(changed)
            if dump and dump not in known and _names_read(changed) <= defined:
                known.add(dump)
                found.append(Mutant(operator, node.lineno, changed))
    return sorted(found, key=lambda mutant: mutant.line)


def sample(found: list[Mutant], most: int, seed: int) -> list[Mutant]:
    """At most this many, the operators in turn, drawn with a seed; in the order of their lines. All, if most is 0."""
    shuffled = random.Random(seed).sample(found, len(found))
    turns, seen = {}, Counter[str]()
    for mutant in shuffled:
        turns[mutant], seen[mutant.operator] = seen[mutant.operator], seen[mutant.operator] + 1
    return sorted(sorted(shuffled, key=turns.__getitem__)[: most or None], key=found.index)


def _nodes(node: ast.AST) -> Iterator[Any]:
    """The statements and expressions that may change. Of a `raise` only itself; no annotation, f-string, docstring."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or field in ("annotation", "returns", "decorator_list"):
                continue
            match child:
                case ast.JoinedStr() | ast.Expr(ast.Constant()):
                    continue
                case ast.expr() | ast.stmt():
                    yield child
            if not isinstance(child, ast.Raise):
                yield from _nodes(child)


def _changed(source: str, node: Any, change: Change) -> str:
    """The source after a change. A new expression has parentheses where it would mean something else without them."""
    if not isinstance(change, ast.AST):
        return _spliced(source, *change)
    text = ast.unparse(change)
    text = text if '"' in text else text.replace("'", '"')  # as we write texts
    plain, safe = (_spliced(source, _start(node), _end(node), one) for one in (text, f"({text})"))
    return safe if isinstance(change, ast.expr) and _dump(safe) not in ("", _dump(plain)) else plain


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _spliced(source: str, start: tuple[int, int], end: tuple[int, int], text: str) -> str:
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    first, last = (sum(map(len, lines[: line - 1])) + column for line, column in (start, end))
    return (source.encode()[:first] + text.encode() + source.encode()[last:]).decode()


@functools.lru_cache(maxsize=8)
def _dump(source: str) -> str:
    """The syntax tree as a text; "" for what does not compile."""
    try:
        tree = ast.parse(source)
        compile(tree, "<mutant>", "exec", dont_inherit=True)
        return ast.dump(tree)
    except names.UNPARSABLE:
        return ""


def _names_read(source: str) -> frozenset[str]:
    """The names that a cell needs from its notebook."""
    return names.of_source(source, "<mutant>").reads


# ---- operators ----


def _changes(node: Any) -> Iterator[tuple[Operator, Change]]:
    """Each change that this node allows, with its operator."""
    yield from _of_statement(node) if isinstance(node, ast.stmt) else _of_expression(node)
    if isinstance(node, ast.Call):
        yield from _of_call(node, ast.unparse(node.func))
    for at, old in enumerate(getattr(node, "ops", [])):
        for operator, table in (("comparison at its boundary", _BOUNDARIES), ("comparison reversed", _REVERSED)):
            if new := table.get(type(old).__name__):
                yield operator, _like(node, ops=_with(node.ops, at, getattr(ast, new)()))  # type: ignore[misc]
    if new := _ARITHMETIC.get(type(getattr(node, "op", None)).__name__):
        yield "other arithmetic", _like(node, op=getattr(ast, new)())


def _of_expression(node: ast.expr) -> Iterator[tuple[Operator, Change]]:
    match node:
        case ast.BinOp(left, op, right):
            yield from (("operand left out", one) for one in (left, right))
            if isinstance(op, ast.FloorDiv):
                yield "rounded up", ast.UnaryOp(ast.USub(), _like(node, left=ast.UnaryOp(ast.USub(), left)))
            if isinstance(op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow | ast.MatMult):
                yield "order swapped", _like(node, left=right, right=left)
        case ast.BoolOp(op, values):
            yield "and for or, or for and", _like(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield "operand left out", rest[0] if len(rest) == 1 else _like(node, values=rest)
        case ast.UnaryOp(_, operand):
            yield "operand left out", operand
        case ast.Constant(bool(value)):
            yield "True for False, False for True", _like(node, value=not value)
        case ast.Constant(int()):
            yield from (("other number", new) for new in _by_one(node))
        case ast.Constant(float(value)):
            yield "other number", _like(node, value=2 * value if value else 1.0)
        case ast.IfExp(test):
            yield from (
                ("condition always or never true", (_start(test), _end(test), one)) for one in ("True", "False")
            )
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for test in (test for loop in node.generators for test in loop.ifs):
                yield "condition always or never true", (_start(test), _end(test), "True")
        case ast.Subscript(_, index) if not isinstance(index, ast.Slice | ast.Tuple | ast.Constant):
            yield from (("index off by one", _like(node, slice=new)) for new in _by_one(index))
        case ast.Slice():
            for name in ("lower", "upper"):
                if bound := getattr(node, name):
                    yield from (("slice off by one", _like(node, **{name: new})) for new in (*_by_one(bound), None))
        case ast.Attribute(_, name) if name in _DTYPES:
            yield "other dtype", _like(node, attr=_DTYPES[name])
        case ast.Attribute(ast.Attribute(_, "ReduceOp"), name):
            yield "other reduction", _like(node, attr=_REDUCTIONS[name])


def _of_call(node: ast.Call, called: str) -> Iterator[tuple[Operator, Change]]:
    module, _, name = called.rpartition(".")
    for operator, (functions, methods) in (("copy left out", _COPIES), ("conversion left out", _CONVERSIONS)):
        if re.fullmatch(functions, called) and node.args:
            yield operator, node.args[0]  # type: ignore[misc]
        elif isinstance(node.func, ast.Attribute) and re.fullmatch(methods, name) and module not in ("torch", "np"):
            yield operator, node.func.value  # type: ignore[misc]
    if len(node.args) > 1 and name not in ("min", "max"):
        yield "order swapped", _like(node, args=[node.args[1], node.args[0], *node.args[2:]])
    for keyword in node.keywords:
        yield "argument left out", _like(node, keywords=[one for one in node.keywords if one is not keyword])
    if new := _NEAR.get(name):
        field = "attr" if module else "id"
        yield "near function", _like(node, func=_like(node.func, **{field: new}))
    if called == "range":
        if len(node.args) == 1:
            yield "range off by one", _like(node, args=[ast.Constant(1), *node.args])
        for at, value in enumerate(node.args[:2]):
            yield from (("range off by one", _like(node, args=_with(node.args, at, new))) for new in _by_one(value))
    if re.fullmatch(r"dist\.(all_)?reduce(_scatter\w*)?", called) and all(one.arg != "op" for one in node.keywords):
        largest = ast.keyword("op", _expression("dist.ReduceOp.MAX"))
        yield "other reduction", _like(node, keywords=[*node.keywords, largest])
    if re.fullmatch(r"dist\.(i?send|i?recv|broadcast)", called):
        if len(node.args) > 1:
            yield "next rank", _like(node, args=_with(node.args, 1, _next_rank(node.args[1])))
        for at, keyword in enumerate(node.keywords):
            if keyword.arg in ("src", "dst"):
                new_keyword = ast.keyword(keyword.arg, _next_rank(keyword.value))
                yield "next rank", _like(node, keywords=_with(node.keywords, at, new_keyword))


def _of_statement(node: ast.stmt) -> Iterator[tuple[Operator, Change]]:
    match node:
        case ast.Expr(ast.Call(ast.Attribute(_, "wait" | "barrier" | "join" | "synchronize"))):
            yield "wait or barrier left out", ast.Pass()
        case ast.Return(ast.expr()) | ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.Pass():
            pass
        case _:
            yield "statement left out", ast.Pass()
    match node:
        case ast.AugAssign(target, op, value):
            yield "replaced instead of added up", ast.Assign([target], value, lineno=0)
            if not isinstance(value, ast.Constant):  # as in a counter
                yield "in place, or not in place", ast.Assign([target], ast.BinOp(target, op, value), lineno=0)
        case ast.Assign([target], ast.BinOp(left, op, right)) if ast.unparse(left) == ast.unparse(target):
            yield "in place, or not in place", ast.AugAssign(target, op, right)  # type: ignore[arg-type]
        case ast.Assign([ast.Name(name) as target], value) if name in {
            getattr(one, "id", "") for one in ast.walk(value)
        }:
            yield "in place, or not in place", _like(node, targets=[ast.Subscript(target, ast.Constant(...))])
        case ast.Assign(_, ast.Tuple([first, second, *rest])) | ast.Return(ast.Tuple([first, second, *rest])):
            yield "order swapped", _like(node, value=_like(node.value, elts=[second, first, *rest]))
        case ast.If(test):
            for truth in ("True", "False") if node.orelse else ("True",):
                yield "condition always or never true", (_start(test), _end(test), truth)
        case ast.For() | ast.While():
            end = _end(node.body[-1])
            yield "loop ends or goes on", (end, end, f"\n{' ' * node.body[0].col_offset}break")
        case ast.Break() | ast.Continue():
            yield "loop ends or goes on", ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.With():
            yield "context left out", (_start(node), (node.body[0].lineno, 0), "if True:\n")
        case ast.Raise(ast.Call(ast.Name() as error)):
            yield "other exception", (_start(error), _end(error), "Exception")


def _like(node: Any, **fields: Any) -> Any:
    """A node with other fields."""
    new = copy.copy(node)
    vars(new).update(fields)
    return new


def _with(items: list[Any], at: int, new: Any) -> list[Any]:
    return [*items[:at], new, *items[at + 1 :]]


def _by_one(node: ast.expr) -> Iterator[ast.expr]:
    """A value plus and minus one; none for a sum with a number, which changes by itself."""
    match node:
        case ast.Constant(int(value)):
            yield from (_like(node, value=value + step) for step in (1, -1))
        case ast.BinOp(_, _, ast.Constant()):
            pass
        case _:
            yield from (ast.BinOp(node, operation, ast.Constant(1)) for operation in (ast.Add(), ast.Sub()))


def _next_rank(rank: ast.expr) -> ast.expr:
    return _expression(f"({ast.unparse(rank)} + 1) % dist.get_world_size()")


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body

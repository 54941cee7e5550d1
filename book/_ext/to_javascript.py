"""The planner's Python as JavaScript, for the page that plans a training run.

    translated(MODULES)

gives the text of one function, `makePlanner()`, which returns the modules by name: `planner.search` as `search`, and so
on, with Python's names in them. `book/planning/python.js` has what of Python they use. This is no translator of Python,
but of the part of it in which `machines/cluster.py`, `machines/model.py` and `planner/` are written: anything else is a
`NotTranslated` with file and line. Numbers are doubles on both sides, so the results are equal to the last bits.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RUNTIME = ROOT / "book" / "planning" / "python.js"
#: In the order in which they import each other.
MODULES = (
    "machines.cluster", "machines.model", "planner.software", "planner.layout", "planner.arithmetic",
    "planner.communication", "planner.memory", "planner.prediction", "planner.huggingface", "planner.margin",
    "planner.search", "planner.export",
)  # fmt: skip
#: Functions that the page does without.
LEFT_OUT = {"machine", "why_not", "Plan.__str__"}
#: Modules that are not imported, since `python.js` or JavaScript has what is used of them.
GIVEN = {"__future__", "collections.abc", "dataclasses", "functools", "itertools", "math", "typing"}
#: Names that JavaScript keeps for itself.
KEPT = {"switch", "new", "default", "case", "function", "var", "with", "delete", "this", "in", "let", "const"}
OPERATORS: dict[type, str] = {
    ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.LShift: "<<", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=",
}  # fmt: skip
#: Method of Python's own types → what it is in JavaScript.
METHODS = {
    "append": "{0}.push({1})", "bit_length": "$bitLength({0})", "join": "[...{1}].join({0})",
    "lower": "{0}.toLowerCase()", "split": "{0}.trim().split(/\\s+/)", "replace": "{0}.replaceAll({1}, {2})",
    "removesuffix": "{0}.replace(new RegExp({1} + '$'), '')",
}  # fmt: skip
Function = ast.FunctionDef | ast.Lambda


class NotTranslated(Exception):
    """Python that this translator does not know; the message names file and line."""


def translated(modules: tuple[str, ...] = MODULES, root: Path = ROOT) -> str:
    """The text of `function makePlanner()`, see above. NotTranslated."""
    program: dict[str, Module] = {}
    for name in modules:
        program[name] = Module(name, root / f"{name.replace('.', '/')}.py", program)
    parts = [module.text() for module in program.values()]
    names = ", ".join(f"{name.split('.')[1]}: {variable(name)}" for name in modules)
    return "\n".join(
        [
            "function makePlanner() {",
            '"use strict";',
            RUNTIME.read_text("utf-8"),
            *parts,
            f"return {{ {names}, Dict }};",
            "}\n",
        ]
    )


def variable(module: str) -> str:
    """What a module is called in JavaScript."""
    return f"${module.replace('.', '_')}"


def js_name(name: str) -> str:
    """A name that JavaScript takes."""
    return f"{name}_" if name in KEPT else name


def targets(node: ast.AST) -> list[str]:
    """The names that an assignment or a loop sets."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def assigned(body: list[ast.stmt]) -> list[str]:
    """The local names of a function, without those of functions and comprehensions in it, in order."""
    found: list[str] = []

    def walk(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            return
        inside = inside or isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and not inside:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                found.extend(targets(target))
        if isinstance(node, ast.NamedExpr):  # belongs to the function even in a comprehension
            found.append(node.target.id)
        for child in ast.iter_child_nodes(node):
            walk(child, inside)

    for statement in body:
        walk(statement, False)
    return list(dict.fromkeys(found))


class Module:
    """One module: what it defines, and its translation. program: the modules before it, by name."""

    def __init__(self, name: str, path: Path, program: dict[str, Module]) -> None:
        self.name, self.path, self.program = name, path, program
        self.tree = ast.parse(path.read_text("utf-8"))
        #: What a name means: ("module", its name), or ("from", module, its name there).
        self.imports: dict[str, tuple[str, ...]] = {}
        #: Function or class → names of its parameters.
        self.parameters: dict[str, list[str]] = {}
        #: The same of all methods of its classes.
        self.methods: dict[str, list[str]] = {}
        self.classes: set[str] = set()
        #: All names that mean something here; what else is called must be in `python.js`.
        self.names = set(re.findall(r"^(?:const|class) (\w+)", RUNTIME.read_text("utf-8"), re.MULTILINE)) | set(
            targets(self.tree)
        )
        for part in ast.walk(self.tree):
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                self.names.add(part.name)
            elif isinstance(part, ast.arg):
                self.names.add(part.arg)
            elif isinstance(part, ast.ImportFrom) and part.module not in GIVEN:
                self.names.update(alias.name for alias in part.names)
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self.parameters[node.name] = [a.arg for a in node.args.args]
            elif isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
                self.parameters[node.name] = [name for name, _ in self.fields(node)]
                self.methods |= {
                    f.name: [a.arg for a in f.args.args[1:]] for f in self.functions(node) if not f.decorator_list
                }
                self.methods |= {new: self.methods[old] for new, old in self.aliases(node)}

    def wrong(self, node: ast.AST, what: str) -> NotTranslated:
        return NotTranslated(f"{self.path}:{getattr(node, 'lineno', '?')}: {what} has no translation")

    def text(self) -> str:
        """The module as a function that is called at once, and returns all its names."""
        body = "".join(self.statement(node) for node in self.tree.body)
        own = [name for node in self.tree.body for name in self.defined(node)]
        return f"const {variable(self.name)} = (() => {{\n{body}return {{ {', '.join(dict.fromkeys(own))} }};\n}})();"

    def defined(self, node: ast.stmt) -> list[str]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return [] if node.name in LEFT_OUT else [node.name]
        if isinstance(node, ast.Assign):
            return [name for target in node.targets for name in targets(target)]
        return targets(node.target) if isinstance(node, ast.AnnAssign) else []

    # Classes

    @staticmethod
    def functions(node: ast.ClassDef) -> list[ast.FunctionDef]:
        return [part for part in node.body if isinstance(part, ast.FunctionDef)]

    @staticmethod
    def fields(node: ast.ClassDef) -> list[tuple[str, ast.expr | None]]:
        """The fields of a dataclass, with their defaults."""
        return [
            (p.target.id, p.value) for p in node.body if isinstance(p, ast.AnnAssign) and isinstance(p.target, ast.Name)
        ]

    @staticmethod
    def aliases(node: ast.ClassDef) -> list[tuple[str, str]]:
        """Methods that are another name of one."""
        assignments = [part for part in node.body if isinstance(part, ast.Assign)]
        return [(a.targets[0].id, a.value.id) for a in assignments]  # type: ignore[attr-defined]

    def class_text(self, node: ast.ClassDef) -> str:
        if any(isinstance(base, ast.Name) and base.id == "ValueError" for base in node.bases):
            (init,) = self.functions(node)
            first, *rest = init.body
            message = self.expression(first.value.args[0])  # type: ignore[attr-defined]
            sets = "".join(self.statement(part) for part in rest).replace("self.", "this.")
            constructor = f"constructor({self.signature(init, 1)}) {{\nsuper({message});\n{sets}}}\n"
            return f"class {node.name} extends ValueError {{\n{constructor}}}\n"
        fields, names = self.fields(node), [name for name, _ in self.fields(node)]
        given = ", ".join(name + (f" = {self.default(value)}" if value else "") for name, value in fields)
        text = f"class {node.name} extends Data {{\nstatic fields = {json.dumps(names)};\n"
        text += f"constructor({given}) {{ super(); Object.assign(this, {{ {', '.join(names)} }}); }}\n"
        for function in self.functions(node):
            if {function.name, f"{node.name}.{function.name}"} & LEFT_OUT:
                continue
            getter = any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list)
            head = f"{'get ' if getter else ''}{function.name}({self.signature(function, 1)})"
            text += f"{head} {{\nconst self = this;\n{self.body(function)}}}\n"
        prototype = f"{node.name}.prototype"
        return text + "}\n" + "".join(f"{prototype}.{new} = {prototype}.{old};\n" for new, old in self.aliases(node))

    def default(self, value: ast.expr) -> str:
        """The default of a field, also of `field(default=…)` and `field(default_factory=dict)`."""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
            (keyword,) = value.keywords
            return self.expression(keyword.value) if keyword.arg == "default" else "new Dict([])"
        return self.expression(value)

    # Statements

    def signature(self, node: Function, skip: int = 0) -> str:
        names = node.args.args[skip:]
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.posonlyargs:
            raise self.wrong(node, "a parameter that is not an ordinary one")
        defaults = [None] * (len(names) - len(node.args.defaults)) + list(node.args.defaults)
        return ", ".join(
            js_name(a.arg) + (f" = {self.expression(d)}" if d else "") for a, d in zip(names, defaults, strict=True)
        )

    def body(self, node: ast.FunctionDef) -> str:
        parameters = {a.arg for a in node.args.args}
        local = [js_name(name) for name in assigned(node.body) if name not in parameters]
        return (f"let {', '.join(local)};\n" if local else "") + "".join(map(self.statement, node.body))

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                return ""
            case ast.Expr(ast.Yield(value)) if value:
                return f"yield {self.expression(value)};\n"
            case ast.Expr(ast.YieldFrom(value)):
                return f"yield* {self.expression(value)};\n"
            case ast.Expr(value):
                return f"{self.expression(value)};\n"
            case ast.Import(names) if {alias.name for alias in names} <= GIVEN:
                return ""
            case ast.ImportFrom(module, names) if module:
                return "" if module in GIVEN else "".join(self.imported(node, module, alias) for alias in names)
            case ast.FunctionDef(name) if name in LEFT_OUT:
                return ""
            case ast.FunctionDef(name):
                star = "*" if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node)) else ""
                text = f"function{star} {name}({self.signature(node)}) {{\n{self.body(node)}}}\n"
                cached = any("lru_cache" in ast.dump(decorator) for decorator in node.decorator_list)
                return f"const {name} = $cached({text.rstrip()});\n" if cached else text
            case ast.ClassDef():
                return self.class_text(node)
            case ast.Return(value):
                return f"return {self.expression(value) if value else 'null'};\n"
            case ast.Raise(exc) if exc:
                return f"throw {self.expression(exc)};\n"
            case ast.Assign([target], value):
                return self.assignment(target, self.expression(value))
            case ast.AnnAssign(target, _, value):
                return self.assignment(target, self.expression(value)) if value else ""
            case ast.AugAssign(target, op, value):
                return self.assignment(target, self.expression(ast.BinOp(target, op, value)))
            case ast.If(test, then, otherwise):
                rest = f" else {{\n{''.join(map(self.statement, otherwise))}}}" if otherwise else ""
                return f"if ({self.truth(test)}) {{\n{''.join(map(self.statement, then))}}}{rest}\n"
            case ast.While(test, repeated, []):
                return f"while ({self.truth(test)}) {{\n{''.join(map(self.statement, repeated))}}}\n"
            case ast.For(target, many, repeated, []):
                inner = "".join(map(self.statement, repeated))
                return f"for (const {self.pattern(target)} of {self.expression(many)}) {{\n{inner}}}\n"
            case ast.Try(tried, [ast.ExceptHandler(kind, None, caught)], otherwise, []) if kind:
                text = "".join(map(self.statement, [*tried, *otherwise]))
                handled = "".join(map(self.statement, caught))
                others = f"if (!($error instanceof {self.expression(kind)})) throw $error;"
                return f"try {{\n{text}}} catch ($error) {{\n{others}\n{handled}}}\n"
            case ast.Continue():
                return "continue;\n"
            case ast.Break():
                return "break;\n"
        raise self.wrong(node, type(node).__name__)

    def imported(self, node: ast.stmt, module: str, alias: ast.alias) -> str:
        """A name of another module, or a module of a package. Types alone are no names in JavaScript."""
        full = f"{module}.{alias.name}"
        if full in self.program:
            self.imports[alias.name] = ("module", full)
            return f"const {alias.name} = {variable(full)};\n"
        if module not in self.program or alias.asname:
            raise self.wrong(node, f"the import of {full}")
        self.imports[alias.name] = ("from", module, alias.name)
        return f"const {{ {alias.name} }} = {variable(module)};\n"

    def assignment(self, target: ast.expr, value: str) -> str:
        match target:
            case ast.Subscript(many, key):
                return f"$put({self.expression(many)}, {self.expression(key)}, {value});\n"
            case ast.Attribute(of, name):
                return f"{self.expression(of)}.{name} = {value};\n"
            case ast.Name() | ast.Tuple():
                keyword = "const " if target.col_offset == 0 else ""  # of the module; functions declare theirs
                text = f"{self.pattern(target)} = {value}"
                return f"{keyword}{text};\n" if keyword or isinstance(target, ast.Name) else f"({text});\n"
        raise self.wrong(target, "this assignment")

    def pattern(self, target: ast.expr) -> str:
        match target:
            case ast.Name(name):
                return js_name(name)
            case ast.Tuple(parts):
                return f"[{', '.join(map(self.pattern, parts))}]"
        raise self.wrong(target, "this target")

    # Expressions

    def truth(self, node: ast.expr) -> str:
        """An expression where only its truth counts."""
        match node:
            case ast.Compare():
                return self.expression(node)
            case ast.UnaryOp(ast.Not(), operand):
                return f"!({self.truth(operand)})"
            case ast.BoolOp(op, values):
                return f"({(' && ' if isinstance(op, ast.And) else ' || ').join(map(self.truth, values))})"
        return f"$true({self.expression(node)})"

    def expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(None):
                return "null"
            case ast.Constant(bool() | int() | float() | str() as value):
                return json.dumps(value, ensure_ascii=False)
            case ast.Name(name) if name in self.names:
                return js_name(name)
            case ast.Attribute(of, name):
                value = self.expression(of)
                is_method = any(name in module.methods for module in (*self.program.values(), self))
                return f"{value}.{name}.bind({value})" if is_method else f"{value}.{name}"
            case ast.Subscript(many, ast.Slice(low, high, None)):
                ends = [self.expression(end) if end else "undefined" for end in (low, high)]
                return f"{self.expression(many)}.slice({', '.join(ends)})"
            case ast.Subscript(ast.Name("dict" | "list" | "tuple"), _):
                return "null"  # the name of a type
            case ast.Subscript(many, key):
                return f"$at({self.expression(many)}, {self.expression(key)})"
            case ast.Tuple(parts) | ast.List(parts):
                return f"[{', '.join(map(self.expression, parts))}]"
            case ast.Set(parts):
                return f"new Set([{', '.join(map(self.expression, parts))}])"
            case ast.Starred(value):
                return f"...{self.expression(value)}"
            case ast.Dict(keys, values):
                pairs = [
                    f"[{self.expression(key)}, {self.expression(value)}]"
                    if key
                    else f"...{self.expression(value)}.items()"
                    for key, value in zip(keys, values, strict=True)
                ]
                return f"new Dict([{', '.join(pairs)}])"
            case ast.IfExp(test, then, otherwise):
                return f"({self.truth(test)} ? {self.expression(then)} : {self.expression(otherwise)})"
            case ast.Lambda():
                return f"(({self.signature(node)}) => {self.expression(node.body)})"
            case ast.NamedExpr(ast.Name(name), value):
                return f"({js_name(name)} = {self.expression(value)})"
            case ast.BoolOp(op, values):  # gives a value: the first that decides
                text = self.expression(values[-1])
                for value in reversed(values[:-1]):
                    ways = (text, "$x") if isinstance(op, ast.And) else ("$x", text)
                    text = f"(($x) => ($true($x) ? {ways[0]} : {ways[1]}))({self.expression(value)})"
                return text
            case ast.UnaryOp(ast.Not()):
                return self.truth(node)
            case ast.UnaryOp(ast.USub(), operand):
                return f"(-{self.expression(operand)})"
            case ast.BinOp(left, op, right):
                return self.operation(node, self.expression(left), op, self.expression(right))
            case ast.Compare(left, ops, comparators):
                sides = [left, *comparators]
                pairs = [self.comparison(a, op, b) for a, op, b in zip(sides, ops, comparators, strict=False)]
                return pairs[0] if len(pairs) == 1 else f"({' && '.join(pairs)})"
            case ast.JoinedStr(values):
                return f"({' + '.join(map(self.formatted, values))})"
            case ast.ListComp(element, generators) | ast.GeneratorExp(element, generators):
                loops = self.loops(generators, f"$all.push({self.expression(element)});")
                return f"(() => {{ const $all = []; {loops} return $all; }})()"
            case ast.SetComp(element, generators):
                return f"new Set({self.expression(ast.ListComp(element, generators))})"
            case ast.DictComp(key, value, generators):
                pair = ast.Tuple([key, value])
                return f"new Dict({self.expression(ast.ListComp(pair, generators))})"
            case ast.Call():
                return self.call(node)
        raise self.wrong(node, f"the name {node.id}" if isinstance(node, ast.Name) else type(node).__name__)

    def operation(self, node: ast.BinOp, left: str, op: ast.operator, right: str) -> str:
        if isinstance(op, ast.Add):
            numbers = any(
                isinstance(side, ast.BinOp) and not isinstance(side.op, ast.Add) for side in (node.left, node.right)
            )
            return f"({left} + {right})" if numbers else f"$add({left}, {right})"
        if isinstance(op, ast.Mod):
            return f"$mod({left}, {right})"
        if isinstance(op, ast.FloorDiv):
            return f"Math.floor({left} / {right})"
        if type(op) not in OPERATORS:
            raise self.wrong(node, type(op).__name__)
        return f"({left} {OPERATORS[type(op)]} {right})"

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        a, b = self.expression(left), self.expression(right)
        match op:
            case ast.Eq() | ast.Is():
                return f"({a} ?? null) === null" if b == "null" else f"$equal({a}, {b})"
            case ast.NotEq() | ast.IsNot():
                return f"({a} ?? null) !== null" if b == "null" else f"!$equal({a}, {b})"
            case ast.In():
                return f"$in({a}, {b})"
            case ast.NotIn():
                return f"!$in({a}, {b})"
        return f"({a} {OPERATORS[type(op)]} {b})"

    def formatted(self, node: ast.expr) -> str:
        """A part of an f-string. Of formats there are `!r`, and `.0f` or the like."""
        match node:
            case ast.Constant():
                return self.expression(node)
            case ast.FormattedValue(value, 114, None):
                return f"$repr({self.expression(value)})"
            case ast.FormattedValue(value, -1, None):
                return f"$text({self.expression(value)})"
            case ast.FormattedValue(value, -1, ast.JoinedStr([ast.Constant(str() as style)])) if (
                style[0] + style[2:] == ".f"
            ):
                return f"({self.expression(value)}).toFixed({style[1]})"
        raise self.wrong(node, "this format")

    def loops(self, generators: list[ast.comprehension], inner: str) -> str:
        first, *rest = generators
        tests = "".join(f"if (!({self.truth(test)})) continue; " for test in first.ifs)
        inside = self.loops(rest, inner) if rest else inner
        return f"for (const {self.pattern(first.target)} of {self.expression(first.iter)}) {{ {tests}{inside} }}"

    def call(self, node: ast.Call) -> str:
        match node:
            case ast.Call(ast.Name("isinstance"), [value, ast.Name("int")]):
                return f"Number.isInteger({self.expression(value)})"
            case ast.Call(ast.Name("isinstance"), [value, ast.Name("bool")]):
                return f"(typeof {self.expression(value)} === 'boolean')"
            case ast.Call(ast.Name("isinstance"), [value, ast.BinOp(ast.Name("int"), ast.BitOr(), ast.Name("float"))]):
                return f"(typeof {self.expression(value)} === 'number')"
        function, keywords = node.func, {k.arg: self.expression(k.value) for k in node.keywords}
        arguments = [self.expression(argument) for argument in node.args]
        match function:
            case ast.Name("getattr"):
                return f"{arguments[0]}[{arguments[1]}]"
            case ast.Name("replace"):
                changes = ", ".join(f"{name}: {value}" for name, value in keywords.items())
                return f"replace({arguments[0]}, {{ {changes} }})"
            case ast.Name("min" | "max" | "sorted" as name):
                many = arguments[0] if len(arguments) == 1 else f"[{', '.join(arguments)}]"
                return f"{name}({many}{', ' + keywords['key'] if keywords else ''})"
            case ast.Attribute(of, "sort"):
                key = keywords["key"]
                return f"{self.expression(of)}.sort((a, b) => $compare({key}(a), {key}(b)))"
            case ast.Attribute(of, name) if name in METHODS and not keywords:
                return METHODS[name].format(self.expression(of), *arguments)
        owner = f"{self.expression(function.value)}." if isinstance(function, ast.Attribute) else ""
        text = owner + (function.attr if isinstance(function, ast.Attribute) else self.expression(function))
        if keywords:
            for name in self.called(node)[len(arguments) :]:
                arguments.append(keywords.pop(name, "undefined"))
            while arguments[-1] == "undefined":
                arguments.pop()
        if keywords:
            raise self.wrong(node, f"the keyword {next(iter(keywords))}")
        return f"{'new ' if self.is_class(function) else ''}{text}({', '.join(arguments)})"

    def called(self, node: ast.Call) -> list[str]:
        """The names of the parameters of what is called."""
        match node.func:
            case ast.Name(name):
                if name in self.parameters:
                    return self.parameters[name]
                if name in self.imports:
                    _, module, theirs = self.imports[name]
                    return self.program[module].parameters[theirs]
            case ast.Attribute(ast.Name(name), attribute) if self.imports.get(name, ("",))[0] == "module":
                return self.program[self.imports[name][1]].parameters[attribute]
            case ast.Attribute(_, attribute):
                found = [m.methods[attribute] for m in (*self.program.values(), self) if attribute in m.methods]
                if found and all(names == found[0] for names in found):
                    return found[0]
        raise self.wrong(node, "a call with keywords of what is not known here")

    def is_class(self, function: ast.expr) -> bool:
        name = function.id if isinstance(function, ast.Name) else ""
        kind = self.imports.get(name, ("", "", ""))
        return (
            name in self.classes
            or name == "ValueError"
            or (kind[0] == "from" and kind[2] in self.program[kind[1]].classes)
        )

"""Which of a program's own classes and functions its expressions may stand for.

A small abstract interpreter without order: all assignments and calls of all modules are applied
until nothing changes. `x.step` may be renamed only where `x` is known to be the program's.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .scopes import FUNCTIONS, Class, Key, Scopes, Token, every_arg

LIB: Token = ("lib", None)
"""A value that a library has made, or Python."""

FLUENT = {
    "to", "cuda", "cpu", "double", "float", "half", "train", "eval", "share_memory", "apply",
    "requires_grad_", "copy", "clone", "unwrapped", "__enter__",
}  # fmt: skip
"""Methods of a library's base class that return the object itself."""
ADDING = {"append", "appendleft", "add", "put", "extend", "insert", "setdefault", "put_nowait"}
PASSING = {
    "list", "tuple", "set", "sorted", "reversed", "iter", "next", "zip", "enumerate", "map", "min",
    "max", "filter", "deepcopy", "copy", "compile", "jit", "vmap", "pmap", "grad", "partial",
    "value_and_grad", "deque", "dict", "Sequential", "ModuleList", "chain", "njit", "script",
    "checkpoint", "cycle", "islice", "product", "random", "choice", "sample", "wraps",
}  # fmt: skip
"""Functions of libraries that return what they were given, or a container of it."""


class Program(Scopes):
    """The possible values of a program's variables, attributes and expressions.

    Attributes:
        values: by variable.
        returns: by function.
        imported: variables that are imported from a library.
        same: by variable that is imported from a module of the program, the variable there.
    """

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        super().__init__(trees)
        self.values: dict[Key, set[Token]] = defaultdict(set)
        self.returns: dict[ast.AST, set[Token]] = defaultdict(set)
        self.imported: set[Key] = set()
        self.same: dict[Key, Key] = {}
        nodes = [node for tree in trees.values() for node in ast.walk(tree)]
        size = -1
        while size != (size := self._size()):
            for node in nodes:
                self._apply(node)

    def _size(self) -> int:
        every = [self.values, self.returns, *(one.attributes for one in self.classes)]
        found = sum(len(tokens) for table in every for tokens in table.values())
        return found + sum(len(c.defined) + len(c.bases) + len(c.libraries) for c in self.classes)

    # --- What statements do -------------------------------------------------------------------

    def _apply(self, node: Any) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            self._store(node.target, self._annotated(node.annotation))
            if node.value is not None:
                self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._store(node.target, self.value(node.value))
        elif isinstance(node, ast.NamedExpr):
            self._assign(node.target, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._store(node.target, self.elements(self.value(node.iter)))
        elif isinstance(node, ast.withitem) and node.optional_vars:
            self._store(node.optional_vars, self.value(node.context_expr))
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returns[self.inside[node]] |= self.value(node.value)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)) and node.value is not None:
            self.returns[self.inside[node]] |= _of(self.value(node.value))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, FUNCTIONS):
            self._define(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self.values[node.scope].add(LIB)

    def _import(self, node: Any) -> None:
        for alias in node.names:
            module = node.module if isinstance(node, ast.ImportFrom) else alias.name
            if module not in self.trees:
                self.imported.add(alias.scope)
                self.values[alias.scope].add(LIB)
            elif isinstance(node, ast.Import):
                self.values[alias.scope].add(("mod", module))
            else:
                self.same[alias.scope] = (module, alias.name)
                self.values[alias.scope] |= self.values[module, alias.name]

    def _class(self, node: Any) -> None:
        one: Class = node.found
        one.libraries = set()
        self._keep(node.scope, node.name, {("cls", one)})
        for base in node.bases:
            tokens = self.value(base)
            for kind, found in tokens:
                if kind == "cls" and found not in one.bases and one not in found.ancestors():
                    one.bases.append(found)
                    found.children.append(one)
            if _last_name(base) != "object" and not any(kind == "cls" for kind, _ in tokens):
                one.libraries.add(_last_name(base))
        one.fields = [
            part.target.id for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]  # fmt: skip

    def _define(self, node: Any) -> None:
        owner = self.owner.get(node)
        if not isinstance(node, ast.Lambda):
            properties = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            node.decorations = properties
            if not node.is_method:
                self._keep(node.scope, node.name, {("fun", node)})
            if node.returns is not None:
                self.returns[node] |= self._annotated(node.returns) - {LIB}
        else:
            self.returns[node] |= self.value(node.body)
        args = [*node.args.posonlyargs, *node.args.args]
        if node.is_method and args and "staticmethod" not in getattr(node, "decorations", ()):
            kind = "cls" if "classmethod" in node.decorations else "inst"
            self.values[args[0].scope].add((kind, owner))
        for arg in every_arg(node.args):
            if arg.annotation is not None:
                self.values[arg.scope] |= self._annotated(arg.annotation)
        for arg, default in zip(reversed(args), reversed(node.args.defaults), strict=False):
            self.values[arg.scope] |= self.value(default)

    def _annotated(self, node: Any) -> set[Token]:
        """The values of a type annotation; a library's where it names nothing of the program."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = {("inst", c) for c in self.classes if c.node.name == node.value.strip()}
            return found or {LIB}
        found = {("inst", one) for kind, one in self.value(node) if kind == "cls"}
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            found = _of({t for part in parts for t in self._annotated(part) if t != LIB})
        if isinstance(node, ast.BinOp):
            found = self._annotated(node.left) | self._annotated(node.right)
        return found or {LIB}

    def _assign(self, target: Any, value: Any) -> None:
        pair = isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple)
        if pair and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other)
        else:
            self._store(target, self.value(value))

    def _store(self, target: Any, tokens: set[Token]) -> None:
        if isinstance(target, ast.Name):
            self._keep(target.scope, target.id, tokens)
        elif isinstance(target, ast.Attribute):
            for kind, one in self.value(target.value):
                if kind in ("inst", "cls"):
                    if not any(target.attr in c.defined for c in one.ancestors()):
                        one.defined.add(target.attr)
                    one.attributes[target.attr] |= tokens
                elif kind == "mod":
                    self.values[one, target.attr] |= tokens
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._store(one, {t[1] if t[0] == "of" else t for t in tokens})
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self._store(target.value, _of(tokens))

    def _keep(self, scope: Any, name: str, tokens: set[Token]) -> None:
        if isinstance(scope, Class):
            scope.attributes[name] |= tokens
        elif scope is not None:
            self.values[scope] |= tokens

    # --- Calls --------------------------------------------------------------------------------

    def callees(self, call: ast.Call) -> list[tuple[Any, int, Class | None]]:
        """The program's functions that a call may enter: node, parameters that it skips, class."""
        found = list[tuple[Any, int, "Class | None"]]()
        for kind, one in self.value(call.func):
            if kind == "fun":
                found.append((one, 0, None))
            elif kind == "meth":
                found.append((one, "staticmethod" not in one.decorations, None))
            elif kind in ("cls", "inst"):
                names = ["__init__", "__new__"] if kind == "cls" else ["__call__", "forward"]
                methods = [c.methods[n] for c in one.ancestors() for n in names if n in c.methods]
                found += [(method, 1, one) for method in methods[:1]]
        return found

    def _call(self, node: ast.Call) -> None:
        given = [self.value(arg) for arg in node.args]
        named = {word.arg: self.value(word.value) for word in node.keywords}
        for function, skip, _ in self.callees(node):
            args = [*function.args.posonlyargs, *function.args.args][skip:]
            for at, (arg, tokens) in enumerate(zip(args, given, strict=False)):
                starred = any(isinstance(one, ast.Starred) for one in node.args[: at + 1])
                every = set().union(*given) if starred else tokens
                self.values[arg.scope] |= every | (self.elements(every) if starred else set())
            for arg in every_arg(function.args):
                self.values[arg.scope] |= named.get(arg.arg, set())
        tokens = self.value(node.func)
        for kind, one in tokens:
            if kind == "cls" and one.fields:
                for name, values in [*zip(one.fields, given, strict=False), *named.items()]:
                    one.attributes[name or ""] |= values
        every = set().union(*given, *named.values())
        if LIB in tokens and not self.callees(node):
            within = every | self.elements(every)
            data = {t for t in within | self.elements(within) if t[0] not in ("fun", "meth")}
            for kind, function in within:  # the library calls it with what it was given
                if kind in ("fun", "meth"):
                    method = kind == "meth"
                    for arg in [*function.args.posonlyargs, *function.args.args][method:]:
                        self.values[arg.scope] |= data | {LIB}
        adds = isinstance(node.func, ast.Attribute) and node.func.attr in ADDING
        if adds and node.args and LIB in tokens:
            self._store(node.func.value, _of(every) | {t for t in every if t[0] == "of"})

    # --- Expressions --------------------------------------------------------------------------

    def elements(self, tokens: Iterable[Token]) -> set[Token]:
        """The values of a container's elements."""
        found = {t[1] if t[0] == "of" else t for t in tokens if t[0] in ("of", "lib")}
        for kind, one in tokens:
            if kind == "inst":
                for name in ("__getitem__", "__iter__", "__next__"):
                    method = next(
                        (c.methods[name] for c in one.ancestors() if name in c.methods), 0
                    )
                    found |= {t[1] if t[0] == "of" else t for t in self.returns.get(method, ())}
        return found

    def value(self, node: Any) -> set[Token]:
        """The possible values of an expression; empty where nothing is known."""
        if isinstance(node, ast.Name):
            if isinstance(node.scope, Class):
                return self._attribute(("inst", node.scope), node.id)
            if node.scope is None:
                return {LIB} if hasattr(builtins, node.id) else set()
            return set(self.values[node.scope])
        if isinstance(node, ast.Attribute):
            return {t for one in self.value(node.value) for t in self._attribute(one, node.attr)}
        if isinstance(node, ast.Call):
            return self._result(node)
        if isinstance(node, ast.Subscript):
            inner = self.value(node.value)
            return inner if isinstance(node.slice, ast.Slice) else self.elements(inner)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return {LIB}.union(*(
                self.value(one.value) if isinstance(one, ast.Starred) else _of(self.value(one))
                for one in node.elts
            ))  # fmt: skip
        if isinstance(node, ast.Dict):
            return {LIB}.union(*(_of(self.value(one)) for one in node.values))
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return {LIB} | _of(self.value(node.elt))
        if isinstance(node, ast.DictComp):
            return {LIB} | _of(self.value(node.value))
        if isinstance(node, ast.Lambda):
            return {("fun", node)}
        if isinstance(node, ast.Constant):
            return set() if node.value is None else {LIB}
        parts = {
            ast.IfExp: ("body", "orelse"), ast.BinOp: ("left", "right"), ast.NamedExpr: ("value",),
            ast.Await: ("value",), ast.Starred: ("value",),
        }.get(type(node), ())  # fmt: skip
        if isinstance(node, ast.BoolOp):
            return set().union(*map(self.value, node.values))
        found = set().union(*(self.value(getattr(node, part)) for part in parts))
        return found if parts and found else {LIB}

    def _attribute(self, token: Token, name: str) -> set[Token]:
        kind, one = token
        if kind == "mod":
            return set(self.values[one, name])
        if kind not in ("inst", "cls"):
            return {LIB}
        found = set[Token]()
        for other in one.family():
            found |= other.attributes.get(name, set())
            if method := other.methods.get(name):
                is_value = {"property", "cached_property"} & getattr(method, "decorations", set())
                found |= self.returns[method] if is_value else {("meth", method)}
        if not one.has(name) and one.from_library():
            found |= {LIB, token} if name in FLUENT else {LIB}
        return found

    def _result(self, node: ast.Call) -> set[Token]:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "super" and (owner := self.owner.get(node)):
            return {("inst", base) for base in owner.bases} | ({LIB} if owner.libraries else set())
        tokens, found = self.value(node.func), set[Token]()
        for kind, one in tokens:
            if kind == "cls":
                found.add(("inst", one))
        for function, _, of in self.callees(node):
            if of is None or ("inst", of) in tokens:
                found |= self.returns[function]
        if LIB in tokens or not found:
            given = [self.value(arg) for arg in node.args] + [
                self.value(word.value) for word in node.keywords
            ]
            every = set().union(*given)
            if tokens:
                found.add(LIB)
            if name in PASSING:
                found |= every | {t for one in every for t in self._returned(one)}
            else:  # it may delegate to an object that it was given
                found |= {("wrap", one) for kind, one in every if kind in ("inst", "wrap")}
                within = every | self.elements(every)
                found |= {t for one in within for t in _of(self._returned(one)) if t != LIB}
            if isinstance(node.func, ast.Attribute):
                on = self.value(node.func.value)
                found |= {t for t in on if t[0] == "of"} | {t[1] for t in on if t[0] == "of"}
                if name in FLUENT:
                    found |= {t for t in on if t[0] == "inst" and not t[1].has(name)}
        return found

    def _returned(self, token: Token) -> set[Token]:
        kind, one = token
        if kind in ("fun", "meth"):
            return self.returns[one]
        return {("inst", one)} if kind == "cls" else set()


def _of(tokens: Iterable[Token]) -> set[Token]:
    """Containers of these values, at most three deep."""
    return {("of", t) for t in tokens if t[0] != "of" or t[1][0] != "of" or t[1][1][0] != "of"}


def _last_name(node: Any) -> str:
    """The name of a base class without its module and its parameters."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return getattr(node, "attr", getattr(node, "id", ""))

"""Decides which names of a program may change, and changes them."""

from __future__ import annotations

import ast
import builtins
import collections
import keyword
from collections.abc import Iterator, Mapping
from typing import Any

from .protocols import (
    ARGUMENT_NAMES,
    BUILTIN,
    BY_STRING,
    COMMAND_LINES,
    LIBRARY,
    PROTOCOL,
    PROTOCOLS,
    READ_BY_GYM,
    RESET,
)
from .scopes import FUNCTIONS, Class, Key, every_arg
from .values import Program


class Renaming:
    """Decides which names of a program change, and changes them.

    Args:
        trees: the program's own modules by name.
        entry: the module that is run.
    """

    def __init__(self, trees: Mapping[str, ast.Module], entry: str) -> None:
        self.trees, self.program = trees, Program(trees)
        self.nodes = [node for tree in trees.values() for node in ast.walk(tree)]
        self.defined = set[str]().union(*(one.defined for one in self.program.classes))
        self.parsed = set(_options(self.nodes))
        self.taken = set(_identifiers(self.nodes))
        self.neutral: dict[tuple[str, str], str] = {}
        self.counts = collections.Counter[str]()
        self.kept_variables = self._fixed_variables()
        self.kept_attributes = self._fixed_attributes()
        self._fix_keywords()
        self.modules = {name: self._name("m", name) for name in trees if name != entry}
        self.modules[entry] = "m0"

    def _name(self, prefix: str, name: str) -> str:
        """The neutral name of a name of this kind, the same one each time."""
        kind = "a" if prefix == "a" else "m" if prefix == "m" else "v"
        while (kind, name) not in self.neutral:
            self.counts[prefix] += 1
            if (new := f"{prefix}{self.counts[prefix]}") not in self.taken:
                self.neutral[kind, name] = new
        return self.neutral[kind, name]

    # --- What stays ---------------------------------------------------------------------------

    def _fixed_variables(self) -> set[Key]:
        """Variables that something outside of the program, or a string, names."""
        found, program = set(self.program.imported), self.program
        strings = {n.value for n in self.nodes if _is_string(n)}
        if any(getattr(node, "attr", "") in ("__name__", "__qualname__") for node in self.nodes):
            found |= {key for key in program.values if key and key[1] in strings}
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and "__all__" in map(_id, node.targets):
                    found |= {
                        (module, one.value) for one in ast.walk(node.value) if _is_string(one)
                    }
                elif isinstance(node, ast.Call) and _id(node.func) in ("globals", "exec", "eval"):
                    found |= {key for key in program.values if key[0] == module}
                elif isinstance(node, ast.Call) and _id(node.func) in ("locals", "vars"):
                    if not node.args:
                        scopes = {a.scope[0] for a in _args(program.inside[node])} | {module}
                        found |= {key for key in program.values if key and key[0] in scopes}
                elif isinstance(node, ast.Call) and (of_strings := self._named_by(node, strings)):
                    found |= {key for key in program.values if key and key[1] in of_strings
                              and key[0] in self.trees}  # fmt: skip
                elif isinstance(node, ast.keyword) and node.arg in ARGUMENT_NAMES:
                    names = {one.value for one in ast.walk(node.value) if _is_string(one)}
                    found |= {key for key in program.parameters if key[1] in names}
                if isinstance(node, ast.Call) and _root(node.func) in COMMAND_LINES:
                    for arg in node.args:
                        for kind, one in program.value(arg):
                            found |= {a.scope for a in _args(one)} if kind == "fun" else set()
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    by_keyword = node.is_method and program.owner[node].from_library()
                    for arg in every_arg(node.args) if by_keyword else ():
                        if arg.arg in RESET or arg in node.args.kwonlyargs:
                            found.add(arg.scope)
                    if {_root(one) for one in node.decorator_list} & COMMAND_LINES:
                        found |= {arg.scope for arg in every_arg(node.args)}
        return found

    def _named_by(self, call: ast.Call, strings: set[str]) -> set[str]:
        """Names that a call such as getattr takes as strings; all strings if it computes them."""
        name = getattr(call.func, "attr", _id(call.func))
        if name not in BY_STRING:
            return set()
        if name in ("call", "object", "patch") and not any(map(_is_string, call.args)):
            return set()
        given = {one.value for arg in call.args for one in ast.walk(arg) if _is_string(one)}
        return given or strings

    def _fixed_attributes(self) -> set[str]:
        """Attributes that a library may read or call, or whose receivers are not certain."""
        program = self.program
        defined = self.defined
        strings = {n.value for n in self.nodes if _is_string(n)}
        kept = {name for name in defined if name.startswith("__") and name.endswith("__")}
        kept |= READ_BY_GYM & defined
        called = {n.attr for n in self.nodes if isinstance(n, ast.Attribute)}
        for one in program.classes:
            slots = one.attributes.get("__slots__")
            if slots is not None:
                kept |= {n.value for n in ast.walk(one.node) if _is_string(n)}
            if one.from_library():
                kept |= one.defined & _protocol(one)
                kept |= {name for name in one.methods if name not in called}
                kept |= {name for name in one.defined - set(one.methods) if name in BUILTIN}
        for node in self.nodes:
            if isinstance(node, ast.Call):
                kept |= self._named_by(node, strings) & defined
                kept |= self._fields(node) & defined
            elif isinstance(node, ast.Attribute) and node.attr in defined:
                if self._belongs(node) is None:
                    kept.add(node.attr)
            elif isinstance(node, ast.MatchClass):
                kept |= set(node.kwd_attrs)
        return kept

    def _fields(self, call: ast.Call) -> set[str]:
        """Fields, such as a dataclass's, that a call has as keywords or reads as options."""
        entered = {
            arg.arg for function, _, _ in self.program.callees(call) for arg in _args(function)
        }
        words = {word.arg for word in call.keywords if word.arg}
        fields = {name for one in self.program.classes for name in one.fields}
        if any(word.arg is None for word in call.keywords):
            for kind, one in self.program.value(call.func):
                words |= set(one.fields) if kind == "cls" else set()
        if _root(call.func) in COMMAND_LINES:
            for kind, one in (pair for arg in call.args for pair in self.program.value(arg)):
                words |= set(one.fields) if kind == "cls" else set()
        return (words - entered) & fields

    def _belongs(self, node: ast.Attribute) -> bool | None:
        """Whether this attribute is the program's; None if it may be either's."""
        name, tokens, root = node.attr, self.program.value(node.value), node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.scope in self.program.imported:
            return False
        ours = any(kind in ("inst", "cls") and one.has(name) for kind, one in tokens)
        wrapped = any(kind == "wrap" and one.has(name) for kind, one in tokens)
        others = any(not (kind in ("inst", "cls") and one.has(name)) for kind, one in tokens)
        if ours and not others:
            return True
        known = name in LIBRARY or name in self.parsed
        if not known and not any(kind == "mod" for kind, _ in tokens):
            return True  # no library's object has it
        if tokens and not ours and not wrapped:
            return False
        return None

    def _fix_keywords(self) -> None:
        """Keep parameters that calls with an uncertain function name; and equal ones with them."""
        program, groups = self.program, list[set[Key]]()
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            functions = [function for function, _, _ in program.callees(node)]
            name = getattr(node.func, "attr", _id(node.func))
            passed = {
                one for arg in [*node.args, *(word.value for word in node.keywords)]
                for kind, one in program.value(arg) if kind in ("fun", "meth")
            }  # fmt: skip
            starred = any(word.arg is None for word in node.keywords)
            for function in functions if starred else ():
                self.kept_variables |= {arg.scope for arg in _args(function)}
            tokens = program.value(node.func)
            for word in node.keywords:
                entered = self._parameters(functions, word.arg)
                if entered:
                    groups.append(entered)
                elif not tokens:  # anything
                    found = {key for key in program.parameters if key[1] == word.arg}
                    self.kept_variables |= found
                elif name == "partial":
                    groups.append(self._parameters(passed, word.arg))
                else:
                    self.kept_variables |= self._parameters(passed, word.arg)
                if word.arg in ("kwargs", "kwds"):
                    names = {one.value for one in ast.walk(word.value) if _is_string(one)}
                    found = {arg.scope for one in passed for arg in _args(one) if arg.arg in names}
                    self.kept_variables |= found
        size = -1
        while size != (size := len(self.kept_variables)):
            for group in groups:
                if group & self.kept_variables:
                    self.kept_variables |= group

    @staticmethod
    def _parameters(functions: Any, name: str | None) -> set[Key]:
        return {arg.scope for one in functions for arg in _args(one, stars=False)
                if arg.arg == name}  # fmt: skip

    # --- Renaming -----------------------------------------------------------------------------

    def variable(self, scope: Any, name: str, prefix: str = "v") -> str:
        """The new name of a variable, function, class or parameter."""
        if isinstance(scope, Class):
            return self.attribute(name) if name in scope.defined else name
        if scope is None or name in ("self", "cls", "_") or name.startswith("__"):
            return name
        if (source := self.program.same.get(scope)) and source[1] == name:
            return self.variable(source, name, prefix)
        for kind, one in self.program.values.get(scope, ()):
            if kind == "mod" and name == one:
                return self.modules[one]
            prefix = {"fun": "f", "cls": "C"}.get(kind, prefix)
        return name if scope in self.kept_variables else self._name(prefix, name)

    def attribute(self, name: str) -> str:
        """The new name of an attribute or method that a class of the program defines."""
        return name if name in self.kept_attributes else self._name("a", name)

    def apply(self) -> dict[str, str]:
        """Return the new source of each module by its new name."""
        changes = [change for node in self.nodes for change in self._changes(node)]
        for node, name, value in changes:
            setattr(node, name, value)
        return {
            self.modules[name]: ast.unparse(_without_docstrings(tree)) + "\n"
            for name, tree in self.trees.items()
        }

    def _changes(self, node: Any) -> Iterator[tuple[Any, str, Any]]:
        """The fields of a node that become something else."""
        if isinstance(node, ast.Name):
            yield node, "id", self.variable(node.scope, node.id)
        elif isinstance(node, ast.arg):
            yield node, "arg", self.variable(node.scope, node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, "name", self.variable(node.scope, node.name, "f")
            annotations = [node.returns, *(arg.annotation for arg in every_arg(node.args))]
            for one in [n for part in annotations if part for n in ast.walk(part)]:
                if _is_string(one):
                    for other in self.program.classes:
                        if other.node.name == one.value:
                            new = self.variable(other.node.scope, one.value, "C")
                            yield one, "value", new
        elif isinstance(node, ast.ClassDef):
            yield node, "name", self.variable(node.scope, node.name, "C")
        elif isinstance(node, ast.Attribute):
            tokens = self.program.value(node.value)
            modules = [one for kind, one in tokens if kind == "mod"]
            if modules:
                yield node, "attr", self.variable((modules[0], node.attr), node.attr)
            elif node.attr in self.defined and self._belongs(node):
                yield node, "attr", self.attribute(node.attr)
        elif isinstance(node, ast.Call):
            functions = [function for function, _, _ in self.program.callees(node)]
            if not functions and getattr(node.func, "attr", _id(node.func)) == "partial":
                tokens = self.program.value(node.args[0])
                functions = [one for kind, one in tokens if kind in ("fun", "meth")]
            for word in node.keywords:
                for key in sorted(self._parameters(functions, word.arg))[:1]:
                    yield word, "arg", self.variable(key, key[1])
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            new = [
                self.variable(scope, name)
                for scope, name in zip(node.scopes, node.names, strict=True)
            ]
            yield node, "names", new
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in self.trees:
                    yield from self._alias(alias, self.modules[alias.name])
        elif isinstance(node, ast.ImportFrom) and node.module in self.trees:
            yield node, "module", self.modules[node.module]
            for alias in node.names:
                new = self.variable((node.module, alias.name), alias.name)
                yield from self._alias(alias, new)
        elif hasattr(node, "scope") and not isinstance(node, ast.alias):  # an exception, a pattern
            yield node, "name", self.variable(node.scope, node.name)

    def _alias(self, alias: Any, new: str) -> Iterator[tuple[Any, str, Any]]:
        yield alias, "name", new
        if alias.asname:
            yield alias, "asname", self.variable(alias.scope, alias.asname)


def _protocol(one: Class) -> frozenset[str]:
    """Names that the libraries of a class's bases call or read."""
    found = set[str]()
    for base in one.from_library():
        kind = "Env" if base.endswith(("Wrapper", "VecEnv")) else base
        ends = [end for end in PROTOCOLS if kind.endswith(end)]
        found |= set(PROTOCOLS[max(ends, key=len)].split()) if ends else PROTOCOL
    return frozenset(found)


def _args(node: Any, stars: bool = True) -> list[Any]:
    if not isinstance(node, FUNCTIONS):
        return []
    every = every_arg(node.args)
    return every if stars else [a for a in every if a not in (node.args.vararg, node.args.kwarg)]


def _id(node: Any) -> str:
    return getattr(node, "id", "")


def _root(node: Any) -> str:
    """The first name of a dotted expression or of a call of one."""
    while not isinstance(node, ast.Name) and hasattr(node, "func") | hasattr(node, "value"):
        node = node.func if hasattr(node, "func") else node.value
    return _id(node)


def _is_string(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _options(nodes: list[ast.AST]) -> Iterator[str]:
    """The attributes that a parsed command line may have: the names of options, and those given
    with `dest`."""
    for node in nodes:
        if _is_string(node) and (text := ast.literal_eval(node)).startswith("-"):
            yield text.lstrip("-").replace("-", "_")
        elif isinstance(node, ast.keyword) and node.arg == "dest" and _is_string(node.value):
            yield ast.literal_eval(node.value)


def _identifiers(nodes: list[ast.AST]) -> Iterator[str]:
    """All names that occur in any way."""
    yield from [*dir(builtins), *keyword.kwlist]
    for node in nodes:
        for name in ("id", "arg", "attr", "name", "asname"):
            if isinstance(found := getattr(node, name, None), str):
                yield found


def _without_docstrings(tree: ast.Module) -> ast.Module:
    reads = any(_id(node) == "__doc__" for node in ast.walk(tree))
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS[:2])) or not node.body:
            continue
        if isinstance(node.body[0], ast.Expr) and _is_string(node.body[0].value):
            is_read = reads and isinstance(node, ast.Module)
            node.body[:1] = [ast.Expr(ast.Constant("A program."))] if is_read else []
            node.body += [] if node.body else [ast.Pass()]
    return ast.fix_missing_locations(tree)

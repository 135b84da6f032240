"""The scopes of a program's names, and its classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, str]
"""A variable: its scope (a module's name, or a function's `module:line:column`), and its name."""
Token = tuple[str, Any]
"""A value: instance or class of a `Class`, function, bound method, module, container, library's."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(eq=False)
class Class:
    """A class of the program.

    Attributes:
        node: its definition.
        bases: the program's classes among its bases.
        libraries: the names of its base classes that are a library's.
        methods: its functions by name.
        defined: the names of all its attributes and methods.
        fields: its annotated class-level names in order, the parameters of a dataclass.
        attributes: the possible values of its attributes.
    """

    node: ast.ClassDef
    bases: list[Class] = field(default_factory=list)
    children: list[Class] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)
    methods: dict[str, Any] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    fields: list[str] = field(default_factory=list)
    attributes: dict[str, set[Token]] = field(default_factory=lambda: defaultdict(set))

    def ancestors(self) -> Iterator[Class]:
        """This class and its bases in the program, nearest first."""
        yield self
        for base in self.bases:
            yield from base.ancestors()

    def family(self) -> Iterator[Class]:
        """The classes that an instance of this one may have its attributes from."""
        yield from self.ancestors()
        for child in self.children:
            yield from child.family_below()

    def family_below(self) -> Iterator[Class]:
        """This class and all that are derived from it."""
        yield self
        for child in self.children:
            yield from child.family_below()

    def has(self, name: str) -> bool:
        """Whether the program defines this attribute of an instance."""
        return any(name in one.defined for one in self.family())

    def from_library(self) -> set[str]:
        """The names of libraries' classes that it is derived from, maybe by way of another one."""
        return set().union(*(one.libraries for one in self.ancestors()))


class Scopes:
    """Where each name of a program's modules is bound.

    Each `Name`, `arg`, definition and alias of the trees gets `scope`: a `Key`, a `Class` for a
    name of its body, or None for a built-in name.

    Attributes:
        trees: the modules by name.
        classes: all classes.
        parameters: the variables that are a function's parameters.
        inside: the function around a node.
        owner: the class around a node.
    """

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self.classes: list[Class] = []
        self.parameters: set[Key] = set()
        self.inside: dict[ast.AST, Any] = {}
        self.owner: dict[ast.AST, Any] = {}
        for module, tree in trees.items():
            self._scopes(tree, [(module, _bound(tree))], None, None)

    def _scopes(self, node: ast.AST, stack: list[Any], function: Any, owner: Any) -> None:
        """Resolve the names below a node; `stack` has (scope, names), innermost last."""
        for child in ast.iter_child_nodes(node):
            self.inside[child] = function
            if owner is not None:
                self.owner.setdefault(child, owner)
            if isinstance(child, (ast.Name, ast.arg)):
                child.scope = resolve(getattr(child, "id", None) or child.arg, stack)
                self._scopes(child, stack, function, owner)
            elif isinstance(child, FUNCTIONS):
                self._function(child, stack, function, owner)
            elif isinstance(child, ast.ClassDef):
                one = Class(child)
                child.scope, child.found = resolve(child.name, stack), one
                self.classes.append(one)
                for part in [*child.decorator_list, *child.bases, *child.keywords]:
                    self._scopes(ast.Expr(part), stack, function, owner)
                body = ast.Module(child.body, [])
                one.defined |= _bound(body)
                self._scopes(body, [*stack, (one, one.defined)], function, one)
            else:
                for at, alias in enumerate(getattr(child, "names", ())):
                    if isinstance(alias, ast.alias):
                        alias.scope = resolve(alias.asname or alias.name.split(".")[0], stack)
                    else:  # a global or nonlocal statement
                        child.scopes = [*getattr(child, "scopes", [])[:at], resolve(alias, stack)]
                has_name = isinstance(getattr(child, "name", None), str)
                if has_name and not isinstance(child, ast.alias):  # an exception, a pattern
                    child.scope = resolve(child.name, stack)
                self._scopes(child, stack, function, owner)

    def _function(self, node: Any, stack: list[Any], function: Any, owner: Any) -> None:
        args = node.args
        where = stack[0][0], getattr(node, "lineno", 0), node.col_offset
        names = _bound(node)
        inner = [*stack, (":".join(map(str, where)), names)]
        node.is_method = owner is not None and stack[-1][0] is owner
        if not isinstance(node, ast.Lambda):
            node.scope = resolve(node.name, stack)
            if node.is_method:
                owner.methods[node.name] = node
        outside = [*getattr(node, "decorator_list", []), *args.defaults, *args.kw_defaults]
        annotations = [a.annotation for a in every_arg(args)] + [getattr(node, "returns", None)]
        for part in [*outside, *annotations]:
            if part is not None:
                self._scopes(ast.Expr(part), stack, function, owner)
        for arg in every_arg(args):
            arg.scope = (inner[-1][0], arg.arg)
            self.parameters.add(arg.scope)
        self.owner[node] = owner
        body = node.body if isinstance(node.body, list) else [ast.Expr(node.body)]
        self._scopes(ast.Module(body, []), inner, node, owner)


def every_arg(args: ast.arguments) -> list[ast.arg]:
    """All parameters of a function."""
    stars = [one for one in (args.vararg, args.kwarg) if one is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *stars]


def resolve(name: str, stack: list[Any]) -> Any:
    """The scope of a name: a `Key`, the innermost `Class`, or None for a built-in name."""
    for depth, (scope, names) in enumerate(reversed(stack)):
        if name in names and (depth == 0 or not isinstance(scope, Class)):
            return scope if isinstance(scope, Class) else (scope, name)
    return None


def _bound(root: Any) -> set[str]:
    """The names that a scope binds itself; comprehensions count to the scope around them."""
    found, outer = set[str](), set[str]()
    if isinstance(root, FUNCTIONS):
        found |= {arg.arg for arg in every_arg(root.args)}
    body = root.body if isinstance(root.body, list) else [root.body]
    nodes = list(body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            nodes += node.decorator_list
            if isinstance(node, ast.ClassDef):
                nodes += node.bases
            else:
                nodes += [one for one in [*node.args.defaults, *node.args.kw_defaults] if one]
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            outer |= set(node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.split(".")[0])
        elif isinstance(getattr(node, "name", None), str):
            found.add(node.name)
        nodes += ast.iter_child_nodes(node)
    return found - outer

"""What the product's errors say, by class: read from the places that raise them.

Comes in: the packages' source. Goes out: for each class of error its texts, in which a value that is known only at work
stands as its name in capitals. What a helper puts together from its own arguments is not found.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from menura.errors import MenuraError

from tests.servers import ROOT

#: who raises them, and where their classes are
COMPONENTS = {
    "agent": ("agent.errors", "agent.sources.mysql.errors", "agent.sources.postgresql.errors"),
    "gateway and control plane": ("gateway.errors", "controlplane_api.errors"),
    "sink and readers of the lake": ("spark_sink.errors",),
}
#: where each raises them
PACKAGES_OF = {
    "agent": ("agent", "proto/menura"),
    "gateway and control plane": ("gateway", "controlplane_api", "proto/menura"),
    "sink and readers of the lake": ("spark_sink", "proto/menura"),
}
#: a value that says nothing by its name
_VALUE = "…"


@dataclass(frozen=True, slots=True)
class Text:
    """One way to say it; empty: that part comes from elsewhere."""

    found: str
    data: str
    remedy: str


@cache
def classes() -> dict[str, dict[str, list[type[MenuraError]]]]:
    """By component and code, in the order of codes."""
    found: dict[str, dict[str, list[type[MenuraError]]]] = {component: defaultdict(list) for component in COMPONENTS}
    for component, modules in COMPONENTS.items():
        for module in modules:
            import_module(module)
        for kind in sorted(_below(MenuraError), key=lambda kind: kind.code):
            if kind.__module__.startswith(modules) and (kind.code != MenuraError.code or kind.__doc__):
                found[component][kind.code].append(kind)
    return found


def texts(code: str, component: str = "") -> list[Text]:
    """Each once, of all classes with the code; of one component, or of all that have the code."""
    found = [
        text
        for name, codes in classes().items()
        if component in ("", name)
        for kind in sorted(codes.get(code, ()), key=lambda kind: kind.__name__)
        for package in PACKAGES_OF[name]
        for text in _by_class().get((package, kind.__name__), ())
    ]
    return list(dict.fromkeys(found))


def meaning(code: str) -> str:
    """The first sentence or two that a class of the code says of itself; empty: its name says it."""
    for codes in classes().values():
        for kind in codes.get(code, ()):
            if kind.__doc__:
                return " ".join(kind.__doc__.split())
    return ""


def is_code(code: str) -> bool:
    return any(code in codes for codes in classes().values())


def _below(kind: type[MenuraError]) -> Iterator[type[MenuraError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


@cache
def _by_class() -> dict[tuple[str, str], list[Text]]:
    """By package and name."""
    names = {kind.__name__ for kind in _below(MenuraError)}
    raised = re.compile(rf"\b(?:{'|'.join(sorted(names))})\(\s*[\"f\w]")
    found: dict[tuple[str, str], list[Text]] = defaultdict(list)
    for package in dict.fromkeys(package for packages in PACKAGES_OF.values() for package in packages):
        for file in sorted((ROOT / package).rglob("*.py")):
            source = file.read_text()
            if file.name == "errors.py" or raised.search(source) is None:
                continue
            tree = ast.parse(source)
            constants = _constants(tree)
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and (name := _called(call)) in names:
                    text = _text(call, constants)
                    if text.found or text.remedy:
                        found[package, name].append(text)
    return found


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Texts that a module gives a name in capitals."""
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }


def _text(call: ast.Call, constants: dict[str, ast.expr]) -> Text:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    found = call.args[1] if len(call.args) > 1 else named.get("found")
    return Text(*(_words(part, constants) for part in (found, named.get("data"), named.get("remedy"))))


def _words(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    """Empty where it is nothing but a value."""
    words = "" if node is None else _spelled(node, constants)
    return words if any(sign.islower() for sign in words) else ""


def _spelled(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(_spelled(value, constants) for value in values)
        case ast.FormattedValue(value=value):
            return _spelled(value, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _spelled(left, constants) + _spelled(right, constants)
        case ast.IfExp(body=body, orelse=other):
            return _spelled(body, constants) or _spelled(other, constants)
        case ast.Name(id=name) if name in constants:
            return _spelled(constants[name], constants)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").upper()
        case _:
            return _VALUE

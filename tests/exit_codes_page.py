"""EXIT_CODES.md, from the classes of errors: `python -m tests.exit_codes_page` writes it anew."""

from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module

from menura.doctor_command import EXIT_CODES
from menura.errors import MenuraError

from tests.servers import ROOT

PAGE = ROOT / "EXIT_CODES.md"
#: what runs them, and where their errors are
COMPONENTS = {
    "`menura agent`": ("agent.errors", "agent.sources.mysql.errors", "agent.sources.postgresql.errors"),
    "`menura gateway`, `api`, `up` and all commands that ask the API": ("gateway.errors", "controlplane_api.errors"),
    "`menura sink`, `lake` and `trace`": ("spark_sink.errors",),
}
HEAD = """# Exit codes

Written from the classes of errors by `python -m tests.exit_codes_page`. An error is one line on standard error, which
begins with its code in capitals. A command that ends with 0 has done what it was asked. For each command 1 is a defect
of Menura or an error without a number of its own, and 2 a wrong command line. What the API refuses ends a command
with 25, whatever the error.
"""


def page() -> str:
    parts = [HEAD, f"## `menura doctor`\n\n{EXIT_CODES[0].upper()}{EXIT_CODES[1:]}\n"]
    for commands, modules in COMPONENTS.items():
        parts.append(f"## {commands}\n\n| code | errors |\n|---|---|\n{_table(modules)}")
    return "\n".join(parts)


def _table(modules: tuple[str, ...]) -> str:
    named: dict[int, set[str]] = defaultdict(set)
    for module in modules:
        import_module(module)
    for kind in below(MenuraError):
        if kind.__module__.startswith(modules) and kind.exit_code != MenuraError.exit_code:
            named[kind.exit_code].add(kind.code)
    return "".join(f"| {code} | {', '.join(sorted(errors))} |\n" for code, errors in sorted(named.items()))


def below(kind: type[MenuraError]) -> Iterator[type[MenuraError]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


if __name__ == "__main__":
    PAGE.write_text(page())

"""The page of all errors, and what a page of the handbook says of one: meaning, texts and remedies, from the code."""

from controlplane_api.errors import ControlPlaneError
from tests.docs_site import error_texts
from tests.docs_site.tables import cell

HEAD = """# Errors

Made from the classes of errors and the places that raise them. A failure is one line: its code, what was being done,
where, what was found, what happened to the data, and what to do. Words in capitals stand for names and values; … for
what only the case at hand can say.
[What to do at night](../failures.md) has them by symptom, [exit codes](exit-codes.md) by number.

*Ends by itself* means that the error goes when its cause does, without a command; all others wait for somebody.
"""
#: of one error; the case at hand has one of them
MOST_TEXTS = 12


def page() -> str:
    parts = [HEAD]
    for component, codes in error_texts.classes().items():
        shown = [code for code in codes if _is_told(component, code)]
        parts.append(f"## Of {component}\n\n" + "\n".join(_entry(component, code) for code in shown))
    return "\n".join(parts)


def _is_told(component: str, code: str) -> bool:
    """Not a class that only others come from."""
    kinds = error_texts.classes()[component][code]
    return bool(error_texts.texts(code, component)) or not all(kind.__subclasses__() for kind in kinds)


def _entry(component: str, code: str) -> str:
    kinds = error_texts.classes()[component][code]
    facts = [f"exit code {kinds[0].exit_code}"] if kinds[0].exit_code != 1 else []
    facts += [f"HTTP {kind.status}" for kind in kinds[:1] if issubclass(kind, ControlPlaneError) and kind.status]
    facts += ["ends by itself"] if not any(kind.terminal for kind in kinds) else []
    fix = next((kind.fix for kind in kinds if issubclass(kind, ControlPlaneError) and kind.fix), "")
    lines = [error_texts.meaning(code), f"Fix: {fix}" if fix else ""]
    meaning = " ".join(cell(line) for line in lines if line)
    told = f"*{', '.join(facts)}*" if facts else ""
    return "\n\n".join(part for part in (f"### {code}", meaning, told, texts(code, component)) if part)


def texts(code: str, component: str = "") -> str:
    """A list of what the error says and wants to be done."""
    lines = []
    for text in error_texts.texts(code, component)[:MOST_TEXTS]:
        said = [_sentence(part) for part in (text.found, text.data) if part]
        done = f"**{_sentence(text.remedy)}**" if text.remedy else ""
        lines.append("- " + " ".join((*said, done)).strip())
    return "\n".join(lines) + "\n"


def _sentence(words: str) -> str:
    """With a capital, if it begins with a word and no name."""
    first = words.split(maxsplit=1)[0]
    text = f"{words[0].upper()}{words[1:]}" if first.isalpha() and first.islower() else words
    return cell(text) + ("" if text.endswith((".", "…")) else ".")

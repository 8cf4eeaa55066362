"""--output table, json or yaml, of commands that print what they have found themselves.

Those that ask the API have the same option by `controlplane_api.commands.options`.
"""

import argparse
import json
import os

TABLE, JSON, YAML = FORMS = ("table", "json", "yaml")
VARIABLE = "MENURA_OUTPUT"


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        "-o",
        type=_form,
        default=os.environ.get(VARIABLE) or TABLE,
        metavar=f"{{{','.join(FORMS)}}}",
        help=f"of what is found (default: the environment's {VARIABLE}, else {TABLE})",
    )


def document(found: object, form: str) -> str:
    """Of values that JSON has."""
    if form == JSON:
        return json.dumps(found, indent=2)
    import yaml  # noqa: PLC0415  (the sink's packages lack it)

    return str(yaml.safe_dump(json.loads(json.dumps(found)), sort_keys=False, allow_unicode=True)).rstrip()


def _form(text: str) -> str:
    if text not in FORMS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(FORMS)}")
    return text

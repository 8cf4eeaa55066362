"""What the API has said, in the form that --output asks for."""

import json

import yaml
from pydantic import BaseModel

from controlplane_api.commands.options import Output, form


def document(found: BaseModel) -> str:
    """JSON, unless the command was asked for YAML."""
    as_json = found.model_dump_json(indent=2)
    if form.output is not Output.YAML:
        return as_json
    return str(yaml.safe_dump(json.loads(as_json), sort_keys=False, allow_unicode=True)).rstrip()

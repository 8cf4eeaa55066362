"""What is in a package: CycloneDX 1.6, as JSON, from the metadata of what was installed and the hashes of the lock.

A lock has hashes of all files of a release; which of them was taken depends on the Python, so all of them stand there.
"""

import json
import re
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.metadata import Distribution


def sbom(found: Collection[Distribution], lock: str, epoch: int) -> str:
    components = [_component(each, _hashes(lock, each.name)) for each in sorted(found, key=lambda each: each.name)]
    (own,) = (each for each in components if each["name"] == "menura")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": own | {"type": "application"},
        },
        "components": [each for each in components if each is not own],
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _component(each: Distribution, hashes: list[str]) -> dict[str, object]:
    name = re.sub(r"[-_.]+", "-", each.name).lower()
    purl = f"pkg:pypi/{name}@{each.version}"
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": each.version,
        "purl": purl,
        "properties": [{"name": "menura:locked-sha256", "value": value} for value in hashes],
    }
    if "License-Expression" in each.metadata:
        component["licenses"] = [{"expression": each.metadata["License-Expression"]}]
    elif "License" in each.metadata:
        component["licenses"] = [{"license": {"name": each.metadata["License"].splitlines()[0]}}]
    elif named := [line for line in each.metadata.get_all("Classifier", []) if line.startswith("License ::")]:
        component["licenses"] = [{"license": {"name": line.rpartition(" :: ")[2]}} for line in named]
    return component


def _hashes(lock: str, name: str) -> list[str]:
    plain = re.sub(r"[-_.]+", "-", name).lower()
    found = re.search(rf"^{re.escape(plain)}==.*\n((?:\s+--hash=sha256:.*\n?)+)", lock, re.MULTILINE)
    return re.findall(r"sha256:([0-9a-f]+)", found[1]) if found else []

"""Entries of a configuration file, from their text."""

from pathlib import Path

import yaml

from agent.config_entries import Entry


def entry_of(folder: Path, text: str) -> Entry:
    """As the file `agent.yaml` would have them for the source `shop`."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node is not None
    return Entry(folder / "agent.yaml", "sources.shop", node)

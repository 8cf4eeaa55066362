"""How a row's key is shown where it differs: the same text at the source and in the lake."""

import json
from collections.abc import Sequence

from menura.row_hash import HashedRows

MOST_CHARACTERS = 256


def key_text(hashed: HashedRows, places: Sequence[int], row: int) -> str:
    """The values of the columns at these places: a JSON array, cut off where it is long."""
    text = json.dumps(hashed.texts(places, row), ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"

"""The token that /metrics of a process needs, and what it answers to those who ask."""

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TOKEN = "4f2a9c"


def token_file(folder: Path, token: str = TOKEN) -> Path:
    """As its owner puts it there: nobody sees half of it."""
    draft = folder / "metrics.token.draft"
    draft.write_text(f"{token}\n")
    draft.chmod(0o600)
    return draft.replace(folder / "metrics.token")


def asked(address: str, token: str | None = None, path: str = "/metrics") -> tuple[int, str]:
    """Status and text."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urlopen(Request(f"http://{address}{path}", headers=headers), timeout=300) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()

"""A signature over SHA256SUMS, by which a database's host knows who built its packages.

Comes in: a private key of RSA or ECDSA as PEM. Goes out: SHA256SUMS.sig, which `openssl dgst -sha256 -verify` reads
with the public half, on any host that has OpenSSL. A kill leaves no signature, or the whole one.
"""

import subprocess
from pathlib import Path

NAME = "SHA256SUMS.sig"
HOW_TO_MAKE = "openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out packages.key"


class KeyRefused(Exception):
    """OpenSSL can't sign with the key; says why."""


def signed(content: bytes, key: Path) -> bytes:
    """Of an RSA key the same bytes for the same content. Raises `KeyRefused`."""
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False)
    except FileNotFoundError as missing:
        raise KeyRefused("there is no openssl, which signs SHA256SUMS") from missing
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        found = said[0] if said else f"it ended with {done.returncode}"
        raise KeyRefused(f"openssl can't sign with {key}: {found}; a key that it can: {HOW_TO_MAKE}")
    return done.stdout


def write_signature(sums: Path, key: Path) -> Path:
    """Beside it. Raises `KeyRefused`."""
    made, draft = sums.with_name(NAME), sums.with_name(f"{NAME}.draft")
    draft.write_bytes(signed(sums.read_bytes(), key))
    draft.replace(made)
    return made

"""PyMySQL without `cryptography`, which it needs for one login alone and the agent would keep: ten MiB.

That login is caching_sha2_password or sha256_password without TLS, where the password goes under the server's RSA key.
The package imports this before anything of PyMySQL is imported; where one of both libraries is there already, all stays
as PyMySQL makes it.
"""

import sys
from collections.abc import Callable

if "cryptography" not in sys.modules and "pymysql" not in sys.modules:
    sys.modules["cryptography"] = None  # type: ignore[assignment]  # to whoever imports it, it is not there
    try:
        from pymysql import _auth
    finally:
        del sys.modules["cryptography"]
    _encrypt: Callable[[bytes, bytes, bytes], bytes] = _auth.sha2_rsa_encrypt

    def _with_library(password: bytes, salt: bytes, public_key: bytes) -> bytes:
        from cryptography.hazmat.backends import default_backend  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415

        vars(_auth).update(
            default_backend=default_backend,
            hashes=hashes,
            serialization=serialization,
            padding=padding,
            _have_cryptography=True,
        )
        return _encrypt(password, salt, public_key)

    _auth.sha2_rsa_encrypt = _with_library

"""What the agent reads of its own certificate, without a library: `cryptography` would stay in memory, ten MiB of it.

Comes in: DER. Goes out: whose it is, when it is good, and its key. No signature is checked here and nothing is trusted
for it: whether a certificate counts is decided by TLS at each connection, and by the gateway.

RFC 5280, section 4.1, of which each element is a tag, a length and a content::

    Certificate     TBSCertificate, algorithm, signature
    TBSCertificate  [0] version, serial, algorithm, issuer, validity, subject, public key, [1], [2], [3] extensions
    Extension       identifier, critical, OCTET STRING; that of subjectAltName has names, of which [6] is a URI
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _OCTETS = 0x30, 0x17, 0x18, 0x04
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
#: 2.5.29.17, and 1.2.840.10045.2.1, as whole elements
_SUBJECT_ALT_NAME = bytes.fromhex("0603551d11")
_EC_PUBLIC_KEY = bytes.fromhex("06072a8648ce3d0201")
#: a length from here on says how many octets it has
_LONG, _MOST_LENGTH_OCTETS = 0x80, 4
_TIME = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})Z")


@dataclass(frozen=True, slots=True)
class Certificate:
    not_before: datetime
    not_after: datetime
    #: of its subjectAltName
    uris: tuple[str, ...]
    #: SubjectPublicKeyInfo, DER
    public_key: bytes

    @property
    def is_of_ec_key(self) -> bool:
        (content,) = _contents(self.public_key, _SEQUENCE)
        algorithm, *_ = _contents(content, _SEQUENCE)
        return algorithm.startswith(_EC_PUBLIC_KEY)


def read_certificate(der: bytes) -> Certificate:
    """Raises ValueError."""
    (certificate,) = _contents(der, _SEQUENCE)
    to_be_signed, *_ = _contents(certificate, _SEQUENCE)
    fields = [field for field in _elements(to_be_signed) if field[0] != _VERSION]
    _serial, _algorithm, _issuer, validity, _subject, key, *others = fields
    begins, ends = _elements(validity[1])
    return Certificate(
        _time(*begins[:2]),
        _time(*ends[:2]),
        tuple(uri for tag, extensions, _ in others if tag == _EXTENSIONS for uri in _uris(extensions)),
        key[2],
    )


def _uris(extensions: bytes) -> Iterator[str]:
    (listed,) = _contents(extensions, _SEQUENCE)
    for extension in _contents(listed, _SEQUENCE):
        if extension.startswith(_SUBJECT_ALT_NAME):
            *_, value = _contents(extension, _OCTETS)
            (names,) = _contents(value, _SEQUENCE)
            yield from (name.decode("ascii") for name in _contents(names, _URI))


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    match = _TIME.fullmatch(text)
    if tag not in (_UTC_TIME, _GENERALIZED_TIME) or match is None:
        raise ValueError("this is no time of a certificate")
    year, month, day, hour, minute, second = map(int, match.groups())
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


def _contents(der: bytes, wanted: int) -> list[bytes]:
    """Of all elements with that tag."""
    return [content for tag, content, _ in _elements(der) if tag == wanted]


def _elements(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, content, and the element as a whole; raises ValueError where the last one is longer than what there is.

    >>> list(_elements(bytes.fromhex("0201050400")))
    [(2, b'\\x05', b'\\x02\\x01\\x05'), (4, b'', b'\\x04\\x00')]
    """
    at = 0
    while at < len(der):
        head, begin = der[at : at + 2], at + 2
        length, octets = head[-1], head[-1] - _LONG
        if octets > 0:
            begin += octets
            length = int.from_bytes(der[at + 2 : begin], "big")
        if len(head) < 2 or octets == 0 or octets > _MOST_LENGTH_OCTETS or begin + length > len(der):
            raise ValueError("this is no DER")
        yield head[0], der[begin : begin + length], der[at : begin + length]
        at = begin + length

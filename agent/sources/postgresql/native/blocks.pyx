"""Frames of a stream of changes that has transactions in progress: where a block begins and ends, and its messages as
they are outside of one.

Protocol version 2 puts changes of a transaction that has not ended yet between Stream Start and Stream Stop. Each
message there has the number of its (sub)transaction behind its letter:

::

    CopyData      d   4 length   w   8 where the data begin   8 WAL end   8 time   a message of pgoutput
    a message     1 letter   4 xid   as in version 1

Nothing is interpreted but lengths and letters; every length is checked against what is there.

Source: PostgreSQL's manual, "Logical Replication Message Formats"; logicalrep_write_* in proto.c.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from agent.columnar.received cimport MOST_BYTES
from agent.sources.postgresql.native.frames cimport be32

cdef enum:
    # up to a message's letter, and behind it: 'd', length, 'w' and its head
    LETTER_AT = 30
    XID_END = 35
    HEAD_BYTES = 26


class BlockError(Exception):
    """Bytes that can't be read; the text holds no value."""


cdef inline bint is_control(uint8_t letter) noexcept nogil:
    return letter == c"S" or letter == c"E" or letter == c"c" or letter == c"A"


cdef inline bint is_streamed(uint8_t letter) noexcept nogil:
    return (
        letter == c"I" or letter == c"U" or letter == c"D" or letter == c"T" or letter == c"Y" or letter == c"M"
        or letter == c"O"
    )


def scan(const uint8_t[::1] data, size_t at, bint in_block, bint has_open):
    """Step over frames that need no judgement.

    Gives where the next one begins; its letter, '' where more bytes have to come; and how many bytes are missing of a
    frame whose beginning was stepped over. Outside of a block those to judge are control messages, and with `has_open`
    Begin and Relation; in one they are all but changes. '!' is one whose length is impossible.
    """
    cdef size_t end = data.shape[0], there, length
    cdef uint8_t kind = 0, letter = 0
    with nogil:
        while True:
            there = end - at
            if there < 5:
                kind = 0
                break
            kind = data[at]
            length = <size_t> be32(&data[at + 1]) + 1
            if length < 5 or length >= MOST_BYTES:
                kind = 1
                break
            if kind == c"d" and length > LETTER_AT:
                if there <= LETTER_AT:
                    kind = 0
                    break
                if data[at + 5] == c"w":
                    letter = data[at + LETTER_AT]
                    if (
                        is_control(letter)
                        or (has_open and (letter == c"B" or letter == c"R"))
                        or (in_block and not is_streamed(letter))
                    ):
                        kind = letter if there >= length else 0
                        break
                    at += length
                    if at > end:
                        kind = 0
                        break
                    continue
            if in_block or there < length:
                kind = c"k" if there >= length else 0
                break
            at += length
    if kind == 1:
        return at, "!", 0
    return min(at, end), chr(kind) if kind else "", at - end if at > end else 0


def unwrap(const uint8_t[::1] data, set aborted):
    """Frames of blocks as those of a version 1 stream, without those of `aborted` (sub)transactions.

    Gives bytes; how many of `data` were taken; and how many bytes of the last frame are missing, negative where it is
    left out. A frame is taken once its beginning is there.
    """
    cdef size_t at = 0, begin, end = data.shape[0], length, size, out = 0
    cdef uint32_t xid, last_xid = 0
    cdef bint is_known = False, leaves_out = False
    cdef uint8_t letter
    cdef uint8_t* to
    found = bytearray(end)
    to = <uint8_t*> PyByteArray_AS_STRING(found)
    while end - at >= XID_END:
        begin = at
        length = <size_t> be32(&data[at + 1]) + 1
        if length < XID_END or length >= MOST_BYTES:
            raise BlockError("a change that ends before its transaction's number")
        letter = data[at + LETTER_AT]
        at += length
        size = min(at, end) - begin
        if letter == c"O":
            leaves_out = True
            is_known = False
        else:
            xid = be32(&data[begin + LETTER_AT + 1])
            if not is_known or xid != last_xid:
                leaves_out = bool(aborted) and xid in aborted
                last_xid, is_known = xid, True
        if not leaves_out:
            length -= 5
            to[out] = c"d"
            to[out + 1] = (length >> 24) & 0xFF
            to[out + 2] = (length >> 16) & 0xFF
            to[out + 3] = (length >> 8) & 0xFF
            to[out + 4] = length & 0xFF
            memcpy(to + out + 5, &data[begin + 5], HEAD_BYTES)
            memcpy(to + out + LETTER_AT + 1, &data[begin + XID_END], size - XID_END)
            out += size - 4
        if at > end:
            break
    PyByteArray_Resize(found, out)
    missing = <object> (at - end) if at > end else 0
    return found, min(at, end), -missing if leaves_out else missing

"""Changes of a JSON value (`binlog_row_value_options=PARTIAL_JSON`) applied to the value before, as the server's text.

Comes in: the binary JSON before and a list of changes. Goes out: the text that `SELECT` prints of the value after. Only
what lies on the path of a change is taken apart into Python objects; all else is printed from where it is. Takes the
GIL, once per such value. A change that does not fit the value before is an error, never left out.

::

    per change:  1 operation (0 replace, 1 insert, 2 remove)   path: length-encoded size, text
                 replace, insert: length-encoded size, binary JSON
    path         '$', then legs: .name, ."name", [number], [last], [last-number]
"""

import json
import re

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from agent.columnar.column cimport Column, Row, end_text, mark_valid
from agent.columnar.values cimport fail
from agent.sources.mysql.native.binary_json cimport (
    LARGE_ARRAY, MOST_DEPTH, Container, Member, Printer, find_member, open_container, print_quoted, print_value, put
)
from agent.sources.mysql.native.inner cimport read_length

cdef enum:
    REPLACE = 0
    INSERT = 1
    REMOVE = 2

cdef object LEG = re.compile(
    rb'\.(?:("(?:[^"\\]|\\.)*")|([^."\[]+))|\[(?:([0-9]{1,10})|last(?:-([0-9]{1,10}))?)\]', re.DOTALL
)
cdef enum:
    PATH_HEAD = 36  # '$'


class DiffError(Exception):
    """Why the changes can't be applied; no value."""


cdef class Slice:
    """A value as it is in the event."""

    cdef uint8_t kind
    cdef const uint8_t* at
    cdef size_t size


# What a document is while it is changed: a Slice, or what was taken apart: a dict of keys in UTF-8, or a list.
cdef class Document:
    cdef object root
    # Members may share their bytes, but as many as there are bytes can't be genuine.
    cdef size_t most_members

    cdef object expand(self, Slice value):
        """The container as a list or dict of slices; any other value as it is."""
        cdef Container container
        cdef Member member
        cdef size_t i
        if value.kind > LARGE_ARRAY:
            return value
        if not open_container(&container, value.kind, value.at, value.size):
            raise DiffError("a JSON document that ends too early")
        if container.count > self.most_members:
            raise DiffError("a JSON document whose parts overlap")
        self.most_members -= container.count
        keys, members = [], []
        for i in range(container.count):
            if not find_member(&container, i, &member):
                raise DiffError("a JSON document that ends too early")
            members.append(slice_of(member.kind, member.value, member.value_size))
            if container.is_object:
                keys.append(PyBytes_FromStringAndSize(<const char*> member.key, member.key_size))
        return dict(zip(keys, members, strict=True)) if container.is_object else members

    cdef object seek(self, legs):
        """The container that the path leads to, taken apart with all those above it."""
        if isinstance(self.root, Slice):
            self.root = self.expand(self.root)
        value = self.root
        for leg in legs:
            place = existing(value, leg)
            inside = value[place]
            if isinstance(inside, Slice):
                inside = value[place] = self.expand(inside)
            value = inside
        return value

    cdef int change(self, int operation, legs, value) except -1:
        if not legs or len(legs) > MOST_DEPTH:
            raise DiffError("a JSON change of no part of the value")
        leg = legs.pop()
        parent = self.seek(legs)
        if operation == REPLACE:
            parent[existing(parent, leg)] = value
        elif operation == REMOVE:
            del parent[existing(parent, leg)]
        elif isinstance(parent, dict) and isinstance(leg, bytes) and leg not in parent:
            parent[leg] = value
        elif isinstance(parent, list) and isinstance(leg, tuple):
            parent.insert(index_of(parent, leg), value)
        else:
            raise DiffError("a JSON change that does not fit the value before")
        return 0


cdef Slice slice_of(uint8_t kind, const uint8_t* at, size_t size):
    cdef Slice made = Slice.__new__(Slice)
    made.kind, made.at, made.size = kind, at, size
    return made


cdef object existing(container, leg):
    """The key or the index of what the leg names."""
    if isinstance(container, dict) and leg in container:
        return leg
    if isinstance(container, list) and isinstance(leg, tuple) and leg[0] < len(container):
        return index_of(container, leg)
    raise DiffError("a JSON change that does not fit the value before")


cdef object index_of(list container, tuple leg):
    """`leg` is (number, whether it counts from the end); what would stand before the first element is the first."""
    number, from_end = leg
    return max(len(container) - 1 - number, 0) if from_end else number


cdef list legs_of(const uint8_t* at, size_t size):
    """A key in bytes, or (number, whether it counts from the end) of an array, for each leg of the path."""
    cdef size_t end = 1
    path = PyBytes_FromStringAndSize(<const char*> at, size)
    legs = []
    if size == 0 or at[0] != PATH_HEAD:
        raise DiffError("a JSON path that can't be read")
    while end < size:
        leg = LEG.match(path, end)
        if leg is None:
            raise DiffError("a JSON path that can't be read")
        end = leg.end()
        quoted, name, number, from_end = leg.groups()
        if quoted is not None:
            try:
                legs.append(json.loads(quoted, strict=False).encode())
            except ValueError:
                raise DiffError("a JSON path that can't be read") from None
        elif name is not None:
            legs.append(name)
        elif number is not None:
            legs.append((int(number), False))
        else:
            legs.append((int(from_end or 0), True))
    return legs


cdef int decode_json_diff(
    Column* column, Row* row, const uint8_t* before, size_t before_size, const uint8_t* diffs, size_t diffs_size
) noexcept nogil:
    """Append the text of the value after; results as those of any value's decoder."""
    with gil:
        return apply(column, row, before, before_size, diffs, diffs_size)


cdef int apply(
    Column* column, Row* row, const uint8_t* before, size_t before_size, const uint8_t* diffs, size_t diffs_size
) noexcept:
    cdef Printer printer
    cdef Document document
    try:
        document = Document.__new__(Document)
        if before_size == 0:
            raise DiffError("a JSON change of an empty value")
        document.root = slice_of(before[0], before + 1, before_size - 1)
        document.most_members = before_size + diffs_size
        apply_all(document, diffs, diffs + diffs_size)
        printer.column, printer.row = column, row
        printer.most_bytes = column.text.size + 32 * (before_size + diffs_size) + 64
        if print_node(&printer, document.root, 0) < 0:
            return -1
    except DiffError as error:
        why = str(error).encode()
        return fail(row, PyBytes_AS_STRING(why))
    except MemoryError:
        return fail(row, b"out of memory")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0


cdef int apply_all(Document document, const uint8_t* at, const uint8_t* end) except -1:
    cdef uint64_t path_size, value_size
    cdef int operation
    while at < end:
        operation = at[0]
        at += 1
        if operation > REMOVE:
            raise DiffError("a JSON change of unknown kind")
        if not read_length(&at, end, &path_size) or path_size > <uint64_t> (end - at):
            raise DiffError("a JSON change that ends too early")
        legs = legs_of(at, path_size)
        at += path_size
        value = None
        if operation != REMOVE:
            if not read_length(&at, end, &value_size) or value_size > <uint64_t> (end - at) or value_size == 0:
                raise DiffError("a JSON change that ends too early")
            value = slice_of(at[0], at + 1, value_size - 1)
            at += value_size
        document.change(operation, legs, value)
    return 0


cdef int print_node(Printer* printer, node, int depth) except -2:
    """As binary_json.print_value; an object's keys in the server's order: shorter ones first, then by their bytes."""
    cdef Slice value
    cdef bytes key
    if isinstance(node, Slice):
        value = node
        return print_value(printer, value.kind, value.at, value.size, depth)
    if depth >= MOST_DEPTH:
        return fail(printer.row, b"a JSON document deeper than 100")
    is_object = isinstance(node, dict)
    if put(printer, b"{" if is_object else b"[", 1) < 0:
        return -1
    for i, item in enumerate(sorted(node, key=key_order) if is_object else node):
        if i and put(printer, b", ", 2) < 0:
            return -1
        if is_object:
            key = item
            if print_quoted(printer, <const uint8_t*> PyBytes_AS_STRING(key), len(key)) < 0:
                return -1
            if put(printer, b": ", 2) < 0:
                return -1
            item = node[item]
        if print_node(printer, item, depth + 1) < 0:
            return -1
    return put(printer, b"}" if is_object else b"]", 1)


def key_order(bytes key):
    return len(key), key

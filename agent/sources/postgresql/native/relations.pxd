"""The tables that the stream has announced: their compiled forms by the number of the relation."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memmove

from agent.sources.postgresql.native.plan cimport Plan


cdef struct Relation:
    uint32_t oid
    # NULL: its rows are stepped over
    Plan* plan


# By oid, ascending.
cdef struct Relations:
    Relation* relations
    size_t count
    size_t capacity
    # where the last one was found
    size_t last


cdef inline size_t place_of(const Relations* relations, uint32_t oid) noexcept nogil:
    """Where it is, or belongs."""
    cdef size_t low = 0, high = relations.count, middle
    while low < high:
        middle = (low + high) // 2
        if relations.relations[middle].oid < oid:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline Relation* find_relation(Relations* relations, uint32_t oid) noexcept nogil:
    """The relation, or NULL."""
    if relations.last >= relations.count or relations.relations[relations.last].oid != oid:
        relations.last = place_of(relations, oid)
        if relations.last == relations.count or relations.relations[relations.last].oid != oid:
            return NULL
    return relations.relations + relations.last


cdef inline bint put_relation(Relations* relations, uint32_t oid, Plan* plan) noexcept nogil:
    """False: no memory."""
    cdef Relation* found = find_relation(relations, oid)
    cdef size_t place, capacity
    cdef void* memory
    if found != NULL:
        found.plan = plan
        return True
    if relations.count == relations.capacity:
        capacity = relations.capacity * 2 if relations.capacity else 64
        memory = realloc(relations.relations, capacity * sizeof(Relation))
        if memory == NULL:
            return False
        relations.relations = <Relation*> memory
        relations.capacity = capacity
    place = place_of(relations, oid)
    found = relations.relations + place
    memmove(found + 1, found, (relations.count - place) * sizeof(Relation))
    found.oid = oid
    found.plan = plan
    relations.count += 1
    return True


cdef inline void drop_relation(Relations* relations, uint32_t oid) noexcept nogil:
    cdef Relation* found = find_relation(relations, oid)
    if found == NULL:
        return
    relations.count -= 1
    memmove(found, found + 1, (relations.count - (found - relations.relations)) * sizeof(Relation))

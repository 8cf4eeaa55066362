"""The numbers of decimal128: two's complements of 16 bytes."""

cdef extern from *:
    """
    typedef unsigned __int128 menura_uint128;
    """
    ctypedef unsigned long long uint128 "menura_uint128"

/* XXH64 of values, as Spark SQL's `xxhash64` chains it: the hash of a column is the seed of the next one's.
 *
 * The algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Bytes are read in the machine's order,
 * which is little-endian wherever this is built. */
#ifndef MENURA_XXH64_H
#define MENURA_XXH64_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values are hashed as they stand in memory, which must be little-endian"
#endif

static const uint64_t MENURA_P1 = 0x9E3779B185EBCA87ULL, MENURA_P2 = 0xC2B2AE3D27D4EB4FULL,
                      MENURA_P3 = 0x165667B19E3779F9ULL, MENURA_P4 = 0x85EBCA77C2B2AE63ULL,
                      MENURA_P5 = 0x27D4EB2F165667C5ULL;

static inline uint64_t menura_rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static inline uint64_t menura_round(uint64_t sum, uint64_t lane) {
    return menura_rotated(sum + lane * MENURA_P2, 31) * MENURA_P1;
}

static inline uint64_t menura_finished(uint64_t hash) {
    hash = (hash ^ hash >> 33) * MENURA_P2;
    hash = (hash ^ hash >> 29) * MENURA_P3;
    return hash ^ hash >> 32;
}

static inline uint64_t menura_hash_int(uint32_t value, uint64_t seed) {
    uint64_t hash = (seed + MENURA_P5 + 4) ^ value * MENURA_P1;
    return menura_finished(menura_rotated(hash, 23) * MENURA_P2 + MENURA_P3);
}

static inline uint64_t menura_hash_long(uint64_t value, uint64_t seed) {
    uint64_t hash = (seed + MENURA_P5 + 8) ^ menura_round(0, value);
    return menura_finished(menura_rotated(hash, 27) * MENURA_P1 + MENURA_P4);
}

static inline uint64_t menura_read8(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static inline uint64_t menura_hash_bytes(const uint8_t *at, uint64_t size, uint64_t seed) {
    const uint8_t *end = at + size;
    uint64_t hash;
    if (size >= 32) {
        uint64_t lanes[4] = {seed + MENURA_P1 + MENURA_P2, seed + MENURA_P2, seed, seed - MENURA_P1};
        int i;
        for (; end - at >= 32; at += 32)
            for (i = 0; i < 4; i++) lanes[i] = menura_round(lanes[i], menura_read8(at + 8 * i));
        hash = menura_rotated(lanes[0], 1) + menura_rotated(lanes[1], 7) + menura_rotated(lanes[2], 12) +
               menura_rotated(lanes[3], 18);
        for (i = 0; i < 4; i++) hash = (hash ^ menura_round(0, lanes[i])) * MENURA_P1 + MENURA_P4;
    } else {
        hash = seed + MENURA_P5;
    }
    hash += size;
    for (; end - at >= 8; at += 8)
        hash = menura_rotated(hash ^ menura_round(0, menura_read8(at)), 27) * MENURA_P1 + MENURA_P4;
    if (end - at >= 4) {
        uint32_t value;
        memcpy(&value, at, 4);
        hash = menura_rotated(hash ^ value * MENURA_P1, 23) * MENURA_P2 + MENURA_P3;
        at += 4;
    }
    for (; at < end; at++) hash = menura_rotated(hash ^ *at * MENURA_P5, 11) * MENURA_P1;
    return menura_finished(hash);
}

/* A decimal of more than 18 digits: its bytes as Java's BigInteger.toByteArray gives them, big-endian and as few as keep
 * the sign. */
static inline uint64_t menura_hash_decimal(const uint8_t *little, uint64_t seed) {
    uint8_t big[16];
    const uint8_t sign = little[15] & 0x80 ? 0xFF : 0;
    int first = 0, i;
    for (i = 0; i < 16; i++) big[i] = little[15 - i];
    while (first < 15 && big[first] == sign && (big[first + 1] & 0x80) == (sign & 0x80)) first++;
    return menura_hash_bytes(big + first, (uint64_t) (16 - first), seed);
}

#endif

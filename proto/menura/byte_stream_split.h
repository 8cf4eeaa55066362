/* BYTE_STREAM_SPLIT (as Parquet calls it): the first bytes of all values, then all second bytes, and so on.
 *
 *     values of 4 bytes   A0 A1 A2 A3  B0 B1 B2 B3  C0 C1 C2 C3     split   A0 B0 C0  A1 B1 C1  A2 B2 C2  A3 B3 C3
 *
 * Numbers, times and offsets that differ little have equal bytes at the same place, which compression then meets in
 * long runs. menura_split and menura_join are each other's inverse; widths are 2, 4, 8 and 16.
 *
 * Sixteen values are as many vectors of 16 bytes as a value has bytes. A byte's place among them is written in bits:
 * value (4), byte of the value (1 to 4). Interleaving the two halves of all vectors turns that number by one bit to the
 * left. Four turns put the byte before the value: split; as many turns as the byte has bits put it back: joined.
 */
#ifndef MENURA_BYTE_STREAM_SPLIT_H
#define MENURA_BYTE_STREAM_SPLIT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t menura_vector __attribute__((vector_size(16)));

#define MENURA_LOW(a, b) \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define MENURA_HIGH(a, b) \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

static inline __attribute__((always_inline)) void menura_turn(menura_vector *v, const int width, const int turns) {
    menura_vector next[16];
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < width / 2; i++) {
            next[2 * i] = MENURA_LOW(v[i], v[i + width / 2]);
            next[2 * i + 1] = MENURA_HIGH(v[i], v[i + width / 2]);
        }
        for (int i = 0; i < width; i++) v[i] = next[i];
    }
}

static inline __attribute__((always_inline)) void menura_split_of(
    const uint8_t *values, uint8_t *split, size_t count, const int width
) {
    menura_vector v[16];
    size_t at = 0;
    for (; at + 16 <= count; at += 16) {
        for (int i = 0; i < width; i++) memcpy(&v[i], values + at * width + 16 * i, 16);
        menura_turn(v, width, 4);
        for (int i = 0; i < width; i++) memcpy(split + i * count + at, &v[i], 16);
    }
    for (; at < count; at++)
        for (int i = 0; i < width; i++) split[i * count + at] = values[at * width + i];
}

static inline __attribute__((always_inline)) void menura_join_of(
    const uint8_t *split, uint8_t *values, size_t count, const int width, const int bits
) {
    menura_vector v[16];
    size_t at = 0;
    for (; at + 16 <= count; at += 16) {
        for (int i = 0; i < width; i++) memcpy(&v[i], split + i * count + at, 16);
        menura_turn(v, width, bits);
        for (int i = 0; i < width; i++) memcpy(values + at * width + 16 * i, &v[i], 16);
    }
    for (; at < count; at++)
        for (int i = 0; i < width; i++) values[at * width + i] = split[i * count + at];
}

/* `from` and `into` hold count * width bytes each; a width of another size moves nothing. */
static inline void menura_split(const uint8_t *from, uint8_t *into, size_t count, int width) {
    if (width == 2) menura_split_of(from, into, count, 2);
    else if (width == 4) menura_split_of(from, into, count, 4);
    else if (width == 8) menura_split_of(from, into, count, 8);
    else if (width == 16) menura_split_of(from, into, count, 16);
}

static inline void menura_join(const uint8_t *from, uint8_t *into, size_t count, int width) {
    if (width == 2) menura_join_of(from, into, count, 2, 1);
    else if (width == 4) menura_join_of(from, into, count, 4, 2);
    else if (width == 8) menura_join_of(from, into, count, 8, 3);
    else if (width == 16) menura_join_of(from, into, count, 16, 4);
}

#endif

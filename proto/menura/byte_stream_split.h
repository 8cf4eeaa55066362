/* BYTE_STREAM_SPLIT (as Parquet calls it): the first bytes of all values, then all second bytes, and so on.
 *
 *     values of 4 bytes   A0 A1 A2 A3  B0 B1 B2 B3  C0 C1 C2 C3     split   A0 B0 C0  A1 B1 C1  A2 B2 C2  A3 B3 C3
 *
 * Numbers, times and offsets that differ little have equal bytes at the same place, which compression then meets in
 * long runs. menura_split and menura_join are each other's inverse; widths are 2, 4, 8 and 16, those of texts of one
 * length (menura_split_texts, menura_join_texts) any.
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

/* Values of any width are taken in columns of 16 bytes: of the last one, the bytes behind the value are left out. */
static inline size_t menura_columns_bytes(size_t width, size_t from) { return width - from < 16 ? width - from : 16; }

/* `size` is 1 to 16: two moves that overlap in place of a loop. */
static inline void menura_copy_some(uint8_t *into, const uint8_t *from, size_t size) {
    if (size >= 8) {
        memcpy(into, from, 8);
        memcpy(into + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
        memcpy(into, from, 4);
        memcpy(into + size - 4, from + size - 4, 4);
    } else {
        into[0] = from[0];
        into[size / 2] = from[size / 2];
        into[size - 1] = from[size - 1];
    }
}

static inline void menura_split_texts(const uint8_t *values, uint8_t *split, size_t count, size_t width) {
    menura_vector v[16];
    for (size_t from = 0; from < width; from += 16) {
        const size_t bytes = menura_columns_bytes(width, from);
        size_t at = 0;
        for (; at + 16 <= count; at += 16) {
            const uint8_t *first = values + at * width + from;
            if (bytes == 16)
                for (int i = 0; i < 16; i++) memcpy(&v[i], first + i * width, 16);
            else
                for (int i = 0; i < 16; i++) menura_copy_some((uint8_t *)&v[i], first + i * width, bytes);
            menura_turn(v, 16, 4);
            for (size_t i = 0; i < bytes; i++) memcpy(split + (from + i) * count + at, &v[i], 16);
        }
        for (; at < count; at++)
            for (size_t i = 0; i < bytes; i++) split[(from + i) * count + at] = values[at * width + from + i];
    }
}

static inline void menura_join_texts(const uint8_t *split, uint8_t *values, size_t count, size_t width) {
    menura_vector v[16];
    for (size_t from = 0; from < width; from += 16) {
        const size_t bytes = menura_columns_bytes(width, from);
        size_t at = 0;
        for (; at + 16 <= count; at += 16) {
            for (size_t i = 0; i < bytes; i++) memcpy(&v[i], split + (from + i) * count + at, 16);
            menura_turn(v, 16, 4);
            for (int i = 0; i < 16; i++) menura_copy_some(values + (at + i) * width + from, (uint8_t *)&v[i], bytes);
        }
        for (; at < count; at++)
            for (size_t i = 0; i < bytes; i++) values[at * width + from + i] = split[(from + i) * count + at];
    }
}

#endif

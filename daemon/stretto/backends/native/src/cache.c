// Keys and values on their way into the cache.
#include "cache.h"

#include <string.h>

static size_t element_bytes(int format) { return format == KV_F32 ? 4 : format == KV_BF16 ? 2 : 1; }

KvLayout kv_layout(int format, int head_size, int block_tokens) {
    KvLayout kv = {.format = format, .head_size = head_size, .block_tokens = block_tokens};
    kv.padded = (block_tokens + PANEL - 1) / PANEL * PANEL;
    kv.values_at = (size_t)head_size * (size_t)kv.padded * element_bytes(format);
    kv.key_scales_at = kv.values_at + (size_t)head_size * (size_t)block_tokens * element_bytes(format);
    const size_t groups = format == KV_INT8 ? (size_t)(head_size + KV_GROUP - 1) / KV_GROUP : 0;
    kv.value_scales_at = kv.key_scales_at + groups * (size_t)kv.padded * sizeof(uint16_t);
    kv.head_bytes = kv.value_scales_at + groups * (size_t)kv.padded * sizeof(uint16_t);
    return kv;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 64);  // a NaN stays one
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

// Numbers `stride` elements apart.
static void write_floats(uint8_t *to, size_t stride, const float *from, int count, int format) {
    uint16_t *halves = (uint16_t *)(void *)to;
    float *floats = (float *)(void *)to;
    for (int i = 0; i < count; i++) {
        if (format == KV_BF16) halves[(size_t)i * stride] = to_bf16(from[i]);
        else floats[(size_t)i * stride] = from[i];
    }
}

static void write_int8(const Kernels *kernels, const KvLayout *kv, uint8_t *to, size_t stride, uint8_t *scales_to,
                       const float *from, int spread) {
    int8_t values[HEAD_MOST];
    uint16_t scales[HEAD_MOST / KV_GROUP];
    kernels->pack_head(from, kv->head_size, spread, values, scales);
    if (stride == 1) memcpy(to, values, (size_t)kv->head_size);
    else
        for (int i = 0; i < kv->head_size; i++) to[(size_t)i * stride] = (uint8_t)values[i];
    uint16_t *halves = (uint16_t *)(void *)scales_to;
    for (int group = 0; group * KV_GROUP < kv->head_size; group++) halves[group * kv->padded] = scales[group];
}

void kv_write(const Kernels *kernels, const KvLayout *kv, uint8_t *head, int offset, const float *key, const float *value) {
    const size_t at = (size_t)offset, element = element_bytes(kv->format), padded = (size_t)kv->padded;
    uint8_t *keys = head + at * element, *values = head + kv->values_at + at * (size_t)kv->head_size * element;
    if (kv->format == KV_INT8) {
        write_int8(kernels, kv, keys, padded, head + kv->key_scales_at + at * sizeof(uint16_t), key, 1);
        write_int8(kernels, kv, values, 1, head + kv->value_scales_at + at * sizeof(uint16_t), value, 0);
        return;
    }
    write_floats(keys, padded, key, kv->head_size, kv->format);
    write_floats(values, 1, value, kv->head_size, kv->format);
}

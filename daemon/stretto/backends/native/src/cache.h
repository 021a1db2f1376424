// How one KV head's keys and values lie in a block of the cache, and how they get there.
#ifndef STRETTO_CACHE_H
#define STRETTO_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

KvLayout kv_layout(int format, int head_size, int block_tokens);
// One token's key and value, [head_size] each, into place `offset` of a head's part of a block.
void kv_write(const Kernels *kernels, const KvLayout *kv, uint8_t *head, int offset, const float *key, const float *value);

#endif

// Memory that steps work in: one allocation a kind, grown to the largest step so far.
#include <stdlib.h>

#include "state.h"

// A new, larger block instead of `*memory`; the contents are not kept.
static int renew(void **memory, size_t bytes) {
    free(*memory);
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    return *memory != NULL;
}

int room_for_rows(Model *model, int rows) {
    if (rows <= model->rows_room) return 1;
    const Plan *plan = &model->plan;
    rows = (rows + LANES_MOST - 1) / LANES_MOST * LANES_MOST;
    const size_t n = (size_t)rows, widest = (size_t)plan->widest;
    size_t bytes = 0;
    int done = 1;
    model->rows_room = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        done &= renew((void **)&model->buffers[i], n * (size_t)model->widths[i] * sizeof(float));
        bytes += n * (size_t)model->widths[i] * sizeof(float);
    }
    Activations *x = &model->quantised;
    done &= renew((void **)&model->rotations, n * (size_t)plan->rope_dims * sizeof(float));
    done &= renew((void **)&x->values, n * widest);
    done &= renew((void **)&x->fine, n * widest);
    done &= renew((void **)&x->scales, n * widest / GROUP * sizeof(float));
    done &= renew((void **)&x->sums, n * widest / GROUP * sizeof(float));
    done &= renew((void **)&x->halves, n * widest / PANEL * sizeof(float));
    done &= renew((void **)&model->positions, n * sizeof(int32_t));
    done &= renew((void **)&model->tile_of_row, n * sizeof(int32_t));
    done &= renew((void **)&model->wanted, n * sizeof(int32_t));
    done &= renew((void **)&model->tiles, n * sizeof(Tile));
    if (!done) return 0;
    model->rows_room = rows;
    model->scratch_bytes = bytes + n * (2 * widest + widest / 2 + (size_t)plan->rope_dims * sizeof(float));
    return 1;
}

int room_for_units(Model *model, int units, int partials) {
    if (units > model->units_room) {
        model->units_room = 0;
        if (!renew((void **)&model->units, (size_t)units * sizeof(Unit))) return 0;
        model->units_room = units;
    }
    if (partials > model->partials_room) {
        model->partials_room = 0;
        if (!renew((void **)&model->partials, (size_t)partials * partial_floats(model) * sizeof(float))) return 0;
        model->partials_room = partials;
    }
    return 1;
}

void free_scratch(Model *model) {
    for (int i = 0; model->buffers && i < model->plan.buffer_count; i++) free(model->buffers[i]);
    free(model->buffers);
    free(model->rotations);
    free(model->quantised.values);
    free(model->quantised.fine);
    free(model->quantised.scales);
    free(model->quantised.sums);
    free(model->quantised.halves);
    free(model->positions);
    free(model->tile_of_row);
    free(model->wanted);
    free(model->tiles);
    free(model->units);
    free(model->partials);
    free(model->attention);
    free(model->progress);
}

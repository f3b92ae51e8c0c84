/*
 * Opened clusters: sizes and scratch of a call.
 */
#include "cuda/open/open.h"

/* of all warps together, if these are more than 64 */
static const int64_t MOST_CANDIDATES = (int64_t)1 << 26;

static int at_most(int64_t x, int64_t most) { return (int)(x < most ? x : most); }

static void set_sizes(hti_open_args *o, const ht_attention_desc *d) {
    const hti_cuda_args &a = o->a;
    o->open = at_most(d->open, (a.length + 1) / 2);
    o->leaf_level = 1;
    while (o->leaf_level < 40 && (int64_t)1 << (o->leaf_level + 1) <= d->open_leaf) o->leaf_level++;
    o->peek = d->open_peek < 0 ? 0 : (int)d->open_peek;
    o->most = at_most(2 * (int64_t)a.block, a.length + 2) + 2 * o->open;
    int64_t warps = MOST_CANDIDATES / o->most, work = a.rows * a.q_heads;
    warps = warps > 8192 ? 8192 : warps < 64 ? 64 : warps;
    if (warps > work) warps = work;
    o->warps = (int)((warps + HTI_OPEN_WARPS - 1) / HTI_OPEN_WARPS * HTI_OPEN_WARPS);
    o->stride = (a.rows >> 1) + a.rows / (2 * (int64_t)a.block) + 2;
}

static void carve_opened(hti_carver *c, hti_opened *list, const hti_open_args *o) {
    int64_t rows = o->a.q_heads * o->a.rows;
    list->list = c->take<int>(rows * o->open);
    list->row = c->take<int>(rows * o->open);
    list->count = c->take<int>(rows);
    list->first = c->take<int>(o->a.q_heads * o->stride);
}

void hti_open_carve(hti_carver *c, hti_open_args *o, const ht_attention_desc *d, int backward) {
    set_sizes(o, d);
    int64_t warps = o->warps, parts = (int64_t)o->a.bias_parts * o->a.q_heads;
    if (d->has_bias && backward && parts > warps) warps = parts; /* dq with a bias */
    int64_t room = warps * o->most,
            least = o->most > 8192 ? MOST_CANDIDATES + 64 * (int64_t)o->most : 0;
    if (room < least) room = least; /* of a smaller call, too */
    o->order = c->take<uint32_t>(room);
    o->lists = c->take<int>(room);
    if (!backward || o->a.levels < 2) return;
    carve_opened(c, &o->now, o);
    carve_opened(c, &o->above, o);
    o->cursor = c->take<int>(o->a.q_heads * o->stride);
    o->dk0 = c->take<float>(o->a.kv_heads * o->a.rows * o->a.head_dim);
    o->dv0 = c->take<float>(o->a.kv_heads * o->a.rows * o->a.value_dim);
}

/*
 * Several processes, one command.
 */
#include "base/ranks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool ranks_find(ranks *r, cli_error *error) {
    *r = (ranks){.place = HT_PLACE_INIT};
    if (ht_place_find(&r->place) != HT_OK) return cli_fail(error, "%s", ht_context_error(NULL));
    if (r->place.rank > 0 && !freopen("/dev/null", "w", stdout))
        return cli_fail(error, "rank %d could not be silent", r->place.rank);
    return true;
}

static int gpus(void) {
    int count = 0;
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) == HT_OK)
            count += info.available && strncmp(info.name, "cuda:", 5) == 0;
    }
    return count;
}

const char *ranks_device(ranks *r, const char *device) {
    int count = r->place.ranks > 1 && device && strcmp(device, "auto") == 0 ? gpus() : 0;
    if (count == 0) return device;
    snprintf(r->device, sizeof r->device, "cuda:%d", r->place.local_rank % count);
    return r->device;
}

/* Processors that this process may use, of those there are. */
int64_t ranks_threads(const ranks *r, int64_t threads) {
    if (threads > 0 || r->place.local_ranks < 2) return threads;
    ht_context *ctx;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu";
    if (ht_context_create(&ctx, &desc) != HT_OK) return threads;
    int64_t all = sysconf(_SC_NPROCESSORS_ONLN), mine = ht_context_threads(ctx);
    ht_context_destroy(ctx);
    if (mine < all) return mine; /* mpirun and srun bind processes to cores */
    return mine > r->place.local_ranks ? mine / r->place.local_ranks : 1;
}

bool ranks_open(ranks *r, ht_context *ctx, cli_error *error) {
    r->ctx = ctx;
    if (r->place.ranks < 2) return true;
    if (ht_world_open(&r->world, ctx) == HT_OK) return true;
    r->agreed = !ranks_first(r); /* what one of them lacks, all do */
    return cli_fail(error, "%s", ht_context_error(ctx));
}

bool ranks_agree(ranks *r, bool good, cli_error *error) {
    char why[sizeof error->text];
    if (!r->world || r->agreed) return good;
    snprintf(why, sizeof why, "%s", good ? "" : error->text);
    if (ht_world_agree(r->world, good ? NULL : why) == HT_OK) return true;
    r->agreed = true;
    return good ? cli_fail(error, "%s", ht_context_error(r->ctx)) : false;
}

void ranks_step(ranks *r, int64_t step) {
    uint64_t sent = ht_world_sent(r->world);
    if (r->first == 0) r->first = step, r->at_first = sent;
    r->last = step, r->at_last = sent;
}

void ranks_print(const ranks *r, const ht_trainer *trainer) {
    int64_t steps = r->last - r->first;
    if (!r->world || steps < 1) return;
    printf("%d ranks over %s: each sends %.6f MB in a step, keeps %.6f MB of moments\n",
           r->place.ranks, ht_world_link(r->world),
           (double)(r->at_last - r->at_first) / (double)steps / 1e6,
           (double)ht_trainer_moments(trainer) / 1e6);
}

void ranks_close(ranks *r, const char *command, const cli_error *failed) {
    bool others = ht_world_told(r->world) || r->agreed,
         ours = strncmp(failed ? failed->text : "", "rank ", 5) == 0;
    char who[64] = "";
    if (!ranks_first(r) && !ours)
        snprintf(who, sizeof who, "rank %d of %d: ", r->place.rank, r->place.ranks);
    if (failed && (ranks_first(r) || !others)) cli_say(command, "%s%s", who, failed->text);
    /* rank 0 has spoken before a launcher that sees one of them fail ends the others */
    if (r->world && r->agreed) ht_world_agree(r->world, NULL);
    ht_world_close(r->world, failed && !r->agreed ? failed->text : NULL);
    r->world = NULL;
}

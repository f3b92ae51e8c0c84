/*
 * The public header from C++: it compiles, links, and its macros initialise.
 */
#include "htransformer.h"

#include <cstring>

int main() {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    ht_attention_desc plan = HT_ATTENTION_DESC_INIT;
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    ht_attention_grads grads = HT_ATTENTION_GRADS_INIT;
    ht_attention_need need = HT_ATTENTION_NEED_INIT;
    ht_device_info info = HT_DEVICE_INFO_INIT;
    bool sized = desc.size == sizeof desc && plan.size == sizeof plan && args.size == sizeof args &&
                 grads.size == sizeof grads && need.size == sizeof need;
    bool zeroed = !desc.device && plan.q_heads == 0 && !args.q.data && !grads.dbias;
    bool linked = ht_device_get(0, &info) == HT_OK && std::strcmp(ht_status_name(HT_OK), "OK") == 0;
    return sized && zeroed && linked ? 0 : 1;
}

// the public headers, alone and twice, as C++
#include <htransformer_models.h>

#include <htransformer.h>
#include <htransformer_models.h>
int version() { return ht_version()[0]; }

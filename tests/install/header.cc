// the public header, alone and twice, as C++
#include <htransformer.h>
#include <htransformer.h>
int version() { return ht_version()[0]; }

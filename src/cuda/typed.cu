/*
 * The table of the kernels of one 16-bit type.
 */
#include "cuda/typed.h"
#include "cuda/full/full.h"

using namespace HTI_KERNELS;

const hti_typed HTI_TYPED = {
    hti_tile_scratch,         hti_tile_forward,          hti_tile_backward,
    hti_narrow_saved,         hti_narrow_set_saved,      hti_narrow_backward_shared,
    hti_narrow_forward,       hti_narrow_backward,       hti_hier_saved,
    hti_hier_forward_scratch, hti_hier_backward_scratch, hti_hier_forward,
    hti_hier_backward,        hti_fine_scratch,          hti_fine_forward,
    hti_full_forward,         hti_full_backward,
};

#!/bin/sh
# Runs a program in several processes of this machine, by the launcher of the MPI that the build
# found: launch.sh MPIEXEC RANKS PROGRAM ARGUMENT...
# More processes than cores are fine, and so is root in a container.
set -u
mpiexec=$1 ranks=$2
shift 2
if [ ! -x "$mpiexec" ]; then
    echo "skipped: there is no MPI here to start processes with"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
# what Open MPI and its plug-ins never free is not ours to look for
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
exec "$mpiexec" -n "$ranks" "$@"

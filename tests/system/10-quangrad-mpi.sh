#!/bin/bash
# QuanGrad and the in-band vote between real MPI ranks, and what libagoq_mpi.so shows to the outside.
. "$(dirname "$0")/lib.sh"

program=$BUILD/tests/mpi/quangrad_mpi
for n in 1 2 3 4 5 8; do
    check "all_reduce and reduce_scatter, $n ranks" run_mpi $n "$program" grid
done
check "messages cut into pieces, 3 ranks" run_mpi 3 "$program" split
check "messages cut into pieces, 2 ranks" run_mpi 2 "$program" split
check "one rank calls with another count, 4 ranks" run_mpi 4 "$program" mismatch
check "one rank calls with another count, 2 ranks" run_mpi 2 "$program" mismatch
check "one rank's arguments are refused, 4 ranks" run_mpi 4 "$program" refuse
check "one rank's arguments are refused, 2 ranks" run_mpi 2 "$program" refuse
check "several communicators, 5 ranks" run_mpi 5 "$program" comms
check "vote over MPI, 4 ranks" run_mpi 4 "$program" vote
check "vote over MPI, 1 rank" run_mpi 1 "$program" vote

exports_only_agoq() {
    local names
    names=$(nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
    echo "$names" | grep -v '^agoq_' && return 1
    [ -n "$names" ]
}
for lib in libagoq.so libagoq_mpi.so; do
    check "$lib exports only agoq_*" exports_only_agoq "$BUILD/$lib"
done

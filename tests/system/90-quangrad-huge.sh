#!/bin/bash
# More than 2^31 elements over MPI. Needs 12 GiB of memory and about a minute.
. "$(dirname "$0")/lib.sh"

export MPI_LIMIT=280
for n in 2 3; do
    name="all_reduce of 2^31 + 128077 elements, $n ranks"
    if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 12 ]; then
        skip "$name" "less than 12 GiB of memory available"
        continue
    fi
    check "$name" run_mpi $n "$BUILD/tests/mpi/quangrad_mpi" huge
done

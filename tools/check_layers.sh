#!/bin/bash
# Fails on an include that points upwards: include <- common <- {kernels, planner, proto} <- {libagoq, agoqd, agoqctl} <-
# {trainer, tests, bench}; and on GPU or MPI headers where programs must build on any machine.
set -u
cd "$(dirname "$0")/.."
bad=0
deny() { # FOLDER PATTERN WHY [BUT]
    local hits
    hits=$(git grep -nE "^#include [\"<]($2)" -- "$1" 2> /dev/null | grep -vE "\"(${4:-none})\"")
    [ -z "$hits" ] || { printf '%s\n' "$hits" | sed "s|^|$3: |"; bad=1; }
}
programs='libagoq/|agoqd/|agoqctl/|trainer/|tests/|bench/'
deny include "common/|kernels/|planner/|proto/|$programs" "include/ stands alone"
deny common "kernels/|planner/|proto/|$programs" "common/ is below"
deny kernels "planner/|proto/|$programs|zmq|yaml|agoq\.pb-c" "kernels/ knows no daemon, wire or config"
deny planner "kernels/|proto/|$programs|zmq|yaml|agoq\.pb-c" "planner/ is pure"
deny proto "kernels/|planner/|$programs|zmq|yaml" "proto/ is below"
deny libagoq "agoqd/|agoqctl/|trainer/|tests/|bench/" "libagoq/ is below"
deny agoqd "libagoq/|agoqctl/|trainer/|tests/|bench/" "agoqd/ stands beside libagoq"
deny agoqctl "libagoq/|trainer/|tests/|bench/" "agoqctl/ is below"
deny agoqctl "agoqd/" "agoqctl/ reads configuration files as agoqd does, and knows nothing else of it" "agoqd/(conf|yaml)\.h"
deny trainer "common/|kernels/|planner/|proto/|libagoq/|agoqd/|agoqctl/|tests/|bench/" "trainer/ uses the public API only"
for folder in agoqd agoqctl planner proto common; do deny "$folder" "cuda|nccl|mpi\.h|kernels/" "$folder/ builds on any machine"; done
[ $bad = 0 ] && echo "layers: ok"
exit $bad

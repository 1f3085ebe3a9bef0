#!/bin/bash
# The rules of the house that a command can check. usage: check_style.sh [BUILD]
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
bad=0
empty() { # WHY < lines
    local lines
    lines=$(cat)
    [ -z "$lines" ] && return
    printf '%s\n' "$lines" | head -10 | sed "s|^|$1: |"
    return 1
}
code=(':(glob)**/*.c' ':(glob)**/*.h' ':(glob)**/*.cu' ':(glob)**/*.cuh')
for lib in "$build"/libagoq.so.* "$build"/libagoq_mpi.so.*; do
    [ -e "$lib" ] || continue # not built
    nm -D --defined-only "$lib" | awk '$2 != "A" {print $3}' | grep -v '^agoq_' | empty "exported, not agoq_*" || bad=1
done
git grep -nE '\b(exit|abort|printf|fprintf|getenv)\(' -- libagoq kernels planner proto 'common/*.c' |
    grep -vE 'common/log\.c|libagoq/env\.c|snprintf' | empty "libraries never exit, print or read the environment" || bad=1
git grep -nE '<<<' -- "${code[@]}" ':!kernels/cuda' ':!tests/gpu' | empty "launches belong in kernels/cuda and its tests" || bad=1
git grep -nE '\basm( volatile)?\b' -- kernels ':!kernels/cuda/ptx.cuh' | empty "inline assembly belongs in ptx.cuh" || bad=1
git grep -nE 'use_fast_math|Ofast|ffast-math' -- ':!docs' ':!tools/check_style.sh' | empty "fast math" || bad=1
git grep -nE 'cudaMalloc|cudaDeviceSynchronize' -- kernels libagoq ':!libagoq/comm_nccl*' | empty "kernels never allocate or synchronise" || bad=1
git grep -nE '\b(malloc|calloc|realloc|strdup|free)\(' -- libagoq kernels planner proto agoqd agoqctl common ':!common/mem.c' |
    grep -vE 'mem_(alloc|zalloc|realloc|strdup|free)\(|open_memstream|^[^:]*:[0-9]+: *(/?\*|//)' | empty "memory goes through common/mem.h" || bad=1
git grep -nE '\b(TODO|FIXME|XXX)\b' -- "${code[@]}" '*.py' '*.sh' ':!tools/check_style.sh' | grep -v '#[0-9]' | empty "left open" || bad=1
git grep -nE '[A-Za-z0-9]__[A-Za-z]' -- "${code[@]}" |
    grep -vE 'AGOQ__|agoq__|Agoq__|__(attribute|extension|int128|device|host|global|forceinline|restrict|builtin|LINE|FILE|func|VA_ARGS)' |
    empty "reserved identifier" || bad=1
git ls-files "${code[@]}" '*.py' '*.sh' | xargs wc -l | awk '$1 > 400 && $2 != "total"' | empty "over 400 lines" || bad=1
git ls-files "${code[@]}" | xargs awk '
    FNR == 1 { start = 0 }
    /^[a-zA-Z].*\) *\{$/ || (/^[a-zA-Z].*\($/) { start = FNR; name = $0 }
    /^ +.*\) *\{$/ && !start { start = FNR; name = $0 }
    /^}/ { if (start && FNR - start + 1 > 80) print FILENAME ":" start ": " FNR - start + 1 " lines: " name; start = 0 }' |
    empty "function over 80 lines" || bad=1
# A test includes the file's own header or the header that declares it (its first include), or the folder's facade.
for f in $(git ls-files 'agoqd/*.c' 'common/*.c' 'proto/*.c' 'planner/*.c'); do
    [ "$(basename "$f")" != main.c ] || continue
    first=$(sed -n 's|^#include "\(.*\)"|\1|p' "$f" | head -1)
    git grep -qE "include \"(${f%.c}.h|$first|$(dirname "$f")/$(dirname "$f").h)\"" -- tests || echo "$f"
done | empty "no test includes its header" || bad=1
for f in $(git ls-files "${code[@]}"); do head -c 3 "$f" | grep -q '^/\*' || echo "$f"; done | empty "no purpose at the top" || bad=1
[ $bad = 0 ] && echo "style: ok"
exit $bad

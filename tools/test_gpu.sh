#!/bin/bash
# What `make test-gpu` runs, and what runs on another machine from a carried build folder: the GPU tests, then
# compute-sanitizer on a few small cases of each operation. Without a GPU everything is skipped and counted as such.
# usage: BUILD=build tools/test_gpu.sh [quick]
set -u
cd "$(dirname "$0")/.."
build=${BUILD:-build}
passed=0 failed=0 skipped=0
run() {
    local name=$1 out rc
    shift
    out=$("$@" 2>&1)
    rc=$?
    echo "$out"
    passed=$((passed + $(grep -c '^ok ' <<< "$out")))
    failed=$((failed + $(grep -c '^not ok ' <<< "$out")))
    if [ $rc = 77 ]; then
        skipped=$((skipped + $(sed -n 's/^skipped: .*, \([0-9]*\) tests$/\1/p' <<< "$out")))
    elif [ $rc != 0 ] && ! grep -q '^not ok ' <<< "$out"; then
        echo "not ok $name: exit status $rc"
        failed=$((failed + 1))
    fi
}
run test_parity "$build/tests/gpu/test_parity"
run test_rules "$build/tests/gpu/test_rules"
[ "${1:-}" = quick ] || run test_scalar "$build/tests/gpu/test_scalar"
sanitizer=$(command -v compute-sanitizer || ls /opt/nvidia/nsight-compute/*/host/*/sanitizer/compute-sanitizer /usr/local/cuda/bin/compute-sanitizer 2> /dev/null | head -1)
for tool in memcheck racecheck; do
    if [ $skipped -gt 0 ]; then
        skipped=$((skipped + 1))
    elif [ -z "$sanitizer" ]; then
        echo "skipped: $tool, no compute-sanitizer"
        skipped=$((skipped + 1))
    else
        run $tool "$sanitizer" --tool $tool --error-exitcode 9 "$build/tests/gpu/test_parity" small
    fi
done
[ $skipped -eq 0 ] || echo "skipped: $skipped"
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/bin/bash
# Runs test programs (cmocka) and system scripts (`ok NAME`, `not ok NAME`, `skip NAME: why` lines), counts cases, and
# ends with "N passed, N failed". A program that crashes, hangs past its limit or runs no case is a failure.
set -u
: "${BUILD:=build}"
export BUILD
limit=${AGOQ_TEST_LIMIT:-300}
passed=0 failed=0 skipped=0
mkdir -p "$BUILD/test-logs"
for test in "$@"; do
    name=$(basename "$test")
    log=$BUILD/test-logs/$name.log
    start=$(date +%s.%N)
    timeout -k 5 "$limit" "$test" > "$log" 2>&1 < /dev/null
    rc=$?
    ok=$(grep -cE '^(ok |\[       OK \])' "$log")
    bad=$(grep -E '^(not ok |\[  FAILED  \] [A-Za-z_0-9]+$)' "$log" | sort -u | wc -l) # cmocka names a failure twice
    skip=$(grep -E '^(skip |\[  SKIPPED \] [A-Za-z_0-9]+$)' "$log" | sort -u | wc -l)
    if [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
        echo "$name: exit status $rc$([ $rc -eq 124 ] && echo " (over ${limit} s)")"
    fi
    if [ $((ok + bad + skip)) -eq 0 ]; then
        bad=1
        echo "$name: ran no case"
    fi
    took=$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f", $1-$2}')
    printf '  %-28s %4d ok %3d failed %3d skipped %7s s\n' "$name" "$ok" "$bad" "$skip" "$took"
    [ "$bad" -eq 0 ] || { grep -E '^(not ok|\[  FAILED|.*: error: Failure)|Error|assert|ERROR' "$log" | head -20; echo "  -> $log"; }
    grep -E '^skip ' "$log"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
[ $skipped -eq 0 ] || echo "skipped: $skipped (the lines above say why)"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]

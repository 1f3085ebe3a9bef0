#!/bin/bash
# The whole quick suite under ASan + UBSan, and the library's and daemon's units, API tests and fault scripts under TSan.
# Own build folders below $BUILD, kept, so that a second run only runs.
. "$(dirname "$0")/lib.sh"
export CUDA=no
mkdir -p "$BUILD/test-logs"

sanitized() { # NAME SAN TESTS...
    local name=$1 san=$2
    shift 2
    if ! make -s -j2 BUILD="$BUILD/$name" SAN="$san" DEBUG=0 all tests-bin > "$tmp/$name.build" 2>&1; then
        not_ok "$name builds" "$(tail -n 3 "$tmp/$name.build" | tr '\n' ' ')"
        return
    fi
    ok "$name builds"
    local test log
    for test in "$@"; do
        case $test in */*) ;; *) test=$BUILD/$name/tests/unit/$test ;; esac
        log=$tmp/$(basename "$test").log
        if BUILD=$BUILD/$name timeout -k 5 900 "$test" > "$log" 2>&1; then
            ok "$name $(basename "$test")"
        else
            cp "$log" "$BUILD/test-logs/$name-$(basename "$test").log"
            not_ok "$name $(basename "$test")" "$(grep -E 'ERROR|WARNING: Thread|runtime error|not ok|FAILED' "$log" | head -n 3 | tr '\n' ' ')"
        fi
    done
}

# Leaks of Open MPI and the like are not ours; those of our programs without MPI are looked for.
cat > "$tmp/lsan.supp" << 'S'
leak:libmpi
leak:libopen-pal
leak:libopen-rte
leak:libpmix
leak:mca_
leak:libevent
S
export LSAN_OPTIONS=suppressions=$tmp/lsan.supp:print_suppressions=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:ignore_noninstrumented_modules=1

# shellcheck disable=SC2046
units=$(make -s print-units)
# shellcheck disable=SC2086
sanitized asan address,undefined $units tests/system/20-daemon-faults.sh tests/system/40-trainer.sh tests/system/55-faults.sh
# shellcheck disable=SC2086
sanitized tsan thread $(printf '%s\n' $units | grep -E 'session|vote|link|quangrad|agoqd|cycle|budget') \
    tests/system/20-daemon-faults.sh tests/system/52-observed.sh

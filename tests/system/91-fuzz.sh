#!/bin/bash
# libFuzzer on every parser for FUZZ_SECONDS each (default 30): wire, YAML, command line. Skipped without clang.
. "$(dirname "$0")/lib.sh"
mkdir -p "$BUILD/test-logs"
seconds=${FUZZ_SECONDS:-30}
if ! echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return !d && n; }' |
    clang -fsanitize=fuzzer,address -x c - -o "$tmp/probe" 2> /dev/null; then
    skip fuzz "clang with libFuzzer is not installed (clang libclang-rt-dev)"
    exit 0
fi
for target in $(make -s print-fuzz); do
    if ! make -s BUILD="$BUILD/fuzz" CC=clang SAN=fuzzer-no-link,address,undefined CUDA=no "$BUILD/fuzz/tests/fuzz/$target" > "$tmp/build" 2>&1; then
        not_ok "$target builds" "$(tail -n 3 "$tmp/build" | tr '\n' ' ')"
        continue
    fi
    mkdir -p "$tmp/corpus-$target"
    if "$BUILD/fuzz/tests/fuzz/$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 \
        -artifact_prefix="$BUILD/test-logs/$target-" "$tmp/corpus-$target" > "$tmp/log" 2>&1; then
        ok "$target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$tmp/log") runs"
    else
        not_ok "$target" "$(grep -E 'ERROR|SUMMARY|runtime error' "$tmp/log" | head -n 2 | tr '\n' ' ')"
    fi
done

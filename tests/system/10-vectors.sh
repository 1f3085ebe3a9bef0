#!/bin/bash
# The committed test vectors are what the generator writes today.
. "$(dirname "$0")/lib.sh"
check "vectors: the generator runs" python3 tools/make_vectors.py "$tmp/vectors"
for name in int e4m3 philox adam half; do
    check "vectors: $name.txt is what it writes" cmp "$tmp/vectors/$name.txt" "tests/vectors/$name.txt"
done

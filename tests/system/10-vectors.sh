#!/bin/bash
# The committed test vectors are what the generator writes today: the same files, byte for byte.
. "$(dirname "$0")/lib.sh"
check "vectors: the generator runs" python3 tools/make_vectors.py "$tmp/vectors"
for name in int grad philox adam half rows thresholds; do
    check "vectors: $name.txt is what it writes" cmp "$tmp/vectors/$name.txt" "tests/vectors/$name.txt"
done
check "vectors: it writes no other file, and there is none" diff <(ls "$tmp/vectors") <(ls tests/vectors)
check "vectors: the worked examples of docs/FORMATS.md are what the rules give" \
    env PYTHONPATH=tools python3 -B -m exact.examples docs/FORMATS.md

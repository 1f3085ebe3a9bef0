#!/bin/bash
# Reports of memory trouble elsewhere, each a job file with the figures beside it: what simulate must answer (tests/planner/cases.py).
. "$(dirname "$0")/lib.sh"
python3 tests/planner/cases.py "$BUILD/agoqctl" tests/planner/cases/*.yaml > "$tmp/out" 2> "$tmp/err" || not_ok "cases run to their end" "$(tail -n 2 "$tmp/err" | tr '\n' ' ')"
cat "$tmp/out"
n_failed=$((n_failed + $(grep -c '^not ok ' "$tmp/out")))
n=$(ls tests/planner/cases/*.yaml | wc -l)
for file in tests/planner/cases/*.yaml; do
    grep -q "^ok $(basename "$file" .yaml): " "$tmp/out" || not_ok "$(basename "$file")" "says nothing that holds"
done
[ "$n" -ge 24 ] && ok "$n cases" || not_ok "$n cases" "there were 24"

#!/bin/bash
# The plan comes from what ranks hold: one extra micro-batch kept alive on a stage changes the plan, and the reason says so.
. "$(dirname "$0")/lib.sh"
. tests/system/e2e.sh
BUDGET=1000KiB start_daemon
run() { # NAME ARGS...
    local name=$1
    shift
    train "$name" 4 --pp 4 --dp 1 --steps 2000 "$@" &
    job=$!
    wait_for 60 planned "$name" || not_ok "$name: a plan is in force" "$(tail -n 3 "$tmp/$name.out" | tr '\n' ' ')"
    "$BUILD/agoqctl" --json plan explain > "$tmp/$name.json"
    "$BUILD/agoqctl" plan explain > "$tmp/$name.txt"
    "$BUILD/agoqctl" --json plan show | python3 -c 'import json,sys
for s in json.load(sys.stdin)["stages"]: print(s["stage"], s["widths"])' > "$tmp/$name.widths"
    [ -s "$tmp/$name.widths" ] || not_ok "$name: widths are shown" "none"
    stop $job
    wait_for 20 eval '[ "$(ask "r[\"status\"][\"ranks_live\"]" status)" = 0 ]' || not_ok "$name: ranks leave" "$("$BUILD/agoqctl" status | tr '\n' ' ')"
}
run plain
run extra --hold-extra 1
live() { python3 -c "import json,sys; print([sum(s['live']) for s in json.load(open(sys.argv[1]))['stages']])" "$tmp/$1.json"; }
[ "$(live plain)" = "[4, 3, 2, 1]" ] && ok "observed live micro-batches as 1F1B's formula" || not_ok "observed live micro-batches as 1F1B's formula" "$(live plain)"
[ "$(live extra)" = "[4, 4, 2, 1]" ] && ok "the extra micro-batch is observed" || not_ok "the extra micro-batch is observed" "$(live extra)"
cmp -s "$tmp/plain.widths" "$tmp/extra.widths" && not_ok "the widths change" "the same widths" || ok "the widths change"
grep -qi 'above.*schedule' "$tmp/extra.txt" && ok "the reason says so" || not_ok "the reason says so" "$(tr '\n' ' ' < "$tmp/extra.txt")"
grep -qi 'above.*schedule' "$tmp/plain.txt" && not_ok "and only then" "$(tr '\n' ' ' < "$tmp/plain.txt")" || ok "and only then"

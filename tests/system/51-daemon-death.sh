#!/bin/bash
# The daemon's death changes nothing: run A takes its plans from agoqd, which is killed (-9) and restarted while a budget is
# cut before and after; run B has no daemon and replays A's record. Losses, weights and plans per step are bit-identical.
. "$(dirname "$0")/lib.sh"
. tests/system/e2e.sh
BUDGET=1080KiB start_daemon
args=(--pp 4 --dp 2 --steps 400)
train a 8 "${args[@]}" --record-plan "$tmp/plan.txt" &
job=$!
wait_for 60 planned a && ok "a plan is in force" || not_ok "a plan is in force" "$(tail -n 3 "$tmp/a.out" | tr '\n' ' ')"
wait_for 60 reached a 100
check "cut before the death" "$BUILD/agoqctl" budget set --stage 0 1020KiB --wait --timeout 30
kill -9 $daemon
wait $daemon 2> /dev/null
before=$(step_of a)
wait_for 60 reached a $((before + 20)) && ok "training goes on without a daemon" || not_ok "training goes on without a daemon" "at step $(step_of a)"
plan_before=$(field a 0 plan | tail -n 1)
start_daemon
wait_for 30 eval '[ "$(ask "r[\"status\"][\"ranks_live\"]" status)" = 8 ]' && ok "all ranks come back" || not_ok "all ranks come back" "$("$BUILD/agoqctl" status | tr '\n' ' ')"
before=$(step_of a)
wait_for 60 reached a $((before + 10))
[ "$(field a 0 plan | tail -n 1)" = "$plan_before" ] && ok "the restart alone changes no plan" || not_ok "the restart alone changes no plan" "$plan_before -> $(field a 0 plan | tail -n 1)"
[ "$(ask '[b["bytes"] for b in r["budgets"] if b["stage"] == 0][0]' budget get)" = 1044480 ] && ok "the cut budget survives" || not_ok "the cut budget survives" "$("$BUILD/agoqctl" budget get | tr '\n' ' ')"
check "cut after the restart" "$BUILD/agoqctl" budget set --stage 1 900KiB --wait --timeout 30
wait $job && ok "run A ends well" || not_ok "run A ends well" "$(tail -n 3 "$tmp/a.out" | tr '\n' ' ')"
stop $daemon
[ "$(field a 0 plan | uniq | wc -l)" -ge 4 ] && ok "floor and three plans" || not_ok "floor and three plans" "$(field a 0 plan | uniq | tr '\n' ' ')"

unset AGOQ_SOCKET
train b 8 "${args[@]}" --plan-file "$tmp/plan.txt" && ok "run B ends well" || not_ok "run B ends well" "$(tail -n 3 "$tmp/b.out" | tr '\n' ' ')"
for what in loss plan plan_hash saved_peak_bytes; do
    for rank in 0 3 7; do
        field a $rank $what > "$tmp/a.$what"
        field b $rank $what > "$tmp/b.$what"
        check "same $what on rank $rank at every step" cmp "$tmp/a.$what" "$tmp/b.$what"
    done
done
[ "$(hashes a)" = "$(hashes b)" ] && ok "same final weights" || not_ok "same final weights" "$(hashes a | tr '\n' ' ')"

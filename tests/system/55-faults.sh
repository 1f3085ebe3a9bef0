#!/bin/bash
# Faults and bad budgets while a job runs: refused, conflicting and stored-nowhere budgets; a rank that hangs, vanishes, comes back.
. "$(dirname "$0")/lib.sh"
. tests/system/e2e.sh
BUDGET=1080KiB start_daemon
start_job() { train "$1" 4 --pp 4 --dp 1 --steps 100000 & job=$!; }
start_job one
wait_for 60 planned one && ok "a plan is in force" || not_ok "a plan is in force" "$(tail -n 3 "$tmp/one.out" | tr '\n' ' ')"
version() { ask '[b["version"] for b in r["budgets"] if b["stage"] == 1][0]' budget get; }
bytes() { ask '[b["bytes"] for b in r["budgets"] if b["stage"] == 1][0]' budget get; }
expect() { # NAME STATUS COMMAND...
    local name=$1 want=$2 rc=0
    shift 2
    timeout 60 "$@" > "$tmp/out" 2>&1 || rc=$?
    [ $rc -eq "$want" ] && ok "$name" || not_ok "$name" "status $rc, not $want: $(tr '\n' ' ' < "$tmp/out")"
}
was=$(version):$(bytes)
expect "a budget that no plan can meet is refused" 5 "$BUILD/agoqctl" budget set --stage 1 50KiB
grep -qi 'short\|over\|exceed' "$tmp/out" && grep -qiE 'KiB|bytes| B' "$tmp/out" && ok "with its overshoot" || not_ok "with its overshoot" "$(tr '\n' ' ' < "$tmp/out")"
expect "one that levers could meet" 5 "$BUILD/agoqctl" budget set --stage 1 820KiB
grep -qiE 'recompute|move' "$tmp/out" && ok "with the levers" || not_ok "with the levers" "$(tr '\n' ' ' < "$tmp/out")"
[ "$(version):$(bytes)" = "$was" ] && ok "nothing was stored" || not_ok "nothing was stored" "$was -> $(version):$(bytes)"
expect "a stale version conflicts" 7 "$BUILD/agoqctl" budget set --stage 1 950KiB --if-version 4711
[ "$(version):$(bytes)" = "$was" ] && ok "and stores nothing" || not_ok "and stores nothing" "$was -> $(version):$(bytes)"
expect "the right version is taken" 0 "$BUILD/agoqctl" budget set --stage 1 950KiB --if-version "${was%%:*}" --wait --timeout 30
expect "raising is effective at once" 0 "$BUILD/agoqctl" budget set --stage 1 1080KiB --wait --timeout 30
expect "an unknown stage" 1 "$BUILD/agoqctl" budget set --stage 9 1080KiB
expect "a size without a unit" 2 "$BUILD/agoqctl" budget set --stage 1 700

# A full disk, or one that cannot be written: the state folder is taken away.
mv "$tmp/state" "$tmp/state.away" && touch "$tmp/state"
was=$(version):$(bytes)
expect "a budget that cannot be stored is refused" 1 "$BUILD/agoqctl" budget set --stage 1 1000KiB
[ "$(version):$(bytes)" = "$was" ] && ok "and the old one stays" || not_ok "and the old one stays" "$was -> $(version):$(bytes)"
rm "$tmp/state" && mv "$tmp/state.away" "$tmp/state"
expect "and works again afterwards" 0 "$BUILD/agoqctl" budget set --stage 1 1000KiB --wait --timeout 30

# A rank that hangs: nobody switches, a cut stays pending, --wait times out; it comes back and the cut takes effect.
victim=$(ask '[k["pid"] for k in r["ranks"] if k["stage"] == 2][0]' ranks)
kill -STOP "$victim"
wait_for 15 eval '[ "$(ask "r[\"status\"][\"ranks_silent\"]" status)" -ge 1 ]' && ok "a hanging rank is reported silent" || not_ok "a hanging rank is reported silent" "$("$BUILD/agoqctl" status | tr '\n' ' ')"
expect "a cut stays pending meanwhile" 6 "$BUILD/agoqctl" budget set --stage 2 860KiB --wait --timeout 3
kill -CONT "$victim"
wait_for 40 eval '[ "$(ask "[b[\"state\"] for b in r[\"budgets\"] if b[\"stage\"] == 2][0]" budget get)" = effective ]' && ok "and takes effect when the rank is back" || not_ok "and takes effect when the rank is back" "$("$BUILD/agoqctl" budget get | tr '\n' ' ')"

# A rank that is killed takes the MPI job down; the daemon sees them gone, and a new job is planned for.
victim=$(ask '[k["pid"] for k in r["ranks"] if k["stage"] == 3][0]' ranks)
kill -9 "$victim"
wait $job 2> /dev/null
wait_for 20 eval '[ "$(ask "r[\"status\"][\"ranks_live\"]" status)" = 0 ]' && ok "killed ranks are seen gone" || not_ok "killed ranks are seen gone" "$("$BUILD/agoqctl" status | tr '\n' ' ')"
start_job two
wait_for 60 planned two && ok "the job that comes back is planned for" || not_ok "the job that comes back is planned for" "$(tail -n 3 "$tmp/two.out" "$tmp/agoqd.log" | tr '\n' ' ')"
[ "$(ask '[b["bytes"] for b in r["budgets"] if b["stage"] == 2][0]' budget get)" = 880640 ] && ok "the cut budget still holds" || not_ok "the cut budget still holds" "$("$BUILD/agoqctl" budget get | tr '\n' ' ')"
stop $job
kill -0 $daemon && ok "the daemon survived it all" || not_ok "the daemon survived it all" "$(tail -n 5 "$tmp/agoqd.log" | tr '\n' ' ')"

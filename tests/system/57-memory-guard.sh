#!/bin/bash
# A device that is much smaller than its budget says: the guard cannot save the step in which a wide plan meets it, but the
# daemon hears of it before the job ends, so that starting again (and again) ends with a plan that fits.
. "$(dirname "$0")/lib.sh"
. tests/system/e2e.sh
train floor 2 --pp 2 --steps 2 --fixed-bits 4 || not_ok "the least that the job needs" "$(tail -n 3 "$tmp/floor.out" | tr '\n' ' ')"
need=$(for r in 0 1; do field floor $r peak_bytes; done | sort -n | tail -n 1)
BUDGET=4MiB start_daemon
start() { train "$1" 2 --pp 2 --steps 400 --memory-limit $((need + 4096)); }
start 1 && not_ok "the first plan is too wide for the device" "it fits" || check "the first plan is too wide for the device" grep -q 'rank [01]: .*out of memory' "$tmp/1.out"
check "the trainer says that the guard struck" grep -q 'agoq-train: memory guard rank=' "$tmp/1.out"
check "the daemon heard of it before the rank was gone" grep -q 'alarm memory guard: rank [01]: a saved activation could not be allocated' "$tmp/agoqd.log"
lives=
for ((n = 2; n <= 12 && !lives; n++)); do start $n && lives=$n; done
[ "$lives" ] && ok "started again, the job gets a plan that fits" || not_ok "started again, the job gets a plan that fits" "$(grep agoq-train "$tmp/12.out" | head -n 2 | tr '\n' ' ')"
[ "$lives" ] && check "and it is a plan, not the floor" planned "$lives"

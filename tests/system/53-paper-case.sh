#!/bin/bash
# The paper's own case: interleaved 1F1B, 4 stages, 2 chunks, 8 micro-batches, mode equalize. Observed live units 11, 9, 7, 5;
# the paper's rule gives 4, 5, 6, 8 bits; ours stands beside it, at no more bytes than the most loaded stage.
. "$(dirname "$0")/lib.sh"
. tests/system/e2e.sh
printf 'default_budget: 64MiB\nmargin: 0%%\nmode: equalize\n' > "$tmp/agoqd.yaml"
start_daemon
small=${small/--layers 4/--layers 8} small=${small/--microbatches 4/--microbatches 8}
train paper 4 --pp 4 --dp 1 --schedule interleaved --chunks 2 --steps 2000 &
job=$!
wait_for 90 planned paper || not_ok "a plan is in force" "$(tail -n 3 "$tmp/paper.out" | tr '\n' ' ')"
"$BUILD/agoqctl" --json plan explain > "$tmp/explain.json"
"$BUILD/agoqctl" plan explain > "$tmp/explain.txt"
stop $job
cat > "$tmp/check.py" << 'PY'
import json, sys
stages = json.load(open(sys.argv[1]))["stages"]
def check(name, ok, detail):
    print(f"ok {name}" if ok else f"not ok {name}: {detail}")
rows = [[s["live"][i:i + 2] for i in range(0, len(s["live"]), 2)] for s in stages]
live = [max(map(sum, r)) for r in rows]
check("live units 11, 9, 7, 5", live == [11, 9, 7, 5], rows)
check("the first rank peaks at (7, 4) and (8, 3)", sorted(rows[0]) == [[7, 4], [8, 3]], rows[0])
rule = [s["paper_bits"] for s in stages]
check("the paper's rule: 4, 5, 6, 8", rule == [4, 5, 6, 8], rule)
bits = [s["bits_mean"] for s in stages]
check("ours: 4 bits on the first stage", bits[0] == 4, bits)
check("ours: never narrower than the rule", all(b >= r for b, r in zip(bits, rule)), (bits, rule))
peaks = [s["activation_bytes"] for s in stages]
check("no stage above the most loaded one", max(peaks) == peaks[0], peaks)
PY
report "the paper's case" python3 "$tmp/check.py" "$tmp/explain.json"
for r in 0 1 2 3; do field paper $r live_peak | sort -n | tail -n 1; done | tr '\n' ' ' > "$tmp/live"
[ "$(cat "$tmp/live")" = "11 9 7 5 " ] && ok "the trainer's own count agrees" || not_ok "the trainer's own count agrees" "$(cat "$tmp/live")"

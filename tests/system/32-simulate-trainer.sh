#!/bin/bash
# What simulate predicts against what the CPU trainer measures: the plan of `plan dry-run` is replayed from its plan file, and
# on every rank the peak of saved activations and of all memory must be the prediction to the byte: where the two drift apart, one of them is
# wrong. Every deviation is printed.
# SHAPES=all: also other widths, budgets, state formats and uneven layers.
. "$(dirname "$0")/lib.sh"
ctl="$BUILD/agoqctl"

# The same job said to both.
# compare NAME PP SCHEDULE CHUNKS MICROBATCHES ROOM [KEY VALUE]...
# ROOM: the budget, in percent of the way from what 4 bits need to what full width needs.
compare() {
    local name=$1 pp=$2 schedule=$3 chunks=$4 microbatches=$5 room=$6 budget
    local -A set=([hidden]=32 [ffn]=96 [layers]=8 [heads]=4 [kv_heads]=2 [seq]=64 [mbs]=2 [grads]=fp8 [optimizer]=adam [attn_qkv]=16 [dp]=1 [zero]=0)
    local -a train=()
    shift 6
    while [ $# -gt 0 ]; do
        set[$1]=$2
        shift 2
    done
    {
        for key in "${!set[@]}"; do echo "$key: ${set[$key]}"; done
        printf 'vocab: 256\npp: %s\nschedule: %s\nvpp: %s\nmicrobatches: %s\n' "$pp" "$schedule" "$chunks" "$microbatches"
        printf 'workspace: agoq-train\nmargin: 0%%\n'
    } > "$tmp/job.yaml"
    train=(--hidden "${set[hidden]}" --ffn "${set[ffn]}" --layers "${set[layers]}" --heads "${set[heads]}" --kv-heads "${set[kv_heads]}"
        --seq "${set[seq]}" --mb-size "${set[mbs]}" --grads "${set[grads]}" --qkv-bits "${set[attn_qkv]}"
        --adam "$([ "${set[optimizer]}" = adam8 ] && echo 8bit || echo fp32)"
        --pp "$pp" --schedule "$schedule" --chunks "$chunks" --microbatches "$microbatches" --steps 2 --data /usr/share/common-licenses --dp "${set[dp]}")
    [ "${set[zero]}" = 0 ] || train+=(--zero1)
    rm -rf "$tmp/log"
    budget=$("$ctl" simulate "$tmp/job.yaml" --budget 1GiB --compare --json | python3 -c '
import json, sys
peak = {c["name"]: c["predicted_peak_bytes"] for c in json.load(sys.stdin)["compare"]}
print(peak["uniform 4"] + (peak["budget"] - peak["uniform 4"]) * int(sys.argv[1]) // 100)' "$room")
    echo "budget: ${budget}B" >> "$tmp/job.yaml"
    "$ctl" simulate "$tmp/job.yaml" --json > "$tmp/said.json" 2> "$tmp/err" || { not_ok "$name: it fits" "$(head -c 300 "$tmp/err")"; return; }
    "$ctl" plan dry-run "$tmp/job.yaml" --out "$tmp/plan" > /dev/null 2> "$tmp/err" || { not_ok "$name: a plan" "$(head -c 300 "$tmp/err")"; return; }
    run_mpi $((pp * set[dp])) "$BUILD/agoq-train" "${train[@]}" --plan-file "$tmp/plan" --log-dir "$tmp/log" > "$tmp/out" 2>&1 ||
        { not_ok "$name: the trainer runs" "$(tail -n 3 "$tmp/out" | tr '\n' ' ')"; return; }
    report_all "$name" python3 "$tmp/compare.py" "$name" "$tmp/said.json" "$tmp/log" "${set[dp]}"
}

cat > "$tmp/compare.py" << 'PY'
import json, sys
name, said, log, dp = sys.argv[1:]
a = json.load(open(said))
worst, lines = 0, []
for s in a["stages"]:
    rows = [json.loads(l) for l in open(f"{log}/rank-{s['stage'] * int(dp)}.jsonl")]
    step = [r for r in rows if "step" in r][-1]
    if step["plan_hash"] != a["plan_hash"]:
        print(f"not ok {name}: the trainer runs plan {step['plan_hash']}, not {a['plan_hash']}")
        sys.exit(0)
    if step["live_peak"] != s["live_microbatches"]:
        print(f"not ok {name}: stage {s['stage']} held {step['live_peak']} chunks, predicted {s['live_microbatches']}")
        sys.exit(0)
    for what, predicted, measured in (("saved", s["activation_bytes"], step["saved_peak_bytes"]),
                                      ("all", s["predicted_peak_bytes"], step["peak_bytes"])):
        off = (predicted - measured) / measured
        worst = max(worst, abs(off))
        lines.append(f"  stage {s['stage']} {what:5} predicted {predicted:9} measured {measured:9} deviation {100 * off:+.3f} %")
print("\n".join(lines))
widths = sorted({b for s in a["stages"] for w in s["widths"].values() for b in (w if isinstance(w, list) else [w])})
print(f"{'ok' if worst == 0 else 'not ok'} {name}: widths {widths}, worst deviation {100 * worst:.3f} %")
PY
report_all() { # as report, but the deviations are shown too
    local name=$1
    shift
    "$@" > "$tmp/report.out" 2> "$tmp/report.err" || not_ok "$name" "$(tail -n 2 "$tmp/report.err" | tr '\n' ' ')"
    cat "$tmp/report.out"
    grep -qE '^(ok|not ok) ' "$tmp/report.out" || not_ok "$name" "printed no result"
    n_failed=$((n_failed + $(grep -c '^not ok ' "$tmp/report.out")))
}

if [ "${SHAPES:-few}" = all ]; then
    for pp in 1 2 4 8; do
        for room in 0 15 60 100; do
            compare "pp $pp 1f1b, $room % of the room" $pp 1f1b 1 8 $room
            compare "pp $pp gpipe, 8-bit Adam, $room % of the room" $pp gpipe 1 4 $room optimizer adam8
        done
        [ $pp -eq 1 ] || compare "pp $pp interleaved, 16 layers, fp32 gradients" $pp interleaved 2 $((2 * pp)) 40 layers 16 grads fp32
    done
    compare "pp 2 1f1b, dp 2" 2 1f1b 1 4 30 grads fp32 dp 2
    compare "pp 2 1f1b, dp 3, ZeRO 1" 2 1f1b 1 4 30 grads fp32 dp 3 zero 1
    compare "pp 2 gpipe, dp 2, ZeRO 1, 8-bit Adam" 2 gpipe 1 4 30 grads fp32 dp 2 zero 1 optimizer adam8
    compare "pp 3 1f1b, uneven layers" 3 1f1b 1 5 30
    compare "pp 2 interleaved, 4 chunks" 2 interleaved 4 6 30
    compare "pp 4 1f1b, m < p" 4 1f1b 1 2 30
    compare "pp 4 1f1b, QKV at 8" 4 1f1b 1 8 30 attn_qkv 8
    compare "pp 2 gpipe, odd sizes" 2 gpipe 1 3 30 hidden 96 ffn 200 heads 6 kv_heads 3 seq 100 layers 6
else
    compare "pp 1 gpipe" 1 gpipe 1 4 10
    compare "pp 1 1f1b" 1 1f1b 1 4 30
    for pp in 2 4 8; do
        compare "pp $pp gpipe" $pp gpipe 1 4 50
        compare "pp $pp 1f1b" $pp 1f1b 1 8 20
        compare "pp $pp interleaved" $pp interleaved 2 $((pp > 4 ? 8 : 2 * pp)) 10 layers $((pp > 4 ? 16 : 8))
    done
fi
[ "${n_failed:-0}" -eq 0 ]

#!/bin/bash
# The trainer over MPI on a tiny model: what must be equal is compared to the last bit (losses are logged with 17 digits),
# what may differ has a tolerance; then poison, checkpoints and wrong input.
. "$(dirname "$0")/lib.sh"

python3 - "$tmp/text" << 'EOF_TEXT' # words in a made-up order: learnable, and in no need of files of the machine
import random, sys
random.seed(7)
words = "the source code of a program must be given to those who ask for it under the terms of this licence".split()
open(sys.argv[1], "w").write(" ".join(random.choice(words) for _ in range(8000)))
EOF_TEXT
shape=(--data "$tmp/text" --hidden 32 --ffn 48 --layers 4 --heads 4 --kv-heads 2 --seq 24 --mb-size 2 --microbatches 4
    --warmup 2 --lr 3e-3 --steps 6)

launch() { # RANKS OPTIONS...; one rank needs no mpirun. What is not said comes from $shape: no option may be repeated
    local ranks=$1 i
    shift
    for ((i = 0; i < ${#shape[@]}; i += 2)); do
        [[ " $* " == *" ${shape[i]} "* ]] || set -- "$@" "${shape[i]}" "${shape[i + 1]}"
    done
    if [ "$ranks" -gt 1 ]; then run_mpi "$ranks" "$BUILD/agoq-train" "$@"; else timeout -k 5 60 "$BUILD/agoq-train" "$@"; fi
}

# train NAME RANKS OPTIONS...: a run that must succeed; its logs are in $tmp/NAME.
train() {
    local name=$1 ranks=$2
    shift 2
    launch "$ranks" --log-dir "$tmp/$name" "$@" > "$tmp/$name.out" 2>&1 && return
    not_ok "run $name" "$(grep agoq-train "$tmp/$name.out" | head -n 3)"
    return 1
}

cat > "$tmp/logs.py" << 'EOF_PY'
import glob, hashlib, json, struct, sys

def ranks(name):
    logs = [[json.loads(line) for line in open(path)] for path in sorted(glob.glob(f"{name}/rank-*.jsonl"))]
    assert logs, f"{name}: no logs"
    return logs

def steps(log):
    return [line for line in log if "step" in line]

def losses(name):
    all_ranks = [[s["loss"] for s in steps(log)] for log in ranks(name)]
    assert all(l == all_ranks[0] for l in all_ranks), f"{name}: ranks disagree about the loss"
    return all_ranks[0]

def final(name):
    return [line["weights_hash"] for line in ranks(name)[0] if "done" in line][-1]

def eval_loss(name):
    return [line.get("eval_loss") for line in ranks(name)[0] if "done" in line][-1]

def same(a, b):
    assert eval_loss(a) == eval_loss(b), "held-out loss"
    assert losses(a) == losses(b), f"{losses(a)} {losses(b)}"
    assert final(a) == final(b), "weights"

def near(a, b, tolerance):
    x, y = losses(a), losses(b)
    assert len(x) == len(y) and all(abs(p - q) <= float(tolerance) * p for p, q in zip(x, y)), f"{x} {y}"

def differ(a, b):
    assert losses(a) != losses(b) and final(a) != final(b), "the option has no effect"

def parts_at(a, b, step):
    """The option's first effect is on the update before this step."""
    x, y, n = losses(a), losses(b), int(step)
    assert x[:n] == y[:n] and x[n] != y[n], f"{x} {y}"

def stays(name):
    l = losses(name)
    assert max(l) - min(l) < 0.02 * l[0], l

def learns(name):
    l = losses(name)
    assert l[-1] < 0.9 * l[0], l

def same_from(a, b, step):
    tail = lambda name: [(s["step"], s["loss"], s["plan"]) for s in steps(ranks(name)[0]) if s["step"] >= int(step)]
    assert tail(a) and tail(a) == tail(b), f"{tail(a)} {tail(b)}"
    assert final(a) == final(b), "weights"

def guarded(name):
    guards = [[s["guard"] for s in steps(log)] for log in ranks(name)]
    assert guards == [[1] * 6, [0] * 6], guards

def peak(name):
    print(max(steps(log)[-1]["peak_bytes"] for log in ranks(name)))

def poisoned(name):
    l = losses(name)
    assert l[0] is not None and l[1] is None, l

def bytes_add_up(name):
    for log in ranks(name):
        for s in steps(log):
            parts = [s[k] for k in ("weights_bytes", "grad_bytes", "optimizer_bytes", "workspace_bytes", "saved_peak_bytes")]
            # workspace is the largest of the phases; what exceeds the sum's other side is the exchange's
            assert 0.9 * sum(parts) <= s["peak_bytes"] <= sum(parts), s

def small_gradients(fp8, fp32):
    a, b = steps(ranks(fp8)[0])[0]["grad_bytes"], steps(ranks(fp32)[0])[0]["grad_bytes"]
    assert a <= 0.30 * b, f"{a} {b}" # gains of norms are fp32, and weigh more on a tiny model
    for log in ranks(fp8):
        done = [line for line in log if "done" in line][0]
        gains = 4 * 32 * (2 * 4 + 1) + 64 * 5 # of norms: at most all of them on one rank, rounded up
        assert 0 < done["largest_grad_buffer_bytes"] <= done["largest_matrix_bytes"], done
        assert done["fp32_grad_peak_bytes"] <= done["largest_matrix_bytes"] + gains, done
    for log in ranks(fp32): # with fp32 main gradients the same counters tell
        done = [line for line in log if "done" in line][0]
        assert done["fp32_grad_peak_bytes"] > 2 * done["largest_matrix_bytes"], done

def live(name, *want):
    got = [steps(log)[-1]["live_peak"] for log in ranks(name)]
    assert got == [int(w) for w in want], got

def plan_file(path, *changes):
    """STEP:BITS[@PREDICTED] ...: from STEP on, the planned roles have BITS."""
    with open(path, "w") as f:
        f.write("agoq-plan-file 1\n")
        for seq, change in enumerate(changes):
            change, _, predicted = change.partition("@")
            step, bits = map(int, change.split(":"))
            roles = [(0, bits), (1, bits), (2, bits), (3, 8), (4, 16)]
            entries = [(layer // 2, layer, role, b) for layer in range(4) for role, b in roles + [(5, 8)] * (layer == 3)]
            plan = b"AGQP" + struct.pack("<HHI", 1, 2, len(entries)) + struct.pack("<QQQ", 0, 0, int(predicted or 0)) * 2
            plan += b"".join(struct.pack("<HHBB", *e) for e in entries)
            digest = hashlib.sha256(plan).digest()[:8].hex()
            f.write(f"{step} {1 << 40 | 1 << 24 | seq + 1:016x} {digest} {plan.hex()}\n")

def unpredicted(name):
    for log in ranks(name):
        predicted = [s["predicted_bytes"] for s in steps(log)]
        assert predicted == [0, 1000, 0, 0, 0, 0], predicted

def switches(name, *want):
    seen = [f'{s["step"]}:{s["bits"]["mlp_gate_up"][0]}' for s in steps(ranks(name)[0]) if "bits" in s]
    assert seen == list(want), seen

globals()[sys.argv[1]](*sys.argv[2:])
EOF_PY
logs() { (cd "$tmp" && python3 logs.py "$@"); }

# ---- equal to the last bit
grid=(--pp 2 --dp 2)
train baseline 4 "${grid[@]}" --baseline --eval 3 && check "the loss falls" logs learns baseline
train identity 4 "${grid[@]}" --mode identity --grads fp32 --eval 3 && check "identity equals baseline to the last bit" logs same baseline identity
train agoq 4 "${grid[@]}" --fixed-bits 6 --eval 3 && check "6 bits and FP8 gradients stay near the baseline" logs near baseline agoq 0.02
check "and are not the same" logs differ baseline agoq
train again 4 "${grid[@]}" --fixed-bits 6 --eval 3 && check "the same seed twice gives the same bits" logs same agoq again
train seed 4 "${grid[@]}" --fixed-bits 6 --seed 2 && check "another seed does not" logs differ agoq seed
check "peak bytes are static + workspace + saved" logs bytes_add_up agoq
check "FP8 gradients are small, and no larger buffer is alive" logs small_gradients agoq baseline

# ---- schedules
train gpipe 4 "${grid[@]}" --fixed-bits 6 --schedule gpipe --eval 3 && check "gpipe equals 1f1b to the last bit" logs same agoq gpipe
train interleaved 4 "${grid[@]}" --fixed-bits 6 --schedule interleaved --chunks 2 --eval 3 &&
    check "interleaved equals 1f1b to the last bit" logs same agoq interleaved
check "live micro-batches: 1f1b" logs live agoq 2 2 1 1
check "live micro-batches: gpipe" logs live gpipe 4 4 4 4
check "live chunks: interleaved" logs live interleaved 5 5 3 3
train extra 4 "${grid[@]}" --fixed-bits 6 --hold-extra 1 --eval 3 && check "one extra micro-batch is held and counted" logs live extra 2 2 2 2
check "and changes nothing else" logs same agoq extra
train uneven 2 --pp 2 --layers 5 --fixed-bits 6 && check "layers that do not divide are spread, and it says so" \
    grep -q "the first 1 hold 3, the others 2" "$tmp/uneven.out"

# ---- memory: a device a little too small for the plan, on the fullest stage (the one with 3 of 5 layers)
train guard 2 --pp 2 --layers 5 --fixed-bits 6 --memory-limit $(($(logs peak uneven) - 256)) &&
    check "pressure: the guard lowers widths on that stage and the run goes on" logs guarded guard

# ---- optimizer
train zero1 4 "${grid[@]}" --fixed-bits 6 --zero1 && check "ZeRO-1 stays near" logs near agoq zero1 0.01
train zero1_fp32 4 "${grid[@]}" --baseline --zero1 && check "ZeRO-1 in fp32 equals the baseline" logs near baseline zero1_fp32 1e-6
train adam8 4 "${grid[@]}" --fixed-bits 6 --adam 8bit && check "8-bit AdamW stays near" logs near agoq adam8 0.03
check "and is in use" logs differ agoq adam8

train plain 1 --fixed-bits 8
train constant 1 --fixed-bits 8 --lr-schedule constant && check "a constant rate: other than cosine's two steps after the warm-up" \
    logs parts_at plain constant 4
train decay 1 --fixed-bits 8 --weight-decay 0 && check "without weight decay: other from the first update on" logs parts_at plain decay 1
train clip 1 --fixed-bits 8 --weight-decay 0 --clip 1e-9 && check "gradients clipped to next to nothing teach nothing" logs stays clip
check "and unclipped they do" logs learns plain

# ---- poison: backward reads what was packed, role by role
for role in attn_norm_in attn_qkv attn_out mlp_norm_in mlp_gate_up final_norm_in; do
    train "poison_$role" 1 --fixed-bits 8 --mode poison --poison-roles $role --stop-at 2 &&
        check "poisoned $role turns the loss NaN" logs poisoned "poison_$role"
done

# ---- checkpoints
logs plan_file "$tmp/plan" 1:8 4:5
keep=("${grid[@]}" --plan-file "$tmp/plan" --adam 8bit --checkpoint-dir "$tmp/ckpt" --checkpoint-every 3)
train whole 4 "${grid[@]}" --plan-file "$tmp/plan" --adam 8bit && check "a plan file switches at its steps" \
    logs switches whole 0:4 1:8 4:5
train first 4 "${keep[@]}" --stop-at 3 && train second 4 "${keep[@]}" --resume &&
    check "a resumed run equals the uninterrupted one to the last bit" logs same_from whole second 3
cp -r "$tmp/ckpt" "$tmp/whole_ckpt"
train fp32_ckpt_run 4 "${grid[@]}" --fixed-bits 8 --grads fp32 --steps 6 --stop-at 1 --checkpoint-dir "$tmp/fp32_ckpt" --checkpoint-every 1

# refused NAME STATUS WORDS RANKS OPTIONS...: ends with this status and says these words.
refused() {
    local name=$1 want=$2 words=$3 ranks=$4 rc=0
    shift 4
    launch "$ranks" "$@" > "$tmp/refused.out" 2>&1 || rc=$?
    if [ $rc -eq "$want" ] && grep -q "agoq-train: .*$words" "$tmp/refused.out"; then ok "$name"
    else not_ok "$name" "status $rc, not $want: $(head -n 3 "$tmp/refused.out" | tr '\n' ' ')"; fi
}
resume=("${keep[@]}" --resume)
last=$tmp/ckpt/step-6/rank-2.bin
truncate -s 3000 "$last"
refused "a truncated checkpoint" 1 "truncated" 4 "${resume[@]}"
cp "$tmp/whole_ckpt/step-6/rank-2.bin" "$last"
printf 'x' | dd of="$last" bs=1 seek=9000 conv=notrunc status=none
refused "a damaged checkpoint" 1 "damaged" 4 "${resume[@]}"
rm "$last"
refused "a missing checkpoint file" 1 "No such file" 4 "${resume[@]}"
cp "$tmp/whole_ckpt/step-6/rank-2.bin" "$last"
refused "a checkpoint of another shape" 1 "written with ffn 48, this run has 64" 4 "${resume[@]}" --ffn 64
others=("--lr 2e-3" "--warmup 3" "--lr-schedule constant" "--steps 7" "--weight-decay 0.2" "--clip 0.5" "--grads fp32" "--qkv-bits 8"
    "--format4 code4" "--mode identity")
values=("lr 0.0030000000000000001, this run has 0.002" "warmup 2, this run has 3" "lr-schedule cosine, this run has constant"
    "steps 6, this run has 7" "weight-decay 0.10000000000000001, this run has 0.20000000000000001" "clip 1, this run has 0.5"
    "grads fp8, this run has fp32" "qkv-bits 16, this run has 8" "format4 int4, this run has code4" "mode normal, this run has identity")
for i in "${!others[@]}"; do # shellcheck disable=SC2086
    refused "resumed with another ${others[i]%% *}" 1 "written with ${values[i]}" 4 "${resume[@]}" ${others[i]}
done
refused "resumed as a baseline" 1 "written with baseline off, this run has on" 4 "${grid[@]}" --baseline --grads fp32 --resume --checkpoint-dir "$tmp/fp32_ckpt"
launch 4 "${resume[@]}" --log-dir "$tmp/nothing" > "$tmp/nothing.out" 2>&1 && grep -qx "nothing to do: the checkpoint is at step 6" "$tmp/nothing.out" &&
    ! grep -q done: "$tmp/nothing.out" && ok "a finished run is not run again" || not_ok "a finished run is not run again" "$(head -n 3 "$tmp/nothing.out" | tr '\n' ' ')"
refused "resumed to before the checkpoint" 2 "\-\-steps 2 is before the checkpoint's step 6" 4 "${resume[@]}" --steps 2
echo junk > "$tmp/ckpt/latest"
refused "a latest that is no number" 1 "does not name a step" 4 "${resume[@]}"
refused "no checkpoint to resume from" 1 "latest: No such file" 1 --fixed-bits 8 --resume --checkpoint-dir "$tmp/none"

# ---- plan files of other jobs
refused "a plan file for another number of stages" 1 "the plan is for 2 pipeline stages, and there are 4" 4 --pp 4 --plan-file "$tmp/plan"
refused "a plan file for more layers" 1 "in the plan" 2 --pp 2 --layers 2 --plan-file "$tmp/plan"
logs plan_file "$tmp/small_plan" 1:8@1000
train other_sizes 2 --pp 2 --plan-file "$tmp/small_plan" && check "a plan file for smaller tensors: a warning, and predicted is unknown" \
    eval "logs unpredicted other_sizes && grep -q 'agoq-train: the plan file was written for another job' '$tmp/other_sizes.out'"

# ---- wrong input
: > "$tmp/empty"
head -c 20 "$tmp/text" > "$tmp/short"
mkdir "$tmp/folder"
refused "data: missing" 2 "No such file" 1 --data "$tmp/no-such-file"
refused "data: empty" 2 "holds no text" 1 --data "$tmp/empty"
refused "data: an empty folder" 2 "holds no text" 1 --data "$tmp/folder"
mkfifo "$tmp/fifo"
truncate -s 2G "$tmp/huge"
refused "data: a device without an end" 2 "neither a regular file nor a folder" 1 --data /dev/zero
refused "data: a FIFO that nobody writes to" 2 "neither a regular file nor a folder" 1 --data "$tmp/fifo"
refused "data: more than fits" 2 "more than 1024 MiB" 1 --data "$tmp/huge"
refused "data: shorter than one sequence" 2 "one sequence needs 25" 2 --pp 2 --data "$tmp/short"
refused "MPI size does not match" 2 "needs 4 MPI ranks, but there are 2" 2 --pp 2 --dp 2
refused "more stages than layers" 2 "every chunk needs a layer" 1 --pp 8
refused "a device that holds not even the weights" 1 "out of memory" 1 --fixed-bits 6 --memory-limit 20000
refused "an unknown option" 2 "unknown option" 1 --stepz 3
refused "a number with junk" 2 "\"3x\" is not a number" 1 --steps 3x
refused "a width that does not exist" 2 "fixed-bits" 1 --fixed-bits mlp_gate_up=7
refused "a width and a comma" 2 "\"4,\": \"4\" is not ROLE=4" 1 --fixed-bits 4,
refused "a role twice" 2 "mlp_gate_up is there twice" 1 --fixed-bits mlp_gate_up=4,mlp_gate_up=8
refused "an option twice" 2 "\-\-seed is there twice" 1 --seed 2 --seed 3
refused "fixed bits and a plan file" 2 "no --plan-file with it" 1 --fixed-bits 4 --plan-file "$tmp/plan"
refused "fixed bits and a daemon" 2 "no --socket with it" 1 --fixed-bits 4 --socket "$tmp/sock"
refused "a role that does not exist" 2 "no role" 1 --mode poison --poison-roles attn
refused "a baseline with FP8 gradients" 2 "no agoq call" 1 --baseline --grads fp8

# ---- a full disk below the log: training ends as it would, once said, and the status tells
mkdir "$tmp/full"
ln -s /dev/full "$tmp/full/rank-1.jsonl"
refused "a log on a full disk" 1 "rank 1: the log cannot be written: No space left" 2 --pp 2 --fixed-bits 8 --log-dir "$tmp/full"
[ "$(grep -c "cannot be written" "$tmp/refused.out")" = 1 ] && grep -q "^done: loss" "$tmp/refused.out" && grep -q '"done":1' "$tmp/full/rank-0.jsonl" &&
    ok "is said once, and training goes on" || not_ok "is said once, and training goes on" "$(tr '\n' ' ' < "$tmp/refused.out")"

# ---- a folder of text: links to files inside it are not read twice
cp "$tmp/text" "$tmp/folder/a"
ln -s a "$tmp/folder/b"
train folder 1 --fixed-bits 8 --data "$tmp/folder" --steps 2 && train file 1 --fixed-bits 8 --steps 2 &&
    check "links inside a data folder are skipped" logs same folder file

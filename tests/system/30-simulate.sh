#!/bin/bash
# agoqctl simulate as an operator meets it: exit codes, JSON that adds up, levers that do what they promise when pulled,
# files and flags that agree, and every kind of bad input refused with a message.
. "$(dirname "$0")/lib.sh"
sim() { "$BUILD/agoqctl" simulate "$@"; }
shape="--hidden 4096 --ffn 14336 --layers 32 --heads 32 --kv-heads 8 --vocab 128256 --seq 8192"
llama="--model config/models/llama3-8b.yaml"

# code NAME EXPECTED ARGUMENTS...: the exit status; with one that is not 0 or 5 also a message and nothing on stdout.
code() {
    local name=$1 expected=$2 rc=0
    shift 2
    sim "$@" > "$tmp/out" 2> "$tmp/err" || rc=$?
    if [ $rc -ne "$expected" ]; then not_ok "$name" "exit $rc: $(head -c 300 "$tmp/err")"
    elif [ "$expected" -eq 1 ] || [ "$expected" -eq 2 ]; then
        if [ -s "$tmp/err" ] && [ ! -s "$tmp/out" ]; then ok "$name"; else not_ok "$name" "no message, or output"; fi
    else ok "$name"; fi
}

# json NAME PYTHON ARGUMENTS...: the answer as `a`; PYTHON must hold.
json() {
    local name=$1 expression=$2
    shift 2
    sim "$@" --json > "$tmp/a.json" 2> "$tmp/err"
    check "$name" python3 -c '
import json, sys
a = json.load(open(sys.argv[1]))
s = a["stages"]
assert eval("(" + sys.argv[2] + ")"), s' "$tmp/a.json" "$expression"
}

code "fits: exit 0" 0 $llama --cluster config/clusters/h100-80.yaml --pp 4 --zero 1
code "does not fit: exit 5" 5 --model config/models/llama2-13b.yaml --cluster config/clusters/h100-80.yaml --pp 4 --seq 16384
check "says it does not fit, and what would help" grep -q "shard the optimizer over dp.*enough" "$tmp/out"
code "help: exit 0" 0 --help

json "the paper's case" '[x["live_microbatches"] for x in s] == [11, 9, 7, 5] and [x["rule"]["bits"] for x in s] == [4, 5, 6, 8]
     and all(x["activation_peak_bytes"] <= s[0]["activation_peak_bytes"] for x in s) and s[0]["bits_mean"] == 4
     and s[1]["bits_mean"] > 5 and s[2]["bits_mean"] > 6 and s[3]["bits_mean"] > 8
     and all(x["objective"] < x["rule"]["objective"] for x in s[1:])' \
    $llama --pp 4 --schedule interleaved --microbatches 8 --mode equalize
json "within every budget" 'a["feasible"] and all(x["predicted_peak_bytes"] + x["slack_bytes"] <= x["budget_bytes"] * 0.9 + 1
     and x["predicted_peak_bytes"] >= x["static_bytes"] + x["workspace_bytes"] + x["activation_peak_bytes"]
     and x["activation_peak_bytes"] <= x["bytes_at_16"] for x in s)
     and s[0]["bits_mean"] < s[1]["bits_mean"] and s[0]["why"] == ["budget_binds"] and s[2]["why"] == ["all_at_max"]' \
    $llama --pp 4 --budget 50GiB
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"])' "$tmp/a.json" > "$tmp/from-file"
json "flags say the same as a file" 'a["feasible"]' $shape --pp 4 --budget 50GiB
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"])' "$tmp/a.json" > "$tmp/from-flags"
check "to the last byte" cmp "$tmp/from-file" "$tmp/from-flags"

# Levers, pulled: the overshoot of stage 0 falls by what was promised.
sim $llama --pp 4 --dp 2 --budget 38GiB --json > "$tmp/plain.json"
sim $llama --pp 4 --dp 2 --budget 38GiB --attn-qkv 8 --json > "$tmp/qkv.json"
sim $llama --pp 4 --dp 2 --budget 38GiB --zero 1 --json > "$tmp/zero1.json"
check "levers do what they promise" python3 -c '
import json, sys
plain, qkv, zero1 = (json.load(open(sys.argv[1] + "/" + n + ".json")) for n in ("plain", "qkv", "zero1"))
assert not plain["feasible"]
for at, other, name in ((0, qkv, "lower_pin"), (0, zero1, "shard_optimizer")):
    before, after = plain["stages"][at], other["stages"][at]
    lever = [l for l in before["levers"] if l["lever"] == name]
    assert len(lever) == 1, before["levers"]
    lever = lever[0]
    assert lever["enough"] == (lever["saves_bytes"] >= before["overshoot_bytes"])
    if lever["enough"]:
        assert after["overshoot_bytes"] == 0
    else:
        assert before["overshoot_bytes"] - after["overshoot_bytes"] == lever["saves_bytes"]' "$tmp"

# Every lever that is said to be enough is.
levers() { report "$1" python3 tests/planner/levers.py "$BUILD/agoqctl" "$@"; }
levers "levers of a job without shards" --model llama3-8b --pp 4 --dp 4 --gpu a100-40 --microbatches 16
levers "levers of long sequences" --model llama3-8b --pp 4 --dp 4 --zero 1 --seq 32768 --budget 44GiB --margin 20%
levers "levers of chunks" --model llama2-13b --pp 4 --vpp 2 --schedule interleaved --dp 2 --zero 1 --seq 16384 --budget 60GiB
levers "levers of a large vocabulary" --hidden 3584 --ffn 18944 --layers 28 --heads 28 --kv-heads 4 --vocab 151936 --seq 8192 --pp 4 \
    --microbatches 2 --grads fp32 --budget 45GiB --margin 0%
levers "levers of two ways" --model llama3-8b --pp 4 --tp 4 --schedule dualpipe --microbatches 8 --mbs 4 --dp 2 --budget 30GiB --budget-stage 3=24GiB
json "levers for every one of many stages" 'sum(x["overshoot_bytes"] > 0 for x in s) > 100
     and all({"shard_optimizer", "raise_tp"} <= {l["lever"] for l in x["levers"]} for x in s if x["overshoot_bytes"])' \
    $llama --layers 512 --pp 128 --microbatches 256 --dp 2 --budget 20GiB
levers "levers beside something else" --model llama3-8b --pp 2 --dp 4 --extra-stage 0=30GiB --budget 60GiB

json "every key of the contract" '{"feasible", "mode", "objective", "lower_bound", "gap", "solve_ms", "plan_hash", "stages", "levers", "warnings"} <= set(a)
     and all({"stage", "layers", "live", "widths", "static_bytes", "activation_bytes", "transient_bytes", "predicted_peak_bytes", "budget_bytes",
     "slack_bytes", "binding_vector"} <= set(x) for x in s) and a["gap"] == 0 and a["objective"] >= a["lower_bound"]
     and s[0]["live"] == [[8, 3], [7, 4]] and s[0]["layers"] == [0, 1, 2, 3, 16, 17, 18, 19] and s[0]["binding_vector"] in s[0]["live"]
     and sorted(sum((x["layers"] for x in s), [])) == list(range(32))' \
    $llama --pp 4 --vpp 2 --schedule interleaved --microbatches 8 --gpu a100-40 --zero 1 --dp 4
other_phase=(--model olmo-1b --budget 13.36GiB --pp 8 --microbatches 32 --tp 4 --sp --dp 2 --seq 2048 --mbs 2 --grads fp32 --loss-chunks 8)
json "the phase that makes the peak" '[x["peak_phase"] for x in s] == 7 * ["fwd_bwd"] + ["exchange"]
     and all((x["predicted_peak_bytes"] == x["static_bytes"] + x["activation_bytes"] + x["transient_bytes"]) == (x["peak_phase"] == "fwd_bwd") for x in s)
     and s[7]["predicted_peak_bytes"] == s[7]["static_bytes"] + s[7]["parts"]["exchange_bytes"]' "${other_phase[@]}"
json "or the optimizer" 'all(x["peak_phase"] == "optimizer" and x["predicted_peak_bytes"] == x["static_bytes"] + x["parts"]["update_bytes"] for x in s)' \
    --model olmo-1b --budget 13.36GiB --pp 8 --seq 256 --recompute full
sim "${other_phase[@]}" > "$tmp/out"
check "also in the table, beside it and at the bar" bash -c 'grep -q "^ *7 .* exchange " "$1" && [ "$(grep -c "^ *[0-7] .* fwd_bwd " "$1")" -eq 7 ] &&
    grep -q "^stage 7 peaks in the exchange of gradients: .* static and .* of its own; forward and backward take" "$1" && grep -q "^stage 7 .*\] .* in the exchange of gradients$" "$1"' _ "$tmp/out"
json "layers of a V and of two ways" 's[0]["layers"] == [0, 1, 2, 3, 28, 29, 30, 31] and len(s[0]["live"][0]) == 2' $llama --pp 4 --schedule zb-v --budget 80GiB
json "both ways hold every layer twice" 'sorted(sum((x["layers"] for x in s), [])) == sorted(2 * list(range(32)))' $llama --pp 4 --schedule dualpipe --budget 200GiB
json "the worst stage as objective" 'a["objective_kind"] == "minimax" and a["objective"] == max(x["objective"] for x in s)' \
    $llama --pp 4 --gpu a100-40 --zero 1 --dp 4 --objective minimax
json "other ways beside it" '[c["name"] for c in a["compare"]] == ["AGoQ'"'"'s rule", "uniform 4", "uniform 5", "uniform 6", "uniform 8", "equalize", "budget"]
     and a["compare"][6]["error"] == a["objective"] <= a["compare"][5]["error"] and [c["name"] for c in a["others"]] == ["16 bits", "full recomputation", "AGoQ'"'"'s rule"]' \
    $llama --pp 4 --gpu a100-40 --zero 1 --dp 4 --compare
json "the largest that fits" 'a["max"]["largest"] % 128 == 0 and a["seq"] == a["max"]["largest"] and a["feasible"]' $llama --pp 4 --gpu h200 --zero 1 --dp 4 --max seq
sim $llama --pp 4 --gpu h200 --zero 1 --dp 4 --compare > "$tmp/out"
check "the text has a table, bars and totals" bash -c 'grep -q "^STAGE *LAYERS *LIVE" "$1" && [ "$(grep -c "^stage [0-3] *\[#" "$1")" -eq 4 ] && grep -q "^in all stages:" "$1" &&
    grep -q "full recomputation" "$1" && grep -q "^uniform 4 " "$1"' _ "$tmp/out"

json "stages without layers" 'a["feasible"] and [len(x["layers"]) for x in s] == [0, 16, 16, 0] and s[0]["widths"] == {}' $llama --pp 4 --layout 0,16,16,0 --gpu h200
json "one stage: everything at the largest width that fits" 'a["feasible"] and len(s) == 1 and s[0]["live"] == [[1]]' $llama --layers 2 --gpu h100-80
json "an allocator that rounds takes more" 'a["feasible"]' --model demo --seq 101 --pp 2 --budget 1GiB
cp "$tmp/a.json" "$tmp/exact.json"
json "than one that does not" 's[0]["activation_bytes"] > json.load(open(sys.argv[1].replace("a.json", "exact.json")))["stages"][0]["activation_bytes"]' \
    --model demo --seq 101 --pp 2 --budget 1GiB --caching-allocator
printf 'ranks 2\nmicrobatches 2\nchunks 2\nroute vee\nrank 0: F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0\nrank 1: F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0\n' > "$tmp/vee.ops"
json "a list of operations" 's[0]["live"] == [[1, 1]] and s[0]["layers"] == list(range(8)) + list(range(24, 32)) and a["schedule"] == "list"' \
    $llama --schedule "$tmp/vee.ops" --gpu h200
code "a list for another pipeline" 2 $llama --schedule "$tmp/vee.ops" --pp 4 --gpu h200
sed -i 's/B1.0$/B0.0/' "$tmp/vee.ops"
code "a list that cannot be" 2 $llama --schedule "$tmp/vee.ops" --gpu h200
check "with its line" grep -q "vee.ops: line [0-9]*: " "$tmp/err"

# plan dry-run: the same plan as simulate's, in bytes whose hash is right.
sim $llama --pp 4 --gpu a100-40 --zero 1 --dp 4 --json > "$tmp/a.json"
"$BUILD/agoqctl" plan dry-run $llama --pp 4 --gpu a100-40 --zero 1 --dp 4 --json --out "$tmp/plan" > "$tmp/dry.json"
check "dry-run and simulate agree, and the bytes have that hash" python3 -c '
import hashlib, json, sys
said, dry = (json.load(open(f)) for f in sys.argv[1:3])
step, plan_id, digest, text = open(sys.argv[3]).read().splitlines()[1].split()
assert said["plan_hash"] == dry["hash"] == digest == hashlib.sha256(bytes.fromhex(text)).hexdigest()[:16]
assert dry["bytes"] == text and len(text) == 2 * dry["size"] and int(step) == 0 and int(plan_id, 16)' "$tmp/a.json" "$tmp/dry.json" "$tmp/plan"
check "dry-run as text" bash -c '"$0" plan dry-run --model demo --pp 2 --budget 60MiB | grep -q "^plan dry-run, hash [0-9a-f]\{16\}, [0-9]* bytes: fits"' "$BUILD/agoqctl"
"$BUILD/agoqctl" plan dry-run --model llama3-70b --budget 20GiB > /dev/null 2>&1
[ $? -eq 5 ] && ok "dry-run of what does not fit: exit 5" || not_ok "dry-run of what does not fit: exit 5" "$?"

dry() { "$BUILD/agoqctl" plan dry-run --model demo --pp 2 --budget "$1" --out "$2" > "$tmp/out" 2> "$tmp/err"; }
dry 1MiB "$tmp/none"
[ $? -eq 5 ] && [ ! -e "$tmp/none" ] && grep -q "does not fit, so .* is not written" "$tmp/err" && ok "and writes no plan file" || not_ok "and writes no plan file" "$(cat "$tmp/err")"
echo kept > "$tmp/old-plan"
(ulimit -f 0; trap "" XFSZ; dry 60MiB "$tmp/old-plan")
[ "$(cat "$tmp/old-plan")" = kept ] && ! ls "$tmp"/old-plan.* > /dev/null 2>&1 && ok "a plan file is written whole or not at all" ||
    not_ok "a plan file is written whole or not at all" "$(ls "$tmp"/old-plan*)"
ln -s /dev/null "$tmp/link"
dry 60MiB "$tmp/link"
[ $? -eq 1 ] && [ -L "$tmp/link" ] && ok "no plan file in place of something else" || not_ok "no plan file in place of something else" "$(cat "$tmp/err")"

# A stdout that takes nothing: status 1 and one sentence, whatever the answer is.
takes_nothing() { # NAME COMMAND...: its stdout is the caller's
    local name=$1 rc
    shift
    "$@" 2> "$tmp/err"
    rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l < "$tmp/err")" -eq 1 ] && grep -q "output could not be written" "$tmp/err" && ok "$name" >&3 || not_ok "$name" "status $rc: $(cat "$tmp/err")" >&3
}
for how in "" --json; do
    for budget in 20GiB 2TiB; do
        [ -w /dev/full ] && takes_nothing "a full stdout, $budget $how" sim --model llama3-70b --budget $budget $how 3>&1 > /dev/full
        takes_nothing "a closed stdout, $budget $how" sim --model llama3-70b --budget $budget $how 3>&1 >&-
    done
done
check "the tool's version" bash -c '"$0" --version | grep -qx "agoqctl [0-9.]*"' "$BUILD/agoqctl"
code "beyond the operations of a list" 2 --hidden 1024 --ffn 2816 --layers 1024 --heads 8 --vocab 32000 --budget 80GiB --seq 2048 --pp 512 --schedule v-half --microbatches 1024
check "is named" grep -q "v-half with 512 ranks, 2 chunks and 1024 micro-batches is too large" "$tmp/err"

code "unknown option" 2 $llama --pp 4 --budget 80GiB --microbatch 3
check "and its neighbour is named" grep -q -- "did you mean --microbatches" "$tmp/err"
code "junk behind a size" 2 $llama --pp 4 --budget "80GB "
code "a size without unit" 2 $llama --pp 4 --budget 80
code "leading zero" 2 $llama --pp 04 --budget 80GiB
code "option twice" 2 $llama --pp 4 --pp 4 --budget 80GiB
code "value missing" 2 $llama --pp 4 --budget
code "no budget" 2 $llama --pp 4
code "no shape" 2 --pp 4 --budget 80GiB
code "pp beyond the layers" 2 $llama --pp 33 --budget 80GiB
code "chunks that do not divide the layers" 2 $llama --pp 4 --schedule interleaved --vpp 3 --budget 80GiB
check "with the reason" grep -q "does not divide the 32 layers" "$tmp/err"
code "more ranks than GPUs" 2 $llama --cluster config/clusters/h100-80.yaml --pp 4 --dp 4
code "pp * tp does not divide the GPUs" 2 $llama --cluster config/clusters/h100-80.yaml --pp 3
printf '{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
"num_key_value_heads": 8, "vocab_size": 128256, "rope_scaling": null, "max_position_embeddings": 8192}' > "$tmp/config.json"
json "a Hugging Face config.json" 'a["feasible"]' --model "$tmp/config.json" --pp 4 --budget 50GiB
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"])' "$tmp/a.json" > "$tmp/from-json"
check "says the same" cmp "$tmp/from-file" "$tmp/from-json"
echo '{"hidden_size": 4096' > "$tmp/cut.json"
code "a config.json that is cut" 2 --model "$tmp/cut.json" --budget 80GiB
code "tp that does not divide the heads" 2 $llama --tp 3 --budget 80GiB
check "with the reason" grep -q "tp 3 does not divide the 32 heads" "$tmp/err"
code "a word that is none" 2 $llama --schedule 1f1 --budget 80GiB
check "with the nearest" grep -q "did you mean .1f1b" "$tmp/err"
code "a model that is none" 2 --model lama3-8b --budget 80GiB
code "file missing" 1 --model "$tmp/none.yaml" --budget 80GiB
: > "$tmp/empty.yaml"
code "file empty" 2 --model "$tmp/empty.yaml" --budget 80GiB
sed 's/^ffn/fnn/' config/models/llama3-8b.yaml > "$tmp/typo.yaml"
code "mistyped key" 2 --model "$tmp/typo.yaml" --budget 80GiB
check "with file, line, and the right key" grep -q "typo.yaml:4:.*ffn" "$tmp/err"
sed 's/^layers: 32/layers: 032/' config/models/llama3-8b.yaml > "$tmp/octal.yaml"
code "leading zero in a file" 2 --model "$tmp/octal.yaml" --budget 80GiB
sed '$a hidden: 1' config/models/llama3-8b.yaml > "$tmp/twice.yaml"
code "key twice" 2 --model "$tmp/twice.yaml" --budget 80GiB
for file in config/models/*.yaml; do
    for cluster in config/clusters/*.yaml; do
        sim --model "$file" --cluster "$cluster" --pp 2 > "$tmp/out" 2>&1
        rc=$?
        if [ $rc -eq 0 ] || [ $rc -eq 5 ]; then ok "$(basename "$file") on $(basename "$cluster")"
        else not_ok "$(basename "$file") on $(basename "$cluster")" "$rc $(head -c 200 "$tmp/out")"; fi
    done
done
[ $n_failed -eq 0 ]

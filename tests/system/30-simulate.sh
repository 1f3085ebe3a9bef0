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

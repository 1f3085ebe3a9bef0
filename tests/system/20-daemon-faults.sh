#!/bin/bash
# The daemon alone against bad input and bad luck: bad messages, a second daemon, signals, kill -9, damaged or full state.
. "$(dirname "$0")/lib.sh"
sock=$tmp/agoqd.sock
export AGOQ_SOCKET=$sock
ctl() { timeout 10 "$BUILD/agoqctl" --json "$@"; }
value() { ctl status | python3 -c "import json,sys; print(json.load(sys.stdin)['status']['$1'])"; }
up() { # ARGS...: starts it, waits until it answers
    "$BUILD/agoqd" --socket "$sock" --state-dir "$tmp/state" "$@" 2>> "$tmp/log" &
    daemon=$!
    wait_for 20 ctl status
}
ends_with() { # PID STATUS: the process ends within 10 s, with that status
    local rc=0
    wait_for 10 eval "! kill -0 $1" || return 1
    wait "$1" || rc=$?
    [ $rc -eq "$2" ]
}
check "starts and answers with nobody connected" up
check "its socket has the configured mode" test "$(stat -c %a "$sock")" = 660

# A second daemon, on the same socket or on the same state, says so and leaves the first alone.
refused() { # TEXT ARGS...
    local text=$1 rc=0
    shift
    timeout 10 "$BUILD/agoqd" "$@" > "$tmp/second" 2>&1 || rc=$?
    [ $rc -eq 1 ] && grep -q "$text" "$tmp/second" && ctl status > /dev/null
}
check "a second daemon on the socket refuses to start" refused "another agoqd serves" --socket "$sock" --state-dir "$tmp/other"
check "a second daemon on the state refuses to start" refused "another agoqd uses" --socket "$tmp/other.sock" --state-dir "$tmp/state"
check "a socket path that is too long is refused" refused "too long" --socket "/tmp/$(printf 'x%.0s' {1..200})" --state-dir "$tmp/other"

# Bad messages: each is counted (oversize ones end the connection before a message exists), none does harm.
counted() { # KIND COUNT AT-LEAST
    local before after
    before=$(value rejected_messages) || return 1
    timeout 60 "$BUILD/tests/tools/wiretool" "$sock" "$1" "$2" || return 1
    after() { [ "$(value rejected_messages)" -ge $((before + $3)) ]; }
    wait_for 10 after _ _ "$3"
}
for kind in garbage truncated version parts; do
    check "200 $kind messages are counted and survived" counted $kind 200 200
done
check "oversize messages are survived" counted oversize 5 0
check "raw bytes on the socket are survived" counted raw 200 0
lines=$(grep -c 'message rejected' "$tmp/log")
check "and do not flood the log ($lines lines)" test "$lines" -le 60
check "it still answers" ctl status

# Nobody there: it sleeps.
ticks() { awk '{print $14 + $15}' "/proc/$daemon/stat"; }
was=$(ticks)
sleep 2
used=$(($(ticks) - was))
check "idle, it uses little CPU ($used ticks in 2 s)" test $used -le $(($(getconf CLK_TCK) / 5))

# Signals.
kill -HUP "$daemon"
sleep 0.3
check "SIGHUP changes nothing" ctl status
kill -TERM "$daemon"
check "SIGTERM ends it with status 0" ends_with "$daemon" 0
check "and the socket is gone" test ! -e "$sock"
rc=0; ctl status > "$tmp/out" 2>&1 || rc=$?
check "agoqctl then says which socket it tried" eval "[ $rc -eq 3 ] && grep -q '$sock' '$tmp/out'"

# kill -9 and back on the same socket; the term rises each time.
up
term=$(value term)
kill -KILL "$daemon"
{ wait "$daemon"; } 2> /dev/null
check "kill -9, and it starts again on the same socket" up
check "in a later term" test "$(value term)" -gt "$term"
kill -INT "$daemon"
check "SIGINT ends it with status 0" ends_with "$daemon" 0

# Damaged state is an error, not a fresh start; a folder that cannot be written as well.
cp "$tmp/state/state" "$tmp/good"
printf 'x' | dd of="$tmp/state/state" bs=1 seek=20 conv=notrunc 2> /dev/null
fails() { # TEXT ARGS...: no second daemon to ask here
    local text=$1 rc=0
    shift
    timeout 10 "$@" > "$tmp/second" 2>&1 || rc=$?
    [ $rc -eq 1 ] && grep -q "$text" "$tmp/second"
}
check "damaged state is refused" fails "damaged" "$BUILD/agoqd" --socket "$sock" --state-dir "$tmp/state"
head -c 30 "$tmp/good" > "$tmp/state/state"
check "cut state is refused" fails "damaged" "$BUILD/agoqd" --socket "$sock" --state-dir "$tmp/state"
cp "$tmp/good" "$tmp/state/state"
no_room() { # through a pipe: a file could not be written either
    local rc=0 out
    out=$(ulimit -f 0; timeout 10 "$BUILD/agoqd" --socket "$sock" --state-dir "$tmp/state" 2>&1) || rc=$?
    printf '%s\n' "$out"
    [ $rc -eq 1 ] && [[ $out == *"cannot be stored"* ]]
}
if [ "${AGOQ_TEST_SAN:-}" = thread ]; then
    skip "no room for the state is an error at start" "ThreadSanitizer's runtime writes a file of its own at start"
else
    check "no room for the state is an error at start" no_room
fi
check "which leaves the old state whole" cmp "$tmp/good" "$tmp/state/state"
check "a state folder that cannot be made is an error" fails "cannot make" "$BUILD/agoqd" --socket "$sock" --state-dir "/proc/nowhere/state"
check "and with good state it starts" up
stop "$daemon"

# What stands at the socket's path and is not ours is neither served over nor removed.
echo precious > "$tmp/file"
ln -s file "$tmp/link"
for path in file link; do
    check "a $path in the socket's place is an error" fails "not a socket" "$BUILD/agoqd" --socket "$tmp/$path" --state-dir "$tmp/other"
    check "and the $path stays" grep -q precious "$tmp/$path"
done
python3 -c "
import signal, socket
s = socket.socket(socket.AF_UNIX)
s.bind('$tmp/foreign')
s.listen()
signal.pause()" &
foreign=$!
wait_for 5 test -S "$tmp/foreign"
check "another program's socket is an error" fails "another program" "$BUILD/agoqd" --socket "$tmp/foreign" --state-dir "$tmp/other"
check "and stays" test -S "$tmp/foreign"
stop $foreign

# More connections than descriptors: libzmq alone would abort (EMFILE at accept); the daemon ends what is too much, and serves on.
printf 'max_sessions: 16\n' > "$tmp/few.yaml"
few() {
    (ulimit -n 120 && exec "$BUILD/agoqd" --config "$tmp/few.yaml" --socket "$sock" --state-dir "$tmp/state") 2>> "$tmp/log" &
    daemon=$!
    wait_for 20 ctl status
}
check "starts with few descriptors" few
term=$(value term)
timeout 30 python3 - "$sock" > "$tmp/flood" << 'PY'
import socket, sys, time
held = []
for _ in range(400):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    s.connect(sys.argv[1])
    held.append(s)
print(len(held))
time.sleep(1)
PY
check "400 connections at once are more than it may have" grep -qx 400 "$tmp/flood"
check "and it still answers" wait_for 20 ctl status
check "as the same process" eval "kill -0 $daemon && [ \"\$(value term)\" = $term ]"
kill -TERM "$daemon"
check "and ends with status 0" ends_with "$daemon" 0

# Readiness for systemd: after the socket is bound, never before.
python3 - "$tmp/notify" "$BUILD/agoqd" "$sock" "$tmp/state" > "$tmp/notified" 2> /dev/null << 'PY'
import os, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(10)
p = subprocess.Popen([sys.argv[2], "--socket", sys.argv[3], "--state-dir", sys.argv[4]],
                     env=dict(os.environ, NOTIFY_SOCKET=sys.argv[1], WATCHDOG_USEC="400000"), stderr=subprocess.DEVNULL)
print(s.recv(100).decode(), os.path.exists(sys.argv[3]))
print(s.recv(100).decode(), s.recv(100).decode())
p.terminate()
text = ""
while "STOPPING" not in text:
    text = s.recv(100).decode()
print(text, p.wait(10))
PY
check "READY=1 once the socket is there" grep -qx 'READY=1 True' "$tmp/notified"
check "then WATCHDOG=1 again and again" grep -qx 'WATCHDOG=1 WATCHDOG=1' "$tmp/notified"
check "STOPPING=1 at the end" grep -qx 'STOPPING=1 0' "$tmp/notified"

# Configuration errors end it with a status of their own, before anything is touched.
printf 'default_budget: 80GB \nsockett: x\n' > "$tmp/bad.yaml"
rc=0; "$BUILD/agoqd" --config "$tmp/bad.yaml" --socket "$sock" > "$tmp/out" 2>&1 || rc=$?
check "a bad configuration is status 42, with its line" eval "[ $rc -eq 42 ] && grep -q 'bad.yaml:[12]:' '$tmp/out' && [ ! -e '$sock' ]"
check "--check-config of the defaults" "$BUILD/agoqd" --check-config
check "--print-config can be read again" eval "'$BUILD/agoqd' --print-config > '$tmp/printed.yaml' && '$BUILD/agoqd' --config '$tmp/printed.yaml' --check-config"
[ $n_failed -eq 0 ]

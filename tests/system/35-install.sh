#!/bin/bash
# What `make install` leaves behind works by itself: programs, libraries, headers and pkg-config files from a scratch root,
# used by small programs in C and C++ as a stranger would. Also the files of deploy/.
. "$(dirname "$0")/lib.sh"
root=$tmp/root
build=${BUILD#"$PWD"/}
make_install() { make -s BUILD="$build" DESTDIR="$root" PREFIX="${1:-/usr}" install; }
check "make install" make_install || exit 1

for file in usr/bin/agoqd usr/bin/agoqctl usr/bin/agoq-train usr/lib/libagoq.so usr/lib/libagoq.so.0 usr/lib/libagoq_mpi.so \
    usr/include/agoq/agoq.h usr/include/agoq/agoq_mpi.h usr/lib/pkgconfig/agoq.pc usr/lib/pkgconfig/agoq_mpi.pc \
    usr/lib/systemd/system/agoqd.service usr/lib/sysusers.d/agoq.conf usr/share/agoq/agoq.slurm etc/agoq/agoqd.yaml; do
    check "installs $file" test -s "$root/$file"
done
leftover=$(grep -rlE '@[A-Z]+@' "$root/usr/lib/pkgconfig" "$root/usr/lib/systemd" "$root/etc" | tr '\n' ' ')
[ -z "$leftover" ] && ok "no place holder is left" || not_ok "no place holder is left" "$leftover"
stray=$(cd "$root" && find . -type f -perm /022 | tr '\n' ' ')
[ -z "$stray" ] && ok "nothing is writable for others" || not_ok "nothing is writable for others" "$stray"
soname() { readelf -d "$1" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'; }
[ "$(soname "$root/usr/lib/libagoq.so")" = libagoq.so.0 ] && [ "$(soname "$root/usr/lib/libagoq_mpi.so")" = libagoq_mpi.so.0 ] &&
    ok "sonames" || not_ok "sonames" "$(soname "$root/usr/lib/libagoq.so") $(soname "$root/usr/lib/libagoq_mpi.so")"
for lib in libagoq libagoq_mpi; do
    others=$(nm -D --defined-only "$root/usr/lib/$lib.so" | awk '$2 != "A" {print $3}' | grep -v '^agoq_' | tr '\n' ' ')
    [ -z "$others" ] && ok "$lib exports agoq_* only" || not_ok "$lib exports agoq_* only" "$others"
    [ "$(nm -D --defined-only "$root/usr/lib/$lib.so" | grep -c ' agoq_')" -gt 0 ] || not_ok "$lib exports something" "nothing"
done

# ---- a stranger's programs ----
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root LD_LIBRARY_PATH=$root/usr/lib
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
cat > "$tmp/user.c" << 'C'
#include <agoq/agoq.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    float x[130], y[130];
    _Alignas(16) unsigned char data[512];
    for (int i = 0; i < 130; i++) x[i] = (float)(i % 7) - 3.0f;
    agoq_view in = {x, AGOQ_DTYPE_F32, 1, 130, 130}, out = {y, AGOQ_DTYPE_F32, 1, 130, 130};
    agoq_packed p = {{0}, data};
    if (agoq_layout_make(8, 1, 130, &p.layout) != AGOQ_OK || p.layout.bytes > sizeof data) return 1;
    if (agoq_pack(NULL, &in, NULL, &p) != AGOQ_OK || agoq_unpack(NULL, &p, &out) != AGOQ_OK) return 2;
    for (int i = 0; i < 130; i++)
        if (y[i] - x[i] > 0.05f || x[i] - y[i] > 0.05f) return 3;
    agoq_session *session = NULL;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    config.world = config.n_stages = config.n_dp = config.n_tp = 1;
    if (agoq_session_open(&config, &session) != AGOQ_OK) return 4;
    agoq_session_close(&session);
    printf("%s %s\n", agoq_version(), agoq_status_name(AGOQ_OK));
    return strcmp(agoq_role_name(AGOQ_ROLE_MLP_GATE_UP), "mlp_gate_up") != 0;
}
C
sed 's/_Alignas/alignas/; s/{{0}, data}/{agoq_layout(), data}/; s/NULL, &in/nullptr, \&in/' "$tmp/user.c" > "$tmp/user.cc"
compile() { # COMPILER SOURCE PACKAGE FLAGS...
    local cc=$1 source=$2 package=$3
    shift 3
    # shellcheck disable=SC2046
    $cc "$@" -Wall -Wextra -Werror -o "$source.out" "$source" $(pkg-config --cflags --libs "$package")
}
version=$(pkg-config --modversion agoq)
check "a C program compiles" compile "${CC:-gcc}" "$tmp/user.c" agoq -std=c11 -pedantic
[ "$("$tmp/user.c.out")" = "$version AGOQ_OK" ] && ok "and runs" || not_ok "and runs" "status $?"
if command -v g++ > /dev/null 2>&1; then
    check "a C++ program compiles" compile g++ "$tmp/user.cc" agoq -std=c++17 -Wno-missing-field-initializers
    [ "$("$tmp/user.cc.out")" = "$version AGOQ_OK" ] && ok "and runs, in C++" || not_ok "and runs, in C++" "status $?"
else
    skip "C++" "g++ is not installed"
fi
cat > "$tmp/mpi.c" << 'C'
#include <agoq/agoq_mpi.h>
int main(int argc, char **argv) {
    agoq_comm *comm = NULL;
    MPI_Init(&argc, &argv);
    int bad = agoq_comm_from_mpi(MPI_COMM_WORLD, &comm) != AGOQ_OK || agoq_comm_size(comm) != 2;
    agoq_comm_free(&comm);
    MPI_Finalize();
    return bad;
}
C
if command -v mpicc > /dev/null 2>&1; then
    check "an MPI program compiles" compile mpicc "$tmp/mpi.c" agoq_mpi -std=c11
    check "and runs on two ranks" run_mpi 2 "$tmp/mpi.c.out"
else
    skip "MPI" "mpicc is not installed"
fi
unset LD_LIBRARY_PATH
check "the installed trainer finds its libraries by itself" "$root/usr/bin/agoq-train" --help
check "the installed tool reads the installed configuration" "$root/usr/bin/agoqctl" config check "$root/etc/agoq/agoqd.yaml"

echo "margin: 7%" > "$root/etc/agoq/agoqd.yaml"
check "install again, elsewhere" make_install /opt/agoq
grep -q 7% "$root/etc/agoq/agoqd.yaml" && ok "an existing configuration is kept" || not_ok "an existing configuration is kept" "overwritten"
grep -q '^ExecStart=/opt/agoq/bin/agoqd .*--config /etc/agoq/agoqd.yaml' "$root/opt/agoq/lib/systemd/system/agoqd.service" &&
    ok "the unit follows PREFIX" || not_ok "the unit follows PREFIX" "$(grep ExecStart "$root/opt/agoq/lib/systemd/system/agoqd.service")"

# ---- units and scripts ----
if command -v systemd-analyze > /dev/null 2>&1; then
    sed "s|^ExecStart=/usr/bin/agoqd|ExecStart=$BUILD/agoqd|; /^Documentation/d" "$root/usr/lib/systemd/system/agoqd.service" > "$tmp/agoqd.service"
    check "systemd accepts the unit" systemd-analyze verify "$tmp/agoqd.service"
    [ -s "$tmp/check.out" ] && not_ok "without a warning" "$(head -n 3 "$tmp/check.out" | tr '\n' ' ')" || ok "without a warning"
else
    skip "unit" "systemd-analyze is not installed"
fi
for script in deploy/*.slurm tools/*.sh tests/system/*.sh; do
    check "$script parses" bash -n "$script"
done

# The batch script with an srun that runs the step here: daemon up, training sees it, all gone at the end.
mkdir "$tmp/bin" "$tmp/run"
cat > "$tmp/bin/srun" << 'SH'
#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
exec "$@"
SH
chmod +x "$tmp/bin/srun"
slurm() { PATH=$tmp/bin:$PATH SLURM_JOB_ID=77 AGOQ_BIN=$root/usr/bin AGOQ_RUN_DIR=$tmp/run timeout 60 bash deploy/agoq.slurm "$@"; }
check "the batch script: training meets its daemon" slurm "$root/usr/bin/agoqctl" status
[ -z "$(ls "$tmp/run")" ] && ok "and leaves nothing" || not_ok "and leaves nothing" "$(ls "$tmp/run")"
slurm bash -c 'exit 9' > "$tmp/out" 2>&1
[ $? -eq 9 ] && ok "the training's status is the job's" || not_ok "the training's status is the job's" "$(tail -n 2 "$tmp/out" | tr '\n' ' ')"
slurm > "$tmp/out" 2>&1
[ $? -eq 2 ] && ok "without a command it says how" || not_ok "without a command it says how" "$(cat "$tmp/out")"

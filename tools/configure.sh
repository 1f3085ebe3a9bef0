#!/bin/sh
# Checks the packages that the build needs, installs them if it may, and prints compiler flags as make variables.
# As root under `make demo`, `make test` or `make deps` it installs; otherwise it prints the one command to run.
set -eu
packages="gcc g++ libc6-dev pkg-config python3 libzmq3-dev libprotobuf-c-dev protobuf-c-compiler libyaml-dev
libopenmpi-dev openmpi-bin libopenblas-dev libcmocka-dev"

# Asked of pkg-config and the shell, not of dpkg: what counts is that the build finds it.
missing() {
    for tool in gcc:gcc g++:g++ pkg-config:pkg-config python3:python3 protoc-c:protobuf-c-compiler mpirun:openmpi-bin; do
        command -v "${tool%%:*}" > /dev/null 2>&1 || printf '%s ' "${tool##*:}"
    done
    for module in libzmq:libzmq3-dev libprotobuf-c:libprotobuf-c-dev yaml-0.1:libyaml-dev ompi-c:libopenmpi-dev \
        openblas:libopenblas-dev cmocka:libcmocka-dev; do
        pkg-config --exists "${module%%:*}" 2> /dev/null || printf '%s ' "${module##*:}"
    done
    [ -e /usr/include/stdio.h ] || printf 'libc6-dev '
}

case ${CC:-cc} in
    cc | gcc) ;;
    *) command -v "$CC" > /dev/null || { echo "CC=$CC was not found" >&2; exit 1; } ;;
esac
want=$(missing)
if [ -n "$want" ]; then
    if [ "${AGOQ_MAY_INSTALL:-0}" = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null 2>&1; then
        echo "installing (a minute or two): $want" >&2
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        # shellcheck disable=SC2086
        apt-get install -y -qq --no-install-recommends $packages > /dev/null
        want=$(missing)
    fi
    if [ -n "$want" ]; then
        sudo=$([ "$(id -u)" = 0 ] || echo "sudo ")
        echo "missing: $want" >&2
        echo "run: ${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends" $packages >&2
        exit 1
    fi
fi

nvcc=$(command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; } || true)
case ${CUDA:-auto} in
    no) nvcc= ;;
    yes) [ -n "$nvcc" ] || { echo "CUDA=yes, but nvcc was not found (set PATH, or use CUDA=no)" >&2; exit 1; } ;;
    auto) echo "CUDA=auto: ${nvcc:-no nvcc found, building without}" >&2 ;;
    *) echo "CUDA must be auto, yes or no" >&2; exit 1 ;;
esac

echo "ZMQ_LIBS := $(pkg-config --libs libzmq)"
echo "PB_LIBS := $(pkg-config --libs libprotobuf-c)"
echo "YAML_LIBS := $(pkg-config --libs yaml-0.1)"
echo "CMOCKA_LIBS := $(pkg-config --libs cmocka)"
echo "MPI_CFLAGS := $(pkg-config --cflags ompi-c | sed 's/-I/-isystem /g')"
echo "MPI_LIBS := $(pkg-config --libs ompi-c)"
echo "BLAS_CFLAGS := $(pkg-config --cflags openblas | sed 's/-I/-isystem /g')"
echo "BLAS_LIBS := $(pkg-config --libs openblas)"
# cudart is linked statically: a library built with CUDA loads on a machine that has none.
echo "NVCC := $nvcc"
echo "CUDA_CFLAGS := $([ -z "$nvcc" ] || echo "-isystem $(dirname "$(dirname "$(readlink -f "$nvcc")")")/include")"
echo "CUDA_LIBS := $([ -z "$nvcc" ] || echo "-L$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64 -lcudart_static -ldl -lrt")"
echo "HAVE_NVCC := $([ -n "$nvcc" ] && echo 1 || echo 0)"

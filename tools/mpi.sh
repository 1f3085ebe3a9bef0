# Sourced by scripts that launch ranks on one small machine: sets the array `mpi` (mpirun and its options) and the
# environment. Ranks share cores, so they yield when idle and are not bound; Open MPI refuses root unless told.
# Open MPI copies between ranks with process_vm_readv where it may; containers often forbid it, and it then prints an
# error per message instead of falling back. Asked once, of the kernel.
mpi_cma_permitted() {
    [ -n "${mpi_cma:-}" ] || mpi_cma=$(python3 - << 'PY' 2> /dev/null || echo no
import ctypes, os, signal
class iov(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(b"x" * 8)
copy = ctypes.create_string_buffer(8)
# MPI ranks are siblings: one child reads the other.
other = os.fork()
if other == 0:
    signal.pause()
reader = os.fork()
if reader == 0:
    l, r = iov(ctypes.addressof(copy), 8), iov(ctypes.addressof(data), 8)
    n = libc.process_vm_readv(other, ctypes.byref(l), 1, ctypes.byref(r), 1, 0)
    os._exit(0 if n == 8 else 1)
status = os.waitpid(reader, 0)[1]
os.kill(other, signal.SIGKILL)
os.waitpid(other, 0)
print("yes" if status == 0 else "no")
PY
    )
    [ "$mpi_cma" = yes ]
}


mpi=(mpirun --oversubscribe --bind-to none)
[ "$(id -u)" -ne 0 ] || mpi+=(--allow-run-as-root)
mpi_cma_permitted || export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1

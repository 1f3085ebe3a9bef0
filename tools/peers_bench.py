#!/usr/bin/env python3
"""Times agoq and its peers on the same tensors in one run, on a GPU: tools/peers_bench.py LIBAGOQ.so [--commit ID] [--out FILE]

Peers: bitsandbytes (block-wise 4 and 8 bits, AdamW8bit), torchao (its optimizer's 4- and 8-bit state), Liger (RMSNorm,
SwiGLU), PyTorch eager. What is not installed is named and left out. Each call is captured in a CUDA graph where it can
be (else timed by events, said in the table) and replayed; tensors are more than four times the L2 cache; medians.
Errors are relative, |x - decoded| / |x|, on Gaussian data, at the bytes each format takes. agoq's own outputs are
compared with its CPU code by `make test-gpu`; here every decoded tensor is checked against its input."""
import ctypes
import datetime
import json
import sys

import torch


class View(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('dtype', ctypes.c_int), ('rows', ctypes.c_int64), ('cols', ctypes.c_int64),
                ('row_stride', ctypes.c_int64)]


class Layout(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ('format', 'bits', 'lo_bits', 'hi_bits')] + \
        [(n, ctypes.c_int64) for n in ('rows', 'cols', 'blocks_per_row')] + \
        [(n, ctypes.c_size_t) for n in ('lo_row_bytes', 'hi_row_bytes', 'hi_offset', 'scale_offset', 'bytes')]


class Packed(ctypes.Structure):
    _fields_ = [('layout', Layout), ('data', ctypes.c_void_p)]


class Exec(ctypes.Structure):
    _fields_ = [('device', ctypes.c_int), ('stream', ctypes.c_void_p), ('nonfinite', ctypes.c_void_p),
                ('workspace', ctypes.c_void_p), ('workspace_bytes', ctypes.c_size_t)]


class Norm(ctypes.Structure):
    _fields_ = [('kind', ctypes.c_int), ('weight_dtype', ctypes.c_int), ('weight', ctypes.c_void_p), ('bias', ctypes.c_void_p),
                ('eps', ctypes.c_float), ('round_bf16', ctypes.c_int), ('round_first', ctypes.c_int)]


class AdamParams(ctypes.Structure):
    _fields_ = [(n, ctypes.c_float) for n in ('lr', 'beta1', 'beta2', 'eps', 'weight_decay')] + \
        [('step', ctypes.c_int64), ('multiplier', ctypes.c_float)]


class Source(ctypes.Structure):
    _fields_ = [('grad8', ctypes.c_void_p), ('grad', ctypes.c_void_p), ('dtype', ctypes.c_int)]


class Target(ctypes.Structure):
    _fields_ = [('master', ctypes.c_void_p), ('bf16', ctypes.c_void_p), ('key', ctypes.c_void_p)]


class Adam8(ctypes.Structure):
    _fields_ = [('m', ctypes.c_void_p), ('v', ctypes.c_void_p), ('m_absmax', ctypes.c_void_p), ('v_absmax', ctypes.c_void_p),
                ('n', ctypes.c_int64)]


F32, BF16 = 0, 1
DTYPES = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: 2}


class Agoq:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.agoq_last_error.restype = ctypes.c_char_p
        self.lib.agoq_layout_fill.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self.lib.agoq_norm_bwd_workspace.restype = ctypes.c_size_t
        self.lib.agoq_norm_bwd_workspace.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        self.work = torch.empty(256 << 20, dtype=torch.uint8, device='cuda')

    def __call__(self, name, *args):
        e = Exec(1, torch.cuda.current_stream().cuda_stream, None, self.work.data_ptr(), self.work.numel())
        status = getattr(self.lib, name)(ctypes.byref(e), *[ctypes.byref(a) if isinstance(a, ctypes.Structure) else a
                                                            for a in args])
        if status:
            raise RuntimeError(f'{name}: {self.lib.agoq_last_error().decode()}')


def view(t):
    return View(t.data_ptr(), DTYPES[t.dtype], t.shape[0], t.shape[1], t.stride(0))


def packed(agoq, fmt, rows, cols):
    layout = Layout()
    if agoq.lib.agoq_layout_fill(fmt, rows, cols, ctypes.byref(layout)):
        raise RuntimeError(agoq.lib.agoq_last_error().decode())
    if (layout.format, layout.rows, layout.cols) != (fmt, rows, cols):
        raise RuntimeError('Layout is not the agoq_layout of include/agoq/format.h')
    data = torch.zeros(layout.bytes, dtype=torch.uint8, device='cuda')
    p = Packed(layout, data.data_ptr())
    p.keep = data
    return p


def median_us(fn, launches=6, replays=15, least=5.0):
    """(microseconds of one call, 'graph' or 'events'); a graph that takes less than `least` caught nothing: the peer uses a
    stream of its own"""
    us, how = timed(fn, launches, replays, True)
    return (us, how) if us > least else timed(fn, launches, replays, False)


def timed(fn, launches, replays, capture):
    for _ in range(3):
        fn()
    torch.cuda.synchronize()
    how = 'graph'
    try:
        if not capture:
            raise RuntimeError('not captured')
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                fn()
        run = graph.replay
    except Exception:  # the peer synchronises or uses another stream
        torch.cuda.synchronize()
        how = 'events'

        def run():
            for _ in range(launches):
                fn()
    times = []
    for i in range(replays + 2):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(stop) * 1e3 / launches)
    return sorted(times)[len(times) // 2], how


def error(x, y):
    return float((x.float() - y.float()).norm() / x.float().norm())


rows = []


def add(task, who, us, n_elements, bits=None, err=None, how='graph'):
    rows.append({'task': task, 'who': who, 'us': round(us, 1), 'elements': n_elements, 'bits_per_element': bits,
                 'relative_error': err, 'timed_by': how})
    print(f'{task:28} {who:34} {us:10.1f} us {"" if bits is None else f"{bits:7.3f} b"} '
          f'{"" if err is None else f"{100 * err:7.3f} %"} {how}', flush=True)


def attempt(task, who, fn):
    try:
        fn()
    except Exception as e:  # a peer that is missing or fails is said, and the others go on
        print(f'{task:28} {who:34} left out: {type(e).__name__}: {str(e)[:90]}', flush=True)


def codecs(agoq, x):
    n = x.numel()
    y = torch.empty_like(x)
    for fmt, name in ((4, 'int4'), (68, 'code4'), (5, 'int5'), (6, 'int6'), (8, 'int8')):
        p = packed(agoq, fmt, *x.shape)
        vx, vy = view(x), view(y)
        us, how = median_us(lambda: agoq('agoq_pack', vx, None, p))
        back, how2 = median_us(lambda: agoq('agoq_unpack', p, vy))
        add('quantize', f'agoq {name}', us, n, 8 * p.layout.bytes / n, error(x, y), how)
        add('dequantize', f'agoq {name}', back, n, 8 * p.layout.bytes / n, None, how2)

    def bnb():
        import bitsandbytes.functional as F
        for kind, block in (('nf4', 64), ('fp4', 64)):
            q, s = F.quantize_4bit(x, blocksize=block, quant_type=kind)
            z = F.dequantize_4bit(q, s)
            us, how = median_us(lambda: F.quantize_4bit(x, blocksize=block, quant_type=kind))
            add('quantize', f'bitsandbytes {kind} block {block}', us, n, 4 + 32 / block, error(x, z), how)
            us, how = median_us(lambda: F.dequantize_4bit(q, s))
            add('dequantize', f'bitsandbytes {kind} block {block}', us, n, 4 + 32 / block, None, how)
        for block in (64, 256):
            q, s = F.quantize_blockwise(x, blocksize=block)
            z = F.dequantize_blockwise(q, s)
            us, how = median_us(lambda: F.quantize_blockwise(x, blocksize=block))
            add('quantize', f'bitsandbytes 8 bit block {block}', us, n, 8 + 32 / block, error(x, z), how)
            us, how = median_us(lambda: F.dequantize_blockwise(q, s))
            add('dequantize', f'bitsandbytes 8 bit block {block}', us, n, 8 + 32 / block, None, how)
    attempt('quantize', 'bitsandbytes', bnb)

    def ao():
        from torchao.optim import quant_utils as q
        small = x[:x.shape[0] // 8].float().contiguous()
        m = small.numel()
        for name, quantize, signed, total in (('8 bit', q.quantize_8bit_with_qmap, True, 8), ('4 bit', q.quantize_4bit_with_qmap, True, 4)):
            qmap = torch.tensor(q.create_dynamic_map(signed, 7 if total == 8 else 3, total), device='cuda')
            block = 256 if total == 8 else 128
            scaled, scale = q.scale_tensor(small, block)
            f = torch.compile(lambda t: quantize(*[q.scale_tensor(t, block)[0], qmap]))
            us, how = median_us(lambda: f(small))
            codes = quantize(scaled, qmap)
            add('quantize', f'torchao {name} block {block} (compiled, n/8)', us, m, total + 32 / block,
                error(small.flatten(), q.dequant_with_qmap(codes, qmap, scale).flatten()), how)
    attempt('quantize', 'torchao', ao)


def norms(agoq, x, dy):
    n, (r, c) = x.numel(), x.shape
    w = torch.randn(c, device='cuda', dtype=torch.bfloat16) * 0.1 + 1
    y, dx = torch.empty_like(x), torch.empty_like(x)
    dw = torch.zeros(c, device='cuda')
    norm = Norm(0, BF16, w.data_ptr(), None, 1e-5, 1, 1)
    for bits in (4, 8):
        p = packed(agoq, bits, r, c)
        vx, vy, vdy, vdx = view(x), view(y), view(dy), view(dx)
        us, how = median_us(lambda: agoq('agoq_norm_fwd_pack', vx, None, norm, None, vy, p))
        add('rmsnorm forward', f'agoq fused int{bits}', us, n, how=how)
        us, how = median_us(lambda: agoq('agoq_norm_bwd_packed', p, norm, vdy, vdx, ctypes.c_void_p(dw.data_ptr()), None))
        add('rmsnorm backward', f'agoq fused int{bits}', us, n, how=how)
    us, how = median_us(lambda: torch.nn.functional.rms_norm(x, (c,), w, 1e-5))
    add('rmsnorm forward', 'torch eager rms_norm', us, n, how=how)

    def liger():
        from liger_kernel.ops import rms_norm as L
        y, x2, rstd, block, warps, casting = L.rms_norm_forward(x, w, 1e-5, 0.0, 'llama', None)
        us, how = median_us(lambda: L.rms_norm_forward(x, w, 1e-5, 0.0, 'llama', None))
        add('rmsnorm forward', 'liger', us, n, how=how)
        us, how = median_us(lambda: L.rms_norm_backward(dy, x2, w, rstd, 0.0, casting, block, warps, False, None))
        add('rmsnorm backward', 'liger', us, n, how=how)
    attempt('rmsnorm', 'liger', liger)


def swiglu(agoq, g, u, d):
    n, (r, c) = g.numel(), g.shape
    out = [torch.empty_like(g) for _ in range(3)]
    vg, vu, vd, vo = view(g), view(u), view(d), [view(t) for t in out]
    for bits in (4, 8):
        pg, pu = packed(agoq, bits, r, c), packed(agoq, bits, r, c)
        us, how = median_us(lambda: agoq('agoq_swiglu_fwd_pack', vg, vu, 1, vo[0], pg, pu))
        add('swiglu forward', f'agoq fused int{bits}', us, n, how=how)
        us, how = median_us(lambda: agoq('agoq_swiglu_bwd_packed', pg, pu, 1, vd, vo[0], vo[1], vo[2]))
        add('swiglu backward (+ product)', f'agoq fused int{bits}', us, n, how=how)
    us, how = median_us(lambda: torch.nn.functional.silu(g) * u)
    add('swiglu forward', 'torch eager', us, n, how=how)

    def liger():
        from liger_kernel.ops import swiglu as L
        us, how = median_us(lambda: L.swiglu_forward(g, u))
        add('swiglu forward', 'liger', us, n, how=how)
        a, b = g.clone(), u.clone()
        us, how = median_us(lambda: L.swiglu_backward(a, b, d))
        add('swiglu backward', 'liger (in place, no product)', us, n, how=how)
    attempt('swiglu', 'liger', liger)


def adam(agoq, n):
    """The same gradients through both optimizers: time, and how far the parameters drift apart."""
    torch.manual_seed(3)
    grads = [torch.randn(n, device='cuda') * 0.01 for _ in range(2)]
    start = torch.randn(n, device='cuda') * 0.02
    p = start.clone()
    blocks = (n + 255) // 256
    m, v = torch.full((n,), 127, dtype=torch.uint8, device='cuda'), torch.zeros(n, dtype=torch.uint8, device='cuda')
    tops = [torch.zeros(blocks, device='cuda') for _ in range(2)]
    state = Adam8(m.data_ptr(), v.data_ptr(), tops[0].data_ptr(), tops[1].data_ptr(), n)

    def step(i):
        agoq('agoq_adam8_step', AdamParams(1e-3, 0.9, 0.999, 1e-8, 1e-2, i, 1.0), Source(None, grads[i % 2].data_ptr(), F32),
             Target(p.data_ptr(), None, None), state)
    for i in range(1, 21):
        step(i)
    ours = p.clone()
    us, how = median_us(lambda: step(21))
    add('adamw 8 bit, fp32', 'agoq', us, n, how=how)

    def bnb():
        import bitsandbytes as B
        q = torch.nn.Parameter(start.clone())
        opt = B.optim.AdamW8bit([q])
        for i in range(1, 21):
            q.grad = grads[i % 2]
            opt.step()
        exact, em, ev = start.double(), torch.zeros_like(start, dtype=torch.float64), torch.zeros_like(start, dtype=torch.float64)
        for i in range(1, 21):
            g = grads[i % 2].double()
            em, ev = 0.9 * em + 0.1 * g, 0.999 * ev + 0.001 * g * g
            exact = exact - 1e-3 * (em / (1 - 0.9 ** i) / ((ev / (1 - 0.999 ** i)).sqrt() + 1e-8) + 1e-2 * exact)
        move = (exact - start.double()).norm()
        for who, t in (('agoq', ours), ('bitsandbytes AdamW8bit', q.data)):
            e = float((t.double() - exact).norm() / move)
            rows.append({'task': 'adamw 8 bit, 20 steps', 'who': who, 'relative_error': e})
            print(f'adamw 8 bit, 20 steps: {who}: {100 * e:.2f} % of the exact movement')
        us, how = median_us(lambda: opt.step())
        add('adamw 8 bit, fp32', 'bitsandbytes AdamW8bit', us, n, how=how)
    attempt('adamw 8 bit, fp32', 'bitsandbytes', bnb)


def main(argv):
    out = argv[argv.index('--out') + 1] if '--out' in argv else None
    commit = argv[argv.index('--commit') + 1] if '--commit' in argv else 'unknown'
    agoq = Agoq(argv[1])
    torch.manual_seed(1)
    bf16 = lambda *s: torch.randn(*s, device='cuda', dtype=torch.bfloat16)
    codecs(agoq, bf16(32768, 4096))
    norms(agoq, bf16(16384, 8192), bf16(16384, 8192))
    swiglu(agoq, bf16(8192, 14336), bf16(8192, 14336), bf16(8192, 14336))
    adam(agoq, 1 << 27)
    if out:
        with open(out, 'w') as f:
            json.dump({'gpu': torch.cuda.get_device_name(), 'date': datetime.date.today().isoformat(), 'commit': commit,
                       'command': 'tools/peers_bench.py build/libagoq.so.0', 'figures': [], 'rows': rows}, f, indent=1)
            f.write('\n')


if __name__ == '__main__':
    main(sys.argv)

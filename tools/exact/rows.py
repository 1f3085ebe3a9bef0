"""What docs/FORMATS.md says about whole rows, on exact rationals: the row sum R, norms, RoPE, the squared norm and an
AdamW step. Square roots and divisions are correctly rounded by integer arithmetic.

A rational has no -0, so inputs must be such that no result that is stored is a zero; callers of `stored` learn if not."""
from exact.floats import F, NAN32, bf16_up, encode, f32, f64, random_bits, root, store, value, widen
from exact.formats import MAPS, grad_value, state_block


def stored(x, kind='f32'):
    assert x != 0, 'the sign of a zero is not known here'
    return store(x, kind)


def rounded(x, kind):
    return widen(store(x, kind), kind)


def tree8(e, add):
    return add(add(add(e[0], e[4]), add(e[2], e[6])), add(add(e[1], e[5]), add(e[3], e[7])))


def fold(sums, add):
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [add(a, b) for a, b in zip(sums[:half], sums[half:])]
    return sums[0]


def add32(a, b):
    return f32(a + b)


def add64(a, b):
    return f64(a + b)


def fold32(sums):
    return fold(sums + [F(0)] * (32 - len(sums)), add32)


def row_sum(e):
    """R(e): e holds the sums of groups of 8."""
    total = F(0)
    segments = [fold32(e[at:at + 32]) for at in range(0, len(e), 32)]
    for at in range(0, len(segments), 32):
        total = add32(total, fold32(segments[at:at + 32]))
    return total


def groups(e):
    e = e + [F(0)] * (-len(e) % 8)
    return [e[at:at + 8] for at in range(0, len(e), 8)]


def plain_sum(e):
    return row_sum([tree8(g, add32) for g in groups(e)])


def fma32(a, b, c):
    return f32(a * b + c)


def product_sum(a, b):
    """R(a x b)."""
    sums = []
    for x, y in zip(groups(a), groups(b)):
        t = [fma32(x[i + 4], y[i + 4], f32(x[i] * y[i])) for i in range(4)]
        sums.append(add32(add32(t[0], t[2]), add32(t[1], t[3])))
    return row_sum(sums)


def statistics(kind, x, eps):
    """d = x - mean, and 1 / rms."""
    d = x
    if kind == 'layer':
        mean = f32(plain_sum(x) * f32(F(1, len(x))))
        d = [f32(v - mean) for v in x]
    square = f32(product_sum(d, d) * f32(F(1, len(x))))
    return d, f32(1 / root(f32(square + eps)))


def norm_row(kind, x, weight, bias, eps, y_type, round_bf16, round_first):
    """Patterns of y in y_type."""
    d, inv = statistics(kind, x, eps)
    out = []
    for c, v in enumerate(d):
        h = f32(v * inv)
        if round_first:
            h = rounded(h, 'bf16' if round_bf16 else y_type)
        h = f32(h * weight[c]) if weight else h
        h = f32(h + bias[c]) if bias else h
        h = rounded(h, 'bf16') if round_bf16 else h
        out.append(stored(h, y_type))
    return out


def norm_back(kind, rows, dy_rows, weight, eps, round_bf16, dweight, dbias):
    """Patterns of dx, and of dweight and dbias after the call."""
    cols, dx, terms = len(rows[0]), [], []
    part = f32(F(1, cols))
    for x, dy in zip(rows, dy_rows):
        d, inv = statistics(kind, x, eps)
        w = weight or [F(1)] * cols
        g = [f32(a * b) for a, b in zip(dy, w)]
        slope = f32(f32(f32(f32(product_sum(g, d) * part) * inv) * inv) * inv)
        shift = f32(f32(plain_sum(g) * part) * inv) if kind == 'layer' else F(0)
        h = [f32(v * inv) for v in dy]
        for i in range(cols):
            v = fma32(d[i], -slope, fma32(h[i], w[i], -shift))
            dx.append(stored(rounded(v, 'bf16') if round_bf16 else v))
        terms.append((h, d, dy))
    for at in range(0, len(rows), 32):
        for c in range(cols):
            parts, biases = [F(0), F(0)], [F(0), F(0)]
            for i, (h, d, dy) in enumerate(terms[at:at + 32]):
                parts[i % 2] = fma32(h[c], d[c], parts[i % 2])
                biases[i % 2] = add32(biases[i % 2], dy[c])
            dweight[c] = add32(dweight[c], add32(*parts))
            dbias[c] = add32(dbias[c], add32(*biases))
    return dx, [stored(v) for v in dweight], [stored(v) for v in dbias]


def rope_row(x, cos, sin, head, rotary, interleaved, backward):
    """Patterns of one rotated row; cos is None where the position is outside the tables. x: patterns."""
    out = list(x)
    for first in range(0, len(x), head):
        for i in range(rotary // 2):
            at = (first + 2 * i, first + 2 * i + 1) if interleaved else (first + i, first + i + rotary // 2)
            if cos is None:
                out[at[0]] = out[at[1]] = NAN32
                continue
            a, b, c, s = value(x[at[0]]), value(x[at[1]]), cos[i], -sin[i] if backward else sin[i]
            out[at[0]] = stored(f32(f32(a * c) - f32(b * s)))
            out[at[1]] = stored(f32(f32(b * c) + f32(a * s)))
    return out


# ---- squared norm: a sparse tensor, given by its blocks that are not zero ----
def fold_sparse(terms, width):
    """{index: sum} of `width` consecutive entries, folded in halves; what is missing is +0."""
    out = {}
    for group in {i // width for i in terms}:
        out[group] = fold([terms.get(group * width + i, F(0)) for i in range(width)], add64)
    return out


def square_norm(fmt, blocks, start):
    """blocks: {index: (scale, codes)}."""
    terms = {}
    for b, (scale, codes) in blocks.items():
        v = [grad_value(fmt, c) for c in codes] + [F(0)] * (128 - len(codes))
        groups = [tree8([f64(x * x) for x in v[i:i + 8]], add64) for i in range(0, 128, 8)]
        terms[b] = f64(fold(groups, add64) * f64(scale * scale))
    results = fold_sparse(fold_sparse(terms, 256), 256)
    total = F(0)
    for i in sorted(results):
        total = add64(total, results[i])
    return add64(start, total)


# ---- AdamW ----
def bias_fix(beta, step):
    result, square = F(1), beta
    while step:
        if step & 1:
            result = f64(result * square)
        step, square = step >> 1, f64(square * square)
    return f32(1 / f32(1 - f32(result)))


def adam_step(fields, step, grads, params, state, target, key):
    """One step of a block: fields lr, beta1, beta2, eps, decay, multiplier; state {map: (absmax, codes)}. Returns patterns of
    the parameters (of bf16 ones if target is 'bf16') and the new state."""
    lr, beta1, beta2, eps, decay, multiplier = fields
    fix1, fix2 = bias_fix(beta1, step), bias_fix(beta2, step)
    keep1, keep2 = f32(1 - beta1), f32(1 - beta2)
    old = {name: [f32(MAPS[name][c] * value(top)) for c in codes] for name, (top, codes) in state.items()}
    moments, out = {'signed': [], 'unsigned': []}, []
    for i, (g, p) in enumerate(zip(grads, params)):
        x = f32(g * multiplier)
        m = f32(f32(beta1 * old['signed'][i]) + f32(keep1 * x))
        v = f32(f32(beta2 * old['unsigned'][i]) + f32(keep2 * f32(x * x)))
        moments['signed'].append(encode(m))
        moments['unsigned'].append(encode(v))
        under = f32((root(f32(v * fix2)) if v else F(0)) + eps)
        u = f32(f32(f32(m * fix1) / under) + f32(decay * p))
        new = stored(f32(p - f32(lr * u)))
        if target == 'bf16':
            new = store(value(new), 'bf16') if key is None else bf16_up(new, random_bits(key, i))
        out.append(new)
    return out, {name: state_block(name, xs) for name, xs in moments.items()}

"""The block formats of docs/FORMATS.md on exact rationals: INT activations, gradients, 8-bit Adam state, and the code
thresholds of each. Codes of floats are found by search among values, never by arithmetic on their bits."""
import bisect

from exact.floats import (F, HALVES, INF32, M32, NAN32, TOP32, bf16_up, encode, f32, goes_up, nearest, power, random_bits, value)


def bf16(x):
    return encode(x, 8, 16)


def extreme(xs):
    """The pattern of largest magnitude; of equal ones the negative."""
    return max(xs, key=lambda u: (u & 0x7FFFFFFF, u >> 31))


def step(t, random):
    """|t| to an integer: nearest even, or up with the probability of its fraction."""
    mag = abs(t)
    if random is None:
        return nearest(mag.numerator, mag.denominator)
    whole = mag.numerator // mag.denominator
    return whole + goes_up(mag - whole, random)


def bits_of(key, i):
    return None if key is None else random_bits(key, i)


# ---- activations ----
def plane(codes, k, shift):
    words = [0] * ((len(codes) * k + 31) // 32)
    for i, c in enumerate(codes):
        j = i % (32 // k)
        words[i * k // 32] |= (c >> shift & ((1 << k) - 1)) << (k * (j // 2) + 16 * (j % 2))
    return words


def product(u, inverse):
    """fp32(x * inverse); what overflows stands beyond every code."""
    t = value(encode(value(u) * inverse))
    return {'inf': power(128), '-inf': -power(128)}.get(t, t)


CODE4 = 68  # the number of the format; of the others it is the bits
CODE4_LEVELS = [F(n, 8) for n in (-64, -50, -40, -32, -25, -18, -12, -6, 0, 6, 12, 19, 26, 34, 43, 55)]


def fma(a, b, c):
    return f32(a * b + c)


def code4_code(t, random):
    """To nearest, a cubic of t; stochastically, away from zero with the probability of the fraction of the way to the next level."""
    if random is None:
        t = max(F(-8), min(F(8), t))
        v = t * fma(t, fma(t, F(-3, 512), F(-23, 4096)), F(21, 16))
        return 8 + (nearest(v.numerator, v.denominator) if v >= 0 else -nearest(-v.numerator, v.denominator))
    t = max(CODE4_LEVELS[0], min(CODE4_LEVELS[-1], t))
    if t in CODE4_LEVELS:
        return CODE4_LEVELS.index(t)
    high = bisect.bisect(CODE4_LEVELS, t)
    inner, outer = (high, high - 1) if t < 0 else (high - 1, high)
    a, b = CODE4_LEVELS[inner], CODE4_LEVELS[outer]
    return outer if goes_up((t - a) / (b - a), random) else inner


def int_code(u, inverse, fmt, random):
    if fmt == CODE4:
        return code4_code(product(u, inverse), random)
    half = 1 << (fmt - 1)
    t = max(F(-half), min(F(half - 1), product(u, inverse)))
    level = step(t, random)
    return half - level if t < 0 else half + level


def int_level(fmt, code):
    return CODE4_LEVELS[code] if fmt == CODE4 else F(code - (1 << (fmt - 1)))


def int_block(fmt, key, xs):
    """Scale pattern, low plane, high plane, values."""
    bits = fmt % 64
    if bits == 16:
        codes = [encode_bf16(u, bits_of(key, i)) for i, u in enumerate(xs)]
        return None, plane(codes, 16, 0), [], [NAN32 if c & 0x7FFF > 0x7F80 else c << 16 for c in codes]
    half = 1 << (bits - 1)
    ext = extreme(xs)
    if (ext & 0x7FFFFFFF) >= INF32:
        d_bits, codes, values = 0x7FC0, [half] * len(xs), [NAN32] * len(xs)
    else:
        d_bits = bf16(f32(value(ext) / -half))
        if d_bits & 0x7F80 == 0:
            d_bits = 0
        d = value(d_bits, 8, 16)
        codes = [int_code(u, f32(1 / d), fmt, bits_of(key, i)) if d else half for i, u in enumerate(xs)]
        values = [encode(int_level(fmt, c) * d) for c in codes]
    return d_bits, plane(codes, 8 if bits == 8 else 4, 0), plane(codes, bits - 4, 4) if bits in (5, 6) else [], values


def encode_bf16(u, random):
    if random is not None:
        return bf16_up(u, random)
    x = value(u)
    if x == 'nan':
        return HALVES['bf16'][1]
    return u >> 16 if x in ('inf', '-inf') else encode(x, 8, 16, u >> 31 == 1)


# ---- gradients ----
def small_float(code, mantissa_bits, bias):
    """Magnitude of a code without sign: no Inf, no NaN."""
    e, m = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    return m * power(1 - bias - mantissa_bits) if e == 0 else (m + (1 << mantissa_bits)) * power(e - bias - mantissa_bits)


MAGNITUDES = {'e4m3': [small_float(c, 3, 7) for c in range(0x7F)], 'e5m2': [small_float(c, 2, 15) for c in range(0x7C)],
              'int8': [F(c) for c in range(128)]}
GRADS = list(MAGNITUDES)


def grad_value(fmt, code):
    """Fraction, or 'nan', 'inf', '-inf'."""
    if fmt == 'int8':
        return F(code - 256 if code > 127 else code)
    if code & 127 < len(MAGNITUDES[fmt]):
        return -MAGNITUDES[fmt][code & 127] if code > 127 else MAGNITUDES[fmt][code & 127]
    return ('-inf' if code > 127 else 'inf') if fmt == 'e5m2' and code & 127 == 0x7C else 'nan'


def magnitude_code(fmt, mag, random):
    """Index of the neighbour of mag that it is rounded to."""
    table = MAGNITUDES[fmt]
    mag = min(mag, table[-1])
    low = bisect.bisect_right(table, mag) - 1
    if table[low] == mag:
        return low
    a, b = table[low], table[low + 1]
    if random is not None:
        return low + goes_up((mag - a) / (b - a), random)
    return low + (mag - a > b - mag or (mag - a == b - mag and low % 2 == 1))


def grad_code(fmt, t, negative, random):
    code = magnitude_code(fmt, abs(t), random)
    if fmt == 'int8':
        return -code & 255 if negative else code
    return code | negative << 7


def grad_block(fmt, key, xs):
    amax_bits = extreme(xs) & 0x7FFFFFFF
    if amax_bits >= INF32:
        return NAN32, [0] * len(xs), [NAN32] * len(xs)
    limit = MAGNITUDES[fmt][-1]
    if value(amax_bits) < limit * power(-126):
        return 0, [0] * len(xs), [0] * len(xs)
    s = f32(value(amax_bits) / limit)
    codes = [grad_code(fmt, f32(value(u) * f32(1 / s)), u >> 31, bits_of(key, i)) for i, u in enumerate(xs)]
    return encode(s), codes, [encode(grad_value(fmt, c) * s) for c in codes]


# ---- dynamic maps ----
def levels(signed):
    found = [F(0), F(1)]
    for e in range(7):
        n = 2 ** e if signed else 2 ** (e + 1)
        for j in range(n):
            level = F(10) ** (e - 6) * (F(1, 10) + F(9, 10) * F(2 * j + 1, 2 * n))
            found += [level, -level] if signed else [level]
    return sorted(f32(x) for x in found)


MAPS = {'signed': levels(True), 'unsigned': levels(False)}
MIDDLES = {name: [f32(f32(a + b) / 2) for a, b in zip(table, table[1:])] for name, table in MAPS.items()}


def map_code(name, t):
    return bisect.bisect_left(MIDDLES[name], t)


def state_block(name, xs):
    """absmax pattern and codes of a block of fp32 patterns."""
    top_bits = extreme(xs) & 0x7FFFFFFF
    zero = map_code(name, F(0))
    if top_bits >= INF32:
        return NAN32, [zero] * len(xs)
    top = value(top_bits)
    codes = []
    for x in map(value, xs):
        if top == 0:
            codes.append(zero)
            continue
        t = f32(x / top) if top < power(-126) else f32(x * f32(1 / top))
        code = map_code(name, t)
        codes.append(max(code, 1) if name == 'unsigned' and x != 0 else code)
    return top_bits, codes


# ---- thresholds: for each code the last input that still gets it ----
def order(u):
    """Patterns on the number line: -0 stands just below +0."""
    return u ^ M32 if u >> 31 else u | 1 << 31


def disorder(k):
    return k & 0x7FFFFFFF if k >> 31 else k ^ M32


def last_input(guess, still, least, most):
    """The largest k in [least, most] with still(k), which is true below it and false above; found from a guess."""
    k, stride = max(least, min(most, guess)), 1
    while k - stride >= least and not still(k):
        k, stride = k - stride, 2 * stride
    while k + stride <= most and still(k + stride):
        k, stride = k + stride, 2 * stride
    while stride:
        if k + stride <= most and still(k + stride):
            k += stride
        stride //= 2
    assert still(k)
    return k


def between(level, random):
    """Where nearest or stochastic rounding leaves `level` for level + 1, as a fraction of the step."""
    return F(1, 2) if random is None else F(2 * random + 1, 1 << 17)


def float_thresholds(fmt, random):
    table, found = MAGNITUDES[fmt], []
    for c in range(len(table) - 1):
        middle = table[c] + between(c, random) * (table[c + 1] - table[c])
        found.append(last_input(encode(middle), lambda u, c=c: magnitude_code(fmt, value(u), random) <= c, 0, TOP32))
    return found + [INF32]


def int_boundary(fmt, edge, random):
    """About where codes edge and edge + 1 meet, in units of d."""
    a, b = int_level(fmt, edge), int_level(fmt, edge + 1)
    fraction = between(0, random)
    return a + fraction * (b - a) if a >= 0 else b - fraction * (b - a)


def int_thresholds(fmt, d_bits, random):
    """For each code, ascending, its last finite input on the number line."""
    inverse, half = f32(1 / value(d_bits, 8, 16)), 1 << (fmt % 64 - 1)
    rising = inverse > 0
    least, most = order(TOP32 | 1 << 31), order(TOP32)
    found = []
    for code in range(2 * half):
        if code == (2 * half - 1 if rising else 0):
            found.append(disorder(most))
            continue
        # rising: the last input is next to the boundary above the code, else next to the one below it
        t = int_boundary(fmt, code if rising else code - 1, random)
        start = order(encode(t / inverse) if abs(t / inverse) < power(128) else (TOP32 | (t / inverse < 0) << 31))

        def still(k, code=code):
            got = int_code(disorder(k), inverse, fmt, random)
            return got <= code if rising else got >= code
        found.append(disorder(last_input(start, still, least, most)))
    return found


def code4_bf16_thresholds(d_bits):
    """The same of CODE4: for codes 8 .. 15 the last positive input, then for codes 8 .. 1 the last negative one; its magnitude."""
    inverse, found = f32(1 / value(d_bits, 8, 16)), []
    for sign, steps in ((0, 8), (1, 8)):
        for n in range(steps):
            edge = 7 - n if sign else 8 + n  # code + 1 meets code here
            guess = encode(abs(int_boundary(CODE4, edge, None) if edge < 15 else F(8)) / inverse, 8, 16)

            def still(h, n=n, sign=sign):
                return abs(int_code(h << 16 | sign << 31, inverse, CODE4, None) - 8) <= n
            found.append(last_input(guess, still, 0, 0x7F7F))
    return found


def bf16_thresholds(d_bits):
    """For levels 0 .. 127, the last positive bf16 input that rounds to at most that level; d in [1, 2)."""
    inverse, found = f32(1 / value(d_bits, 8, 16)), []
    for level in range(128):
        guess = encode((level + F(1, 2)) / inverse, 8, 16)
        found.append(last_input(guess, lambda h, level=level: step(product(h << 16, inverse), None) <= level, 0, 0x7F7F))
    return found

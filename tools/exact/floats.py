"""Binary floats as exact rationals, and the random bits of docs/FORMATS.md: the ground of tools/make_vectors.py.

A float is its bit pattern or a Fraction; every rounding is one explicit step on integers. Shares no code with C. Slow on
purpose: there is nothing here that a reader could not check by hand."""
from fractions import Fraction as F
from functools import lru_cache
from math import isqrt

NAN32, INF32, ONE, MINUS_ZERO, TOP32 = 0x7FC00000, 0x7F800000, 0x3F800000, 0x80000000, 0x7F7FFFFF


# ---- binary formats: p significant bits in `width` bits ----
def power(n):
    return F(1 << n) if n >= 0 else F(1, 1 << -n)


def value(bits, p=24, width=32):
    """Fraction, or 'nan', 'inf', '-inf'."""
    e_bits = width - p
    sign, e, m = bits >> (width - 1), bits >> (p - 1) & ((1 << e_bits) - 1), bits & ((1 << (p - 1)) - 1)
    if e == (1 << e_bits) - 1:
        return 'nan' if m else ('-inf' if sign else 'inf')
    bias = (1 << (e_bits - 1)) - 1
    mag = m * power(2 - bias - p) if e == 0 else (m + (1 << (p - 1))) * power(e - bias - p + 1)
    return -mag if sign else mag


def nearest(n, d):
    """Integer nearest to n / d, ties to even; n >= 0, d > 0."""
    q, r = divmod(n, d)
    return q + (2 * r > d or (2 * r == d and q & 1))


def encode(x, p=24, width=32, negative_zero=False):
    """Nearest even pattern of a Fraction, overflow is Inf."""
    e_bits = width - p
    bias = (1 << (e_bits - 1)) - 1
    sign = 1 if x < 0 or (x == 0 and negative_zero) else 0
    n, d = abs(x.numerator), x.denominator
    if n == 0:
        return sign << (width - 1)
    e = n.bit_length() - d.bit_length()  # 2^(e-1) < n / d < 2^(e+1)
    e -= n << max(0, -e) < d << max(0, e)
    e = max(e, 1 - bias)
    shift = e - p + 1
    steps = nearest(n << max(0, -shift), d << max(0, shift))
    field = 0 if steps < 1 << (p - 1) else e + bias
    pattern = steps if field == 0 else ((field - 1) << (p - 1)) + steps
    return sign << (width - 1) | min(pattern, ((1 << e_bits) - 1) << (p - 1))


def f32(x):
    return value(encode(x))


def f64(x):
    return value(encode(x, 53, 64), 53, 64)


def root(x):
    """fp32(sqrt(x)) of a positive dyadic x: an integer root, and a half step if it is not exact."""
    scale = 200
    n = x.numerator * x.denominator << 2 * scale
    r = isqrt(n)
    return f32(F(2 * r + (r * r != n), x.denominator << scale + 1))


HALVES = {'bf16': (8, 0x7FC0), 'f16': (11, 0x7E00)}


def narrow(bits, kind):
    """fp32 pattern to bf16 or fp16 pattern."""
    p, nan = HALVES[kind]
    x = value(bits)
    if x == 'nan':
        return nan
    if x in ('inf', '-inf'):
        return ((1 << (16 - p)) - 1) << (p - 1) | (x == '-inf') << 15
    return encode(x, p, 16, bits >> 31 == 1)


def widen(bits, kind):
    """The number of an fp32, bf16 or fp16 pattern."""
    return value(bits) if kind == 'f32' else value(bits, HALVES[kind][0], 16)


def store(x, kind):
    """Pattern of a number in fp32, bf16 or fp16."""
    return encode(x) if kind == 'f32' else narrow(encode(x), kind)


def bf16_up(bits, random):
    """Stochastic bf16 pattern: the lower half of the pattern is the fraction. NaN aside."""
    if value(bits) == 'nan':
        return HALVES['bf16'][1]
    return (bits >> 16) + (random < bits & 0xFFFF)


# ---- random bits ----
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def philox(k0, k1, c):
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & M32, a >> 32 ^ c[3] ^ k1, a & M32]
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c


def halves(x):
    return [x & M32, x >> 32]


@lru_cache(maxsize=64)
def group_words(key, group):
    seed, tensor, step, microbatch, replica, _ = key
    a = philox(*halves(seed), halves(tensor) + halves(step))
    s = philox(a[0], a[1], [microbatch, replica, a[2], a[3]])
    return philox(s[0], s[1], halves(group) + [s[2], s[3]])


def random_bits(key, i):
    """The 16 bits of element i of a call."""
    g = (key[5] + i) & M64
    word = group_words(key, g // 8)[g % 8 // 2]
    return word >> 16 if g % 2 else word & 0xFFFF


def goes_up(fraction, random):
    return F(2 * random + 1, 1 << 17) < fraction

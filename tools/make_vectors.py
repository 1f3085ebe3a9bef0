#!/usr/bin/env python3
"""Test vectors of docs/FORMATS.md, from exact rational arithmetic: python3 tools/make_vectors.py FOLDER

A third implementation beside the C and CUDA one, sharing no code with them: floats are Fractions, every rounding is one
explicit step, nearest E4M3 and dynamic-map codes are found by search. Slow and short on purpose. Lines of the files:
  int BITS KEY X,.. = SCALE LOW,.. HIGH,.. VALUE,..     one block; KEY is `rn` or six fields seed:tensor:step:mb:replica:offset
  e4m3 KEY X,.. = SCALE CODE,.. VALUE,..                one gradient block
  value8 CODE VALUE                                     an E4M3 code on its own
  philox K0 K1 C0,C1,C2,C3 = W0,W1,W2,W3   stream KEY INDEX = WORD
  map signed|unsigned LEVEL,..   code signed|unsigned T = CODE
  bf16 X HALF   f16 X HALF
Numbers are hexadecimal bit patterns; `-` is an empty list."""
import bisect
import os
import sys
from fractions import Fraction as F

NAN32, INF32 = 0x7FC00000, 0x7F800000


# ---- binary formats: p significant bits, exponents emin .. emax ----
def split(bits, p, width):
    """(sign, exponent field, mantissa) of a pattern."""
    e_bits = width - p
    return bits >> (width - 1), bits >> (p - 1) & ((1 << e_bits) - 1), bits & ((1 << (p - 1)) - 1)


def value(bits, p=24, width=32):
    """Fraction, or 'nan', 'inf', '-inf'."""
    sign, e, m = split(bits, p, width)
    e_bits = width - p
    if e == (1 << e_bits) - 1:
        return 'nan' if m else ('-inf' if sign else 'inf')
    bias = (1 << (e_bits - 1)) - 1
    mag = F(m) * F(2) ** (2 - bias - p) if e == 0 else F(m + (1 << (p - 1))) * F(2) ** (e - bias - p + 1)
    return -mag if sign else mag


def encode(x, p=24, width=32, negative_zero=False):
    """Nearest even pattern of a Fraction, overflow is Inf."""
    e_bits = width - p
    bias = (1 << (e_bits - 1)) - 1
    sign = 1 if x < 0 or (x == 0 and negative_zero) else 0
    mag = abs(F(x))
    e = mag.numerator.bit_length() - mag.denominator.bit_length()  # 2^(e-1) < mag < 2^(e+1)
    e = max(e if mag >= F(2) ** e else e - 1, 1 - bias)
    steps = round(mag / F(2) ** (e - p + 1))  # Python rounds a Fraction to nearest, ties to even
    field = 0 if steps < 1 << (p - 1) else e + bias
    pattern = steps if field == 0 else ((field - 1) << (p - 1)) + steps
    pattern = min(pattern, ((1 << e_bits) - 1) << (p - 1))
    return sign << (width - 1) | pattern


def f32(x):
    return value(encode(x))


def narrow(bits, p, width, nan):
    x = value(bits)
    if x == 'nan':
        return nan
    top = ((1 << (width - p)) - 1) << (p - 1)
    if x in ('inf', '-inf'):
        return top | (x == '-inf') << (width - 1)
    return encode(x, p, width, bits >> 31 == 1)


def bf16(x):
    return encode(x, 8, 16)


# ---- Philox ----
def philox(k0, k1, c):
    m32 = (1 << 32) - 1
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & m32, a >> 32 ^ c[3] ^ k1, a & m32]
        k0, k1 = (k0 + 0x9E3779B9) & m32, (k1 + 0xBB67AE85) & m32
    return c


def random_word(key, i):
    def halves(x):
        return [x & 0xFFFFFFFF, x >> 32]
    seed, tensor, step, microbatch, replica, offset = key
    a = philox(*halves(seed), halves(tensor) + halves(step))
    b = philox(a[0], a[1], [microbatch, replica, a[2], a[3]])
    index = offset + i
    return philox(b[0], b[1], halves(index // 4) + [b[2], b[3]])[index % 4]


def goes_up(fraction, word):
    return F(word >> 8, 1 << 24) < fraction


# ---- INT blocks ----
def plane(codes, k, shift):
    words = [0] * ((len(codes) * k + 31) // 32)
    for i, c in enumerate(codes):
        j = i % (32 // k)
        words[i * k // 32] |= (c >> shift & ((1 << k) - 1)) << (k * (j // 2) + 16 * (j % 2))
    return words


def int_block(bits, key, xs):
    half = 1 << (bits - 1)
    # the largest magnitude; of equal ones the negative
    ext = max(xs, key=lambda u: (u & 0x7FFFFFFF, u >> 31))
    if (ext & 0x7FFFFFFF) >= INF32:
        d_bits, codes, values = 0x7FC0, [half] * len(xs), [NAN32] * len(xs)
    else:
        d_bits = bf16(f32(value(ext) / -half))
        if d_bits & 0x7F80 == 0:
            d_bits = 0
        d, codes = value(d_bits, 8, 16), []
        for i, u in enumerate(xs):
            t = f32(value(u) * f32(1 / d)) if d else F(0)
            t = max(F(-half), min(F(half - 1), t))
            if key is None:
                level = round(t)
            else:
                whole = abs(t).__floor__()
                level = whole + goes_up(abs(t) - whole, random_word(key, i))
                level = -level if t < 0 else level
            codes.append(level + half)
        values = [encode((c - half) * d) for c in codes]
    low = plane(codes, 8 if bits == 8 else 4, 0)
    high = plane(codes, bits - 4, 4) if bits in (5, 6) else []
    return d_bits, low, high, values


# ---- E4M3 ----
def e4m3_value(code):
    e, m = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return 'nan'
    mag = F(m, 512) if e == 0 else F(8 + m, 8) * F(2) ** (e - 7)
    return -mag if code & 128 else mag


MAGNITUDES = [e4m3_value(c) for c in range(127)]


def e4m3_round(t, negative, word):
    mag = min(abs(t), F(448))
    low = bisect.bisect_right(MAGNITUDES, mag) - 1
    if MAGNITUDES[low] == mag:
        return low | negative << 7
    a, b = MAGNITUDES[low], MAGNITUDES[low + 1]
    if word is None:
        up = mag - a > b - mag or (mag - a == b - mag and low % 2 == 1)
    else:
        up = goes_up((mag - a) / (b - a), word)
    return low + up | negative << 7


def e4m3_block(key, xs):
    amax_bits = max(u & 0x7FFFFFFF for u in xs)
    if amax_bits >= INF32:
        return NAN32, [0] * len(xs), [NAN32] * len(xs)
    amax = value(amax_bits)
    if amax < 448 * F(2) ** -126:
        return 0, [0] * len(xs), [0] * len(xs)
    s = f32(amax / 448)
    codes = [e4m3_round(f32(value(u) * f32(1 / s)), u >> 31, None if key is None else random_word(key, i))
             for i, u in enumerate(xs)]
    return encode(s), codes, [encode(e4m3_value(c) * s) for c in codes]


# ---- dynamic maps ----
def levels(signed):
    found = [F(0), F(1)]
    for e in range(7):
        n = 2 ** e if signed else 2 ** (e + 1)
        for j in range(n):
            level = F(10) ** (e - 6) * (F(1, 10) + F(9, 10) * F(2 * j + 1, 2 * n))
            found += [level, -level] if signed else [level]
    return sorted(f32(x) for x in found)


def map_code(table, t):
    middles = [f32(f32(a + b) / 2) for a, b in zip(table, table[1:])]
    return sum(m < t for m in middles)


# ---- inputs ----
class Source:
    """A 64-bit linear congruential generator: the files must not depend on the version of Python."""

    def __init__(self, seed):
        self.state = seed

    def bits(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self.state >> (64 - n)

    def floats(self, n, exponent, spread):
        return [self.bits(1) << 31 | (exponent - self.bits(8) % spread) << 23 | self.bits(23) for _ in range(n)]


ONE, MINUS_ZERO = 0x3F800000, 0x80000000
KEYS = [(1, 0, 0, 0, 0, 0), (0x0123456789ABCDEF, 0xFEDCBA9876543210, 1 << 40, 7, 3, (1 << 33) + 5)]


def int_inputs(bits):
    half = 1 << (bits - 1)
    source = Source(bits)
    least = value(0x00800000) * half  # its d is the smallest normal bf16
    yield source.floats(64, 127, 5)
    yield source.floats(19, 130, 12)
    yield [ONE]
    yield [0xBF800000]
    yield [ONE, 0xBF800000, ONE]                      # a tie takes the negative
    yield [encode(F(i) / 2) for i in range(-half, half) if i % max(1, half // 8) < 2] + [encode(F(-half))]  # ties of codes
    yield [0, 0, 0]
    yield [MINUS_ZERO, 0, MINUS_ZERO]
    yield [1, 0x807FFFFF, 0x00400000]                 # subnormal
    yield [encode(least), encode(-least / 2), 0]
    yield [encode(-least) - 1, encode(least / 2)]     # rounds up to a normal scale
    yield [encode(least * F(509, 512)), encode(least / 2)]  # stays below: zeros
    yield [0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, ONE]
    yield [ONE, NAN32, 0x40000000]
    yield [0xFF800001, ONE]                           # a signalling NaN with a sign
    yield [ONE, INF32]
    yield [0xFF800000, ONE]


def e4m3_inputs():
    source = Source(43)
    yield source.floats(24, 127, 20)
    yield [encode(F(448))] + [encode(x) for a, b in zip(MAGNITUDES[:12] + MAGNITUDES[118:], MAGNITUDES[1:13] + MAGNITUDES[119:])
                              for x in (a, -(a + b) / 2)]
    yield [ONE]
    yield [0, MINUS_ZERO]
    yield [ONE, encode(-F(1, 1 << 30)), MINUS_ZERO]   # underflow to code 80
    yield [encode(448 * F(2) ** -126), 0x80000001]
    yield [encode(448 * F(2) ** -126) - 1, 0x00800000]
    yield [0x7F7FFFFF, 0xFF7FFFFF, 0x7E000000]
    yield [ONE, 0xFFC00001]
    yield [ONE, INF32]
    yield [0xFF800000]


def words(items, digits=8):
    return ','.join('%0*X' % (digits, x) for x in items) or '-'


def key_text(key):
    return 'rn' if key is None else ':'.join('%X' % field for field in key)


def int_lines():
    for bits in (4, 5, 6, 8):
        for n, xs in enumerate(int_inputs(bits)):
            for key in [None] + (KEYS if n < 2 else KEYS[:1] if n == 5 else []):
                d, low, high, values = int_block(bits, key, xs)
                yield 'int %d %s %s = %04X %s %s %s' % (bits, key_text(key), words(xs), d, words(low), words(high), words(values))


def e4m3_lines():
    for n, xs in enumerate(e4m3_inputs()):
        for key in [None] + (KEYS if n < 2 else []):
            s, codes, values = e4m3_block(key, xs)
            yield 'e4m3 %s %s = %08X %s %s' % (key_text(key), words(xs), s, words(codes, 2), words(values))
    for code in range(256):
        v = e4m3_value(code)
        yield 'value8 %02X %08X' % (code, NAN32 if v == 'nan' else encode(v, negative_zero=code > 127))


def philox_lines():
    for k0, k1, c in [(0, 0, [0] * 4), (0xFFFFFFFF, 0xFFFFFFFF, [0xFFFFFFFF] * 4),
                      (0xA4093822, 0x299F31D0, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344])]:
        yield 'philox %08X %08X %s = %s' % (k0, k1, words(c), words(philox(k0, k1, c)))
    base = list(KEYS[1])
    for field in range(6):  # each bit position of each field must matter: one change at a time
        for change in (1, 1 << 31) + (() if field in (3, 4) else (1 << 32, 1 << 62)):
            key = base[:field] + [base[field] ^ change] + base[field + 1:]
            yield 'stream %s %X = %08X' % (key_text(key), 2, random_word(key, 2))


def adam_lines():
    for name, table in (('signed', levels(True)), ('unsigned', levels(False))):
        assert len(table) == 256 and table == sorted(set(table))
        yield 'map %s %s' % (name, words([encode(x) for x in table]))
        for c in range(0, 255, 15):
            middle = encode(f32(f32(table[c] + table[c + 1]) / 2))
            for bits in (middle - 1, middle, middle + 1):
                yield 'code %s %08X = %02X' % (name, bits, map_code(table, value(bits)))


def half_lines():
    source = Source(16)
    xs = [0, MINUS_ZERO, ONE, 1, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, INF32, 0xFF800000, NAN32, 0x7F800001, 0xFFFFFFFF,
          0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x38800000, 0x387FFFFF, 0x387FE000,
          0x33000000, 0x33000001, 0x33800000, 0x33C00000, 0x3F801000, 0x3F803000] + source.floats(20, 140, 40)
    for x in xs:
        yield 'bf16 %08X %04X' % (x, narrow(x, 8, 16, 0x7FC0))
        yield 'f16 %08X %04X' % (x, narrow(x, 11, 16, 0x7E00))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, lines in (('int', int_lines), ('e4m3', e4m3_lines), ('philox', philox_lines), ('adam', adam_lines), ('half', half_lines)):
        with open(os.path.join(sys.argv[1], name + '.txt'), 'w', encoding='ascii', newline='\n') as out:
            out.write('# tools/make_vectors.py\n')
            out.writelines(line + '\n' for line in lines())


if __name__ == '__main__':
    main()

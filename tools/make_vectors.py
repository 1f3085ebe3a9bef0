#!/usr/bin/env python3
"""Test vectors of docs/FORMATS.md, from exact rational arithmetic: python3 tools/make_vectors.py FOLDER

A third implementation beside the C and CUDA one, sharing no code with them: tools/exact/ holds the rules, this file the
inputs. Slow and short on purpose. Numbers are hexadecimal bit patterns, counts decimal; `-` is an empty list or nothing; KEY is `rn` or
six fields seed:tensor:step:mb:replica:offset; HALF is `rn` or an element's 16 random bits. Lines of the files:
  int FORMAT KEY X,.. = SCALE LOW,.. HIGH,.. VALUE,..         one block of activations
  grad FORMAT KEY X,.. = SCALE CODE,.. VALUE,..             one block of a gradient
  value8 FORMAT CODE VALUE                                  a gradient code on its own, at scale 1
  philox K0 K1 C0,C1,C2,C3 = W0,W1,W2,W3   stream KEY INDEX = HALF
  map signed|unsigned LEVEL,..   code signed|unsigned T = CODE
  state X,.. = M_ABSMAX CODE,.. V_ABSMAX CODE,..            m and v of a step with beta1 = beta2 = 0: coded x and x * x
  adam TARGET KEY FIELD,.. P,.. G,.. G,.. = P,.. P,.. M_ABSMAX CODE,.. V_ABSMAX CODE,..     two steps; f32, both or bf16
  bf16 X HALF   f16 X HALF   bf16sr X RANDOM HALF
  norm KIND Y_TYPE ROUND_BF16 ROUND_FIRST W_TYPE EPS X,.. W,.. B,.. = Y,..
  normback KIND ROUND_BF16 W_TYPE EPS ROWS X,.. W,.. DY,.. DW,.. DB,.. = DX,.. DW,.. DB,..   DW and DB are added to
  rope HEAD ROTARY INTERLEAVED BACKWARD POSITION N_POSITIONS X,.. COS,.. SIN,.. = Y,..
  sqnorm FORMAT N START BLOCK:SCALE:SEED,.. = SUM           other blocks are zeros; code i of a block: see sqnorm_codes
Thresholds (thresholds.txt): for each code in ascending order the largest float that still gets it
  e4m3|e5m2|int8 HALF T,..             of |t|, for codes from 00 up; the last one's is Inf
  int FORMAT SCALE HALF X,..           of the finite x on the number line, in a block whose scale is SCALE
  bf16 SCALE X,..                      for levels 0 .. 127, the largest bf16 |x| that rounds to at most that level, 1 <= SCALE < 2
  code4 SCALE X,..                     for n = 0 .. 7, the largest bf16 |x| whose code is at most n from 8: of positive x, then of negative
An activation's FORMAT is its bits; 68 is CODE4."""
import os
import sys

sys.dont_write_bytecode = True
from exact.floats import (F, INF32, MINUS_ZERO, NAN32, ONE, TOP32, bf16_up, encode, f32, narrow, philox, power, random_bits,  # noqa: E402
                          store, value, widen)
from exact.formats import (CODE4, CODE4_LEVELS, GRADS, MAGNITUDES, MAPS, bf16_thresholds, code4_bf16_thresholds, float_thresholds, grad_block, grad_value, int_block,  # noqa: E402
                           int_thresholds, map_code, state_block)
from exact.rows import adam_step, norm_back, norm_row, rope_row, square_norm  # noqa: E402


class Source:
    """A 64-bit linear congruential generator: the files must not depend on the version of Python."""

    def __init__(self, seed):
        self.state = seed

    def bits(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self.state >> (64 - n)

    def floats(self, n, exponent, spread):
        return [self.bits(1) << 31 | (exponent - self.bits(8) % spread) << 23 | self.bits(23) for _ in range(n)]

    def narrow_floats(self, n, exponent, spread, kind):
        """Patterns of kind, of values around 2^(exponent - 127)."""
        return [store(value(u), kind) for u in self.floats(n, exponent, spread)]


KEYS = [(1, 0, 0, 0, 0, 0), (0x0123456789ABCDEF, 0xFEDCBA9876543210, 1 << 40, 7, 3, (1 << 33) + 5)]
FORMATS = (4, 5, 6, 8, CODE4)
SPECIAL = [[ONE], [0xBF800000], [0, 0, 0], [MINUS_ZERO, 0, MINUS_ZERO], [1, 0x807FFFFF, 0x00400000],
           [0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, ONE], [ONE, NAN32, 0x40000000], [0xFF800001, ONE], [ONE, 0xFFC00001],
           [ONE, INF32], [0xFF800000, ONE], [0xFF800000]]


def int_inputs(fmt):
    bits = fmt % 64
    half = 1 << (bits - 1)
    source = Source(fmt)
    least = value(0x00800000) * half  # its d is the smallest normal bf16
    yield source.floats(64, 127, 5)
    yield source.floats(19, 130, 12)
    yield [encode(F(i) / 2) for i in range(-half, half) if i % max(1, half // 8) < 2] + [encode(F(-half))]  # ties of codes
    if fmt == CODE4:
        yield [encode(x) for x in CODE4_LEVELS] + [encode((a + b) / 2) for a, b in zip(CODE4_LEVELS, CODE4_LEVELS[1:])]
    yield [ONE, 0xBF800000, ONE]                      # a tie takes the negative
    yield [ONE, 0x80000001, 0x00400000]               # subnormal beside normal
    yield [encode(least), encode(-least / 2), 0]
    yield [encode(-least) - 1, encode(least / 2)]     # rounds up to a normal scale
    yield [encode(least * F(509, 512)), encode(least / 2)]  # stays below: zeros
    yield from SPECIAL


def grad_inputs(fmt):
    source = Source({'e4m3': 43, 'e5m2': 52, 'int8': 88}[fmt])
    table = MAGNITUDES[fmt]
    limit, last = table[-1], len(table) - 1
    yield source.floats(24, 127, 20)
    yield [encode(limit)] + [encode(x) for c in [*range(12), *range(last - 9, last)]
                             for x in (table[c], -(table[c] + table[c + 1]) / 2)]
    yield [ONE, encode(-F(1, 1 << 40)), MINUS_ZERO]   # underflow
    yield [ONE, 0x80000001, 0x00400000]
    yield [encode(limit * power(-126)), 0x80000001]
    yield [encode(limit * power(-126)) - 1, 0x00800000]
    yield from SPECIAL


def words(items, digits=8):
    return ','.join('%0*X' % (digits, x) for x in items) or '-'


def numbers(items, kind='f32'):
    return words((store(x, kind) for x in items or []), 8 if kind == 'f32' else 4)


def key_text(key):
    return 'rn' if key is None else ':'.join('%X' % field for field in key)


def int_lines():
    for fmt in (*FORMATS, 16):
        for n, xs in enumerate(int_inputs(fmt)):
            for key in [None] + (KEYS if n < 2 else KEYS[:1] if n == 2 or fmt == 16 else []):
                d, low, high, values = int_block(fmt, key, xs)
                yield 'int %d %s %s = %s %s %s %s' % (fmt, key_text(key), words(xs), '-' if d is None else '%04X' % d, words(low),
                                                      words(high), words(values))


def grad_lines():
    for fmt in GRADS:
        for n, xs in enumerate(grad_inputs(fmt)):
            for key in [None] + (KEYS if n < 2 else []):
                s, codes, values = grad_block(fmt, key, xs)
                yield 'grad %s %s %s = %08X %s %s' % (fmt, key_text(key), words(xs), s, words(codes, 2), words(values))
        for code in range(256):
            v = grad_value(fmt, code)
            v = {'nan': NAN32, 'inf': INF32, '-inf': INF32 | MINUS_ZERO}[v] if isinstance(v, str) else encode(v)
            yield 'value8 %s %02X %08X' % (fmt, code, v)


def philox_lines():
    for k0, k1, c in [(0, 0, [0] * 4), (0xFFFFFFFF, 0xFFFFFFFF, [0xFFFFFFFF] * 4),
                      (0xA4093822, 0x299F31D0, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344])]:
        yield 'philox %08X %08X %s = %s' % (k0, k1, words(c), words(philox(k0, k1, c)))
    base = list(KEYS[1])
    for field in range(6):  # each bit position of each field must matter: one change at a time
        for change in (1, 1 << 31) + (() if field in (3, 4) else (1 << 32, 1 << 62)):
            key = tuple(base[:field] + [base[field] ^ change] + base[field + 1:])
            yield 'stream %s %X = %04X' % (key_text(key), 2, random_bits(key, 2))
    for i in range(9):  # every half of a call, and the first of the next
        yield 'stream %s %X = %04X' % (key_text(KEYS[0]), i, random_bits(KEYS[0], i))


ADAM = [F(1, 1000), F(9, 10), F(999, 1000), F(1, 10 ** 8), F(1, 100), F(1)]


def adam_lines():
    for name, table in MAPS.items():
        assert len(table) == 256 and table == sorted(set(table))
        yield 'map %s %s' % (name, words([encode(x) for x in table]))
        for c in range(0, 255, 15):
            middle = encode(f32(f32(table[c] + table[c + 1]) / 2))
            for bits in (middle - 1, middle, middle + 1):
                yield 'code %s %08X = %02X' % (name, bits, map_code(name, value(bits)))
    source = Source(8)
    for xs in [source.floats(60, 127, 24), next_to_middles(0x3FB504F3), [3, 0x80000001, 2, 0x00000000, 1], source.floats(12, 63, 3),
               source.floats(16, 1, 1) + source.floats(16, 0, 1), source.floats(9, 190, 30), *SPECIAL]:
        x2 = [u & 0x7FFFFFFF if (u & 0x7FFFFFFF) >= INF32 else encode(value(u) * value(u)) for u in xs]
        yield 'state %s = %s' % (words(xs), ' '.join('%08X %s' % (top, words(codes, 2)) for top, codes in (
            state_block('signed', xs), state_block('unsigned', x2))))
    for fields, first, n in ((ADAM, 1, 20), (ADAM[:1] + [F(0), F(19, 20), F(1, 1000), F(0), F(1, 3)], 1234567, 7)):
        fields = [f32(x) for x in fields]
        for target, key in (('f32', None), ('both', None), ('bf16', None), ('bf16', KEYS[1])):
            yield adam_line(fields, first, target, key, source, n)


def next_to_middles(top):
    """A block of absmax `top` whose elements get another code if they are divided by it, not multiplied by its inverse."""
    found = [top]
    for c in range(0, 255):
        middle = f32(f32(MAPS['signed'][c] + MAPS['signed'][c + 1]) / 2)
        for u in range(encode(middle * value(top)) - 2, encode(middle * value(top)) + 3):
            codes = {map_code('signed', t) for t in (f32(value(u) / value(top)), f32(value(u) * f32(1 / value(top))))}
            found += [u] if len(codes) == 2 and len(found) < 12 else []
    assert len(found) > 4
    return found


def adam_line(fields, first, target, key, source, n):
    kind = 'bf16' if target == 'bf16' else 'f32'
    params = source.narrow_floats(n, 124, 6, kind)
    state, out, gradients = {name: (0, [map_code(name, F(0))] * n) for name in MAPS}, [], []
    now = params
    for step in range(2):
        gradients.append(source.floats(n, 120, 8))
        now, state = adam_step(fields, first + step, map(value, gradients[-1]), [widen(p, kind) for p in now], state, kind, key)
        out.append(now)
    return 'adam %s %s %X,%s %s %s %s = %s %s %s' % (
        target, key_text(key), first, numbers(fields), words(params), words(gradients[0]), words(gradients[1]), words(out[0]),
        words(out[1]), ' '.join('%08X %s' % (top, words(codes, 2)) for top, codes in state.values()))


def half_lines():
    source = Source(16)
    xs = [0, MINUS_ZERO, ONE, 1, 0x80000001, 0x007FFFFF, TOP32, 0xFF7FFFFF, INF32, 0xFF800000, NAN32, 0x7F800001, 0xFFFFFFFF,
          0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x38800000, 0x387FFFFF, 0x387FE000,
          0x33000000, 0x33000001, 0x33800000, 0x33C00000, 0x3F801000, 0x3F803000] + source.floats(20, 140, 40)
    for x in xs:
        yield 'bf16 %08X %04X' % (x, narrow(x, 'bf16'))
        yield 'f16 %08X %04X' % (x, narrow(x, 'f16'))
        for random in (0, max(0, (x & 0xFFFF) - 1), x & 0xFFFF, 0xFFFF):
            yield 'bf16sr %08X %04X %04X' % (x, random, bf16_up(x, random))


def row_lines():
    source, eps = Source(256), f32(F(1, 10 ** 5))

    def floats(n, kind='f32'):
        patterns = source.narrow_floats(n, 127, 4, kind)
        return patterns, [widen(u, kind) for u in patterns]
    for kind in ('rms', 'layer'):
        for cols, y_type, round_bf16, round_first, w_type, has in (
                (5, 'f32', 0, 0, 'f32', 3), (40, 'bf16', 0, 1, 'bf16', 1), (257, 'f32', 1, 1, 'f16', 3), (600, 'f32', 0, 1, 'f32', 0),
                (263, 'f16', 0, 1, 'bf16', 3), (64, 'bf16', 1, 0, 'f32', 2), (31, 'f16', 1, 1, 'f32', 1)):
            x, w, b = floats(cols), floats(cols, w_type), floats(cols, w_type)
            y = norm_row(kind, x[1], has & 1 and w[1], has & 2 and b[1], eps, y_type, round_bf16, round_first)
            yield 'norm %s %s %d %d %s %08X %s %s %s = %s' % (kind, y_type, round_bf16, round_first, w_type, encode(eps), words(x[0]),
                                                              words(has & 1 and w[0] or []), words(has & 2 and b[0] or []), words(y))
        for rows, cols, round_bf16, w_type, weighted in ((1, 300, 0, 'f32', 1), (35, 5, 0, 'bf16', 1), (66, 3, 1, 'f16', 0), (2, 520, 1, 'bf16', 1)):
            x, dy, w = floats(rows * cols, 'bf16'), floats(rows * cols), floats(cols, w_type)
            dw, db = floats(cols), floats(cols)
            cut = [[v[i:i + cols] for i in range(0, rows * cols, cols)] for v in (x[1], dy[1])]
            out = norm_back(kind, *cut, weighted and w[1], eps, round_bf16, list(dw[1]), list(db[1]))
            yield 'normback %s %d %s %08X %d %s %s %s %s %s = %s' % (
                kind, round_bf16, w_type, encode(eps), rows, words((u << 16 for u in x[0])), words(weighted and w[0] or []), words(dy[0]),
                words(dw[0]), words(db[0]), ' '.join(words(v) for v in out))
    for head, rotary, interleaved, backward, position in ((8, 8, 0, 0, 1), (8, 6, 1, 0, 2), (10, 4, 0, 1, 0), (6, 6, 1, 1, 2), (5, 4, 0, 0, 3)):
        x, cos, sin = floats(3 * head), floats(3 * rotary // 2), floats(3 * rotary // 2)
        at = slice(position * rotary // 2, (position + 1) * rotary // 2)
        y = rope_row(x[0], cos[1][at] if position < 3 else None, sin[1][at], head, rotary, interleaved, backward)
        yield 'rope %d %d %d %d %d 3 %s %s %s = %s' % (head, rotary, interleaved, backward, position, words(x[0]), words(cos[0]), words(sin[0]), words(y))
    for fmt in GRADS:
        for n, blocks in ((40, [0]), (128 * 9 - 5, [0, 1, 2, 5, 8]), (128 * 700 + 17, [0, 3, 255, 256, 300, 511, 512, 699, 700]),
                          (128 * 65539, [0, 77, 255, 256, 65280, 65535, 65536, 65538])):
            parts = [(b, encode(abs(value(u)))) for b, u in zip(blocks, source.floats(len(blocks), 120, 30))]
            given = {b: (value(s), sqnorm_codes(fmt, b, min(128, n - 128 * b))) for b, s in parts}
            start = F(source.bits(20), 1 << 10)
            yield 'sqnorm %s %d %016X %s = %016X' % (fmt, n, encode(start, 53, 64), ','.join('%X:%08X:%X' % (b, s, b) for b, s in parts),
                                                     encode(square_norm(fmt, given, start), 53, 64))


def sqnorm_codes(fmt, seed, n):
    """Upper bytes of the generator from `seed`; a code that is no finite number becomes 01."""
    source = Source(seed)
    return [c if not isinstance(grad_value(fmt, c), str) else 1 for c in (source.bits(8) for _ in range(n))]


SCALES = [0x3F80, 0xBF80, 0x3FFF, 0xBFFF, 0x0080, 0x8080, 0x00FF, 0x80C1, 0x3DCD, 0xBEAB, 0x4049, 0xC2F7, 0x5A9B, 0xA501]
RANDOMS = [None, 0, 0x7FFF, 0x8000, 0xFFFF]


def threshold_lines():
    def text(random):
        return 'rn' if random is None else '%04X' % random
    for random in RANDOMS:
        for fmt in GRADS:
            yield '%s %s %s' % (fmt, text(random), words(float_thresholds(fmt, random)))
    for fmt in FORMATS:
        largest = encode(power(128 - (fmt % 64 - 1)), 8, 16)  # what the largest float rounds to
        for scale in [*SCALES, largest, largest | 0x8000]:
            for random in RANDOMS if scale in SCALES[:3] else RANDOMS[:1]:
                yield 'int %d %04X %s %s' % (fmt, scale, text(random), words(int_thresholds(fmt, scale, random)))
    for scale in range(0x3F80, 0x4000):
        yield 'bf16 %04X %s' % (scale, words(bf16_thresholds(scale), 4))
        yield 'code4 %04X %s' % (scale, words(code4_bf16_thresholds(scale), 4))


FILES = {'int': int_lines, 'grad': grad_lines, 'philox': philox_lines, 'adam': adam_lines, 'half': half_lines, 'rows': row_lines,
         'thresholds': threshold_lines}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, lines in FILES.items():
        with open(os.path.join(sys.argv[1], name + '.txt'), 'w', encoding='ascii', newline='\n') as out:
            out.write('# tools/make_vectors.py\n')
            out.writelines(line + '\n' for line in lines())


if __name__ == '__main__':
    main()

"""The worked examples of docs/FORMATS.md: PYTHONPATH=tools python3 -B -m exact.examples docs/FORMATS.md

Computes each from the exact rules and fails for every result that the page does not quote."""
import sys

from exact.floats import F, encode, f32, group_words, philox, power, random_bits, value
from exact.formats import CODE4, CODE4_LEVELS, GRADS, MAGNITUDES, MAPS, grad_block, int_block, int_code, int_thresholds, plane, state_block
from exact.rows import norm_row, rope_row, statistics

KEY = (1, 0, 0, 0, 0, 0)


def hexes(items, digits=8):
    return ' '.join('%0*X' % (digits, x) for x in items)


def floats(*xs):
    return [encode(F(x)) for x in xs]


def quotes():
    """Pieces of text that the page must have."""
    a = philox(1, 0, [0] * 4)
    yield '= ' + ', '.join('%08X' % w for w in philox(0, 0, [0] * 4))
    yield hexes(a)
    yield hexes(philox(a[0], a[1], [0, 0, a[2], a[3]]))
    yield '`%s`' % hexes(group_words(KEY, 0))
    yield '`%s`' % hexes([random_bits(KEY, i) for i in range(8)], 4)
    yield ', '.join('%.4f' % float(F(2 * random_bits(KEY, i) + 1, 1 << 17)) for i in range(4))
    xs = floats(1, '-0.3', 0, '0.45')
    for fmt, key in ((4, None), (4, KEY), (CODE4, None), (CODE4, KEY)):
        d, low, _, values = int_block(fmt, key, xs)
        inverse = f32(1 / value(d, 8, 16))
        codes = [int_code(u, inverse, fmt, None if key is None else random_bits(key, i)) for i, u in enumerate(xs)]
        yield '`%04X`' % d
        yield '`%08X`' % low[0]
        yield 'odes ' + ', '.join(map(str, codes))
        yield 'values ' + ', '.join(str(float(value(v))) if v else '0.0' for v in values)
    yield ' '.join(str(8 * x) for x in CODE4_LEVELS)
    last = int_thresholds(CODE4, 0x3F80, None)[:15]
    yield hexes(last)
    yield ', '.join('%.3f' % float(value(u)) for u in last)
    yield '`%08X`' % plane([0, 17, 31], 4, 0)[0]
    yield '`%08X`' % plane([0, 17, 31], 1, 4)[0]
    xs = floats(1, '-0.3', '1e-5')
    for fmt in GRADS:
        s, codes, values = grad_block(fmt, None, xs)
        row = ['%08X' % s, '%08X' % encode(f32(1 / value(s))), hexes(codes, 2), hexes(grad_block(fmt, KEY, xs)[1], 2), hexes(values)]
        yield '| %s | `%s` | `%s` | ' % (fmt.upper(), *row[:2])
        yield ' | `%s` | `%s` | `%s` |' % tuple(row[2:])
        yield '%s `%08X`' % (fmt.upper(), encode(MAGNITUDES[fmt][-1] * power(-126)))
    top, codes = state_block('signed', floats('0.5', '-0.2', 0))
    yield '(`%08X`)' % top
    yield 'codes ' + ', '.join(map(str, codes))
    yield '-%.8f, 0' % -float(MAPS['signed'][codes[1]] * value(top))
    x, eps = [F(1), F(2), F(4)], f32(F(1, 10 ** 5))
    yield '(`%08X`)' % encode(eps)
    yield '`%s`' % hexes(norm_row('rms', x, None, None, eps, 'f32', 0, 0))
    d, inverse = statistics('layer', x, eps)
    yield 'd = `%s`' % hexes(map(encode, d))
    yield '(`%08X`)' % encode(inverse)
    c, s = f32(F(4, 5)), f32(F(3, 5))
    turned = rope_row(floats(1, 2), [c], [s], 2, 2, 0, 0)
    yield "c = 0.8 (`%08X`), s = 0.6 (`%08X`): a' = `%08X`, b' = `%08X`" % (encode(c), encode(s), *turned)


def main():
    with open(sys.argv[1], encoding='utf-8') as page:
        text = ' '.join(page.read().split())
    missing = [q for q in quotes() if q not in text]
    for q in missing:
        print('not in %s: %s' % (sys.argv[1], q))
    sys.exit(1 if missing else 0)


if __name__ == '__main__':
    main()

/* Codes of the dynamic maps by table (the cells of kernels/format/dynmap.h) against a search of all
 * midpoints. Within a cell a code changes at most once, behind its midpoint; so the floats around every
 * midpoint and at the ends of every cell, of either sign, decide all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/dynmap.h"
#include "tests/dynmap_ref.h"

static float all_signed[255], all_unsigned[255], half_signed[128], half_unsigned[255];
static uint32_t cells_signed[AGOQK_DYNMAP_CELLS], cells_unsigned[AGOQK_DYNMAP_CELLS];

static int make_maps(void **state) {
    (void)state;
    for (int c = 0; c < 255; c++) {
        all_signed[c] = agoqk_dynmap_middle(agoqk_dynmap_signed(c), agoqk_dynmap_signed(c + 1));
        all_unsigned[c] = agoqk_dynmap_middle(agoqk_dynmap_unsigned(c), agoqk_dynmap_unsigned(c + 1));
        half_unsigned[c] = agoqk_dynmap_middle_unsigned(c);
        if (c < 128) half_signed[c] = agoqk_dynmap_middle_signed(c);
    }
    for (int c = 0; c < AGOQK_DYNMAP_CELLS; c++) {
        cells_signed[c] = agoqk_dynmap_entry(half_signed, 128, c, agoqk_dynmap_below(half_signed, 128, c));
        cells_unsigned[c] =
            agoqk_dynmap_entry(half_unsigned, 255, c, agoqk_dynmap_below(half_unsigned, 255, c));
    }
    return 0;
}

static int count(const uint32_t *cells, float t) {
    return (int)(agoqk_dynmap_count(cells, agoqk_dynmap_key(t)) >> 16);
}

static void check(uint32_t bits) {
    const float t = agoqk_float(bits);
    const int positive = count(cells_signed, t), negative = count(cells_signed, -t);
    assert_int_equal(127 + positive, dynmap_code(all_signed, t));
    assert_int_equal(127 - (negative < 127 ? negative : 127), dynmap_code(all_signed, -t));
    const int code = dynmap_code(all_unsigned, t);
    if (bits != 0) assert_int_equal(count(cells_unsigned, t), code > 1 ? code : 1);
}

static void every_midpoint(void **state) {
    (void)state;
    for (int c = 0; c < 255; c++) {
        for (uint32_t near = 0; near < 7; near++) {
            check(agoqk_bits(all_unsigned[c]) + near - 3);
            if (c < 128) check(agoqk_bits(half_signed[c]) + near - 3);
        }
    }
}

static void every_cell(void **state) {
    (void)state;
    for (int c = 0; c < AGOQK_DYNMAP_CELLS; c++) {
        const uint32_t first = agoqk_dynmap_cell_first(c);
        int signed_in = 0, unsigned_in = 0;
        for (int i = 0; i < 255; i++) {
            unsigned_in += agoqk_bits(half_unsigned[i]) >> 16 == first >> 16;
            signed_in += i < 128 && agoqk_bits(half_signed[i]) >> 16 == first >> 16;
        }
        assert_true(signed_in <= 1 && unsigned_in <= 1);
        check(first);
        check(first + 1);
        if (c + 1 < AGOQK_DYNMAP_CELLS) check(first + 0xFFFFu);
    }
    for (uint32_t bits = 0; bits < agoqk_bits(AGOQK_DYNMAP_LEAST); bits += 99991) check(bits);
}

static void special(void **state) {
    (void)state;
    assert_int_equal(count(cells_signed, 0.0f), 0);
    assert_int_equal(count(cells_signed, agoqk_float(0x80000000u)), 0);
    assert_int_equal(count(cells_signed, agoqk_float(AGOQK_NAN_BITS)), 0);
    assert_int_equal(count(cells_unsigned, 0x1p-149f), 1);
    assert_int_equal(count(cells_signed, agoqk_float(0x3F80FFFFu)), 128); /* 1 + 2^-7 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_midpoint),
        cmocka_unit_test(every_cell),
        cmocka_unit_test(special),
    };
    return cmocka_run_group_tests(tests, make_maps, NULL);
}

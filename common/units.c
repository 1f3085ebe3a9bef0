/* See units.h. */
#include "common/units.h"

#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

static const unit byte_units[] = {{"B", 1},
                                  {"KiB", 1ull << 10},
                                  {"MiB", 1ull << 20},
                                  {"GiB", 1ull << 30},
                                  {"TiB", 1ull << 40},
                                  {"PiB", 1ull << 50},
                                  {"KB", 1000ull},
                                  {"MB", 1000000ull},
                                  {"GB", 1000000000ull},
                                  {"TB", 1000000000000ull},
                                  {"PB", 1000000000000000ull},
                                  {NULL, 0}};
static const unit time_units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {NULL, 0}};
static const unit percent_units[] = {{"%", 10000}, {NULL, 0}};

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* digits [. digits] with at most 6 decimals; *scaled = number * 10^6, or that of 2^64 for whatever is larger.
 * Returns the rest of the text, NULL if malformed. */
static const char *parse_decimal(const char *text, wide *scaled, int *has_fraction) {
    if (!is_digit(text[0]) || (text[0] == '0' && is_digit(text[1]))) return NULL;
    wide value = 0;
    for (; is_digit(*text); text++) {
        value = value * 10 + (unsigned)(*text - '0');
        if (value > UINT64_MAX) value = (wide)UINT64_MAX + 1;
    }
    value *= 1000000;
    *has_fraction = *text == '.';
    if (*has_fraction) {
        text++;
        unsigned place = 100000;
        if (!is_digit(*text)) return NULL;
        for (; is_digit(*text); text++, place /= 10) {
            if (!place) return NULL;
            value += (unsigned)(*text - '0') * place;
        }
    }
    *scaled = value;
    return text;
}

static int parse_with_unit(const char *text, const unit *units, uint64_t *out) {
    wide scaled;
    int has_fraction;
    if (!text) return -1;
    const char *rest = parse_decimal(text, &scaled, &has_fraction);
    if (!rest) return -1;
    for (; units->name; units++) {
        if (strcmp(rest, units->name) != 0) continue;
        if (scaled > (((wide)1 << 100) / units->factor)) return UNITS_TOO_LARGE;
        wide value = scaled * units->factor / 1000000;
        if (value > UINT64_MAX) return UNITS_TOO_LARGE;
        *out = (uint64_t)value;
        return 0;
    }
    return -1;
}

int units_parse_uint(const char *text, uint64_t *value) {
    wide scaled;
    int has_fraction;
    if (!text) return -1;
    const char *rest = parse_decimal(text, &scaled, &has_fraction);
    if (!rest || *rest || has_fraction) return -1;
    if (scaled / 1000000 > UINT64_MAX) return UNITS_TOO_LARGE;
    *value = (uint64_t)(scaled / 1000000);
    return 0;
}

int units_parse_bytes(const char *text, uint64_t *bytes) {
    return parse_with_unit(text, byte_units, bytes);
}

int units_parse_ms(const char *text, uint64_t *ms) {
    return parse_with_unit(text, time_units, ms);
}

int units_parse_ppm(const char *text, uint32_t *ppm) {
    uint64_t value;
    const int bad = parse_with_unit(text, percent_units, &value);
    if (bad) return bad;
    if (value > 1000000) return UNITS_TOO_LARGE;
    *ppm = (uint32_t)value;
    return 0;
}

void units_format_bytes(uint64_t bytes, char text[32]) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t i = 0;
    for (; value >= 1024 && i + 1 < sizeof names / sizeof *names; i++) value /= 1024;
    snprintf(text, 32, i ? "%.2f %s" : "%.0f %s", value, names[i]);
}

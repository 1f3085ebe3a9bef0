/* See json.h. */
#include "agoqctl/json.h"

#include <math.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "planner/plan.h"
#include "proto/wire.h"

static void write_string(FILE *out, const char *text) {
    putc('"', out);
    for (const char *s = text; *s;) {
        int n = wire_utf8_length(s);
        if (n == 0) {
            fputs("\\ufffd", out);
            n = 1;
        } else if (*s == '"' || *s == '\\') {
            fprintf(out, "\\%c", *s);
        } else if ((unsigned char)*s < 0x20 || *s == 0x7f) {
            fprintf(out, "\\u%04x", *s);
        } else {
            fwrite(s, 1, (size_t)n, out);
        }
        s += n;
    }
    putc('"', out);
}

/* Comma, line break and key in front of a value. 0: nothing may be written. */
static int lead(json_writer *j, const char *key) {
    if (j->bad) return 0;
    if (j->n_at[j->depth]++) putc(',', j->out);
    if (j->depth) fprintf(j->out, "\n%*s", 2 * j->depth, "");
    if (key) {
        write_string(j->out, key);
        fputs(": ", j->out);
    }
    return 1;
}

static void nest(json_writer *j, const char *key, char bracket) {
    if (!lead(j, key)) return;
    if (j->depth == JSON_MAX_DEPTH) {
        j->bad = 1;
        return;
    }
    putc(bracket, j->out);
    j->n_at[++j->depth] = 0;
}

static void unnest(json_writer *j, char bracket) {
    if (j->bad) return;
    if (!j->depth) {
        j->bad = 1;
        return;
    }
    int any = j->n_at[j->depth--];
    if (any) fprintf(j->out, "\n%*s", 2 * j->depth, "");
    putc(bracket, j->out);
}

void json_init(json_writer *j, FILE *out) {
    memset(j, 0, sizeof *j);
    j->out = out;
}

void json_object(json_writer *j, const char *key) {
    nest(j, key, '{');
}

void json_array(json_writer *j, const char *key) {
    nest(j, key, '[');
}

void json_object_end(json_writer *j) {
    unnest(j, '}');
}

void json_array_end(json_writer *j) {
    unnest(j, ']');
}

void json_text(json_writer *j, const char *key, const char *text) {
    if (!text)
        json_null(j, key);
    else if (lead(j, key))
        write_string(j->out, text);
}

void json_uint(json_writer *j, const char *key, uint64_t value) {
    if (lead(j, key)) fprintf(j->out, "%llu", (unsigned long long)value);
}

void json_bytes(json_writer *j, const char *key, uint64_t bytes) {
    if (bytes)
        json_uint(j, key, bytes);
    else
        json_null(j, key);
}

void json_int(json_writer *j, const char *key, int64_t value) {
    if (lead(j, key)) fprintf(j->out, "%lld", (long long)value);
}

void json_step(json_writer *j, const char *key, int64_t step) {
    if (step >= 0)
        json_int(j, key, step);
    else
        json_null(j, key);
}

void json_real(json_writer *j, const char *key, double value) {
    if (!isfinite(value))
        json_null(j, key);
    else if (lead(j, key))
        fprintf(j->out, "%.9g", value);
}

void json_bool(json_writer *j, const char *key, int value) {
    if (lead(j, key)) fputs(value ? "true" : "false", j->out);
}

void json_null(json_writer *j, const char *key) {
    if (lead(j, key)) fputs("null", j->out);
}

void json_plan_id(json_writer *j, const char *key, uint64_t id) {
    char text[32];
    plan_id_format(id, text);
    json_text(j, key, text);
}

void json_hash(json_writer *j, const char *key, uint64_t hash) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_text(j, key, hash ? text : NULL);
}

void json_begin(json_writer *j, FILE *out, const char *command) {
    json_init(j, out);
    json_object(j, NULL);
    json_uint(j, "version", CTL_JSON_VERSION);
    json_text(j, "command", command);
}

void json_end(json_writer *j) {
    while (j->depth && !j->bad) json_object_end(j);
    putc('\n', j->out);
}

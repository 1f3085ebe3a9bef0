/* Reader of operation lists written by hand. Two passes over the text with one grammar: the first counts, so
 * that memory is taken once and never more than the text justifies; the second stores. A list that does not
 * play is refused with the line of the operation that is wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "common/words.h"
#include "planner/schedule_internal.h"

enum { RANKS, MICROBATCHES, CHUNKS, ROUTE, RANK, N_WORDS };
static const char *const words[] = {"ranks", "microbatches", "chunks", "route", "rank", NULL};
static const char letters[] = "FBIW"; /* planner_op_kind */
static const char *const routes[] = {"loop", "vee", "two-way", NULL};

typedef struct token {
    const char *at;
    size_t size;
} token;

typedef struct reader {
    const char *at, *end; /* the rest of the text */
    uint32_t line;
    char *error;
    size_t error_size;
    uint32_t head[ROUTE + 1], given; /* values; bits of those given */
    uint32_t *n_of_rank;             /* operations met so far */
    planner_ops *store;              /* second pass */
    uint32_t find_rank, find_at;     /* third pass: the line of this operation */
    uint32_t rank_line;              /* last one of find_rank */
    int found;
} reader;

static agoq_status fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static agoq_status fail(reader *r, const char *format, ...) {
    va_list args;
    if (!r->error || !r->error_size) return AGOQ_E_FORMAT;
    const int used = snprintf(r->error, r->error_size, "line %u: ", r->line);
    va_start(args, format);
    if (used >= 0 && (size_t)used < r->error_size)
        vsnprintf(r->error + used, r->error_size - (size_t)used, format, args);
    va_end(args);
    for (char *c = r->error; *c; c++) {
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f) *c = '?';
    }
    return AGOQ_E_FORMAT;
}

/* The next word of the line; 0 at its end or at a comment. */
static int next_token(reader *r, token *t) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')) r->at++;
    if (r->at == r->end || *r->at == '\n' || *r->at == '#') return 0;
    t->at = r->at;
    while (r->at < r->end && !memchr(" \t\r\n#", *r->at, 5)) r->at++;
    t->size = (size_t)(r->at - t->at);
    return 1;
}

/* To the start of the next line; 0 at the end of the text. */
static int next_line(reader *r) {
    const char *end = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    if (!end) return 0;
    r->at = end + 1;
    r->line++;
    return r->at < r->end;
}

/* Digits from *at on; 0 digits or too large a number: -1. */
static int64_t read_number(const char **at, const char *end, uint32_t most) {
    uint64_t n = 0;
    const char *first = *at;
    while (*at < end && **at >= '0' && **at <= '9') {
        n = 10 * n + (uint64_t)(**at - '0');
        if (n > most) return -1;
        ++*at;
    }
    return *at == first ? -1 : (int64_t)n;
}

/* Index in a list of words, or -1; copy: the word as a string, cut. */
static int find_word(const token *t, const char *const list[], char copy[64]) {
    const size_t n = t->size < 63 ? t->size : 63;
    memcpy(copy, t->at, n);
    copy[n] = 0;
    for (int i = 0; list[i]; i++) {
        if (strlen(list[i]) == t->size && memcmp(list[i], t->at, t->size) == 0) return i;
    }
    return -1;
}

static agoq_status read_head(reader *r, int word) {
    static const uint32_t most[] = {PLAN_MAX_STAGES, PLANNER_MAX_MICROBATCHES, PLANNER_MAX_CHUNKS};
    token t;
    char copy[64];
    if (r->n_of_rank) return fail(r, "'%s' must stand before the first rank", words[word]);
    if (r->given & 1u << word) return fail(r, "'%s' is given twice", words[word]);
    if (!next_token(r, &t)) return fail(r, "'%s' needs a value", words[word]);
    r->given |= 1u << word;
    int64_t value = find_word(&t, routes, copy);
    if (word == ROUTE && value < 0) {
        const char *near = words_nearest(copy, routes);
        if (near) return fail(r, "unknown route '%s'; did you mean '%s'?", copy, near);
        return fail(r, "unknown route '%s': loop, vee or two-way", copy);
    }
    if (word != ROUTE) {
        const char *at = t.at;
        value = read_number(&at, t.at + t.size, most[word]);
        if (value < 1 || at != t.at + t.size)
            return fail(r, "%s: '%s' is no number from 1 to %u", words[word], copy, most[word]);
    }
    r->head[word] = (uint32_t)value;
    if (next_token(r, &t)) return fail(r, "one value is enough for '%s'", words[word]);
    return AGOQ_OK;
}

static agoq_status start_ranks(reader *r) {
    if (!(r->given & 1u << RANKS)) return fail(r, "'ranks' must be given before the first rank");
    if (!(r->given & 1u << MICROBATCHES))
        return fail(r, "'microbatches' must be given before the first rank");
    if (!(r->given & 1u << CHUNKS)) r->head[CHUNKS] = 1;
    if (r->head[ROUTE] != PLANNER_ROUTE_LOOP && r->head[CHUNKS] != 2)
        return fail(r, "route %s needs 'chunks 2'", routes[r->head[ROUTE]]);
    r->n_of_rank = mem_zalloc(r->head[RANKS], sizeof *r->n_of_rank);
    return r->n_of_rank ? AGOQ_OK : AGOQ_E_NOMEM;
}

static agoq_status read_op(reader *r, uint32_t rank, const token *t) {
    const char *at = t->at + 1, *end = t->at + t->size, *kind = memchr(letters, *t->at, 4);
    char copy[64];
    (void)find_word(t, routes, copy);
    const int64_t microbatch = kind ? read_number(&at, end, PLANNER_MAX_MICROBATCHES) : -1;
    int64_t chunk = 0;
    if (microbatch >= 0 && at < end && *at == '.') {
        at++;
        chunk = read_number(&at, end, PLANNER_MAX_CHUNKS);
    }
    if (microbatch < 0 || chunk < 0 || at != end)
        return fail(r, "'%s' is no operation: F, B, I or W, a micro-batch, and a chunk if not 0 (F3.1)",
                    copy);
    if (microbatch >= r->head[MICROBATCHES])
        return fail(r, "'%s': micro-batches are 0 to %u", copy, r->head[MICROBATCHES] - 1);
    if (chunk >= r->head[CHUNKS]) return fail(r, "'%s': chunks are 0 to %u", copy, r->head[CHUNKS] - 1);
    const uint32_t n = r->n_of_rank[rank]++;
    if (r->store)
        r->store->ops[r->store->start[rank] + n] =
            (planner_op){(uint32_t)microbatch, (uint16_t)chunk, (uint16_t)(kind - letters)};
    r->found = rank == r->find_rank && n == r->find_at;
    return AGOQ_OK;
}

static agoq_status read_rank(reader *r) {
    token t;
    char copy[64];
    if (!next_token(r, &t)) return fail(r, "'rank' needs a number and ':'");
    (void)find_word(&t, routes, copy);
    const char *at = t.at, *end = t.at + t.size;
    const int64_t rank = read_number(&at, end, PLAN_MAX_STAGES);
    if (rank < 0 || at + 1 != end || *at != ':') return fail(r, "'%s' is no rank, such as '0:'", copy);
    if (!r->n_of_rank) AGOQ_TRY(start_ranks(r));
    if (rank >= r->head[RANKS]) return fail(r, "rank %s ranks are 0 to %u", copy, r->head[RANKS] - 1);
    if (rank == r->find_rank) r->rank_line = r->line;
    while (!r->found && next_token(r, &t)) AGOQ_TRY(read_op(r, (uint32_t)rank, &t));
    return AGOQ_OK;
}

static agoq_status read_lines(reader *r) {
    r->line = 1;
    do {
        token t;
        char copy[64];
        if (!next_token(r, &t)) continue;
        const int word = find_word(&t, words, copy);
        if (word < 0) {
            const char *near = words_nearest(copy, words);
            if (near) return fail(r, "unknown word '%s'; did you mean '%s'?", copy, near);
            return fail(r, "unknown word '%s': ranks, microbatches, chunks, route or rank", copy);
        }
        AGOQ_TRY(word == RANK ? read_rank(r) : read_head(r, word));
    } while (!r->found && next_line(r));
    if (!r->n_of_rank) return fail(r, "there are no operations");
    return AGOQ_OK;
}

/* Once more through a text that is known to be right. */
static agoq_status read_again(reader *r, const char *text, size_t size) {
    r->at = text;
    r->end = text + size;
    r->given = 0;
    mem_free(r->n_of_rank);
    r->n_of_rank = NULL;
    return read_lines(r);
}

static agoq_status check(reader *r, const char *text, size_t size, const planner_ops *ops) {
    planner_ops_fault fault;
    const agoq_status status = planner_ops_check(ops, &fault);
    if (status != AGOQ_E_INVAL) return status;
    r->find_rank = fault.rank;
    r->find_at = fault.at;
    r->store = NULL;
    AGOQ_TRY(read_again(r, text, size));
    if (!r->found && r->rank_line) r->line = r->rank_line; /* it is missing there */
    const uint32_t chunk = fault.op.chunk;
    char op[32] = "";
    if (fault.op.kind < PLANNER_OP_NONE) {
        const int n = snprintf(op, sizeof op, ": %c%u", letters[fault.op.kind], fault.op.microbatch);
        if (chunk && n > 0) snprintf(op + n, sizeof op - (size_t)n, ".%u", chunk);
    }
    return fail(r, "rank %u, operation %u: %s%s", fault.rank, fault.at + 1, fault.what, op);
}

agoq_status planner_ops_read(const char *text, size_t size, planner_ops *out, char *error,
                             size_t error_size) {
    if (!text || !out) return AGOQ_E_INVAL;
    if (error && error_size) *error = 0;
    agoq_status status;
    planner_ops made = {0};
    reader r = {.at = text, .end = text + size, .error = error, .error_size = error_size};
    r.find_rank = UINT32_MAX;
    AGOQ_TRY_OUT(read_lines(&r));
    made = (planner_ops){
        (planner_route)r.head[ROUTE], r.head[RANKS], r.head[MICROBATCHES], r.head[CHUNKS], NULL, NULL};
    AGOQ_TRY_OUT(schedule_ops_alloc(&made, r.n_of_rank));
    r.store = &made;
    AGOQ_TRY_OUT(read_again(&r, text, size));
    AGOQ_TRY_OUT(check(&r, text, size, &made));
    *out = made;
    made = (planner_ops){0};
out:
    mem_free(r.n_of_rank);
    planner_ops_fini(&made);
    return status;
}

/* top: status and ranks once a second. On a terminal the screen is redrawn in place and q quits; elsewhere
 * one plain picture is printed, so that a pipe or a log never receives control codes. A lost daemon is shown,
 * not fatal: the picture comes back when it does. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "agoqctl/ask.h"
#include "agoqctl/render.h"
#include "agoqctl/verbs.h"

#define PERIOD_MS 1000

/* Both answers on one connection. The caller frees what is set, also after a failure. */
static int collect(const ctl_args *args, Agoq__Envelope **status, Agoq__Envelope **ranks, char *error,
                   size_t n) {
    ctl_client *client = NULL;
    int code = client_open(args->socket, &client, error, n);
    if (code != CTL_OK) return code;
    code = client_ask_plain(client, AGOQ__CTL_REQUEST__VERB_STATUS, args->timeout_ms, status, error, n);
    if (code == CTL_OK) {
        code = client_ask_plain(client, AGOQ__CTL_REQUEST__VERB_RANKS, args->timeout_ms, ranks, error, n);
        if (code == CTL_PARTIAL) code = CTL_OK;
    }
    if (code == CTL_OK && !(*status)->ctl_reply->status) {
        snprintf(error, n, "the daemon's answer holds no status");
        code = CTL_FAILED;
    }
    client_close(&client);
    return code;
}

static int draw(const ctl_args *args, int color, char *error, size_t n) {
    Agoq__Envelope *status = NULL, *ranks = NULL;
    int code = collect(args, &status, &ranks, error, n);
    if (code == CTL_OK) {
        show_status_text(status->ctl_reply->status, color, stdout);
        if (ranks->ctl_reply->n_ranks) {
            putchar('\n');
            if (show_ranks_text(ranks->ctl_reply, color, stdout)) {
                snprintf(error, n, "out of memory");
                code = CTL_FAILED;
            }
        }
    }
    wire_free(status);
    wire_free(ranks);
    return code;
}

/* 1: q (or the end of input) was read before the period ended. */
static int wait_for_q(void) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&in, 1, PERIOD_MS) <= 0) return 0;
    return read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q';
}

static int redraw(const ctl_args *args) {
    struct termios before, raw;
    int keys = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &before);
    if (keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    verbs_catch_signals();
    while (!verbs_stop) {
        char error[CTL_MAX_TEXT] = "";
        fputs("\033[H\033[2J", stdout);
        if (draw(args, ctl_use_color(args), error, sizeof error) != CTL_OK) render_text(error, stdout);
        fputs(keys ? "\n(q quits)\n" : "\n", stdout);
        fflush(stdout);
        if (!keys)
            usleep(PERIOD_MS * 1000);
        else if (wait_for_q())
            break;
    }
    if (keys) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return CTL_OK;
}

int verb_top(const ctl_args *args) {
    char error[CTL_MAX_TEXT] = "";
    if (!args->json && !args->once && isatty(STDOUT_FILENO)) return redraw(args);
    if (!args->json) {
        int code = draw(args, ctl_use_color(args), error, sizeof error);
        return code == CTL_OK ? CTL_OK : ctl_fail(args, code, "%s", error);
    }
    Agoq__Envelope *status = NULL, *ranks = NULL;
    int code = collect(args, &status, &ranks, error, sizeof error);
    if (code == CTL_OK) {
        json_writer j;
        json_begin(&j, stdout, "top");
        show_status_json(&j, status->ctl_reply->status);
        show_ranks_json(&j, ranks->ctl_reply);
        json_end(&j);
    } else {
        code = ctl_fail(args, code, "%s", error);
    }
    wire_free(status);
    wire_free(ranks);
    return code;
}

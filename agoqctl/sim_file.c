/* See sim_file.h. Names without a slash or an ending are looked up in the folders that belong to this tool:
 * beside the installed program, beside the build folder, and under the working folder. The trade-off: files
 * and not tables in the program, so that a site adds a model by adding a file. */
#include "agoqctl/sim_file.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "agoqctl/ctl.h"
#include "agoqctl/sim_hf.h"
#include "common/words.h"

#define MAX_NAMES 128

static int code_of(agoq_status status) {
    return status == AGOQ_E_FORMAT || status == AGOQ_E_LIMIT ? CTL_USAGE : CTL_FAILED;
}

static int ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* The folder number i that files of this kind may lie in; -1: there are no more. */
static int folder(int i, const char *kind, char *path, size_t size) {
    static const char *const beside[] = {"../share/agoq", "../config"};
    char program[SIM_MAX_PATH];
    if (i == 2) return snprintf(path, size, "config/%s", kind) < (int)size ? 0 : -1;
    if (i > 2) return -1;
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return 1;
    program[n] = 0;
    *strrchr(program, '/') = 0;
    return snprintf(path, size, "%s/%s/%s", program, beside[i], kind) < (int)size ? 0 : 1;
}

static int collect(const char *path, char names[MAX_NAMES][64], int n) {
    DIR *dir = opendir(path);
    if (!dir) return n;
    for (struct dirent *e; (e = readdir(dir)) && n < MAX_NAMES;) {
        if (!ends_in(e->d_name, ".yaml")) continue;
        snprintf(names[n++], 64, "%.*s", (int)(strlen(e->d_name) - 5), e->d_name);
    }
    closedir(dir);
    return n;
}

static int find_named(const char *name, const char *kind, const char *what, char *path, size_t size,
                      char *error, size_t error_size) {
    static char names[MAX_NAMES][64];
    const char *all[MAX_NAMES + 1];
    char at[SIM_MAX_PATH];
    int n = 0, more;
    for (int i = 0; (more = folder(i, kind, at, sizeof at)) >= 0; i++) {
        if (more) continue;
        if (snprintf(path, size, "%s/%s.yaml", at, name) < (int)size && access(path, F_OK) == 0)
            return CTL_OK;
        n = collect(at, names, n);
    }
    for (int i = 0; i < n; i++) all[i] = names[i];
    all[n] = NULL;
    const char *near = words_nearest(name, all);
    if (near)
        return sim_fail(error, error_size, "no %s '%.40s'; did you mean '%s'? (or give a file)", what, name,
                        near);
    return sim_fail(error, error_size, "no %s '%.40s': give a file, or a name from config/%s", what, name,
                    kind);
}

/* Where a model or machine is: a name of our own, or a path (of a job file: from its folder). */
static int locate(const char *name, const char *kind, const char *what, const sim_input *in, char *path,
                  size_t size, char *error, size_t error_size) {
    if (!strchr(name, '/') && !strchr(name, '.'))
        return find_named(name, kind, what, path, size, error, error_size);
    const int n = name[0] == '/' || !in->folder[0] ? snprintf(path, size, "%s", name)
                                                   : snprintf(path, size, "%s/%s", in->folder, name);
    return n < (int)size ? CTL_OK : sim_fail(error, error_size, "the path of the %s is too long", what);
}

/* Lists and maps as the text that a flag would have. */
static int flat_text(const yaml_node *node, const sim_setting *s, char *text, size_t size, char *error,
                     size_t error_size) {
    size_t used = 0;
    const yaml_kind kind = s->type == KIND_STAGES ? YAML_MAP : YAML_LIST;
    if (yaml_expect(node, kind, s->key, error, error_size) != AGOQ_OK) return CTL_USAGE;
    text[0] = 0;
    for (const yaml_node *c = node->child; c && used < size; c = c->next) {
        if (yaml_expect(c, YAML_SCALAR, s->key, error, error_size) != AGOQ_OK) return CTL_USAGE;
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used ? "," : "",
                                 kind == YAML_MAP ? c->key : "", kind == YAML_MAP ? "=" : "", c->text);
    }
    if (used < size) return CTL_OK;
    (void)yaml_fail(node, error, error_size, "%s is too long", s->key);
    return CTL_USAGE;
}

static int set_node(const yaml_node *node, const sim_setting *s, sim_input *in, char *error,
                    size_t error_size) {
    static char flat[64 * 1024];
    char why[256];
    const char *text = node->text;
    if (node->kind != YAML_SCALAR && (s->type == KIND_STAGES || s->type == KIND_NUMBERS)) {
        const int code = flat_text(node, s, flat, sizeof flat, error, error_size);
        if (code != CTL_OK) return code;
        text = flat;
    } else if (yaml_expect(node, YAML_SCALAR, node->key, error, error_size) != AGOQ_OK) {
        return CTL_USAGE;
    }
    if (sim_setting_set(s, text, in, why) == 0) return CTL_OK;
    (void)yaml_fail(node, error, error_size, "%s: %s", s->key, why);
    return CTL_USAGE;
}

/* Settings of `where` in a map; other keys are only those in `also`. */
static int read_map(const yaml_node *root, sim_place where, const char *const also[], sim_input *in,
                    uint64_t *given, char *error, size_t error_size) {
    const char *keys[SIM_MAX_SETTINGS + 8];
    size_t n = 0, own;
    while (also[n]) {
        keys[n] = also[n];
        n++;
    }
    own = n;
    for (size_t i = 0; i < sim_n_settings; i++) {
        if (sim_settings[i].places & (int)where) keys[n++] = sim_settings[i].key;
    }
    keys[n] = NULL;
    if (yaml_known_keys(root, keys, error, error_size) != AGOQ_OK) return CTL_USAGE;
    for (const yaml_node *child = root->child; child; child = child->next) {
        size_t k = 0;
        while (k < own && strcmp(child->key, also[k]) != 0) k++;
        if (k < own) {
            if (yaml_expect(child, YAML_SCALAR, child->key, error, error_size) != AGOQ_OK) return CTL_USAGE;
            continue;
        }
        const sim_setting *s = sim_setting_find(child->key, (int)where);
        const int code = set_node(child, s, in, error, error_size);
        if (code != CTL_OK) return code;
        *given |= sim_setting_bit(s);
    }
    return CTL_OK;
}

/* A config.json says all of the shape, and the longest sequence, as a model file here says seq. */
static int read_hf(const char *path, sim_input *in, uint64_t *given, char *error, size_t error_size) {
    static const char *const keys[] = {"hidden", "ffn", "layers", "heads", "kv_heads", "vocab", "tied"};
    const agoq_status status = sim_hf_load(path, &in->model.shape, in->name, error, error_size);
    if (status != AGOQ_OK) return code_of(status);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *given |= sim_setting_bit(sim_setting_find(keys[i], PLACE_MODEL));
    if (in->model.shape.max_seq) {
        in->model.run.seq = in->model.shape.max_seq;
        *given |= sim_setting_bit(sim_setting_find("seq", PLACE_MODEL));
    }
    return CTL_OK;
}

static int read_yaml(const char *path, sim_place where, sim_input *in, uint64_t *given, char *error,
                     size_t error_size) {
    static const char *const also[] = {"name", NULL};
    yaml_doc *doc = NULL;
    const agoq_status status = yaml_load(path, &doc, error, error_size);
    if (status != AGOQ_OK) return code_of(status);
    const int code = read_map(yaml_root(doc), where, also, in, given, error, error_size);
    const yaml_node *name = yaml_get(yaml_root(doc), "name");
    if (code == CTL_OK && name)
        snprintf(where == PLACE_MODEL ? in->name : in->gpu, sizeof in->name, "%s", name->text);
    yaml_unload(&doc);
    return code;
}

int sim_file_model(const char *name, sim_input *in, uint64_t *given, char *error, size_t error_size) {
    char path[SIM_MAX_PATH];
    const int code = locate(name, "models", "model", in, path, sizeof path, error, error_size);
    if (code != CTL_OK) return code;
    return ends_in(path, ".json") ? read_hf(path, in, given, error, error_size)
                                  : read_yaml(path, PLACE_MODEL, in, given, error, error_size);
}

int sim_file_cluster(const char *name, int gpu_only, sim_input *in, uint64_t *given, char *error,
                     size_t error_size) {
    char path[SIM_MAX_PATH];
    int code =
        locate(name, "clusters", gpu_only ? "GPU" : "cluster", in, path, sizeof path, error, error_size);
    if (code == CTL_OK) code = read_yaml(path, PLACE_CLUSTER, in, given, error, error_size);
    if (code == CTL_OK && gpu_only) {
        *given &= ~(sim_setting_bit(sim_setting_find("nodes", PLACE_CLUSTER)) |
                    sim_setting_bit(sim_setting_find("gpus_per_node", PLACE_CLUSTER)));
        in->nodes = in->gpus_per_node = 0;
    }
    return code;
}

int sim_file_job(const yaml_node *root, const sim_files *taken, sim_input *in, uint64_t *given, char *error,
                 size_t error_size) {
    static const char *const also[] = {"name", "model", "cluster", "gpu", NULL};
    if (yaml_expect(root, YAML_MAP, "the job", error, error_size) != AGOQ_OK) return CTL_USAGE;
    const yaml_node *model = yaml_get(root, "model"), *cluster = yaml_get(root, "cluster"),
                    *gpu = yaml_get(root, "gpu"), *name = yaml_get(root, "name");
    for (const yaml_node *c = root->child; c; c = c->next) {
        if ((c == model || c == cluster || c == gpu || c == name) &&
            yaml_expect(c, YAML_SCALAR, c->key, error, error_size) != AGOQ_OK)
            return CTL_USAGE;
    }
    int code = CTL_OK;
    if (model && !taken->model) code = sim_file_model(model->text, in, given, error, error_size);
    const int machine = taken->cluster || taken->gpu;
    if (code == CTL_OK && cluster && gpu) {
        (void)yaml_fail(gpu, error, error_size, "a cluster and a gpu: give one of them");
        return CTL_USAGE;
    }
    if (code == CTL_OK && cluster && !machine)
        code = sim_file_cluster(cluster->text, 0, in, given, error, error_size);
    if (code == CTL_OK && gpu && !machine)
        code = sim_file_cluster(gpu->text, 1, in, given, error, error_size);
    if (code == CTL_OK) code = read_map(root, PLACE_JOB, also, in, given, error, error_size);
    if (code == CTL_OK && name) snprintf(in->name, sizeof in->name, "%s", name->text);
    return code;
}

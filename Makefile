# One non-recursive makefile; every output is under $(BUILD). Sources are listed by name.
#   make            libraries, daemon, tool, trainer        make demo       the whole system, on CPUs
#   make test       what a newcomer and CI run              make test-full  the long sweeps as well
#   make install    DESTDIR= PREFIX=/usr/local              make lint | format | deps | clean
# Variables: DEBUG=1, SAN=address,undefined | thread, V=1, CUDA=auto|yes|no, BUILD=build, CC, JOBS.
BUILD  ?= build
PREFIX ?= /usr/local
DEBUG  ?= 0
SAN    ?=
V      ?= 0
CUDA   ?= auto
Q      := $(if $(filter 1,$(V)),,@)
say     = $(if $(filter 1,$(V)),@:,@printf '  %-7s %s\n' $(1) $(2))

VERSION    := 0.1.0
SO_MAJOR   := 0
.DEFAULT_GOAL := all
JOBS   ?= $(shell nproc)
MAKEFLAGS += -j$(JOBS)

# ---- sources ----
common_SRC  := common/buf.c common/clock.c common/file.c common/log.c common/mem.c common/proc.c common/sha256.c common/units.c common/words.c
kernels_SRC := kernels/table.c
cpu_SRC     := kernels/cpu/adam8.c kernels/cpu/block.c kernels/cpu/grad.c kernels/cpu/grad_block.c kernels/cpu/pack.c kernels/cpu/norm.c kernels/cpu/rope.c \
               kernels/cpu/swiglu.c
cuda_SRC    := kernels/cuda/launch.cu kernels/cuda/pack.cu kernels/cuda/norm_fwd.cu kernels/cuda/norm_fwd_whole.cu kernels/cuda/norm_bwd.cu kernels/cuda/norm_bwd_whole.cu kernels/cuda/norm_bwd_wide.cu kernels/cuda/swiglu.cu \
               kernels/cuda/rope.cu kernels/cuda/grad.cu kernels/cuda/sqnorm.cu kernels/cuda/adam8.cu
planner_SRC := planner/groups.c planner/hysteresis.c planner/kinds.c planner/knap.c planner/knap_core.c planner/knap_curve.c planner/knap_dual.c planner/knap_price.c planner/knap_rows.c planner/lever_text.c planner/levers.c planner/live.c planner/measure.c planner/model.c planner/model_check.c planner/model_levers.c planner/model_state.c planner/model_tensors.c planner/plan.c \
               planner/rule.c planner/schedule.c planner/schedule_check.c planner/schedule_file.c planner/schedule_list.c planner/schedule_vee.c planner/share.c \
               planner/solve.c planner/stage_solve.c
proto_SRC   := proto/wire.c proto/wire_check.c
libagoq_SRC := libagoq/status.c libagoq/codec.c libagoq/codec_check.c libagoq/codec_grad.c libagoq/comm.c libagoq/quangrad.c libagoq/env.c \
               libagoq/ledger.c libagoq/link.c libagoq/link_receive.c libagoq/link_send.c libagoq/mailbox.c \
               libagoq/observe.c libagoq/planfile.c libagoq/profile.c libagoq/report.c libagoq/session.c \
               libagoq/session_config.c libagoq/session_data.c libagoq/session_step.c libagoq/session_widths.c \
               libagoq/slot.c libagoq/vote.c
libagoq_mpi_SRC := libagoq/mpi/exchange.c libagoq/mpi/transport.c libagoq/mpi/vote_mpi.c common/mem.c
agoqd_SRC   := agoqd/accept.c agoqd/answer.c agoqd/answer_parts.c agoqd/budgets.c agoqd/conf.c agoqd/conf_print.c agoqd/core.c agoqd/core_budget.c \
               agoqd/core_decide.c agoqd/core_hello.c agoqd/core_past.c agoqd/core_ranks.c agoqd/core_words.c agoqd/cycle.c agoqd/groups.c agoqd/held.c agoqd/history.c agoqd/main.c \
               agoqd/merge.c agoqd/notify.c agoqd/options.c agoqd/plans.c agoqd/policy.c agoqd/proc.c agoqd/server.c \
               agoqd/sessions.c agoqd/state.c agoqd/yaml.c agoqd/yaml_check.c
agoqctl_SRC := agoqctl/args.c agoqctl/ask.c agoqctl/budget.c agoqctl/client.c agoqctl/json.c agoqctl/main.c agoqctl/plan_show.c \
               agoqctl/plan_verbs.c agoqctl/render.c agoqctl/show.c agoqctl/json_read.c agoqctl/sim_hf.c agoqctl/sim_answer.c agoqctl/sim_file.c agoqctl/sim_input.c agoqctl/sim_json.c agoqctl/sim_settings.c agoqctl/sim_show.c agoqctl/sim_trainer.c agoqctl/sim_values.c agoqctl/simulate.c agoqctl/top.c \
               agoqctl/verbs.c
trainer_SRC := trainer/alloc.c trainer/attention.c trainer/blas.c trainer/checkpoint.c trainer/checkpoint_config.c trainer/data.c trainer/dump.c trainer/exchange.c trainer/grads.c \
               trainer/layer.c trainer/main.c trainer/model.c trainer/ops.c trainer/optim.c trainer/options.c trainer/params.c \
               trainer/pipe.c trainer/plans.c trainer/runlog.c trainer/schedule.c trainer/store.c trainer/train.c

# Test programs: tests/unit/X.c (may see internals), tests/api/X.c (public API only).
unit_TESTS  := test_common test_dynmap test_plan test_yaml test_conf test_agoqctl test_agoqctl_client test_agoqctl_plan \
               test_knap test_planner test_planner_edges test_planner_groups test_planner_more test_schedule test_schedule_file test_levers test_model test_model_levers test_model_accounts test_model_state test_sim_hf test_sim_input test_wire test_wire_check test_core \
               test_core_budget test_core_past test_core_hello test_core_ranks test_cycle test_budgets test_state test_held test_server test_answer test_groups \
               test_quangrad test_quangrad_faults test_vectors test_vectors_rows test_thresholds test_scalar test_format test_bounds test_placement test_shared test_norm test_rope test_swiglu test_accuracy test_grad test_grad_placement test_levels \
               test_adam8 test_adam8_peer test_trainer_grad test_trainer_sched test_trainer_profile test_trainer_input \
               test_trainer_paths test_trainer_checkpoint test_trainer_limits test_vote test_vote_sim test_ledger test_planfile test_link test_link_plans \
               test_session test_session_vote test_session_input test_session_socket
api_TESTS   := test_codec_args test_codec_api test_codec_places test_api_session
# Programs with several ranks: tests/mpi/X.c, run by system tests.
mpi_TESTS   := quangrad_mpi
# Helpers of system tests: tests/tools/X.c.
test_TOOLS  := wiretool
# Tests on a GPU: tests/gpu/X, run by `make test-gpu`; they link the codec layer alone and need nothing but a driver.
gpu_TESTS   := test_parity test_rules test_scalar
# Benchmarks over MPI: bench/X.c. `make build/bench/X`, then mpirun.
mpi_BENCH   := quangrad_mpi
# Benchmarks of one process: `make build/bench/X && build/bench/X`.
plain_BENCH := accuracy kernels plan
# System tests: scripts that run the real programs and print `ok NAME` / `not ok NAME` lines.
system_TESTS      := $(addprefix tests/system/,10-vectors.sh 10-quangrad-mpi.sh 20-daemon-faults.sh 30-agoqctl.sh 30-simulate.sh 31-cases.sh 32-simulate-trainer.sh 33-simulate-command.sh \
                     35-install.sh 40-trainer.sh 41-trainer-dump.sh 50-demo.sh 51-daemon-death.sh 52-observed.sh 53-paper-case.sh 55-faults.sh \
                     57-memory-guard.sh)
system_full_TESTS := $(addprefix tests/system/,56-seeds.sh 58-simulate-shapes.sh 90-quangrad-huge.sh 90-sanitizers.sh 91-fuzz.sh)
full_TESTS  := test_bias test_grad_huge test_exhaustive test_exhaustive_int test_planner_sweep test_exhaustive_rows test_schedule_sweep
fuzz_TARGETS := fuzz_args fuzz_hf fuzz_job fuzz_plan fuzz_schedule fuzz_wire fuzz_yaml

# ---- configuration: packages are checked (or installed) once, flags land in config.mk ----
no_config := $(filter clean format deps,$(MAKECMDGOALS))
ifeq ($(and $(MAKECMDGOALS),$(no_config)),)
may_install := $(if $(filter demo test test-full,$(MAKECMDGOALS)),1,0)
include $(BUILD)/config.mk
endif
# Other wishes than last time: configure again.
$(BUILD)/config.key: FORCE
	@mkdir -p $(@D)
	@echo '$(CUDA) $(CC)' | cmp -s - $@ || echo '$(CUDA) $(CC)' > $@
$(BUILD)/config.mk: tools/configure.sh $(BUILD)/config.key
	@AGOQ_MAY_INSTALL=$(may_install) CUDA=$(CUDA) CC=$(CC) tools/configure.sh > $@.tmp || { rm -f $@.tmp; exit 1; }
	@mv $@.tmp $@

WARN   := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Werror
# -ffp-contract=off: the same bytes from every compiler (docs/FORMATS.md). _GNU_SOURCE: POSIX and Linux calls under -std=c11.
CPPFLAGS += -D_GNU_SOURCE -DAGOQ_VERSION='"$(VERSION)"' -I. -Iinclude -I$(BUILD)/gen
CFLAGS += -std=c11 -g $(if $(filter 1,$(DEBUG)),-O0,-O2) -ffp-contract=off -fPIC -fvisibility=hidden $(WARN) \
          $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
LDFLAGS += $(if $(SAN),-fsanitize=$(SAN))
LDLIBS  += $(CUDA_LIBS) -lm -lpthread

# ---- objects ----
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
all_SRC := $(common_SRC) $(kernels_SRC) $(planner_SRC) $(proto_SRC) $(libagoq_SRC) $(libagoq_mpi_SRC) $(agoqd_SRC) \
           $(agoqctl_SRC) $(trainer_SRC) $(unit_TESTS:%=tests/unit/%.c) $(api_TESTS:%=tests/api/%.c) \
           $(mpi_TESTS:%=tests/mpi/%.c) $(test_TOOLS:%=tests/tools/%.c) $(mpi_BENCH:%=bench/%.c) $(plain_BENCH:%=bench/%.c) \
           $(full_TESTS:%=tests/full/%.c)
gen_pb  := $(BUILD)/gen/agoq.pb-c

flags_now = $(if $(filter 1,$(HAVE_NVCC)),$(NVCC) $(nvcc_FLAGS)) $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(cpu_FLAGS) $(foreach level,$(cpu_LEVELS),$(level_FLAGS_$(level)))
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(flags_now))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(flags_now))' > $@
FORCE:
.PHONY: FORCE gpu-bin test-gpu bench bench-gpu all deps demo test test-full tests-bin print-units print-apis print-fuzz lint format install clean

$(gen_pb).c $(gen_pb).h &: proto/agoq.proto
	$(call say,PROTOC,$<)
	$(Q)mkdir -p $(@D) && protoc-c --proto_path=proto --c_out=$(BUILD)/gen $<
$(BUILD)/obj/agoq.pb-c.o: $(gen_pb).c $(BUILD)/flags
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS) $(filter-out $(WARN),$(CFLAGS)) -c -o $@ $<
$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(gen_pb).h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CPPFLAGS) $(CFLAGS) $(extra_CFLAGS) -MMD -MP -c -o $@ $<
trainer_UNIT := $(filter test_trainer_%,$(unit_TESTS))
$(call obj,$(libagoq_mpi_SRC) $(trainer_SRC) $(mpi_TESTS:%=tests/mpi/%.c) $(mpi_BENCH:%=bench/%.c) $(trainer_UNIT:%=tests/unit/%.c)): extra_CFLAGS = $(MPI_CFLAGS) $(BLAS_CFLAGS)
# Loops over rows that only -O3 vectorises; still no reassociation, so the same bits.
$(call obj,planner/kinds.c planner/knap.c planner/knap_core.c planner/knap_curve.c planner/knap_dual.c planner/knap_price.c planner/knap_rows.c planner/stage_solve.c planner/solve.c): extra_CFLAGS += $(if $(filter 1,$(DEBUG)),,-O3)
$(call obj,trainer/ops.c trainer/attention.c trainer/optim.c): extra_CFLAGS += $(if $(filter 1,$(DEBUG)),,-O3)
# kernels/cpu is compiled once per instruction set (kernels/cpu/level.h); kernels/table.c checks for what these flags allow.
# -O3 vectorises; -fno-trapping-math and -fno-math-errno give up traps and errno, not one bit of a result.
cpu_LEVELS := base $(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),avx2 avx512)
cpu_FLAGS  := $(if $(filter 1,$(DEBUG)),,-O3) -fno-trapping-math -fno-math-errno
level_FLAGS_avx2   := -mavx2 -mfma
level_FLAGS_avx512 := -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
define cpu_level
$(BUILD)/obj/%.$(1).o: %.c $(BUILD)/flags | $(gen_pb).h
	$$(call say,CC,$$<)
	$$(Q)mkdir -p $$(@D) && $$(CC) $$(CPPFLAGS) -DAGOQK_LEVEL=$(1) $$(CFLAGS) $(cpu_FLAGS) $(level_FLAGS_$(1)) $$(extra_CFLAGS) -MMD -MP -c -o $$@ $$<
endef
$(foreach level,$(cpu_LEVELS),$(eval $(call cpu_level,$(level))))
# These models gather with instructions (three times as fast for tables of levels); elsewhere generic tuning is ahead.
$(BUILD)/obj/kernels/cpu/adam8.avx2.o: extra_CFLAGS := -mtune=haswell
$(BUILD)/obj/kernels/cpu/adam8.avx512.o: extra_CFLAGS := -mtune=icelake-server
# ---- CUDA: machine code for 8.0 (also runs on 8.6 and 8.9) and 9.0, PTX for later chips. --fmad=false: the same bytes as the CPU ----
ARCHS ?= 80 90
PTX   ?= 100
nvcc_FLAGS := -std=c++17 -O3 --fmad=false --Werror all-warnings -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics \
              $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
              $(foreach arch,$(PTX),-gencode arch=compute_$(arch),code=compute_$(arch))
$(BUILD)/obj/%.o: %.cu $(BUILD)/flags
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(nvcc_FLAGS) -I. -Iinclude -MMD -MP -c -o $@ $<
cuda_OBJ := $(if $(filter 1,$(HAVE_NVCC)),$(cuda_SRC:%.cu=$(BUILD)/obj/%.o),$(BUILD)/obj/kernels/cuda/none.o)
cpu_OBJ := $(foreach level,$(cpu_LEVELS),$(cpu_SRC:%.c=$(BUILD)/obj/%.$(level).o))
-include $(patsubst %.c,$(BUILD)/obj/%.d,$(all_SRC)) $(cpu_OBJ:.o=.d) $(cuda_OBJ:.o=.d) $(gpu_TESTS:%=$(BUILD)/obj/tests/gpu/%.d) $(BUILD)/obj/bench/gpu.d

# ---- libraries and programs ----
define archive
$(BUILD)/$(1).a: $(2)
	$$(call say,AR,$$@)
	$$(Q)rm -f $$@ && $$(AR) rcs $$@ $$^
endef
client_OBJ := $(call obj,$(libagoq_SRC) $(kernels_SRC) $(planner_SRC) $(proto_SRC) $(common_SRC)) $(cpu_OBJ) \
              $(cuda_OBJ) $(BUILD)/obj/agoq.pb-c.o
$(eval $(call archive,libcore,$(call obj,$(planner_SRC) $(proto_SRC) $(common_SRC)) $(BUILD)/obj/agoq.pb-c.o))
$(eval $(call archive,libclient,$(client_OBJ)))
codec_SRC  := libagoq/codec.c libagoq/codec_check.c libagoq/codec_grad.c libagoq/status.c common/log.c common/clock.c
$(eval $(call archive,libcodec,$(call obj,$(codec_SRC) $(kernels_SRC)) $(cpu_OBJ) $(cuda_OBJ)))
$(eval $(call archive,libagoqd,$(filter-out %/main.o,$(call obj,$(agoqd_SRC)))))
$(eval $(call archive,libagoqctl,$(filter-out %/main.o,$(call obj,$(agoqctl_SRC)))))
$(eval $(call archive,libtrainer,$(filter-out %/main.o,$(call obj,$(trainer_SRC)))))

libagoq := $(BUILD)/libagoq.so.$(SO_MAJOR)
libagoq_mpi := $(BUILD)/libagoq_mpi.so.$(SO_MAJOR)
$(libagoq): $(client_OBJ) libagoq/libagoq.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,$(@F) -Wl,--version-script=libagoq/libagoq.map -Wl,--no-undefined \
	    -o $@ $(client_OBJ) $(ZMQ_LIBS) $(PB_LIBS) $(LDLIBS) && ln -sf $(@F) $(BUILD)/libagoq.so
$(libagoq_mpi): $(call obj,$(libagoq_mpi_SRC)) $(libagoq) libagoq/libagoq_mpi.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,$(@F) -Wl,--version-script=libagoq/libagoq_mpi.map -Wl,--no-undefined \
	    -Wl,-rpath,'$$ORIGIN' \
	    -o $@ $(call obj,$(libagoq_mpi_SRC)) $(libagoq) $(MPI_LIBS) $(LDLIBS) && ln -sf $(@F) $(BUILD)/libagoq_mpi.so
$(BUILD)/agoqd: $(BUILD)/obj/agoqd/main.o $(BUILD)/libagoqd.a $(BUILD)/libcore.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(ZMQ_LIBS) $(PB_LIBS) $(YAML_LIBS) $(LDLIBS)
$(BUILD)/agoqctl: $(BUILD)/obj/agoqctl/main.o $(BUILD)/libagoqctl.a $(BUILD)/libagoqd.a $(BUILD)/libcore.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(ZMQ_LIBS) $(PB_LIBS) $(YAML_LIBS) $(LDLIBS)
$(BUILD)/agoq-train: $(BUILD)/obj/trainer/main.o $(BUILD)/libtrainer.a $(libagoq) $(libagoq_mpi)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' -o $@ $^ $(MPI_LIBS) $(BLAS_LIBS) $(LDLIBS)

programs := $(if $(agoqd_SRC),$(BUILD)/agoqd) $(if $(agoqctl_SRC),$(BUILD)/agoqctl) \
            $(if $(trainer_SRC),$(BUILD)/agoq-train)
all: $(if $(libagoq_SRC),$(libagoq)) $(if $(libagoq_mpi_SRC),$(libagoq_mpi)) $(programs)

# ---- tests ----
unit_BIN := $(unit_TESTS:%=$(BUILD)/tests/unit/%)
api_BIN  := $(api_TESTS:%=$(BUILD)/tests/api/%)
mpi_BIN  := $(mpi_TESTS:%=$(BUILD)/tests/mpi/%)
tool_BIN := $(test_TOOLS:%=$(BUILD)/tests/tools/%)
full_BIN := $(full_TESTS:%=$(BUILD)/tests/full/%)
test_link = $(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../..' -o $@ -Wl,--start-group \
            $(filter %.o %.a %.so.$(SO_MAJOR),$^) -Wl,--end-group \
            $(CMOCKA_LIBS) $(ZMQ_LIBS) $(PB_LIBS) $(YAML_LIBS) $(LDLIBS)
# Some tests name one more archive here: `$(BUILD)/tests/unit/test_X: $(BUILD)/libagoqd.a`.
$(BUILD)/tests/unit/test_yaml $(BUILD)/tests/unit/test_conf: $(BUILD)/libagoqd.a
$(BUILD)/tests/unit/test_server $(BUILD)/tests/unit/test_answer $(BUILD)/tests/unit/test_groups $(BUILD)/tests/unit/test_state $(BUILD)/tests/unit/test_held $(BUILD)/tests/unit/test_cycle $(BUILD)/tests/unit/test_budgets $(BUILD)/tests/unit/test_core $(BUILD)/tests/unit/test_core_budget $(BUILD)/tests/unit/test_core_past $(BUILD)/tests/unit/test_core_hello $(BUILD)/tests/unit/test_core_ranks: $(BUILD)/libagoqd.a
$(BUILD)/tests/unit/test_agoqctl $(BUILD)/tests/unit/test_agoqctl_client $(BUILD)/tests/unit/test_agoqctl_plan $(BUILD)/tests/unit/test_sim_hf $(BUILD)/tests/unit/test_sim_input: $(BUILD)/libagoqctl.a $(BUILD)/libagoqd.a
$(trainer_UNIT:%=$(BUILD)/tests/unit/%): $(BUILD)/libtrainer.a
$(trainer_UNIT:%=$(BUILD)/tests/unit/%): test_LIBS = $(BLAS_LIBS)
$(BUILD)/tests/unit/test_trainer_limits: $(call obj,$(filter libagoq/%,$(libagoq_mpi_SRC)))
$(BUILD)/tests/unit/test_trainer_limits: test_LIBS = $(MPI_LIBS) $(BLAS_LIBS)
$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libclient.a
	$(call say,LD,$@)
	$(test_link) $(test_LIBS)
walkers := test_exhaustive test_exhaustive_int
$(walkers:%=$(BUILD)/tests/full/%): $(foreach level,$(cpu_LEVELS),$(BUILD)/obj/tests/full/walk.$(level).o)
-include $(foreach level,$(cpu_LEVELS),$(BUILD)/obj/tests/full/walk.$(level).d)
$(BUILD)/tests/full/%: $(BUILD)/obj/tests/full/%.o $(BUILD)/libclient.a
	$(call say,LD,$@)
	$(test_link) $(test_LIBS)
$(BUILD)/tests/tools/%: $(BUILD)/obj/tests/tools/%.o $(BUILD)/libcore.a
	$(call say,LD,$@)
	$(test_link)
$(BUILD)/tests/api/%: $(BUILD)/obj/tests/api/%.o $(libagoq)
	$(call say,LD,$@)
	$(test_link)
# Internals of libagoq_mpi.so are hidden in it, so its objects are linked as well.
$(BUILD)/tests/mpi/%: $(BUILD)/obj/tests/mpi/%.o $(call obj,$(libagoq_mpi_SRC)) $(libagoq)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../..' -o $@ $^ $(MPI_LIBS) $(LDLIBS)
$(mpi_BENCH:%=$(BUILD)/bench/%): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(libagoq_mpi) $(libagoq)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ $(MPI_LIBS) $(LDLIBS)
$(plain_BENCH:%=$(BUILD)/bench/%): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libclient.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
.SECONDARY:

# ---- GPU: nothing here is part of `make test` ----
gpu_BIN := $(gpu_TESTS:%=$(BUILD)/tests/gpu/%) $(BUILD)/bench/gpu
$(BUILD)/obj/tests/gpu/%.o $(BUILD)/obj/bench/gpu.o: extra_CFLAGS = $(CUDA_CFLAGS) -Wno-unused-function
$(gpu_BIN): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/libcodec.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
gpu-bin: $(gpu_BIN)
test-gpu: gpu-bin
	@BUILD=$(BUILD) tools/test_gpu.sh
bench: $(BUILD)/bench/kernels
	@$(BUILD)/bench/kernels --commit $$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) --out $(BUILD)/kernels_cpu.jsonl \
	    --claims $(BUILD)/kernels_cpu.json && echo "$(BUILD)/kernels_cpu.jsonl: one line a row"
bench-gpu: $(BUILD)/bench/gpu
	@$(BUILD)/bench/gpu --commit $$(git rev-parse --short HEAD) --out $(BUILD)/kernels_gpu.json

fuzz_BIN := $(fuzz_TARGETS:%=$(BUILD)/tests/fuzz/%)
$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/libagoqd.a $(BUILD)/libagoqctl.a $(BUILD)/libclient.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $< -Wl,--start-group $(filter-out $<,$^) -Wl,--end-group \
	    $(ZMQ_LIBS) $(PB_LIBS) $(YAML_LIBS) $(LDLIBS)

tests-bin: $(unit_BIN) $(api_BIN) $(mpi_BIN) $(tool_BIN)
print-units:
	@echo $(unit_TESTS)
print-apis:
	@echo $(api_TESTS)
print-fuzz:
	@echo $(fuzz_TARGETS)
test: all tests-bin
	@BUILD=$(BUILD) tools/run_tests.sh $(unit_BIN) $(api_BIN) $(system_TESTS)
test-full: all tests-bin $(full_BIN)
	@BUILD=$(BUILD) AGOQ_TEST_LIMIT=3600 tools/run_tests.sh $(unit_BIN) $(api_BIN) $(full_BIN) $(system_TESTS) $(system_full_TESTS)

demo: all
	@BUILD=$(BUILD) tools/demo.sh

# ---- install: DESTDIR for packagers, PREFIX for people; an existing configuration is kept ----
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
to = $(DESTDIR)$(1)
fill = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' \
    -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' -e 's|@DATADIR@|$(DATADIR)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' \
    -e 's|@VERSION@|$(VERSION)|g' $(1) > $(2) && chmod 644 $(2)
install: all
	install -d $(call to,$(BINDIR)) $(call to,$(LIBDIR)/pkgconfig) $(call to,$(INCLUDEDIR)/agoq) $(call to,$(UNITDIR)) \
	    $(call to,$(DATADIR)/agoq) $(call to,$(DATADIR)/doc/agoq) $(call to,$(PREFIX)/lib/sysusers.d) $(call to,$(SYSCONFDIR)/agoq)
	install -m 755 $(programs) $(call to,$(BINDIR))
	for lib in libagoq libagoq_mpi; do \
	    install -m 644 $(BUILD)/$$lib.so.$(SO_MAJOR) $(call to,$(LIBDIR))/$$lib.so.$(VERSION) && \
	    ln -sf $$lib.so.$(VERSION) $(call to,$(LIBDIR))/$$lib.so.$(SO_MAJOR) && \
	    ln -sf $$lib.so.$(SO_MAJOR) $(call to,$(LIBDIR))/$$lib.so || exit 1; \
	done
	install -m 644 include/agoq/*.h $(call to,$(INCLUDEDIR)/agoq)
	for pc in agoq agoq_mpi; do $(call fill,deploy/$$pc.pc.in,$(call to,$(LIBDIR)/pkgconfig)/$$pc.pc) || exit 1; done
	$(call fill,deploy/agoqd.service.in,$(call to,$(UNITDIR)/agoqd.service))
	install -m 644 deploy/agoq.sysusers $(call to,$(PREFIX)/lib/sysusers.d/agoq.conf)
	install -m 755 deploy/agoq.slurm $(call to,$(DATADIR)/agoq)
	for folder in $(wildcard config/models config/clusters); do cp -R $$folder $(call to,$(DATADIR)/agoq) || exit 1; done
	install -m 644 $(wildcard README.md docs/*.md) $(call to,$(DATADIR)/doc/agoq)
	[ -e $(call to,$(SYSCONFDIR)/agoq/agoqd.yaml) ] || install -m 644 config/agoqd.yaml $(call to,$(SYSCONFDIR)/agoq)

# ---- the rest ----
deps:
	@AGOQ_MAY_INSTALL=1 CUDA=$(CUDA) tools/configure.sh > /dev/null
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
lint: all
	@tools/lint.sh $(BUILD)
clean:
	rm -rf $(BUILD)
